"""Bounds of a step's time, against simulations of random stages; the examples in their docstrings are run."""

import doctest
import inspect
import random
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.planner.grid import bounds
from autoshard.planner.grid.bounds import (
    RankBackward,
    any_cut_at_least_s,
    busiest_rank_at_least_s,
    equal_chunks_at_least_s,
    fewest_blocks,
    put_off_at_least_s,
    recomputed_at_least_s,
    share_at_least_s,
    slowest_stage_at_least_s,
    slowest_stage_at_most_s,
    this_stage_at_least_s,
    through_at_least_s,
    unlike_chunks_at_least_s,
    unlike_chunks_work_at_least_s,
    work_at_most_s,
)
from autoshard.planner.grid.price import Family
from autoshard.schedules import SCHEDULES, actions, simulate
from autoshard.schedules import longest_path as longest_path_module
from autoshard.schedules.closed_form import Work, alternating_at_least_s, chunk_visits
from autoshard.schedules.held import warm_ups
from autoshard.schedules.longest_path import longest_path
from tests.cases import some

ROUNDING = 1 + 1e-12


class Pipeline(NamedTuple):
    """Seconds by virtual stage, and what a simulation of them takes."""

    schedule: str
    pp: int
    vpp: int
    m: int
    forward_s: list[float]
    backward_s: list[float]
    transfer_s: float

    @property
    def simulated_s(self) -> float:
        orders = actions(self.schedule, self.pp, self.m, self.vpp)
        return simulate(orders, self.forward_s, self.backward_s, self.transfer_s).total_s

    @property
    def work(self) -> Work:
        return Work(self.pp, self.m, self.vpp, self.forward_s, self.backward_s, self.transfer_s)

    @property
    def family(self) -> Family:
        return Family.of(self.schedule, self.pp, self.vpp, self.m)

    @property
    def stage_s(self) -> list[float]:
        return [forward + backward for forward, backward in zip(self.forward_s, self.backward_s, strict=True)]

    @property
    def apart(self) -> bool:
        return SCHEDULES[self.schedule].weights_apart

    @property
    def waits(self) -> tuple[bool, bool]:
        """(waits, at_once)."""
        return bool(self.family.waits_for_all(self.m)), bool(self.family.is_at_once(self.m))


@st.composite
def pipelines(draw: st.DrawFn, *schedules: str) -> Pipeline:
    """Nearly equal and very unequal stages; few and many microbatches; with transfers and without."""
    schedule, pp = draw(st.sampled_from(schedules or ("1f1b", "gpipe", "interleaved", "zero_bubble"))), 0
    pp, vpp, m = draw(st.integers(2, 5)), 1, draw(st.integers(1, 13))
    if schedule == "interleaved":
        vpp, m = draw(st.integers(2, 3)), pp * draw(st.integers(1, 4))
    spread = draw(st.sampled_from([0.0, 0.1, 1.0, 30.0]))
    share = st.lists(st.floats(0, 1), min_size=pp * vpp, max_size=pp * vpp)
    forward_s, backward_s = ([base + spread * part for part in draw(share)] for base in (1.0, 2.0))
    return Pipeline(schedule, pp, vpp, m, forward_s, backward_s, draw(st.sampled_from([0.0, 0.0, 0.05, 2.0])))


@pytest.mark.parametrize(
    "name",
    [name for name, one in vars(bounds).items() if inspect.isfunction(one) and one.__module__ == bounds.__name__],
)
def test_every_bound_has_an_example_that_holds(name: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(bounds, name), name, globs=vars(bounds).copy())
    outcome = doctest.DocTestRunner(verbose=False).run(example)
    assert outcome.attempted >= 1 and outcome.failed == 0


@given(pipelines())
def test_no_step_is_faster_than_the_share_of_the_busiest_rank(one: Pipeline) -> None:
    work_s, simulated_s = sum(one.stage_s), one.simulated_s
    assert share_at_least_s(one.pp, one.m, work_s) <= simulated_s * ROUNDING
    assert work_at_most_s(one.pp, one.m, simulated_s) * ROUNDING >= work_s


@given(pipelines("1f1b", "gpipe", "interleaved"))
def test_no_step_is_faster_than_one_microbatch(one: Pipeline) -> None:
    bound_s = through_at_least_s(one.pp * one.vpp, sum(one.stage_s), one.transfer_s)
    assert bound_s <= one.simulated_s * ROUNDING
    if one.vpp == 1:
        assert bound_s == pytest.approx(one._replace(m=1).simulated_s)


