"""How ranks that share a sequence attend to each other's part of it, and which part each rank has.

| kind        | a rank gets the other parts by                                   | order of the sequence |
|-------------|------------------------------------------------------------------|-----------------------|
| all_gather  | gathering keys and values before attention                       | unchanged             |
| ring        | passing pieces of keys and values around (NxD's ring attention)  | unchanged             |
| zigzag_ring | the same                                                         | zigzag                |
| ulysses     | exchanging the sequence for the heads, and back behind attention | unchanged             |

Under a causal mask the rank with the end of the sequence has most to do. Zigzag cuts the sequence into twice as many
pieces as ranks and gives rank r the pieces r and 2 ranks - 1 - r: then all ranks do the same amount. The graph's dim
`seq` is in that order from the token ids to the labels; only positions, the mask and the queues of experts know of it.
"""

from __future__ import annotations

from dataclasses import replace

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.recurrent_kinds import RECURRENCES

CONTEXT_PARALLEL = ("zigzag_ring", "ring", "ulysses", "all_gather")
"""The kinds, the planner's first choice first; a backend may lack some."""
RINGS = ("zigzag_ring", "ring")
UNUSED = "all_gather"
"""The kind of a layout with cp=1: nothing is gathered."""

_POSITIONED = (
    *("rope", "position_embedding", "attention", "dropout", "dispatch", "combine", "position_scale"),
    *("scaled_rope", "log_scale", "hash_ngrams"),
    *RECURRENCES,
)


def sequence_pieces(kind: str, cp: int) -> tuple[int, ...]:
    """The order of the sequence's equal pieces: rank r of cp holds the r-th of cp equal parts of this list.

    4 ranks in zigzag: (0, 7, 1, 6, 2, 5, 3, 4), of which rank 1 holds pieces 1 and 6.
    """
    if kind != "zigzag_ring":
        return tuple(range(cp))
    return tuple(piece for rank in range(cp) for piece in (rank, 2 * cp - 1 - rank))


def with_context_parallel(graph: Graph, kind: str, cp: int) -> Graph:
    """The graph with attention that shares sequences in this way, and with positions in the order of the pieces.

    kind: one of CONTEXT_PARALLEL. cp: ranks that share a sequence.
    """
    if cp == 1 or kind == UNUSED:
        return graph
    pieces = sequence_pieces(kind, cp)

    def told(op: Operator) -> Operator:
        more: dict[str, object] = {"sequence_pieces": pieces}
        if op.kind == "attention":
            more["context_parallel"] = kind
        return replace(op, attributes={**op.attributes, **more})

    operators = tuple(told(op) if op.kind in _POSITIONED else op for op in graph.operators)
    return replace(graph, operators=operators)
