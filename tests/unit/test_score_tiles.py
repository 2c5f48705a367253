"""Tiles of scores: what is planned for the largest holds for those that the torch backend computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoshard.graph import score_tiles
from autoshard.graph.score_tiles import most_scores, tile_rows
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
    """4,096 scores at once. 2 heads of 200 tokens: 10 rows. 1 head of 32: all. 1 of 300: of those partly hidden no more
    than a quarter, if that is more than 64, and no more than 13."""
    assert tile_rows(2, 200) == (10, 10)
    assert tile_rows(1, 32) == (32, 32)
    assert tile_rows(1, 300) == (13, 13)
    assert tile_rows(64, 300) == (1, 1)
    assert most_scores(2, 200, 1000) == LIMIT
    assert most_scores(64, 300, 1000) == 64 * 300, "one row of all heads is the least"
    assert most_scores(1, 32, 1000) == 32 * 32


@given(
    kind=st.sampled_from(["ring", "zigzag_ring"]), ranks=st.integers(2, 4), heads=HEADS, length=LENGTHS, window=WINDOWS
)
def test_no_tile_has_more_scores_than_planned(kind: str, ranks: int, heads: int, length: int, window: int) -> None:
    pieces = sequence_pieces(kind, ranks)
    window = min(window, length * len(pieces))
    most = 0
    for rank in range(ranks):
        group: Any = SimpleNamespace(size=ranks, index=rank)
        ring = Ring(group, pieces, length, window)
        for source in range(ranks):
            for tile in _tiles(ring, source, heads, torch.device("cpu")):
                rows, columns = (part.stop - part.start for part in (tile.rows, tile.columns))
                most = max(most, heads * rows * columns)
    assert most <= most_scores(heads, length, window)


@given(heads=HEADS, length=LENGTHS, window=WINDOWS)
def test_a_zigzag_has_no_larger_tiles_than_a_ring(heads: int, length: int, window: int) -> None:
    """Its pieces are half as long: `planner/dominated.py` counts on it. More heads have no smaller ones."""
    tile = most_scores(heads, length, window)
    assert most_scores(heads, length / 2, window) <= tile <= most_scores(2 * heads, length, window)
