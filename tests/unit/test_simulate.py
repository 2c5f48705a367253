"""Schedules on a clock, and how the closed forms relate to it."""

import doctest
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.schedules import (
    SCHEDULES,
    Action,
    Order,
    Timeline,
    Work,
    actions,
    at_least_s,
    rounds,
    simulate,
    step_time_s,
)
from autoshard.schedules.orders import Schedule, alternate
from autoshard.schedules.rounds import in_rounds_s
from autoshard.schedules.simulate import durations, in_dependency_order, run, until_done_s
from tests.unit.test_schedules import sizes

SECONDS = st.floats(0.1, 10)
Size = tuple[str, int, int, int]


def simulated_s(size: Size, forward_s: Sequence[float], backward_s: Sequence[float], p2p_s: float = 0.0) -> float:
    return simulate(actions(*size), forward_s, backward_s, p2p_s).total_s


def bound_s(size: Size, forward_s: Sequence[float], backward_s: Sequence[float], p2p_s: float = 0.0) -> float:
    schedule, pp, num_microbatches, vpp = size
    work = Work(pp, num_microbatches, vpp, forward_s, backward_s, p2p_s if pp > 1 else 0.0)
    return float(at_least_s(schedule, work))


@given(sizes(), st.data())
def test_rows_are_simulated_as_each_alone(size: Size, data: st.DataObject) -> None:
    """To the last bit: rows run in waves of all ranks, one row runs action by action."""
    stages = size[1] * size[3]
    drawn = st.lists(st.lists(SECONDS, min_size=2 * stages, max_size=2 * stages), min_size=2, max_size=4)
    seconds = np.array(data.draw(drawn)).T
    p2p_s = np.array(data.draw(st.lists(SECONDS, min_size=seconds.shape[1], max_size=seconds.shape[1])))
    ordered = in_dependency_order(actions(*size), stages)
    of_rows = durations([*seconds[:stages]], [*seconds[stages:]], None)
    total_s, starts = run(ordered, of_rows, p2p_s)
    assert np.array_equal(until_done_s(ordered, of_rows, p2p_s), total_s)
    for row, numbers in enumerate(seconds.T.tolist()):
        alone_s, own = run(ordered, durations(numbers[:stages], numbers[stages:], None), float(p2p_s[row]))
        assert (total_s[row], [start[row] for start in starts]) == (alone_s, own)


@given(sizes())
def test_a_wave_waits_for_waves_before_it_alone(size: Size) -> None:
    ordered = in_dependency_order(actions(*size), size[1] * size[3])
    there, cells = {0}, {0: 0}
    waves, num_cells = ordered.waves
    for index, rank, _, of_sources, of_targets, _ in (wave.tolist() for wave in waves):
        steps = [ordered.steps[one] for one in index]
        sources, targets = ([step[place] for step in steps] for place in (2, 3))
        assert [step[0] for step in steps] == rank and len(set(rank)) == len(rank)
        assert there.issuperset(sources)
        assert [cells[cell] for cell in of_sources] == sources, "no value is gone before it is read"
        there.update(targets)
        cells.update(zip(of_targets, targets, strict=True))
        assert max(cells) < num_cells
    assert sorted(np.hstack([wave[0] for wave in waves]).tolist()) == [*range(len(ordered.steps))]


def order(text: str) -> Order:
    return tuple(map(Action.parse, text.split()))


def test_two_ranks_two_microbatches_by_hand() -> None:
    #          0  1  2  3  4  5  6  7  8  9
    # rank 0   F0 F1 .  .  B0 B0 .  B1 B1        forward 1, backward 2
    # rank 1   .  F0 B0 B0 F1 B1 B1
    timeline = simulate(actions("1f1b", 2, 2), (1, 1), (2, 2))
    assert [list(spans) for spans in timeline.spans] == [
        [(0, 1), (1, 2), (4, 6), (7, 9)],
        [(1, 2), (2, 4), (4, 5), (5, 7)],
    ]
    assert timeline.total_s == 9 and list(timeline.busy_s) == [6, 6]
    assert timeline.bubble_fraction == pytest.approx(6 / 18)


