"""The orders of the schedules: equal to NxD's, complete, and holding no more microbatches than they should."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.schedules import SCHEDULES, Action, actions, check_schedule, in_flight, rank_holds, weights_waiting
from autoshard.schedules.action import Order

NXD = json.loads((Path(__file__).parents[1] / "golden" / "nxd_schedules.json").read_text(encoding="utf-8"))["cases"]


@st.composite
def sizes(draw: st.DrawFn) -> tuple[str, int, int, int]:
    """A legal (schedule, pp, num_microbatches, num_virtual_stages)."""
    schedule, pp = draw(st.sampled_from(sorted(SCHEDULES))), draw(st.integers(1, 8))
    if schedule != "interleaved":
        return schedule, pp, draw(st.integers(1, 24)), 1
    return schedule, pp, pp * draw(st.integers(1, 5)), draw(st.integers(2, 4))


def test_text_of_an_action() -> None:
    assert str(Action("F", 3, 1)) == "F3.1"
    assert Action.parse("B12.0") == Action("B", 12, 0)


@given(st.sampled_from("FBIW"), st.integers(0, 10**6), st.integers(0, 100))
def test_text_round_trip(kind: str, microbatch: int, chunk: int) -> None:
    action = Action(kind, microbatch, chunk)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize(
    "text", ["", "F", "F3", "F3.", "X3.1", "F-1.0", "F03.1", "F3.1 ", "f3.1", "F3.1\n", "F" + "9" * 99]
)
def test_text_that_is_no_action(text: str) -> None:
    with pytest.raises(AutoshardError, match=r"one reads F3\.1, B3\.1, I3\.1 or W3\.1"):
        Action.parse(text)


@pytest.mark.parametrize("case", [case for case in NXD if "order" in case], ids=str)
def test_orders_equal_those_of_nxd(case: dict[str, Any]) -> None:
    orders = actions(case["schedule"], case["pp"], case["num_microbatches"], case["vpp"])
    assert [" ".join(map(str, order)) for order in orders] == case["order"]


def test_what_nxd_refuses_is_refused() -> None:
    (case,) = [case for case in NXD if "order" not in case]
    with pytest.raises(AutoshardError) as error:
        actions("interleaved", case["pp"], case["num_microbatches"], case["vpp"])
    assert str(error.value) == (
        "schedule=interleaved needs a multiple of pp=4 as num_microbatches, not 6; 4 or 8 would do"
    )


def test_1f1b_of_two_ranks() -> None:
    first, last = actions("1f1b", 2, 3)
    assert " ".join(map(str, first)) == "F0.0 F1.0 B0.0 F2.0 B1.0 B2.0"
    assert " ".join(map(str, last)) == "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0"


def test_1f1b_may_have_fewer_microbatches_than_stages() -> None:
    assert [" ".join(map(str, order)) for order in actions("1f1b", 3, 1)] == ["F0.0 B0.0"] * 3


def test_interleaved_with_one_block_runs_all_forwards_first() -> None:
    assert [" ".join(map(str, order)) for order in actions("interleaved", 2, 2, 2)] == [
        "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"
    ] * 2


@given(sizes())
def test_every_action_once_and_forward_before_backward(size: tuple[str, int, int, int]) -> None:
    name, pp, num_microbatches, vpp = size
    orders = actions(*size)
    assert len(orders) == pp
    kinds = "FIW" if SCHEDULES[name].weights_apart else "FB"
    everything = {Action(kind, m, c) for kind in kinds for m in range(num_microbatches) for c in range(vpp)}
    for order in orders:
        assert len(order) == len(everything) and set(order) == everything
        position = {action: index for index, action in enumerate(order)}
        for before, after in pairwise(kinds):
            assert all(position[Action(before, *a[1:])] < position[a] for a in order if a.kind == after)


@given(st.integers(1, 12), st.integers(1, 40))
def test_in_flight_of_1f1b(pp: int, num_microbatches: int) -> None:
    peaks = in_flight(actions("1f1b", pp, num_microbatches))
    assert peaks == tuple((min(pp - rank, num_microbatches),) for rank in range(pp))


def test_gpipe_of_two_ranks() -> None:
    assert [" ".join(map(str, order)) for order in actions("gpipe", 2, 3)] == ["F0.0 F1.0 F2.0 B0.0 B1.0 B2.0"] * 2
    assert in_flight(actions("gpipe", 4, 9)) == ((9,),) * 4


def test_zero_bubble_of_two_ranks() -> None:
    """The last rank lets one gradient of weights wait, the first none."""
    first, last = actions("zero_bubble", 2, 3)
    assert " ".join(map(str, first)) == "F0.0 F1.0 I0.0 W0.0 F2.0 I1.0 W1.0 I2.0 W2.0"
    assert " ".join(map(str, last)) == "F0.0 I0.0 F1.0 I1.0 W0.0 F2.0 I2.0 W1.0 W2.0"


@given(st.integers(1, 12), st.integers(1, 40))
def test_zero_bubble_holds_no_more_than_the_first_rank_of_1f1b(pp: int, num_microbatches: int) -> None:
    """Of each, the one whose `I` has just run included."""
    orders = actions("zero_bubble", pp, num_microbatches)
    assert in_flight(orders) == in_flight(actions("1f1b", pp, num_microbatches))
    assert weights_waiting(orders) == tuple((min(rank + 1, num_microbatches),) for rank in range(pp))


@pytest.mark.parametrize("name", tuple(SCHEDULES))
@pytest.mark.parametrize(
    ("pp", "num_microbatches", "vpp"),
    [(1, 3, 1), (4, 2, 1), (5, 3, 1), (4, 4, 1), (4, 9, 1), (2, 6, 3), (3, 3, 2), (2, 4, 4), (4, 16, 2)],
)
def test_what_built_in_schedules_hold_is_what_their_orders_hold(
    name: str, pp: int, num_microbatches: int, vpp: int
) -> None:
    schedule = SCHEDULES[name]
    if schedule.objection_to(pp, num_microbatches, vpp) is None:
        counted = replace(schedule, label="counted", warm_up=None, most_waiting=None)
        assert rank_holds(schedule, pp, num_microbatches, vpp) == rank_holds(counted, pp, num_microbatches, vpp)


def test_gradients_of_weights_that_wait_until_the_end() -> None:
    """What is in flight and what waits are most at different moments: after the last forward of rank r, pp - r are in
    flight and m - (pp - r) wait."""
    apart = SCHEDULES["zero_bubble"]

    def late(pp: int, m: int, vpp: int) -> tuple[Order, ...]:
        orders = apart.orders(pp, m, vpp)
        return tuple((*(a for a in order if a.kind != "W"), *(Action("W", i, 0) for i in range(m))) for order in orders)

    holds = rank_holds(replace(apart, orders=late, warm_up=None, most_waiting=None), 4, 16, 1)
    assert [(one.in_flight, one.waiting, one.together) for one in holds] == [(4 - rank, 15, 16) for rank in range(4)]


def test_in_flight_of_interleaved() -> None:
    # Rank 3: F0-3.0 F0.1, then B0.1 and F1.1 in turn: one of chunk 1 at a time; F4.0 is the fifth of chunk 0.
    # Rank 0: F0-3.0 F0-3.1 F4-6.0, then B0.1 F7.0: all eight of chunk 0 before B0.0.
    assert in_flight(actions("interleaved", 4, 8, 2)) == ((8, 4), (8, 4), (7, 3), (5, 1))
    assert in_flight(actions("interleaved", 4, 4, 2)) == ((4, 4),) * 4
    # Where all forwards come first, the second chunk is through with its four when the first one begins.
    sizes = {count: rank_holds(SCHEDULES["interleaved"], 4, count, 2) for count in (4, 8)}
    assert [(one.in_flight, one.at_first) for one in sizes[4]] == [(8, 4)] * 4
    assert [(one.in_flight, one.at_first) for one in sizes[8]] == [(11, 11), (9, 9), (7, 7), (5, 5)]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (("1f2b", 2, 2, 1), "schedule='1f2b' is not known; known: 1f1b, interleaved, gpipe, zero_bubble"),
        (("1f1b", 0, 2, 1), "pp=0 must be at least 1"),
        (("1f1b", 2, 0, 1), "num_microbatches=0 must be at least 1"),
        (("1f1b", 2, 2, 0), "vpp=0 must be at least 1"),
        (("1f1b", 2, 2, 2), "schedule=1f1b has one chunk a rank, not vpp=2; use vpp=1 or schedule=interleaved"),
        (
            ("gpipe", 2, 2, 2),
            "schedule=gpipe has one chunk a rank, not vpp=2; use vpp=1 or schedule=interleaved",
        ),
        (("zero_bubble", 2, 2, 2), "schedule=zero_bubble has one chunk a rank, not vpp=2; use vpp=1"),
        (
            ("interleaved", 2, 2, 1),
            "schedule=interleaved needs at least 2 chunks a rank, not vpp=1; use schedule=1f1b",
        ),
        (
            ("interleaved", 4, 3, 2),
            "schedule=interleaved needs a multiple of pp=4 as num_microbatches, not 3; 4 would do",
        ),
    ],
)
def test_what_is_refused(size: tuple[str, int, int, int], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        check_schedule(*size)
    assert str(error.value) == text
    with pytest.raises(AutoshardError):
        actions(*size)
