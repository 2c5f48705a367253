"""Which operators of a graph run again in backward, and what keeps their activations meanwhile."""

from __future__ import annotations

from itertools import pairwise

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operators import KINDS
from autoshard.graph.recompute import block_of, is_recomputed

KEPT = 0
"""The store of what lives from forward to backward; each replayed segment has one of its own."""


class Replay:
    """Segments of operators under a named recompute set, as graph/recompute.py cuts a program's steps."""

    def __init__(self, graph: Graph, recompute: str):
        self._positions = {op.name: index for index, op in enumerate(graph.operators)}
        self._outputs = {op.output: index for index, op in enumerate(graph.operators)}
        keys = [block_of(op.name) if is_recomputed(op, recompute) else None for op in graph.operators]
        self._stores = [KEPT] * len(keys)
        self._replayed = [False] * len(keys)
        cuts = [index for index in range(len(keys)) if index == 0 or keys[index] != keys[index - 1]] + [len(keys)]
        for number, (start, stop) in enumerate(pairwise(cuts), start=1):
            if keys[start] is not None:
                self._stores[start:stop] = [number] * (stop - start)
                end = _replay_stop(graph, start, stop)
                self._replayed[start:end] = [True] * (end - start)

    def position(self, op: Operator) -> int:
        return self._positions[op.name]

    def store(self, position: int) -> int:
        return self._stores[position]

    def is_replayed(self, position: int) -> bool:
        return position >= 0 and self._replayed[position]

    def crosses(self, name: str, position: int) -> bool:
        """Whether the reader at this position is replayed and the tensor comes from outside its segment."""
        store = self._stores[position]
        producer = self._outputs.get(name)
        return store != KEPT and (producer is None or self._stores[producer] != store)


def _replay_stop(graph: Graph, start: int, stop: int) -> int:
    """One past the last operator that runs again: nothing behind the last saved tensor does."""
    for index in range(stop - 1, start - 1, -1):
        op = graph.operators[index]
        kind = KINDS[op.kind]
        sizes = {dim: float(size) for dim, size in graph.sizes.items()}
        if kind.saves_output(op) or kind.extra_saved(op, graph, sizes):
            return index + 1
        if any(graph.tensors[op.inputs[one]].role != "parameter" for one in kind.saved_inputs(op, graph)):
            return index
    return start