def test_a_transfer_delays_the_next_rank() -> None:
    # F0 0-1, sent until 1.5, F0 1.5-2.5, B0 2.5-4.5, sent until 5, B0 5-7
    timeline = simulate(actions("1f1b", 2, 1), (1, 1), (2, 2), p2p_s=0.5)
    assert [list(spans) for spans in timeline.spans] == [[(0, 1), (5, 7)], [(1.5, 2.5), (2.5, 4.5)]]


def test_chunks_of_one_rank_need_no_transfer() -> None:
    assert simulated_s(("interleaved", 1, 2, 2), (1, 1), (2, 2), p2p_s=5) == 12


def test_lists_that_wait_for_each_other_deadlock() -> None:
    orders = (order("F0.0 B0.0 F1.0 B1.0"), order("F0.0 F1.0 B0.0 B1.0"))
    with pytest.raises(AutoshardError) as error:
        simulate(orders, (1, 1), (1, 1))
    assert str(error.value) == (
        "the schedule deadlocks: rank 0 before B0.0, rank 1 before F1.0 wait for what no rank will send"
    )


def check_clock(timeline: Timeline, size: Size, forward_s: Sequence[float], p2p_s: float) -> None:
    pp, stages = size[1], len(forward_s)
    end: dict[tuple[str, int, int], float] = {}
    start: dict[tuple[str, int, int], float] = {}
    for rank, (actions_of_rank, spans) in enumerate(zip(actions(*size), timeline.spans, strict=True)):
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        for (kind, microbatch, chunk), span in zip(actions_of_rank, spans, strict=True):
            start[kind, microbatch, chunk * pp + rank], end[kind, microbatch, chunk * pp + rank] = span
    transfer_s = p2p_s if pp > 1 else 0
    for kind, microbatch, stage in start:
        if kind == "F" and stage > 0:
            assert start[kind, microbatch, stage] >= end["F", microbatch, stage - 1] + transfer_s
        if kind in "BI":
            before = ("F", microbatch, stage) if stage == stages - 1 else (kind, microbatch, stage + 1)
            assert start[kind, microbatch, stage] >= end[before] + (0 if stage == stages - 1 else transfer_s)


@given(sizes(), st.data(), st.floats(0, 1))
def test_no_deadlock_and_no_action_before_its_input(size: Size, data: st.DataObject, p2p_s: float) -> None:
    stages = size[1] * size[3]
    forward_s, backward_s = (data.draw(st.lists(SECONDS, min_size=stages, max_size=stages)) for _ in range(2))
    timeline = simulate(actions(*size), forward_s, backward_s, p2p_s)
    check_clock(timeline, size, forward_s, p2p_s)
    assert 0 <= timeline.bubble_fraction + 1e-12 <= 1
    # never faster than the busiest rank, and the closed form is a lower bound
    assert timeline.total_s >= max(timeline.busy_s) * (1 - 1e-12)
    assert bound_s(size, forward_s, backward_s, p2p_s) <= timeline.total_s * (1 + 1e-12)


@st.composite
def long_sizes(draw: st.DrawFn) -> Size:
    """With more microbatches than a step time is simulated of."""
    pp, name = draw(st.integers(2, 6)), draw(st.sampled_from(["1f1b", "interleaved", "gpipe", "zero_bubble"]))
    if name == "interleaved":
        return name, pp, pp * draw(st.integers(1, 14)), draw(st.integers(2, 3))
    return name, pp, draw(st.integers(1, 100)), 1


@given(long_sizes(), st.sampled_from([0.0, 0.02, 0.5, 9.0]), st.data(), st.sampled_from([0.0, 0.01, 0.3, 2.0]))
def test_a_step_takes_what_its_simulation_does(size: Size, spread: float, data: st.DataObject, p2p_s: float) -> None:
    """Few microbatches are simulated, and what repeats is multiplied."""
    stages = size[1] * size[3]
    shares = st.lists(st.floats(0, 1), min_size=stages, max_size=stages)
    forward_s, backward_s = ([base + spread * share for share in data.draw(shares)] for base in (1.0, 2.0))
    weight_s = [share * whole for share, whole in zip(data.draw(shares), backward_s, strict=True)]
    expected = simulate(actions(*size), forward_s, backward_s, p2p_s, weight_s).total_s
    assert step_time_s(*size, forward_s, backward_s, p2p_s, weight_s) == pytest.approx(expected, rel=1e-11)


