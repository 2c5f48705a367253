"""The tiles of scores in which the torch backend computes attention that torch's fused kernels do not know, in which
an indexer chooses keys or entries, and in which a state space is scanned.

A tile of several sequences has as many scores as one of a single sequence, but for a scan: what it takes does not grow
with the microbatch.
"""

from __future__ import annotations

SCORES_AT_ONCE = 2**24
"""The most scores that are held at one time, elements: 64 MiB in FP32."""
FEWEST_ROWS = 64
"""The fewest rows of a tile that is partly hidden, of a single sequence. Fewer rows would compute fewer scores in vain,
but with more operators."""


def tile_rows(heads: int, length: int, sequences: int) -> tuple[int, int]:
    """(rows of a tile all of which is seen, rows of one that is partly hidden). heads: of one sequence. length: of a
    piece of it, tokens. sequences: of a microbatch."""
    at_once = min(length, SCORES_AT_ONCE // (heads * length))
    few = min(at_once, max(FEWEST_ROWS, length // 4))
    return max(1, at_once // sequences), max(1, few // sequences)


def most_scores(heads: float, length: float, window: float) -> float:
    """Scores of the largest tile, at most, elements, where a tile has more than one row. window: the most keys that a
    query sees. Other arguments are those of `tile_rows`."""
    sees_all = window >= 2 * length  # of the piece in front of the query's own
    rows = length if sees_all else min(length, max(FEWEST_ROWS, length / 4))
    columns = min(length, window + rows)
    return min(SCORES_AT_ONCE, heads * rows * columns)


MOST_OF_A_MASK = SCORES_AT_ONCE
"""The most numbers of a mask. Where queries see few keys, tiles take less time than a kernel that reads a mask: on CPU
0.6 of it for a window of 1,024 among 4,096 keys, a tenth among 16,384."""
MOST_OF_A_MASK_ON_GPU = 2**28
"""There what reads a mask is a fast kernel, and tiles are not: a guess of how long that pays. Windows need no mask
there, but those of documents do."""


def most_of_a_mask(on_gpu: bool) -> int:
    """Numbers of a mask, at most, that the torch backend makes for flash attention; beyond, it computes in tiles."""
    return MOST_OF_A_MASK_ON_GPU if on_gpu else MOST_OF_A_MASK


CHOICE_TILES = 32
"""Tiles of an indexer's queries: the last keys of each lie behind its first queries, and are scored in vain."""


def choice_tile(heads: int, length: int, queries: int, sequences: int) -> tuple[int, int]:
    """(queries of a tile, heads that are scored at once) of an indexer. heads: of it. length: of a sequence, tokens.
    queries: of a sequence, that a rank has. sequences: of a microbatch."""
    most = SCORES_AT_ONCE // (sequences * length)
    rows = max(1, min(most, queries, max(FEWEST_ROWS, queries // CHOICE_TILES)))
    return rows, max(1, min(heads, most // rows))


def most_choice_scores(heads: float, length: float, queries: float) -> float:
    """Scores of an indexer that are held at one time, at most, elements. Arguments are those of `choice_tile`."""
    return min(SCORES_AT_ONCE, heads * length * min(queries, max(FEWEST_ROWS, queries / CHOICE_TILES)))


def scan_tile(groups: int, heads: int, scores: int) -> tuple[int, int]:
    """(groups of heads, heads of a group) that a state space is scanned for at once: several whole groups, or some
    heads of one. heads: of a group. scores: pairs of tokens in a chunk, of one head and sequence.

    All sequences of a microbatch are scanned together: of few heads each, they would be more operators.
    """
    at_once = min(groups * heads, max(1, SCORES_AT_ONCE // scores))
    return (at_once // heads, heads) if at_once >= heads else (1, at_once)


def most_scan_scores(heads: float, scores: float) -> float:
    """Scores of each sequence's scan that are held at one time, at most, elements. heads: of all groups. scores: as in
    `scan_tile`."""
    return max(scores, min(SCORES_AT_ONCE, heads * scores))


def compressed_tile(rows: int, window: int, entries: int, length: int) -> tuple[int, int]:
    """(queries of a tile, keys and entries that they see at most) of compressed attention. rows: heads of all sequences
    that a rank has. window: keys that a query sees. length: of a sequence's queries on a rank, tokens.

    A tile of as many queries as a window has keys computes half of the window's scores in vain.
    """
    most = min(length, max(FEWEST_ROWS, window))
    queries = max(1, min(most, SCORES_AT_ONCE // (rows * (window + most + entries))))
    return queries, window + queries + entries
