"""The tiles of scores in which the torch backend computes attention that torch's fused kernels do not know."""

from __future__ import annotations

SCORES_AT_ONCE = 2**24
"""The most scores that are held at one time, elements: 64 MiB in FP32."""
FEWEST_ROWS = 64
"""The fewest rows of a tile that is partly hidden. Fewer rows would compute fewer scores in vain, but with more
operators."""


def tile_rows(heads: int, length: int) -> tuple[int, int]:
    """(rows of a tile all of which is seen, rows of one that is partly hidden). heads: of all sequences of a
    microbatch. length: of a piece of the sequence, tokens."""
    at_once = max(1, min(length, SCORES_AT_ONCE // (heads * length)))
    return at_once, min(at_once, max(FEWEST_ROWS, length // 4))


def most_scores(heads: float, length: float, window: float) -> float:
    """Scores of the largest tile, at most, elements: no fewer with more heads. window: the most keys that a query sees.
    Other arguments are those of `tile_rows`."""
    sees_all = window >= 2 * length  # of the piece in front of the query's own
    rows = length if sees_all else min(length, max(FEWEST_ROWS, length / 4))
    columns = min(length, window + rows)
    return max(heads * columns, min(SCORES_AT_ONCE, heads * rows * columns))
