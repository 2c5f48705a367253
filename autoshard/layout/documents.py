"""Keep documents apart if several of them share a row.

The graph gets one more input: for each place of a row, where its document begins. A query sees the keys from there to
itself, and learned positions count from there, as do those whose logarithm scales queries (rotary ones only tell
distances: they are the same either way). Where an indexer chooses keys, it chooses among those, and attention sees what
it chose. Convolutions, recurrences and n-grams begin anew there. Every rank has the whole rows of its sequences, so
nothing more is communicated, however ranks share a sequence.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.graph.ir import INDEX_BYTES, Graph, Operator, Tensor
from autoshard.graph.operator_kind import DOCUMENT_STARTS
from autoshard.graph.recurrent_kinds import RECURRENCES

_READERS = ("attention", "choose_keys", "position_embedding", "log_scale", "hash_ngrams", *RECURRENCES)


def with_documents(graph: Graph) -> Graph:
    """The graph whose operators that mix tokens, indexers and learned positions read one more input, DOCUMENT_STARTS
    [batch, row]."""

    def told(op: Operator) -> Operator:
        if op.kind not in _READERS or op.attributes.get("chosen"):
            return op
        return replace(op, inputs=(*op.inputs, DOCUMENT_STARTS), attributes={**op.attributes, "documents": True})

    starts = Tensor(DOCUMENT_STARTS, ("batch", "row"), "input", INDEX_BYTES, differentiable=False)
    sizes = {**graph.sizes, "row": graph.sizes["seq"]}
    return replace(
        graph,
        sizes=sizes,
        tensors={**graph.tensors, DOCUMENT_STARTS: starts},
        operators=tuple(map(told, graph.operators)),
    )
