"""Where a transformer drops activations while it is trained, the same places in every family."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.graph.operators import SEQUENCE_KEYS
from autoshard.spec.model import ModelSpec


def dropped_embedding(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """x, of which some is dropped; itself where the model drops nothing there. name: of the dropout."""
    return _dropped(b, name, x, model.dropout.embedding)


def residual(b: GraphBuilder, model: ModelSpec, name: str, x: str, *branches: tuple[str, str]) -> str:
    """x + every branch, of which some is dropped. branches: (what is added, the name of its dropout)."""
    b.module = "residual"
    return b.elementwise("add", name, x, *(_dropped(b, drop, one, model.dropout.residual) for one, drop in branches))


def sequence_keys(b: GraphBuilder) -> str:
    """The input that all dropout reads."""
    return b.index_input(SEQUENCE_KEYS, "batch")


def _dropped(b: GraphBuilder, name: str, x: str, rate: float) -> str:
    dims = b.dims(x)
    return b.operator("dropout", name, (x, sequence_keys(b)), dims, dims, rate=rate) if rate else x
