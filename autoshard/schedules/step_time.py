"""What a schedule takes: at least, from its closed form, and exactly, on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from autoshard.schedules.closed_form import Work
from autoshard.schedules.orders import SCHEDULES, Schedule, orders_of
from autoshard.schedules.rows import Number, by_rows, is_rows, largest
from autoshard.schedules.simulate import InOrder, durations, in_dependency_order, run

SAME = 1e-13
"""Share of a step by which two rounds of a schedule may differ and be the same: rounding."""


def step_time_s(
    schedule: str,
    pp: int,
    num_microbatches: Number,
    num_virtual_stages: int,
    forward_s: Sequence[Number],
    backward_s: Sequence[Number],
    p2p_s: Number = 0.0,
    weight_s: Sequence[Number] | None = None,
) -> Number:
    """Seconds from the first forward to the last backward: `simulate(...).total_s`, of one layout or of rows.

    forward_s, backward_s: of one microbatch, by virtual stage (stage = chunk * pp + rank). p2p_s: between ranks.
    weight_s: the part of backward_s that a schedule with weights apart may put off; the others do not care.
    Sizes are taken to be legal (`check_schedule`).
    """
    known = SCHEDULES[schedule]
    if pp == 1 and num_virtual_stages == 1 and not known.weights_apart:
        return num_microbatches * (forward_s[0] + backward_s[0])
    return by_rows(
        lambda count, *numbers: _simulated_s(known, Work(pp, count, num_virtual_stages, *numbers)),
        num_microbatches,
        forward_s,
        backward_s,
        p2p_s,
        weight_s,
    )


def at_least_s(schedule: str, work: Work) -> Number:
    """The closed form: what `step_time_s` is never less than. Where a schedule has none, that itself."""
    known = SCHEDULES[schedule]
    if known.closed_form is None:
        pp, m, vpp, *numbers = work
        return step_time_s(schedule, pp, m, vpp, *numbers)
    return known.closed_form(work)


def _simulated_s(schedule: Schedule, work: Work) -> Number:
    """Where the orders are `alternate`, few microbatches are simulated; when its rounds repeat, each further one takes
    as long again."""
    m = work.num_microbatches
    for count in _few(schedule, work.pp, m, work.num_virtual_stages):
        found = _repeated_s(schedule, work, count)
        if found is not None:
            return found
    return run(*_on_clock(schedule, work, m))[0]


def _on_clock(schedule: Schedule, work: Work, count: int) -> tuple[InOrder, list[Number], Number]:
    pp, _, vpp, forward_s, backward_s, transfer_s, weight_s = work
    return _ordered(schedule, pp, count, vpp), durations(forward_s, backward_s, weight_s), transfer_s


@lru_cache(maxsize=64)
def _ordered(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> InOrder:
    return in_dependency_order(orders_of(schedule, pp, num_microbatches, num_virtual_stages), pp * num_virtual_stages)


@lru_cache(maxsize=256)
def _few(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[int, ...]:
    """Rising numbers of microbatches, fewer than all, with which a round may repeat; none where orders are another
    list's."""
    if schedule.warm_up is None or schedule.weights_apart:
        return ()
    vpp, size = num_virtual_stages, pp if num_virtual_stages > 1 else 1
    warms = _warms(schedule, pp, num_microbatches, vpp)
    count = size * (-(-max(warms) // (size * vpp)) + (2 if vpp > 1 else 1 + max(warms) // 2))
    found = []
    while 2 * count <= num_microbatches:
        if _warms(schedule, pp, count, vpp) == warms:
            found.append(count)
        count *= 2
    return tuple(found)


def _warms(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[int, ...]:
    assert schedule.warm_up is not None
    return tuple(schedule.warm_up(rank, pp, num_microbatches, num_virtual_stages) for rank in range(pp))


def _repeated_s(schedule: Schedule, work: Work, count: int) -> Number | None:
    """None where `count` microbatches, and a few more, are too few to tell.

    Behind its warm-up and in front of its last backwards each rank runs a backward and a forward in turn. A round of
    some microbatches repeats, when all ranks start all its actions as much later as in the round before: what comes
    then depends on these alone. Any number of rounds may then be put in between, each of which takes as much.
    """
    m = work.num_microbatches
    on_clock = _on_clock(schedule, work, count)
    total_s, starts = run(*on_clock)
    later_s, microbatches = _round(schedule, work, on_clock[0], starts, count, total_s)
    if not microbatches:
        return None
    if rest := (m - count) % microbatches:
        total_s = run(*_on_clock(schedule, work, count + rest))[0]
    return total_s + (m - count - rest) // microbatches * later_s


def _round(
    schedule: Schedule, work: Work, ordered: InOrder, starts: Sequence[Number], count: int, total_s: Number
) -> tuple[Number, int]:
    """(seconds, microbatches) of the round that repeats; of no microbatches where none does."""
    pp, vpp = work.pp, work.num_virtual_stages
    size, most = pp if vpp > 1 else 1, max(_warms(schedule, pp, count, vpp))
    end = 2 * count * vpp - most  # from `most` to here all ranks run backwards and forwards in turn

    def later_s(rank: int, place: int, length: int) -> Number:
        own = ordered.places[rank]
        return starts[own[place]] - starts[own[place - length]]

    for rounds in range(1, pp + 1):
        length = 2 * size * vpp * rounds
        compared = max(length, most)  # no action waits for one that comes further in front of it
        if end - compared - length < most:
            break
        wanted = later_s(0, end - 1, length)
        if all(
            _equal(later_s(rank, place, length), wanted, total_s)
            for place in range(end - 1, end - 1 - compared, -1)
            for rank in range(pp)
        ):
            return wanted, size * rounds
    return 0.0, 0


def _equal(a: Number, b: Number, whole: Number) -> bool:
    """As good as equal beside the whole, in all rows."""
    equal = largest(a - b, b - a) <= SAME * whole
    return bool(equal.all()) if is_rows(equal) else bool(equal)
