"""The names and the form of our parameters in Hugging Face checkpoints of Mamba and Falcon Mamba."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.jamba.weights import state_space
from autoshard.models.llama.weights import norms
from autoshard.models.nemotron_h.graph import TABLE
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"backbone.layers.{layer}"
    yield from norms(model, f"{prefix}.norm")
    yield from state_space(model, f"{prefix}.mixer")


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same(TABLE, "vocab embed")
    yield from norms(model, "backbone.norm_f")
    if not model.tie_word_embeddings:
        yield Part.same("lm_head.weight", "vocab embed")
