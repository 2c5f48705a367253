"""Shrink a traced model for a rehearsal: the same operators over narrower dims."""

from __future__ import annotations

from dataclasses import replace

from autoshard.spec.traced import TracedGraph, TracedOperator

LEAST_WIDTH = 32
"""Inner dims stay divisible by every axis of a rehearsal."""


def shrunk(graph: TracedGraph, hidden_ratio: float, sliding_window: int | None, top_k: int) -> TracedGraph:
    """The graph with narrower dims. hidden_ratio: new width of the residual stream over the old one.

    Inner dims keep their ratio to it. Heads keep their width, so that rotary positions stay the same.
    """

    def narrow(name: str, size: int) -> int:
        width = round(size * hidden_ratio / LEAST_WIDTH) * LEAST_WIDTH
        return max(LEAST_WIDTH, width) if name.startswith("ffn") else max(1, min(size, width))

    return replace(
        graph,
        sizes=tuple((name, narrow(name, size)) for name, size in graph.sizes),
        block=tuple(_adapted(op, sliding_window, top_k) for op in graph.block),
        embedding=tuple(_adapted(op, sliding_window, top_k) for op in graph.embedding),
        head=tuple(_adapted(op, sliding_window, top_k) for op in graph.head),
    )


def _adapted(op: TracedOperator, sliding_window: int | None, top_k: int) -> TracedOperator:
    changed = dict(op.attributes)
    if changed.get("sliding_window") is not None:
        changed["sliding_window"] = sliding_window
    if "top_k" in changed:
        changed["top_k"] = top_k
    return replace(op, attributes=tuple(changed.items()))
