"""Every term of some hundred estimates, as it was before the cost model's formulas were written over rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.estimate_goldens import KEPT, PROBLEMS, STACKS, compact, priced, read

ROWS: list[list[Any]] = json.loads(KEPT.read_text())


@pytest.mark.parametrize("problem", range(len(PROBLEMS)), ids=["-".join(map(str, name[:3])) for name in PROBLEMS])
def test_terms_are_those_that_were_kept(problem: int) -> None:
    rows = [row for row in ROWS if row[0] == problem]
    assert len(rows) >= 30
    for _, stack, strategy, kept in rows:
        assert compact(priced(problem, stack, read(strategy))) == pytest.approx(kept, rel=1e-9, abs=1e-12)


def test_rows_cover_what_formulas_branch_on() -> None:
    strategies = [read(row[2]) for row in ROWS]
    assert {one.schedule for one in strategies} == {"1f1b", "interleaved", "gpipe", "zero_bubble"}
    assert {one.zero for one in strategies} == {0, 1, 2, 3} and {row[1] for row in ROWS} == set(range(len(STACKS)))
    for choice in ("cp", "ep", "pp", "num_virtual_stages"):
        assert {getattr(one, choice) > 1 for one in strategies} == {True, False}
    assert {one.uniform_recompute is None for one in strategies} == {True, False}
