"""Which layout is taken: room in memory, toss-ups, recompute sets worth a look, limits of time."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from autoshard.backends.nxd import NXD_SETS
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.fit_probability import levels
from autoshard.cost.interval import FIT_PROBABILITY, fits_probability
from autoshard.cost.local_shape import LocalShape
from autoshard.cost.stage import stage_parts
from autoshard.graph.recompute import COMMON_SETS
from autoshard.models.registry import load_model
from autoshard.planner import simpler
from autoshard.planner.choice import choose, passed_over, taken_of
from autoshard.planner.grid.promises import Promise, promises
from autoshard.planner.grid.refine import Refined, fastest_of, refine
from autoshard.planner.priced import Clock, price_layouts
from autoshard.planner.ranking import Timed, best_of_each_kind
from autoshard.planner.rejections import SLOWER, UNPRICED, Tally
from autoshard.planner.search import search
from autoshard.planner.search_words import WORTH_LESS_SURE
from autoshard.planner.sets import EVERY_SET, recompute_sets
from autoshard.planner.simpler import simpler_ones
from autoshard.planner.toss_ups import COMPARED, simplest_of_equals
from autoshard.plans.search_result import LESS_SURE, OPTIMAL, Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import format_bytes, format_seconds
from tests.cases import some
from tests.unit.plan_examples import plan_70b

MODEL, TRN1 = load_model("llama3-70b"), load_cluster("trn1.32xlarge", 16)
TRAINING = TrainingSpec(8192, 1024, load_precision("mixed_precision"))


def test_levels_are_the_memory_that_fits_with_a_probability() -> None:
    found = levels(TRN1, 0.9)
    assert [level.probability for level in found] == [0.9, 0.75, 0.5]
    for level in found:
        capacity = TRN1.device.memory_bytes
        assert fits_probability(level.memory_bytes, capacity, TRN1) == pytest.approx(level.probability)
    assert [level.probability for level in levels(TRN1, 0.6)] == [0.6, 0.5]
    assert [level.probability for level in levels(TRN1, 0.9999)] == [0.9999, 0.999, 0.99, 0.9, 0.75, 0.5]
    vast = replace(TRN1, device=replace(TRN1.device, memory_bytes=2.0**80))
    assert [level.memory_bytes for level in levels(vast, 0.6)] == pytest.approx(
        [level.memory_bytes / TRN1.device.memory_bytes * 2.0**80 for level in levels(TRN1, 0.6)]
    )


def test_what_does_not_fit_in_all_of_the_memory_is_not_looked_for_in_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of uneven cuts and of sets by stage, which are looked at one by one: at each level that took as long again."""
    looked: list[float] = []

    def counted(wholes: Any, by_stage: bool, limit_bytes: float, *other: Any, **more: Any) -> Refined:
        looked.append(limit_bytes)
        return refine(wholes, by_stage, limit_bytes, *other, **more)

    monkeypatch.setattr("autoshard.planner.grid.refine.refine", counted)
    small, clock = Problem(MODEL, TRAINING, load_cluster("trn1.32xlarge", 1), "nxd"), Clock(inf)
    wanted = levels(small.cluster, FIT_PROBABILITY)
    assert choose(price_layouts(small, Pins(), Tally(), clock), Pins(), wanted, clock) is None
    assert looked == [wanted[-1].memory_bytes] and len(wanted) == 3
    looked.clear()
    assert choose(price_layouts(small, Pins(), Tally(), clock), Pins(), wanted[-1:], clock) is None
    assert looked == [wanted[-1].memory_bytes]


def test_a_plan_fits_as_surely_as_is_wanted() -> None:
    steps = []
    for wanted in (0.5, 0.75, 0.9, 0.99):
        result = search(MODEL, TRAINING, TRN1, fit_probability=wanted)
        assert result.best.estimate.fits_probability >= wanted
        fastest_s = min(one.estimate.step_time_s for one in (result.best, *result.runners_up))
        steps.append(fastest_s)
        passed_over = [note for note in result.notes if note.startswith(LESS_SURE)]
        assert len(passed_over) <= (wanted > 0.5)
    assert steps == sorted(steps) and steps[0] < steps[-1]


def test_a_faster_layout_that_fits_less_surely_is_told() -> None:
    training = TrainingSpec(4096, 256, load_precision("mixed_precision"))
    problem = load_model("llama2-13b"), training, load_cluster("trn1.32xlarge", 1)
    result = search(*problem)
    (note,) = (note for note in result.notes if note.startswith(LESS_SURE))
    told = re.match(
        r"room: another layout, (\S+) % faster than all that fit so surely, fits with (\S+) % probability: tp=", note
    )
    assert told is not None
    faster, fits = (float(number) / 100 for number in told.groups())
    other = search(*problem, fit_probability=fits).best.estimate
    assert faster > WORTH_LESS_SURE and fits <= other.fits_probability < 0.9
    assert other.step_time_s <= (1 - faster + 1e-3) * result.best.estimate.step_time_s


