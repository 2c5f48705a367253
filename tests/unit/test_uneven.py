"""Cuts and recompute sets by stage, against all of them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

import autoshard
from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Draft, Problem
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.grid import stage_cuts as uneven
from autoshard.planner.grid.refine import Known, refine
from autoshard.planner.grid.sharding_bounds import any_cut_at_least_s
from autoshard.planner.grid.table import Table
from autoshard.plans.search_result import OPTIMAL
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some
from tests.unit.as_estimated import check_as_estimated

SETS = ("none", "mlp", "full")


def every_cut(problem: Problem, draft: Draft) -> list[tuple[int, ...]]:
    """All legal cuts: the ends may hold no blocks where the backend runs that."""
    layers, bare = problem.model.num_hidden_layers, BACKENDS[problem.backend].unlike_stages
    fewest = [int(not bare or stage not in (0, draft.pp - 1)) for stage in range(draft.pp)]
    return [cut for cut in product(*(range(least, layers + 1) for least in fewest)) if sum(cut) == layers]


def test_a_block_moves_from_a_stage_with_two_to_one_with_room() -> None:
    cuts = uneven.moves(np.array([1, 3, 2]), np.ones(3), 3)
    assert cuts.tolist() == [[2, 2, 2], [1, 2, 3], [2, 3, 1]]
    assert uneven.moves(np.array([1, 1]), np.ones(2), 3).shape == (0, 2)
    assert uneven.moves(np.array([1, 1]), np.array([0, 1]), 3).tolist() == [[0, 2]]


def random_table(seed: int) -> tuple[Problem, Table, Draft]:
    choose = random.Random(seed)
    pp = choose.choice([2, 2, 3, 3, 4])
    model = load_model(choose.choice(["llama3-8b", "mixtral-8x7b", "gpt3-175b"]))
    blocks, vocabulary = pp + choose.choice([0, 1, 2, 3]), choose.choice([4096, 1 << 19])
    model = replace(model, num_hidden_layers=blocks, hidden_size=512, vocab_size=vocabulary)
    size, m = choose.choice([1, 2]), choose.choice([1, 2, 3, 4, 8, 32])
    training = TrainingSpec(choose.choice([128, 1024]), 2 * size * m, load_precision("mixed_precision"))
    cluster = load_cluster("trn1.32xlarge", 1)
    cluster = replace(cluster, devices_per_node=2 * pp, intra_node=((2 * pp, cluster.intra_node[-1][1]),))
    schedule = choose.choice(["1f1b", "1f1b", "gpipe"])
    draft = Draft(1, pp, 2, 1, 1, size, 1, schedule, "flash", sequence_parallel=False)
    problem = Problem(model, training, cluster, choose.choice(["torch", "torch", "nxd"]))
    table = Table(problem, SETS)
    table.add(draft)
    return problem, table, draft


@pytest.mark.parametrize("seed", some(range(150), 10))
def test_stages_are_chosen_as_by_trying_all(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all cuts enumerated, and by moving blocks one at a time: that finds the best of these small ones too."""
    problem, table, draft = random_table(seed)
    (priced,) = table.price()
    choose = random.Random(seed)
    limit = choose.uniform(0.98 * priced.memory_bytes.min(), 1.01 * priced.memory_bytes.max())
    monkeypatch.setattr(uneven, "MOST_CUTS", choose.choice([0, 3000]))
    layers, best_s = problem.model.num_hidden_layers, inf
    for cut, recompute in product(every_cut(problem, draft), product(SETS, repeat=draft.pp)):
        if layers > 5 and len(set(recompute)) > 1 and choose.random() < 0.8:  # so many would take too long
            continue
        layout = Strategy(**{**draft._asdict(), "recompute": recompute, "stage_layers": cut})
        found = estimate(*problem[:3], layout)
        if found.fullest.total_bytes <= limit:
            best_s = min(best_s, found.step_time_s)
    assert any_cut_at_least_s(priced.whole)[0] <= best_s * (1 + 1e-9)
    refined = refine([priced.whole], True, limit)
    if not refined.found:
        assert best_s == inf
        return
    best = refined.found[-1]
    check_as_estimated(problem, best.strategy, best.step_time_s, limit)
    assert best.step_time_s <= best_s * (1 + 1e-9) if layers > 5 else best.step_time_s == pytest.approx(best_s)
    assert refined.at_least_s <= best_s * (1 + 1e-9)


def test_no_order_of_axes_is_left_out_for_few_microbatches_of_unequal_stages() -> None:
    """3 blocks on 2 ranks, 2 microbatches: 2 blocks first take less than a full pipeline of equal stages would."""
    model = replace(load_model("llama3-8b"), num_hidden_layers=3, hidden_size=2048, vocab_size=1024)
    training = TrainingSpec(4096, 2, load_precision("mixed_precision"))
    problem = Problem(model, training, load_cluster("trn1.32xlarge", 1), "torch")
    table, draft = Table(problem, ("none",)), Draft(16, 2, 1, 1, 1, 1, 1, "1f1b", "flash")
    table.add(draft)
    (priced,) = table.price()
    cut = Strategy(**{**draft._asdict(), "recompute": ("none", "none"), "stage_layers": (2, 1)})
    assert any_cut_at_least_s(priced.whole)[0] <= estimate(*problem[:3], cut).step_time_s