@given(st.integers(1, 6), st.integers(1, 60), st.floats(0.01, 3), st.data())
def test_rounds_of_rows_take_what_each_does_alone(pp: int, m: int, p2p_s: float, data: st.DataObject) -> None:
    """A row leaves as soon as its rounds repeat themselves, each its own."""
    rows = st.lists(st.lists(SECONDS, min_size=2 * pp, max_size=2 * pp), min_size=1, max_size=5)
    seconds = np.array(data.draw(rows)).T
    together_s = in_rounds_s(Work(pp, m, 1, seconds[:pp], seconds[pp:], p2p_s))
    for row, numbers in enumerate(seconds.T.tolist()):
        expected = pytest.approx(simulated_s(("1f1b", pp, m, 1), numbers[:pp], numbers[pp:], p2p_s), rel=1e-11)
        assert together_s[row] == expected
        assert in_rounds_s(Work(pp, m, 1, numbers[:pp], numbers[pp:], p2p_s)) == expected
    assert doctest.testmod(rounds).failed == 0


def test_rounds_of_several_microbatches_repeat() -> None:
    """A slow link: the round trip between two ranks takes two microbatches, longer than either works on them."""
    size, times = ("1f1b", 2, 1001, 1), ([1.0, 1.0], [2.0, 2.0], 5.0)
    # 500 trips of a forward and a backward on both ranks and two transfers, and one microbatch alone at the end
    assert step_time_s(*size, *times) == simulated_s(size, *times) == 500 * (6 + 10) + 6 + 10


@given(sizes().filter(lambda size: size[0] != "zero_bubble"), SECONDS, SECONDS)
def test_uniform_stages_are_exact(size: Size, forward_s: float, backward_s: float) -> None:
    _, pp, num_microbatches, vpp = size
    stages = pp * vpp
    expected = num_microbatches * vpp * (forward_s + backward_s) + (pp - 1) * (forward_s + backward_s)
    assert simulated_s(size, [forward_s] * stages, [backward_s] * stages) == pytest.approx(expected)
    assert bound_s(size, [forward_s] * stages, [backward_s] * stages) == pytest.approx(expected)


@given(st.integers(1, 24), st.integers(2, 8), st.floats(1, 2), st.floats(1, 2), st.floats(0.5, 3))
def test_1f1b_with_heavier_ends_is_exact(m: int, pp: int, first: float, last: float, ratio: float) -> None:
    forward_s = [first] + [1.0] * (pp - 2) + [last]
    size, backward_s = ("1f1b", pp, m, 1), [ratio * time_s for time_s in forward_s]
    assert bound_s(size, forward_s, backward_s) == pytest.approx(simulated_s(size, forward_s, backward_s))


@given(st.integers(1, 24), st.lists(st.floats(0.9, 1.1), min_size=1, max_size=8), st.floats(0, 0.05))
def test_1f1b_of_slightly_uneven_stages_is_close(m: int, forward_s: list[float], p2p_s: float) -> None:
    size, backward_s = ("1f1b", len(forward_s), m, 1), [2 * time_s for time_s in forward_s]
    bound, exact = bound_s(size, forward_s, backward_s, p2p_s), simulated_s(size, forward_s, backward_s, p2p_s)
    assert exact <= 1.03 * bound


@given(
    st.sampled_from([name for name, one in SCHEDULES.items() if one.exact_without_transfers]),
    st.integers(1, 8),
    st.integers(1, 24),
    st.data(),
    st.sampled_from([1.2, 3.0, 100.0]),
)
def test_without_transfers_the_closed_form_is_exact(
    name: str, pp: int, m: int, data: st.DataObject, most: float
) -> None:
    """However unequal stages are, forwards and backwards too."""
    seconds = st.lists(st.floats(1, most), min_size=pp, max_size=pp)
    size, forward_s, backward_s = (name, pp, m, 1), data.draw(seconds), data.draw(seconds)
    expected = simulated_s(size, forward_s, backward_s)
    assert bound_s(size, forward_s, backward_s) == pytest.approx(expected, rel=1e-11)
    assert step_time_s(*size, forward_s, backward_s) == pytest.approx(expected, rel=1e-11)