PINS = Pins(tp=8, pp=8, cp=1, num_virtual_stages=5, microbatch_size=2, recompute="full")


def test_where_none_fits_so_surely_the_next_level_is_taken_and_said() -> None:
    result = search(MODEL, TRAINING, load_cluster("trn1.32xlarge", 16), PINS)
    assert 0.5 <= result.best.estimate.fits_probability < 0.9
    assert result.notes[0] == (
        "room: no layout fits with 90 % probability; chosen among those that fit with at least 50 % probability"
    )


def test_the_next_level_below_one_that_is_rarely_asked_for_is_still_a_sure_one() -> None:
    small = Problem(load_model("llama3-8b"), TRAINING, load_cluster("cpu", 16), "torch")
    result = search(*small[:3], backend="torch", fit_probability=0.95)
    assert 0.9 <= result.best.estimate.fits_probability < 0.95
    assert result.notes[0] == (
        "room: no layout fits with 95 % probability; chosen among those that fit with at least 90 % probability"
    )
    rare = search(MODEL, TRAINING, load_cluster("trn1.32xlarge", 4), fit_probability=0.9999)
    assert rare.notes[0].startswith(
        "room: no layout fits with 99.99 % probability; chosen among those that fit with at"
    )
    assert rare.best.estimate.fits_probability >= 0.999


def test_where_time_runs_out_it_is_not_said_that_none_fits_so_surely() -> None:
    result = search(MODEL, TRAINING, load_cluster("trn1.32xlarge", 16), PINS, time_limit_s=1e-9)
    assert result.notes[0] == (
        "room: no layout that fits with 90 % probability was known after 1e-09 s; chosen among those that fit with at "
        "least 50 % probability"
    )


def test_the_simpler_one_of_two_that_are_as_fast() -> None:
    plain = plan_70b().strategy
    chunks = replace(plain, schedule="interleaved", num_virtual_stages=2, stage_layers=(5,) * 16, recompute=("full",))
    ranked = [Timed(100.0, chunks), Timed(100.9, plain)]
    assert simplest_of_equals(TRN1, ranked) == 1
    assert simplest_of_equals(TRN1, [Timed(100.0, chunks), Timed(101.1, plain)]) == 0  # more than may be given away
    assert simplest_of_equals(TRN1, ranked[::-1]) == 0


@pytest.mark.parametrize(("backend", "nodes", "batch"), some([("nxd", 32, 2048), ("torch", 8, 2048)], 1))
def test_what_is_taken_does_not_depend_on_what_was_solved_on_the_way(backend: str, nodes: int, batch: int) -> None:
    """Every cut and every set by stage that beats the best even layout is solved here. In both cases one that no search
    for the fastest needs is simpler than the fastest, and within a toss-up of it. In the second case another one is as
    simple and faster, but of the kind of the fastest, which stands for it."""
    training = TrainingSpec(16384, batch, load_precision("mixed_precision"))
    problem, pins = Problem(MODEL, training, load_cluster("trn1.32xlarge", nodes), backend), Pins(tp=8)
    taken = search(*problem[:3], pins, backend, top=0).best.strategy
    level = levels(problem.cluster, FIT_PROBABILITY)[0]
    priced = price_layouts(problem, pins, Tally(), Clock(inf), exhaustive=True)
    even = [*priced.fastest_first(level.memory_bytes)]
    below_s = even[0].step_time_s
    solved = [
        layout
        for whole in priced.wholes
        for promise in promises(whole, True, level.memory_bytes, below_s)
        if (layout := fastest_of(promise, level.memory_bytes, below_s))
    ]
    ranked = best_of_each_kind(sorted([*even, *solved], key=lambda one: one.step_time_s), COMPARED)
    assert taken == taken_of(problem, passed_over(problem, pins), level, ranked)
    assert taken.uniform_recompute is None
    assert taken != ranked[0].strategy


