"""Recompute sets by virtual stage, against all of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from autoshard.backends.rules import Draft, Problem
from autoshard.cost.estimate import estimate
from autoshard.graph.recompute import COMMON_SETS
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.grid import interleaved_recompute as mixed
from autoshard.planner.grid.refine import Known, refine
from autoshard.planner.grid.sharding_bounds import LeastTable, any_cut_at_least_s, step_times_at_least_s
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.whole import Priced
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some
from tests.unit.as_estimated import check_as_estimated

SETS = ("none", "mlp", "full")
SIZES = ((2, 2), (2, 2), (2, 3), (3, 2))
"""(pp, vpp)."""


def random_table(seed: int) -> tuple[Problem, Table, Draft]:
    choose = random.Random(seed)
    pp, vpp = choose.choice(SIZES)
    model = load_model(choose.choice(["llama3-8b", "mixtral-8x7b", "gpt3-175b"]))
    hidden, vocab = choose.choice([512, 1024]), choose.choice([4096, 32768])
    model = replace(model, num_hidden_layers=pp * vpp * choose.choice([1, 2, 4]), hidden_size=hidden, vocab_size=vocab)
    size, m = choose.choice([1, 2]), pp * choose.choice([1, 2, 3, 8])
    training = TrainingSpec(choose.choice([128, 1024]), 2 * size * m, load_precision("mixed_precision"))
    cluster = load_cluster("trn1.32xlarge", 1)
    cluster = replace(cluster, devices_per_node=2 * pp, intra_node=((2 * pp, cluster.intra_node[-1][1]),))
    zero = choose.choice([1, 1, 2, 3])
    draft = Draft(1, pp, 2, 1, 1, size, vpp, "interleaved", "flash", sequence_parallel=False, zero=zero)
    problem = Problem(model, training, cluster, "torch")
    table = Table(problem, SETS, by_stage=True)
    table.add(draft)
    return problem, table, draft


def limit_of(priced: Priced, seed: int) -> float:
    return random.Random(seed).uniform(0.98 * priced.memory_bytes.min(), 1.01 * priced.memory_bytes.max())


def best_of_all(problem: Problem, draft: Draft, limit_bytes: float, seed: int) -> tuple[float, bool]:
    """(step time of the fastest that fits, whether all were tried)."""
    choose, best_s, stages = random.Random(seed), inf, draft.pp * draft.num_virtual_stages
    layers = (problem.model.num_hidden_layers // stages,) * stages
    every = list(product(SETS, repeat=stages))
    tried = every if len(every) < 100 else choose.sample(every, 50)
    for recompute in tried:
        found = estimate(*problem[:3], Strategy(**{**draft._asdict(), "recompute": recompute, "stage_layers": layers}))
        if found.fullest.total_bytes <= limit_bytes:
            best_s = min(best_s, found.step_time_s)
    return best_s, tried is every


@pytest.mark.parametrize("seed", some(range(45), step=3))
def test_virtual_stages_are_chosen_as_by_trying_all(seed: int) -> None:
    problem, table, draft = random_table(seed)
    (priced,) = table.price()
    limit = limit_of(priced, seed)
    best_s, all_tried = best_of_all(problem, draft, limit, seed)
    assert any_cut_at_least_s(priced.whole)[0] <= best_s * (1 + 1e-9)
    refined = refine([priced.whole], True, limit)
    if not refined.found:
        assert best_s == inf
        return
    best = refined.found[-1]
    check_as_estimated(problem, best.strategy, best.step_time_s, limit)
    assert best.step_time_s == pytest.approx(best_s, rel=1e-9) if all_tried else best.step_time_s <= best_s * (1 + 1e-9)
    assert refined.at_least_s == pytest.approx(best.step_time_s, rel=1e-9)  # these small ones are proven
    again = refine([priced.whole], True, limit, Known(best.step_time_s))
    assert not again.found and again.at_least_s == pytest.approx(best.step_time_s, rel=1e-9)


@pytest.mark.parametrize("seed", some(range(45), step=3))
@pytest.mark.parametrize("most", ["MOST_IN_ANY_ORDER", "MOST_CHOICES", "MOST_MIXES"])
def test_what_is_not_tried_is_a_proven_gap(seed: int, most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many mixes for any order, too many choices, too many mixes at all: bounds still hold."""
    problem, table, _ = random_table(seed)
    (priced,) = table.price()
    limit = limit_of(priced, seed)
    exact = refine([priced.whole], True, limit)
    best_s = exact.found[-1].step_time_s if exact.found else inf
    monkeypatch.setattr(mixed, "MOST_IN_ANY_ORDER", 0)
    if most != "MOST_IN_ANY_ORDER":
        monkeypatch.setattr(mixed, most, 1 if most == "MOST_CHOICES" else 3)
    refined = refine([priced.whole], True, limit)
    assert refined.at_least_s <= best_s * (1 + 1e-9)
    for one in refined.found:
        check_as_estimated(problem, one.strategy, one.step_time_s, limit)
    stopped = refine([priced.whole], True, limit, in_time=lambda: False)
    assert stopped.at_least_s <= best_s and not stopped.found


