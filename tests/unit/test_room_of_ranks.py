"""How many blocks fit on each rank of a pipeline: between the ends two ranks tell of all others."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.backends.rules import Problem
from autoshard.models.registry import load_model
from autoshard.planner.grid.free_cut_bounds import FreeCutBounds
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_ranks_between_the_ends_need_what_two_of_them_say(backend: str) -> None:
    """Against every rank by itself: all schedules with free cuts, with and without what travels, few microbatches too,
    of which the first ranks hold equally many."""
    training = TrainingSpec(8192, 64, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 8), backend)
    table = Table(problem, recompute_sets(problem, Pins()), by_stage=True)
    drafts = [draft for mesh in legal_layouts(problem, Pins(), Tally()) for draft in mesh.drafts]
    for draft in [one for one in drafts if one.pp in (8, 16) and one.num_virtual_stages == 1][::7]:
        table.add(draft)
    compared = 0
    for whole in table.wholes():
        if not whole.family.cuts_are_free:
            continue
        count, sets = len(whole.drafts.drafts), len(whole.sets)
        every = np.repeat(np.arange(count), sets).reshape(count, sets), np.tile(np.arange(sets), (count, 1))
        layouts = FreeCutBounds(whole, *every)
        for rank in range(whole.family.pp):
            alone = layouts._needed_on(rank, (1, 2, 5))
            for needed, expected in zip(
                FreeCutBounds(whole, *every)._needed_bytes(rank, (1, 2, 5)), alone, strict=True
            ):
                np.testing.assert_allclose(needed, expected, rtol=1e-12)
                compared += 2 < rank < whole.family.pp - 2
    assert compared > 20