def test_a_simple_layout_behind_one_of_its_kind_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are as simple under ZeRO-3. One is faster, but of the kind of the fastest of all, which stands for it."""
    plain = replace(plan_70b().strategy, zero=3, stage_layers=(9, 11, *(10,) * 6))
    fastest = Timed(100.0, replace(plain, zero=2, sequence_parallel=False))
    of_its_kind, other = Timed(100.4, plain), Timed(100.6, replace(plain, microbatch_size=2))
    passed = []
    for bound_s, one in ((100.1, of_its_kind), (100.5, other)):
        whole: Any = SimpleNamespace(drafts=SimpleNamespace(drafts=[one.strategy]), has_kinds=False)
        passed.append(Promise(bound_s, whole, 0, (0,)))
    solved = {plain: of_its_kind, other.strategy: other}
    monkeypatch.setattr(simpler, "fastest_of", lambda promise, *how: solved[promise.layout])
    for known in (passed, passed[::-1]):
        assert simpler_ones(known, [fastest], 0, inf) == [of_its_kind, other]
    # a faster one that is as simple, of a kind that nothing else stands for, is all that is needed
    assert simpler_ones(passed, [replace(fastest, strategy=replace(fastest.strategy, dp=9))], 0, inf) == [of_its_kind]


def test_the_choice_does_not_depend_on_how_many_are_shown() -> None:
    few, many = (search(MODEL, TRAINING, TRN1, top=top) for top in (0, 5))
    assert few.best == many.best and not few.runners_up


def test_the_claim_names_the_recompute_sets_that_are_left_out() -> None:
    tried = f"(recompute is one of {len(NXD_SETS)} sets; --recompute takes any)"
    assert tried in search(MODEL, TRAINING, TRN1, backend="nxd", top=0).optimality
    for pins in (Pins(recompute="full"), Pins(beaten_path=True)):
        assert tried not in search(MODEL, TRAINING, TRN1, pins, backend="nxd", top=0).optimality
    assert "recompute is one of" not in search(MODEL, TRAINING, TRN1, backend="torch", top=0).optimality


def test_nxd_has_a_few_sets_and_torch_all_that_are_useful() -> None:
    few = recompute_sets(Problem(MODEL, TRAINING, TRN1, "nxd"), Pins())
    assert few == NXD_SETS and set(COMMON_SETS) < set(few) < set(EVERY_SET)
    problem = Problem(MODEL, TRAINING, TRN1, "torch")
    sets = recompute_sets(problem, Pins())
    assert set(COMMON_SETS) < set(sets) < set(EVERY_SET) and len(EVERY_SET) == 64
    for shape in (LocalShape(8, 1, 1, 1, True, "flash"), LocalShape(32, 1, 1, 2, False, "flash")):
        found = {name: stage_parts(*problem[:3], shape, name).block for name in EVERY_SET}
        for one in found.values():  # each is matched by a useful one
            assert any(
                found[name].kept_bytes <= one.kept_bytes and found[name].backward_s <= one.backward_s * (1 + 1e-9)
                for name in sets
            )


def test_a_search_that_is_stopped_says_what_is_proven() -> None:
    problem = MODEL, TRAINING, load_cluster("trn2.48xlarge", 4), Pins(), "nxd"
    done = search(*problem)
    stopped = search(*problem, time_limit_s=1e-9)
    assert done.optimality.startswith(OPTIMAL)
    words, claim = stopped.optimality.split(": within ")
    share, given_away = claim.split(" % of the optimum within this model, proven")
    assert words == "stopped after 1e-09 s"
    # What it came to in so little time may be slower than another that it found, and less uncertain.
    assert not given_away or given_away.endswith(" % longer than the fastest that was found, which a note explains")
    at_least_s = stopped.best.estimate.step_time_s * (1 - float(share) / 100)
    assert at_least_s <= done.best.estimate.step_time_s * 1.01 <= stopped.best.estimate.step_time_s * 1.01
    assert stopped.considered == done.considered
    assert {"not looked at in time"} == {r.reason for r in stopped.rejections} - {r.reason for r in done.rejections}


def test_what_a_bound_rules_out_is_not_said_to_lack_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs out behind the proof, while runners-up are looked for."""

    class Looks(Clock):
        """A clock that runs out after so many looks at it."""

        left = 20

        def in_time(self) -> bool:
            self.left -= 1
            return self.left >= 0

    monkeypatch.setattr("autoshard.planner.search.Clock", Looks)
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    found = search(load_model("llama3-8b"), training, load_cluster("h100-80gb", 2), backend="torch")
    assert found.optimality.startswith(OPTIMAL)
    (slower,) = (one for one in found.rejections if one.reason in (SLOWER, UNPRICED))
    assert slower.reason == SLOWER and " takes at least " in slower.example


def test_runners_up_are_points_that_a_reader_can_tell_apart() -> None:
    """cp sequences that share what cp replicas had, with cp times the microbatch, take as long and hold as much."""
    cluster = load_cluster("h100-80gb", 4)
    result = search(load_model("llama3-8b"), TRAINING, cluster, backend="torch")
    every = [result.best, *result.runners_up]
    shown = [
        (format_seconds(one.estimate.step_time_s), format_bytes(one.estimate.fullest.total_bytes)) for one in every
    ]
    assert len(shown) == len(set(shown)) == 6
    times = [one.estimate.step_time_s for one in result.runners_up]
    assert times == sorted(times)
    chosen = result.best.strategy
    same = replace(chosen, dp=chosen.dp // 2, cp=2, microbatch_size=2, context_parallel="zigzag_ring")
    twin = estimate(load_model("llama3-8b"), TRAINING, cluster, same)
    assert format_seconds(twin.step_time_s) == shown[0][0]