def test_a_first_backward_waits_at_the_slowest_forward_on_the_way_up() -> None:
    """Rank 1 is slow forward: rank 2's two warm-up forwards come 10 apart, and its backward lets rank 0 begin."""
    size, forward_s, backward_s = ("1f1b", 4, 4, 1), [1.0, 10.0, 1.0, 1.0], [1.0, 1.0, 20.0, 1.0]
    # F0 through ranks 0 and 1: 11; F1 behind it on rank 1: 21; on rank 2: 22; then 4 backwards of 20 and 2 more
    # forwards there, and B on ranks 1 and 0
    assert simulated_s(size, forward_s, backward_s) == bound_s(size, forward_s, backward_s) == 22 + 4 * 20 + 2 * 1 + 2


def test_by_hand_the_first_microbatches_come_to_second_chunks_no_faster_than_the_slowest_first_chunk() -> None:
    """Rank 1's first chunk runs both forwards until 7; then one more on rank 0 and on rank 1 each, so that the last
    backward there ends at 11; microbatch 1 comes to rank 0, back to rank 1 and to rank 0 again."""
    size, forward_s, backward_s = ("interleaved", 2, 2, 2), [1.0, 3.0, 1.0, 1.0], [1.0] * 4
    assert simulated_s(size, forward_s, backward_s) == bound_s(size, forward_s, backward_s) == 7 + 1 + 2 + 1 + 3


@given(sizes().filter(lambda size: size[0] == "interleaved"), st.floats(1, 2))
def test_interleaved_with_a_heavy_head_is_exact(size: Size, head: float) -> None:
    forward_s = [1.0] * (size[1] * size[3] - 1) + [head]
    backward_s = [2 * time_s for time_s in forward_s]
    assert bound_s(size, forward_s, backward_s) == pytest.approx(simulated_s(size, forward_s, backward_s))


@given(sizes(), st.data(), st.floats(1.01, 3))
def test_a_slower_stage_is_never_faster(size: Size, data: st.DataObject, factor: float) -> None:
    stages = size[1] * size[3]
    forward_s = data.draw(st.lists(SECONDS, min_size=stages, max_size=stages))
    slower = list(forward_s)
    slower[data.draw(st.integers(0, stages - 1))] *= factor
    for function in (simulated_s, bound_s):
        assert function(size, slower, forward_s) >= function(size, forward_s, forward_s) * (1 - 1e-12)


@given(st.integers(1, 8), st.integers(0, 24), SECONDS)
def test_zero_bubble_as_published(pp: int, more: int, second: float) -> None:
    """Qi et al. 2023, table 2: with F, I and W alike the bubble of ZB-H1 is a third of 1F1B's, (pp - 1) (F + I - W)."""
    m, times = pp + more, ([second] * pp, [2 * second] * pp)
    zero_bubble = step_time_s("zero_bubble", pp, m, 1, *times, weight_s=[second] * pp)
    assert zero_bubble == pytest.approx((3 * m + pp - 1) * second)
    assert step_time_s("1f1b", pp, m, 1, *times) == pytest.approx((3 * m + 3 * (pp - 1)) * second)


@given(st.integers(1, 24), st.lists(st.floats(0.5, 2), min_size=1, max_size=6))
def test_zero_bubble_without_weight_gradients_is_1f1b(m: int, forward_s: list[float]) -> None:
    backward_s, nothing = [2 * time_s for time_s in forward_s], [0.0] * len(forward_s)
    apart = step_time_s("zero_bubble", len(forward_s), m, 1, forward_s, backward_s, weight_s=nothing)
    assert apart == pytest.approx(simulated_s(("1f1b", len(forward_s), m, 1), forward_s, backward_s))


def test_a_schedule_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_forwards_first(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
        return alternate(pp, num_microbatches, num_virtual_stages, lambda *_: num_microbatches)

    monkeypatch.setitem(SCHEDULES, "all forwards first", Schedule("mine", lambda *_: None, all_forwards_first))
    assert " ".join(map(str, actions("all forwards first", 2, 2)[1])) == "F0.0 F1.0 B0.0 B1.0"
    # (m + pp - 1) * (f + b), as 1f1b
    assert step_time_s("all forwards first", 4, 8, 1, [1.0] * 4, [2.0] * 4) == 33
