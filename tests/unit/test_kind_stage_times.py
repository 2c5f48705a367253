"""Stages of blocks of several kinds for several layouts at once: never above what each takes alone.

`AUTOSHARD_INSTANCES=2000 python -m pytest -q tests/unit/test_kind_stage_times.py` tries so many.
"""

from __future__ import annotations

import os
import random
from math import inf

import numpy as np
import pytest

from autoshard.planner.grid.kind_stage_rooms import stages_at_least
from autoshard.planner.grid.kind_stage_times import AlternatingTimes, WeightsApartTimes
from autoshard.planner.grid.kind_stages import ranges, stages_of
from autoshard.planner.grid.refine import refine
from autoshard.planner.grid.whole import Whole
from tests.cases import ALL
from tests.unit.kind_models import FindLayout, random_layout, random_wide_layout, table_of

INSTANCES = int(os.environ.get("AUTOSHARD_INSTANCES", "40" if ALL else "5"))
ROUNDING = 1e-9


def several_drafts(seed: int, schedule: str, find: FindLayout = random_layout) -> tuple[Whole, float]:
    """Layouts of one family that differ in ZeRO and in microbatches, and a limit of bytes that some may meet."""
    problem, draft = find(seed, (schedule,))
    table = table_of(problem, draft)
    for zero in (1,) if schedule == "zero_bubble" else (0, 1, 2, 3):
        for size in (1, 2):
            is_whole = problem.training.global_batch_size % (draft.dp * size) == 0
            if is_whole and (zero, size) != (draft.zero, draft.microbatch_size):
                table.add(draft._replace(zero=zero, microbatch_size=size))
    (priced,) = table.price()
    limit_bytes = random.Random(seed).uniform(0.9 * priced.memory_bytes.min(), 1.02 * priced.memory_bytes.max())
    return priced.whole, limit_bytes


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
@pytest.mark.parametrize("seed", range(INSTANCES))
def test_stages_by_the_needs_of_blocks_are_no_slower(seed: int, schedule: str) -> None:
    whole, limit_bytes = several_drafts(seed, schedule)
    drafts = np.arange(len(whole.drafts.drafts))
    sets = [whole.useful_sets(draft) for draft in drafts.tolist()]
    found = ranges(whole.problem.blocks, whole.problem.model.num_hidden_layers, in_order=True)
    exact, least = (find(whole, drafts, sets, limit_bytes, found) for find in (stages_of, stages_at_least))
    assert (least.backward_s <= exact.backward_s * (1 + ROUNDING)).all()
    fit = np.isfinite(exact.backward_s)
    for name in ("forward_s", "after_s", "weights_s"):
        assert getattr(least, name)[fit] == pytest.approx(getattr(exact, name)[fit], rel=ROUNDING)
    for draft in drafts.tolist():
        alone = stages_of(whole, drafts[[draft]], sets[draft : draft + 1], limit_bytes, found)
        for of_alone, of_all in zip(alone, exact, strict=True):
            assert np.array_equal(of_alone[0], of_all[draft])


@pytest.mark.parametrize(
    ("schedule", "seed", "layout"),
    [
        *((name, seed, random_layout) for name in ("1f1b", "gpipe", "zero_bubble") for seed in range(INSTANCES)),
        *(("1f1b", seed, random_wide_layout) for seed in (0, 38, 40)),  # some with as many microbatches as ranks
    ],
)
def test_bounds_of_several_layouts_are_below_the_best_cut_of_each(schedule: str, seed: int, layout: FindLayout) -> None:
    whole, limit_bytes = several_drafts(seed, schedule, layout)
    of_family = WeightsApartTimes if whole.family.rules.weights_apart else AlternatingTimes
    drafts = np.arange(len(whole.drafts.drafts))
    best_s = np.full(len(drafts), inf)
    for draft in drafts.tolist():
        found = refine([whole.only(drafts[[draft]])], True, limit_bytes).found
        best_s[draft] = found[-1].step_time_s if found else inf
    if not np.isfinite(best_s).any():
        return
    for limit_s in np.quantile(best_s[np.isfinite(best_s)], [0.0, 0.5, 1.0]).tolist():
        for find in (stages_of, stages_at_least):
            bound_s = of_family(whole, drafts, limit_bytes, limit_s * (1 + ROUNDING), find).at_least_s()
            assert (np.minimum(bound_s, limit_s) <= best_s * (1 + 2 * ROUNDING)).all()