@pytest.mark.parametrize("seed", range(20))
def test_no_time_is_a_proven_gap(seed: int) -> None:
    _, table, _ = random_table(seed)
    (priced,) = table.price()
    limit = priced.memory_bytes.max()
    known_s = 1.5 * float(priced.step_time_s.max())
    stopped = refine([priced.whole], True, limit, Known(known_s), lambda: False)
    done = refine([priced.whole], True, limit, Known(known_s))
    assert not stopped.found and not stopped.passed
    assert stopped.at_least_s <= done.found[-1].step_time_s < known_s


@pytest.mark.parametrize("seed", some(range(60), step=3))
def test_a_cut_that_was_not_found_is_not_proven_away(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is moved and no cut is listed: a faster cut may be missed, and the bound leaves room for it."""
    _, table, _ = random_table(seed)
    (priced,) = table.price()
    limit = 0.3 * priced.memory_bytes.min() + 0.7 * priced.memory_bytes.max()
    exact = refine([priced.whole], True, limit).found
    if not exact:
        return
    monkeypatch.setattr(uneven, "MOST_CUTS", 0)
    monkeypatch.setattr(uneven.StageCuts, "rounds", 0)
    known_s = refine([priced.whole], True, limit).found[-1].step_time_s
    again = refine([priced.whole], True, limit, Known(known_s))
    assert not again.found and again.at_least_s <= exact[-1].step_time_s * (1 + 1e-9)


def test_early_stages_recompute_more() -> None:
    """They hold more microbatches in flight."""
    model = replace(load_model("llama3-8b"), num_hidden_layers=8)
    problem = Problem(
        model, TrainingSpec(8192, 64, load_precision("mixed_precision")), load_cluster("trn1.32xlarge", 1), "torch"
    )
    table = Table(problem, ("none", "full"))
    table.add(Draft(8, 4, 1, 1, 1, 1, 1, "1f1b", "flash"))
    (priced,) = table.price()
    roomy, tight = priced.memory_bytes.max(), priced.memory_bytes.min()
    best = refine([priced.whole], True, (roomy + tight) / 2).found[-1].strategy
    assert best.recompute[-1] == "none" and best.recompute[0] == "full"
    assert list(best.recompute) == sorted(best.recompute)


def test_optimal_holds_against_ends_that_are_stages_of_their_own() -> None:
    plan = autoshard.plan(
        "llama3.2-1b",
        "h100-80gb",
        nodes=2,
        backend="torch",
        exhaustive=True,
        pp=8,
        schedule="1f1b",
        seq_len=2048,
        global_batch=128,
    )
    assert plan.search is not None and plan.search.optimality == OPTIMAL
    assert plan.strategy.stage_layers[-1] == 0
    of = plan.model, plan.training, plan.cluster
    for cut in ((0, 3, 3, 3, 2, 2, 3, 0), (0, 2, 3, 3, 3, 3, 2, 0), (1, 2, 3, 3, 3, 2, 2, 0), (0, 3, 3, 2, 2, 3, 2, 1)):
        other = replace(plan.strategy, stage_layers=cut)
        assert estimate(*of, plan.strategy).step_time_s <= estimate(*of, other).step_time_s


def heavy_head(backend: str, memory_bytes: float = 16e9) -> Problem:
    """A model of 4 blocks whose head outweighs them, on devices with so much memory."""
    model = replace(load_model("llama3-8b"), num_hidden_layers=4, hidden_size=512, vocab_size=1 << 19)
    cluster = load_cluster("trn1.32xlarge", 1)
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=memory_bytes))
    return Problem(model, TrainingSpec(1024, 8, load_precision("mixed_precision")), cluster, backend)


@pytest.mark.parametrize(("backend", "fewest"), [("torch", 0), ("nxd", 1)])
def test_every_schedule_has_the_balanced_cut_with_a_bare_end(backend: str, fewest: int) -> None:
    table = Table(heavy_head(backend), ("none",))
    table.add(Draft(1, 3, 2, 1, 1, 1, 1, "zero_bubble", "flash"))
    (priced,) = table.price()
    assert min(priced.strategy(row).stage_layers[-1] for row in range(len(priced.draft))) == fewest


@pytest.mark.parametrize(
    ("backend", "pp", "vpp", "schedule", "has_room"),
    [
        ("torch", 4, 1, "1f1b", True),
        ("torch", 2, 2, "interleaved", False),
        ("torch", 1, 1, "1f1b", False),
        ("nxd", 4, 1, "1f1b", False),
    ],
)
def test_a_head_needs_no_room_beside_a_block_where_it_may_be_alone(
    backend: str, pp: int, vpp: int, schedule: str, has_room: bool
) -> None:
    """The head takes 5.93 GB with the reserve, and 6.09 GB with a block beside it."""
    draft = Draft(1, pp, 2, 1, 1, 1, vpp, schedule, "flash")
    assert Table(heavy_head(backend, 6e9), ("none",)).has_room(draft) == has_room
