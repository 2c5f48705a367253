"""Add dropout to a graph. A transformer drops activations at the same places in every family."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.graph.operator_kind import SEQUENCE_KEYS
from autoshard.spec.model import ModelSpec


def dropped_embedding(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append what the model does to the embedding x, and return the output: it may scale and drop it.

    name: of the dropout operator.
    """
    if model.multipliers is not None:
        x = b.scaled("model.embedding_multiplier", x, model.multipliers.embedding_multiplier)
    return _dropped(b, name, x, model.dropout.embedding)


def residual(b: GraphBuilder, model: ModelSpec, name: str, x: str, *branches: tuple[str, str]) -> str:
    """Append x + every branch, of which some is dropped and which some models scale, and return the sum's name. x:
    [batch, seq, embed].

    branches: (the tensor that is added, the name of its dropout operator).
    """
    b.module = "residual"
    added = [dropped_branch(b, model, *branch) for branch in branches]
    if model.multipliers is None:
        return b.elementwise("add", name, x, *added)
    return b.elementwise("add", name, x, *added, alpha=model.multipliers.residual_multiplier)


def dropped_branch(b: GraphBuilder, model: ModelSpec, branch: str, name: str) -> str:
    """Append the dropout of what a part of a block gives, and return the output. name: of the dropout operator."""
    return _dropped(b, name, branch, model.dropout.residual)


def sequence_keys(b: GraphBuilder) -> str:
    """Add the input that every dropout reads, and return its name: a random key for each sequence."""
    return b.index_input(SEQUENCE_KEYS, "batch")


def _dropped(b: GraphBuilder, name: str, x: str, rate: float) -> str:
    dims = b.dims(x)
    return b.operator("dropout", name, (x, sequence_keys(b)), dims, dims, rate=rate) if rate else x