@given(pipelines("1f1b", "gpipe"))
def test_no_step_is_faster_than_its_stages_allow(one: Pipeline) -> None:
    """By the slowest stage, by the average as if it were the slowest, by each stage; and solved for the slowest."""
    work_s, simulated_s = sum(one.stage_s), one.simulated_s
    sizes, rest = (one.pp, one.m, work_s), (one.transfer_s, *one.waits)
    for slowest_s in (max(one.stage_s), work_s / one.pp):
        assert slowest_stage_at_least_s(*sizes, slowest_s, *rest) <= simulated_s * ROUNDING
    assert slowest_stage_at_most_s(*sizes, simulated_s, *rest) * (1 + 1e-9) >= max(one.stage_s)
    for warm_up, stage_s in zip(warm_ups(one.family.rules, one.pp, one.m, 1), one.stage_s, strict=True):
        bound_s = this_stage_at_least_s(one.pp, warm_up, one.m, work_s, stage_s, one.transfer_s, one.waits[1])
        assert bound_s <= simulated_s * ROUNDING


@given(pipelines())
def test_no_step_is_faster_than_its_busiest_rank(one: Pipeline) -> None:
    work_s = [sum(one.stage_s[rank :: one.pp]) for rank in range(one.pp)]
    passed_s = one.forward_s if one.apart else one.stage_s
    ways = 1 if one.apart else 2
    passed_s = [seconds + ways * one.transfer_s for seconds in passed_s[: one.pp]]
    assert busiest_rank_at_least_s(one.m, work_s, passed_s) <= one.simulated_s * ROUNDING


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=6),
    st.integers(1, 20),
    st.tuples(*[st.floats(0.1, 3)] * 2, *[st.floats(0, 9)] * 2, st.floats(0, 1), st.floats(0, 2)),
)
def test_no_cut_of_a_step_that_puts_weight_gradients_off_is_faster(
    cut: list[int], m: int, seconds: tuple[float, float, float, float, float, float]
) -> None:
    """A block takes so long forward and back, ends of the model forward alone or back alone. Half of backward is put
    off."""
    forward_s, backward_s, first_s, last_s, beside_s, transfer_s = seconds
    ranks = range(len(cut))
    one = Pipeline(
        "zero_bubble",
        len(cut),
        1,
        m,
        [blocks * forward_s + first_s * (rank == 0) for rank, blocks in zip(ranks, cut, strict=True)],
        [
            blocks * backward_s + beside_s + last_s * (rank == len(cut) - 1)
            for rank, blocks in zip(ranks, cut, strict=True)
        ],
        transfer_s,
    )
    of_blocks = sum(cut) * forward_s, sum(cut) * backward_s
    warm_ups = one.family.all_warm_ups(m)
    bound_s = put_off_at_least_s(warm_ups, m, *of_blocks, beside_s, first_s, last_s)
    tighter_s = put_off_at_least_s(warm_ups, m, *of_blocks, beside_s, first_s, last_s, of_blocks[1] / 2, transfer_s)
    assert share_at_least_s(len(cut), m, sum(of_blocks)) <= bound_s * ROUNDING
    assert max(bound_s, tighter_s) <= one.simulated_s * ROUNDING


@given(pipelines("interleaved"))
def test_no_step_of_several_chunks_is_faster_than_its_work_allows(one: Pipeline) -> None:
    sizes = (one.pp, one.vpp, one.m, sum(one.stage_s), one.transfer_s)
    assert one.waits == (True, one.m == one.pp)
    assert unlike_chunks_work_at_least_s(*sizes, *one.waits) <= one.simulated_s * ROUNDING
    equal = one._replace(forward_s=[1.0] * len(one.stage_s), backward_s=[2.0] * len(one.stage_s), transfer_s=0.0)
    bound_s = unlike_chunks_work_at_least_s(*sizes[:3], sum(equal.stage_s), 0.0, *one.waits)
    ramp_s = 3 * (one.pp - 1)
    short_s = 0.0 if one.m == one.pp else ramp_s / 2
    assert bound_s == pytest.approx(equal.simulated_s - short_s)


