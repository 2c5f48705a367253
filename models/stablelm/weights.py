"""The names and the form of our parameters in Hugging Face checkpoints of StableLM, which has a norm for each head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from autoshard.models.cohere2 import weights as cohere2
from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends"]

NORMS = {"q_norm": "q_layernorm", "k_norm": "k_layernorm"}
"""Ours -> theirs."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    for part in (cohere2 if model.use_parallel_residual else llama).block(model, layer):
        name, module, _ = part.tensor.rsplit(".", 2)
        if module in NORMS:
            yield from _norms_of_heads(model, part, f"{name}.{NORMS[module]}.norms")
        else:
            yield part


def _norms_of_heads(model: ModelSpec, whole: Part, name: str) -> Iterator[Part]:
    """The parts for the norms of all heads. whole: all weights as one part. name: of the norms in the checkpoint."""
    heads, (width,) = whole.groups
    counts = dict(zip(model.heads[0].query_dims, (model.num_key_value_heads, model.num_query_groups), strict=False))
    for number, at in enumerate(product(*(range(counts[dim]) for dim in heads))):
        yield Part(f"{name}.{number}.weight", width, whole.parameter, at=tuple(zip(heads, at, strict=True)))
