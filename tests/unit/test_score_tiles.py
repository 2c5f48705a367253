"""Tiles of scores: what is planned for the largest holds for those that the torch backend computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoshard.graph import score_tiles
from autoshard.graph.score_tiles import most_scan_scores, most_scores, scan_tile, tile_rows
from autoshard.layout.context_parallel import sequence_pieces
from autoshard.runtime.torch_backend.ring_attention import Ring, _tiles

LIMIT = 2**12
HEADS = st.integers(1, 64)
LENGTHS = st.integers(1, 300)
WINDOWS = st.integers(1, 1500)


@pytest.fixture(autouse=True, scope="module")
def few_at_once() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_tiles, "SCORES_AT_ONCE", LIMIT)
        yield


def test_rows_of_tiles_by_hand() -> None:
    """4,096 scores at once: 10 rows of 2 heads of 200 tokens, 5 of each of two sequences. 1 head of 32: all rows. One
    row is the least. With 16 times as many at once, of those partly hidden no more than 64 or a quarter."""
    assert tile_rows(2, 200, 1) == (10, 10)
    assert tile_rows(2, 200, 2) == (5, 5)
    assert tile_rows(1, 32, 1) == (32, 32)
    assert tile_rows(64, 300, 4) == (1, 1)
    assert most_scores(2, 200, 1000) == LIMIT
    assert most_scores(1, 32, 1000) == 32 * 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_tiles, "SCORES_AT_ONCE", 16 * LIMIT)
        assert tile_rows(1, 200, 1) == (200, 64)
        assert tile_rows(1, 200, 2) == (100, 32)
        assert tile_rows(1, 400, 1) == (163, 100)


def test_tiles_of_a_scan_by_hand() -> None:
    """4,096 scores at once: 4 of 8 heads with 1,000 each; three of 5 groups of 2 heads with 600; all; one head, however
    many it has."""
    assert scan_tile(1, 8, 1000) == (1, 4)
    assert scan_tile(5, 2, 600) == (3, 2)
    assert scan_tile(5, 2, 100) == (5, 2)
    assert scan_tile(5, 2, 5000) == (1, 1)
    assert [most_scan_scores(heads, 1000) for heads in (2, 8)] == [2000, LIMIT]
    assert most_scan_scores(8, 5000) == 5000


@given(groups=st.integers(1, 9), heads=HEADS, scores=st.integers(1, 2 * LIMIT))
def test_no_tile_of_a_scan_has_more_scores_than_planned(groups: int, heads: int, scores: int) -> None:
    some_groups, some_heads = scan_tile(groups, heads, scores)
    assert 1 <= some_groups <= groups and 1 <= some_heads <= heads and (some_groups == 1 or some_heads == heads)
    assert some_groups * some_heads * scores <= most_scan_scores(groups * heads, scores)


@given(
    kind=st.sampled_from(["ring", "zigzag_ring"]),
    ranks=st.integers(2, 4),
    heads=HEADS,
    sequences=st.integers(1, 4),
    length=LENGTHS,
    window=WINDOWS,
)
def test_no_tile_has_more_scores_than_planned(
    kind: str, ranks: int, heads: int, sequences: int, length: int, window: int
) -> None:
    pieces = sequence_pieces(kind, ranks)
    window = min(window, length * len(pieces))
    one_row = sequences * heads * length
    for rank in range(ranks):
        group: Any = SimpleNamespace(size=ranks, index=rank)
        ring = Ring(group, pieces, length, window)
        for source in range(ranks):
            for tile in _tiles(ring, source, heads, sequences, torch.device("cpu")):
                rows, columns = (part.stop - part.start for part in (tile.rows, tile.columns))
                scores = sequences * heads * rows * columns
                assert scores <= max(one_row, most_scores(heads, length, window))


@given(heads=HEADS, length=LENGTHS, window=WINDOWS)
def test_a_zigzag_has_no_larger_tiles_than_a_ring(heads: int, length: int, window: int) -> None:
    """Its pieces are half as long: `planner/dominated.py` counts on it."""
    assert most_scores(heads, length / 2, window) <= most_scores(heads, length, window)