@given(pipelines("interleaved"))
def test_no_step_of_unlike_chunks_is_faster(one: Pipeline) -> None:
    """It is no more than the closed form, which knows all backwards; where stages are equal and transfers take no time
    it is the same."""
    warm_ups, ranks = one.family.warm_ups, []
    for rank, warm in enumerate(warm_ups):
        back_s, visits = one.backward_s[rank :: one.pp], chunk_visits(warm, one.pp, one.vpp)
        later_s = sum((one.m - visit) * seconds for visit, seconds in zip(visits, back_s, strict=True))
        ranks.append(RankBackward(sum(back_s), back_s[0], back_s[-1], later_s))
    bound_s = unlike_chunks_at_least_s(warm_ups, one.vpp, one.m, np.array(one.forward_s), one.transfer_s, ranks)
    warm_up = SCHEDULES["interleaved"].warm_up
    assert warm_up is not None
    work = one.work
    assert bound_s <= alternating_at_least_s(warm_up, work) * ROUNDING <= one.simulated_s * ROUNDING**2
    if len({*one.forward_s, *one.backward_s}) == 2 and not one.transfer_s:
        assert bound_s == pytest.approx(alternating_at_least_s(warm_up, work))
    less = [RankBackward(*(0.9 * seconds for seconds in backward)) for backward in ranks]
    smaller_s = unlike_chunks_at_least_s(warm_ups, one.vpp, one.m, np.array(one.forward_s), one.transfer_s, less)
    assert smaller_s <= bound_s


def in_tuples(work: Work) -> Work:
    return work._replace(forward_s=tuple(work.forward_s), backward_s=tuple(work.backward_s))


@given(pipelines("1f1b", "gpipe", "interleaved"), st.randoms(use_true_random=False))
def test_no_step_is_faster_than_the_longest_path_of_another_one(one: Pipeline, rng: random.Random) -> None:
    """The path of some stages bounds stages of other seconds, and so does a mean of paths; it is exact for its own."""
    total_s, path = longest_path(one.schedule, in_tuples(one.work))
    assert total_s == one.simulated_s
    assert path.at_least_s(one.work) == pytest.approx(total_s, rel=1e-12)
    other = one._replace(backward_s=[rng.uniform(0.5, 2) * seconds for seconds in one.backward_s])
    other = other._replace(forward_s=[rng.uniform(0.5, 2) * seconds for seconds in one.forward_s])
    assert path.at_least_s(other.work) <= other.simulated_s * ROUNDING
    between = one._replace(backward_s=[rng.uniform(0, 9) for _ in one.backward_s])
    paths = [path, longest_path(other.schedule, in_tuples(other.work))[1]]
    assert sum(path.at_least_s(between.work) for path in paths) / 2 <= between.simulated_s * ROUNDING


def test_the_longest_path_has_an_example_that_holds() -> None:
    assert doctest.testmod(longest_path_module).failed == 0


@given(pipelines("interleaved"), st.floats(0, 5), st.floats(0, 5))
def test_no_step_of_equal_chunks_is_faster(one: Pipeline, first_s: float, last_s: float) -> None:
    stages = one.pp * one.vpp
    forward_s, backward_s = one.forward_s[:1] * stages, one.backward_s[:1] * stages
    backward_s[0], backward_s[-1] = backward_s[0] + first_s, backward_s[-1] + last_s
    ends = one._replace(forward_s=forward_s, backward_s=backward_s)
    chunk_s = one.forward_s[0] + one.backward_s[0]
    bound_s = equal_chunks_at_least_s(one.pp, one.vpp, one.m, chunk_s, first_s, last_s, one.transfer_s)
    assert bound_s <= ends.simulated_s * ROUNDING
    backward_s[0] = one.backward_s[0]
    bound_s = equal_chunks_at_least_s(one.pp, one.vpp, one.m, chunk_s, 0.0, last_s)
    assert bound_s == pytest.approx(ends._replace(backward_s=backward_s, transfer_s=0.0).simulated_s)


@given(st.integers(2, 5), st.integers(1, 12), st.sampled_from(["1f1b", "gpipe"]))
def test_bounds_of_equal_stages_are_equal_where_they_say_so(pp: int, m: int, schedule: str) -> None:
    equal = Pipeline(schedule, pp, 1, m, [1.0] * pp, [2.0] * pp, 0.0)
    simulated_s = pytest.approx(equal.simulated_s)
    assert busiest_rank_at_least_s(m, [3.0] * pp, [3.0] * pp) == simulated_s
    if schedule == "gpipe" or m > pp:
        assert slowest_stage_at_least_s(pp, m, 3.0 * pp, 3.0, 0.0, *equal.waits) == simulated_s
    if m > (pp + 1 if schedule == "1f1b" else 1):
        solved_s = slowest_stage_at_most_s(pp, m, 3.0 * pp, 3.0 * (m + pp - 1), 0.0, *equal.waits)
        assert solved_s == pytest.approx(3.0)
    last = warm_ups(equal.family.rules, pp, m, 1)[-1]
    assert this_stage_at_least_s(pp, last, m, 3.0 * pp, 3.0, 0.0, equal.waits[1]) == (simulated_s if m > 1 else 3.0)


