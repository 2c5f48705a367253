"""Layouts that wait with each of their recompute sets: bounds that hold, and nothing that is passed over."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from autoshard.backends.rules import Problem
from autoshard.errors import NoLayoutFits
from autoshard.models.registry import load_model
from autoshard.planner.grid.kind_choices import kinds_at_least_s
from autoshard.planner.grid.order import fastest_first
from autoshard.planner.grid.pairs import MOST_IN_VAIN, Pairs, pairs_at_least_s, pairs_need_bytes
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.whole import Priced
from autoshard.planner.priced import PricedLayouts
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.planner.sets import recompute_sets
from autoshard.planner.waiting import Waiting
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import ALL, some
from tests.unit.kind_models import SETS, random_layout, table_of
from tests.unit.test_mesh_bounds import random_problem

EVERY_SCHEDULE = ("1f1b", "gpipe", "zero_bubble", "interleaved")


@pytest.mark.parametrize("seed", some(range(60), step=3))
def test_no_cut_of_a_pair_is_below_its_bounds(seed: int) -> None:
    problem, draft = random_layout(seed, EVERY_SCHEDULE)
    (whole,) = table_of(problem, draft).wholes()
    (priced,) = table_of(problem, draft).price()
    draft_of, recompute = whole.pairs(np.arange(whole.num_sets))
    limit_bytes = float(np.median(priced.memory_bytes))
    needed = pairs_need_bytes(whole, draft_of, recompute, limit_bytes)
    least_s = pairs_at_least_s(whole).ravel()
    place = np.searchsorted(recompute, priced.recompute)
    assert (least_s[place] <= priced.step_time_s).all()
    # a bound above the limit says no more than that nothing fits
    assert (np.where(needed > limit_bytes, limit_bytes, needed)[place] <= priced.memory_bytes).all()
    assert (priced.memory_bytes[needed[place] > limit_bytes] > limit_bytes).all()


def all_and_pairs(problem: Problem) -> tuple[list[Priced], Pairs, list[Priced]]:
    """(every layout, the same as pairs that wait, those of them that are priced so far)."""
    from autoshard.planner.layouts import legal_layouts

    tables = [Table(problem, recompute_sets(problem, Pins())) for _ in range(2)]
    for way in legal_layouts(problem, Pins(), Tally()):
        for draft in way.drafts:
            for table in tables:
                table.add(draft)
    seen: list[Priced] = []
    pairs = Pairs(problem, seen.append)
    pairs.add(tables[0].wholes())
    return [*tables[1].price()], pairs, seen


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_the_fastest_that_fit_come_in_the_order_in_which_they_come_if_all_are_priced(seed: int) -> None:
    problem = random_problem(seed)
    every, pairs, seen = all_and_pairs(problem)
    limit_bytes = problem.cluster.device.memory_bytes
    expected = [one.step_time_s for _, one in zip(range(200), fastest_first(every, limit_bytes), strict=False)]
    layouts = PricedLayouts(problem, [], Waiting.for_pairs(pairs))
    found = [one.step_time_s for _, one in zip(range(len(expected)), layouts.fastest_first(limit_bytes), strict=False)]
    assert found == expected
    if expected:
        assert layouts.fitting <= {draft for one in every for draft in one.fitting(limit_bytes)}
    assert len(seen) == len(layouts.chunks)


@pytest.mark.parametrize("most_in_vain", [MOST_IN_VAIN, 10**9])
@pytest.mark.parametrize("seed", some(range(6), 2))
def test_where_nothing_fits_the_nearest_miss_is_priced(
    seed: int, most_in_vain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoshard.planner.grid.pairs.MOST_IN_VAIN", most_in_vain)
    problem = random_problem(seed)
    device = replace(problem.cluster.device, memory_bytes=1.0 + problem.cluster.device.reserved_memory_bytes)
    problem = problem._replace(cluster=replace(problem.cluster, device=device))
    every, pairs, seen = all_and_pairs(problem)
    while pairs.next_s < inf:
        pairs.price_more(inf)
    pairs.price_nearest(lambda: min((float(one.memory_bytes.min()) for one in seen), default=inf))
    least_bytes = min((float(one.memory_bytes.min()) for one in every), default=inf)
    priced_bytes = min((float(one.memory_bytes.min()) for one in seen), default=inf)
    assert min(priced_bytes, pairs.too_large[2]) <= least_bytes <= priced_bytes
    if most_in_vain > MOST_IN_VAIN:  # nothing is given up
        assert priced_bytes == least_bytes <= pairs.too_large[2]


def test_where_all_that_was_bounded_holds_too_much_there_is_nothing_to_price() -> None:
    assert Pairs(random_problem(0)).price_more(inf) == []
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    cluster, pins = load_cluster("trn2.48xlarge", 24), Pins(schedule="gpipe")
    with pytest.raises(NoLayoutFits, match=r"no layout fits gemma2-9b on 24 x trn2\.48xlarge"):
        search(load_model("gemma2-9b"), training, cluster, pins, "torch")


def test_layouts_that_waited_in_several_tables_are_looked_at_a_family_at_a_time() -> None:
    problem, draft = random_layout(3, ("1f1b",))
    every = [draft._replace(zero=zero) for zero in (0, 1, 2)]
    tables = [Table(problem, SETS) for _ in range(2)]
    pairs = Pairs(problem)
    for table, these in zip(tables, (every[:1], every[1:]), strict=True):
        for one in these:
            table.add(one)
        pairs.add(table.wholes())
    layouts = PricedLayouts(problem, [], Waiting.for_pairs(pairs))
    assert len(layouts.wholes) == 2
    (family,) = layouts.families()
    assert family.drafts.drafts == every and family is layouts.families()[0]
    apart = [kinds_at_least_s(whole, np.arange(len(whole.drafts.drafts))) for whole in layouts.wholes]
    assert kinds_at_least_s(family, np.arange(3)) == pytest.approx(np.concatenate(apart), rel=1e-12)


def test_bounds_in_pieces_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with two kinds of blocks, alone and as a whole search, which proves its answer by them."""
    training = TrainingSpec(4096, 256, load_precision("mixed_precision"))
    problem = Problem(load_model("gemma3-1b"), training, load_cluster("h100-80gb", 1), "torch")
    wholes = some(all_and_pairs(problem)[1].wholes, step=4)
    pins = Pins() if ALL else Pins(tp=2, cp=1, microbatch_size=1)
    together, found = [*map(pairs_at_least_s, wholes)], search(*problem[:3], pins, "torch")
    monkeypatch.setattr("autoshard.planner.grid.pairs.CHUNK", 7)
    monkeypatch.setattr("autoshard.planner.grid.promises.KINDS_AT_ONCE", 3)
    assert all(np.array_equal(pairs_at_least_s(one), its) for one, its in zip(wholes, together, strict=True))
    again = search(*problem[:3], pins, "torch")
    assert (again.best, again.optimality) == (found.best, found.optimality)