@pytest.mark.parametrize("seed", range(45))
def test_sharded_operators_are_bounded_whatever_stages_recompute(seed: int) -> None:
    problem, table, draft = random_table(seed)
    (priced,) = table.price()
    limit = limit_of(priced, seed)
    refined = refine([priced.whole], True, limit)
    least = LeastTable(problem, SETS, True, {})
    least.add(draft)
    bounds = step_times_at_least_s(least, True, limit, inf)
    if refined.found:
        assert bounds[draft] <= refined.found[-1].step_time_s * (1 + 1e-9)


def test_recomputing_in_some_chunks_pays() -> None:
    """One chunk of the first rank and one of the last, which has the head, make room for everything else."""
    model = replace(load_model("llama3-8b"), num_hidden_layers=16)
    training = TrainingSpec(8192, 64, load_precision("mixed_precision"))
    problem = Problem(model, training, load_cluster("trn1.32xlarge", 1), "nxd")
    table = Table(problem, ("none", "full"), by_stage=True)
    table.add(Draft(8, 4, 1, 1, 1, 1, 2, "interleaved", "flash"))
    (priced,) = table.price()
    roomy, tight = priced.memory_bytes.max(), priced.memory_bytes.min()
    best = refine([priced.whole], True, (roomy + tight) / 2).found[-1]
    assert best.strategy.recompute == ("full", "none", "none", "full", "none", "none", "none", "none")
    alike = np.where(priced.memory_bytes <= (roomy + tight) / 2, priced.step_time_s, np.inf).min()
    assert best.step_time_s < 0.95 * alike


@pytest.mark.parametrize("seed", range(30))
def test_mixes_that_are_left_out_are_slower_in_every_chunk(seed: int) -> None:
    draw = np.random.default_rng(seed)
    costs = draw.integers(1, draw.integers(2, 9), (draw.integers(0, 60), draw.integers(1, 4))).astype(float)
    kept = mixed.undominated(costs)
    for row, cost in enumerate(costs):
        assert (row in kept) or (costs[kept] <= cost).all(1).any()
        better = (costs[kept] <= cost).all(1) & (kept != row)
        assert row not in kept or not better.any()


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1, 2), (1,), (0, 2), (4000,) * 9 + (0,), (1,) * 70 + (2, 2)])
def test_every_choice_is_one_of_each(sizes: tuple[int, ...]) -> None:
    """Also where a rank has none and the others have many, and with more ranks than an array has dimensions."""
    several = [10 * rank + np.arange(size) for rank, size in enumerate(sizes)]
    expected = [] if 0 in sizes else [*product(*(one.tolist() for one in several))]
    found = mixed.every_choice(several)
    assert found.shape == (len(expected), len(sizes))
    assert [*map(tuple, found.tolist())] == expected


def with_transfers() -> Priced:
    """Transfers between nodes take a tenth of a step, and there are no more microbatches than ranks: sums over ranks
    tell little. Llama 2 70B on 1,024 x H200, its fastest layout."""
    model, training = load_model("llama2-70b"), TrainingSpec(4096, 4096, load_precision("mixed_precision"))
    problem = Problem(model, training, load_cluster("h200-141gb", 1024), "torch")
    table = Table(problem, COMMON_SETS, by_stage=True)
    table.add(Draft(2, 8, 512, 1, 1, 1, 10, "interleaved", "flash", sequence_parallel=True))
    (priced,) = table.price()
    return priced


def test_sets_that_fit_everywhere_are_proven_the_fastest() -> None:
    priced = with_transfers()
    best_s = float(priced.exact_s(range(len(priced.draft))).min())
    refined = refine([priced.whole], True, 2 * priced.memory_bytes.max())
    assert refined.found[-1].step_time_s == pytest.approx(best_s, rel=1e-12)
    assert refined.at_least_s == pytest.approx(best_s, rel=1e-12)


def test_paths_bound_what_sums_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the memory between all recomputed and nothing: there are too many choices to try."""
    priced = with_transfers()
    limit = (priced.memory_bytes.max() + priced.memory_bytes.min()) / 2
    refined = refine([priced.whole], True, limit)
    monkeypatch.setattr(mixed, "MOST_PATHS", 0)
    by_sums = refine([priced.whole], True, limit)
    assert refined.found[-1].step_time_s <= by_sums.found[-1].step_time_s
    assert by_sums.at_least_s < 0.98 * refined.at_least_s
    assert 0.95 * refined.found[-1].step_time_s < refined.at_least_s