def test_few_microbatches_of_unequal_stages_do_not_fill() -> None:
    """2 ranks, 2 microbatches: rank 0 has more work, rank 1 less; the share of a full pipeline would be too high."""
    one = Pipeline("1f1b", 2, 1, 2, [1.0, 1.0], [2.0, 1.0], 0.0)
    # rank 0   F0 F1 .  B0 B0 B1 B1        rank 1   .  F0 B0 F1 B1
    assert one.simulated_s == 7 and one.waits == (True, False)
    assert slowest_stage_at_least_s(2, 2, 5.0, 3.0, 0.0, *one.waits) == 6.5 < (2 + 2 - 1) * 5.0 / 2


@pytest.mark.parametrize("seed", some(range(60), step=3))
def test_no_sets_that_fit_take_less_than_the_price_of_memory_says(seed: int) -> None:
    rng = random.Random(seed)
    chunks, sets, layouts = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), 4
    weights, back_s, kept_bytes = (
        np.array([[rng.uniform(0, 9) for _ in range(columns)] for _ in range(layouts)])
        for columns in (chunks, sets, sets)
    )
    visits = np.array([rng.uniform(1, 9) for _ in range(chunks)])
    room_bytes = np.array([rng.uniform(0, 50) for _ in range(layouts)])
    bounds_s = recomputed_at_least_s(weights, back_s, visits, kept_bytes, room_bytes)
    by_layout = np.repeat(visits[None], layouts, axis=0)
    assert (recomputed_at_least_s(weights, back_s, by_layout, kept_bytes, room_bytes) == bounds_s).all()
    for row in range(layouts):
        best_s = np.inf
        for choice in product(range(sets), repeat=chunks):
            if kept_bytes[row, list(choice)] @ visits <= room_bytes[row]:
                best_s = min(best_s, float(weights[row] @ back_s[row, list(choice)]))
        assert bounds_s[row] <= best_s * ROUNDING
        assert np.isinf(bounds_s[row]) == np.isinf(best_s)


def cuts_of(layers: int, fewest: Sequence[int]) -> list[tuple[int, ...]]:
    return [cut for cut in product(*(range(least, layers + 1) for least in fewest)) if sum(cut) == layers]


def fewest_of(pp: int, bare: bool) -> list[int]:
    """The fewest blocks of each stage. bare: whether the ends may have none."""
    return [int(not bare or stage not in (0, pp - 1)) for stage in range(pp)]


@pytest.mark.parametrize("seed", range(20))
def test_the_least_work_of_all_cuts_is_that_of_trying_all(seed: int) -> None:
    rng = random.Random(seed)
    pp, layers = rng.choice([1, 2, 3, 4]), rng.randint(4, 7)
    fewest = fewest_of(pp, pp > 1 and rng.random() < 0.5)
    stage_s = np.array([[rng.uniform(1, 9) * (n + 1) for n in range(layers + 1)] for _ in range(pp)])
    for least, seconds in zip(fewest, stage_s, strict=True):
        seconds[:least] = np.inf
    stage_s[:, rng.randint(2, stage_s.shape[1]) :] = np.inf
    least_s = min(sum(stage_s[stage, n] for stage, n in enumerate(cut)) for cut in cuts_of(layers, fewest))
    assert any_cut_at_least_s(stage_s, layers) == pytest.approx(least_s)


@given(st.integers(1, 4), st.integers(4, 8), st.floats(0, 3), st.floats(0, 3), st.booleans())
def test_no_cut_has_less_behind_the_pipeline(pp: int, layers: int, first_s: float, last_s: float, bare: bool) -> None:
    """A rank takes a second a block and what its end takes; the slowest rank counts."""

    def after_s(first: int, middle: int, last: int) -> float:
        return max(first + first_s, middle, last + last_s)

    cuts = cuts_of(layers, fewest_of(pp, bare and pp > 1))
    slowest_s = [after_s(cut[0], max(cut[1:-1], default=0), cut[-1]) for cut in cuts]
    assert after_s(*fewest_blocks(pp, 1, layers, bare)) <= min(slowest_s)
    assert fewest_blocks(pp, 2, 2 * pp * layers, bare) == (2 * layers, 2 * layers if pp > 2 else 0, 2 * layers)
