"""All checks of a model, in their order: what each field is by itself, then what the fields say of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.spec.checks.attention import check_attention
from autoshard.spec.checks.blocks import check_blocks
from autoshard.spec.checks.experts import check_experts
from autoshard.spec.checks.family import check_family
from autoshard.spec.checks.fields import check_fields
from autoshard.spec.checks.graph import check_graph
from autoshard.spec.checks.indexers import check_indexers
from autoshard.spec.checks.other_blocks import check_other_blocks
from autoshard.spec.checks.words import check_words

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_model(model: ModelSpec) -> None:
    """Raises AutoshardError with the first thing that is wrong with a model."""
    check_fields(model)
    check_family(model)
    check_words(model)
    check_attention(model)
    check_indexers(model)
    check_experts(model)
    check_blocks(model)
    check_other_blocks(model)
    check_graph(model)
