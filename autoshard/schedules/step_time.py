"""The step time of a schedule: a lower bound by its closed form, and the exact time on the clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.rows import Number, anywhere, by_rows, is_rows
from autoshard.schedules.closed_form import Work
from autoshard.schedules.held import warm_ups
from autoshard.schedules.orders import SCHEDULES, Schedule, asked, is_built_in, orders_of, said
from autoshard.schedules.rounds import in_rounds_s
from autoshard.schedules.simulate import InOrder, durations, in_dependency_order, run, until_done_s

SAME = 1e-12
"""Share of a step by which two bounds of it may differ for rounding."""
ROUNDING = 1e-9
"""The same where others wrote one of them."""


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
    """Seconds from the first forward to the last backward, as `simulate(...).total_s`; for one layout or for rows.

    forward_s, backward_s: of one microbatch, by virtual stage (stage = chunk * pp + rank). p2p_s: between ranks.
    weight_s: the part of backward_s that a schedule with weights apart may put off; other schedules ignore it.
    Sizes must be legal (`check_schedule`).
    """
    known = SCHEDULES[schedule]
    if known.exact_without_transfers and is_built_in(known) and (pp == 1 or not anywhere(p2p_s)):
        return _closed_form_s(known, Work(pp, num_microbatches, num_virtual_stages, forward_s, backward_s))
    return by_rows(
        lambda count, *numbers: _held_against_s(known, Work(pp, count, num_virtual_stages, *numbers)),
        num_microbatches,
        forward_s,
        backward_s,
        p2p_s,
        weight_s,
    )


def at_least_s(schedule: str, work: Work) -> Number:
    """Seconds that a step takes at least, by the schedule's closed form; the step time itself if it has none."""
    known = SCHEDULES[schedule]
    if known.closed_form is None:
        pp, m, vpp, *numbers = work
        return step_time_s(schedule, pp, m, vpp, *numbers)
    return _closed_form_s(known, work)


def _closed_form_s(schedule: Schedule, work: Work) -> Number:
    """Seconds by the closed form, which the schedule must have.

    Raises AutoshardError where that of a schedule that is not built in raises or gives no seconds.
    """
    closed_form = schedule.closed_form
    assert closed_form is not None
    if is_built_in(schedule):
        return closed_form(work)
    import numpy as np

    sizes = (work.pp, work.num_microbatches, work.num_virtual_stages)
    found = asked(schedule, lambda *_: closed_form(work), *sizes)
    array, wanted = asked(schedule, lambda *_: np.asarray(found), *sizes), np.shape(work.forward_s[0])
    if array.dtype.kind not in "iuf" or array.shape not in ((), wanted):
        gives = f"seconds of shape {array.shape}" if array.dtype.kind in "iuf" else show(found)
        raise AutoshardError(f"{said(schedule)} has a closed_form that gives {gives}; it wants () or {wanted}")
    if not (np.isfinite(array) & (array >= 0)).all():
        raise AutoshardError(f"{said(schedule)} has a closed_form that gives seconds that are negative or not finite")
    bound_s: Number = array[()]
    return bound_s


def _held_against_s(schedule: Schedule, work: Work) -> Number:
    """The step time on the clock. Raises AutoshardError where the closed form of a schedule that is not built in
    contradicts it."""
    found_s = _simulated_s(schedule, work)
    if schedule.closed_form is None or is_built_in(schedule):
        return found_s
    import numpy as np

    bound_s = _closed_form_s(schedule, work)
    is_exact = schedule.exact_without_transfers and (work.pp == 1 or not anywhere(work.transfer_s))
    wrong = np.atleast_1d((bound_s > found_s * (1 + ROUNDING)) | (is_exact & (bound_s < found_s * (1 - ROUNDING))))
    if wrong.any():
        told_s, taken_s = (np.broadcast_to(one, wrong.shape)[wrong.argmax()] for one in (bound_s, found_s))
        raise AutoshardError(
            f"{said(schedule)} has a closed_form of {told_s:g} s for a step that takes {taken_s:g} s on the clock with "
            f"pp={work.pp}, num_microbatches={work.num_microbatches} and vpp={work.num_virtual_stages}; it must give "
            + ("just that: exact_without_transfers=True" if is_exact else "that or less")
        )
    return found_s


def _simulated_s(schedule: Schedule, work: Work) -> Number:
    """The step time on the clock.

    A few microbatches are simulated first: mostly they tell the time of all.
    """
    m = work.num_microbatches
    if _is_in_rounds(schedule, work.pp, m, work.num_virtual_stages):
        return in_rounds_s(work)
    first = _first_row(work) if is_rows(work.forward_s) else None
    for count in _few(schedule, work.pp, m, work.num_virtual_stages):
        if first is not None and _from_few_s(schedule, first, count) is None:
            continue  # too few for one row are too few for all
        found = _from_few_s(schedule, work, count)
        if found is not None:
            return found
    return until_done_s(*_on_clock(schedule, work, m))


@lru_cache(maxsize=256)
def _is_in_rounds(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> bool:
    """Whether the orders are those of `in_rounds_s`."""
    if num_virtual_stages > 1 or schedule.warm_up is None or schedule.weights_apart:
        return False
    ahead = tuple(min(pp - rank, num_microbatches) for rank in range(pp))
    return warm_ups(schedule, pp, num_microbatches, 1) == ahead


def _first_row(work: Work) -> Work:
    pp, m, vpp, *numbers = work
    return Work(pp, m, vpp, *(one[..., 0].tolist() if is_rows(one) else one for one in numbers))


def _on_clock(schedule: Schedule, work: Work, count: int) -> tuple[InOrder, list[Number], Number]:
    pp, _, vpp, forward_s, backward_s, transfer_s, weight_s = work
    return in_order(schedule, pp, count, vpp), durations(forward_s, backward_s, weight_s), transfer_s


@lru_cache(maxsize=64)
def in_order(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> InOrder:
    """All actions of a schedule's orders, each behind those that it waits for, found once. Sizes must be legal."""
    return in_dependency_order(
        orders_of(schedule, pp, num_microbatches, num_virtual_stages), pp * num_virtual_stages, said(schedule)
    )


class _Turns(NamedTuple):
    """Ranks that run the actions of a microbatch in turn, between their warm-up and their last backwards.

    actions: in a turn: a forward and a backward, or its two parts. warms: forwards of each rank before its first
    backward. waits: weight gradients that each rank lets wait behind its first backwards, and runs at the end.
    """

    actions: int
    warms: tuple[int, ...]
    waits: tuple[int, ...]

    @property
    def begin(self) -> int:
        """The index in its order from which each rank runs in turn."""
        return max(warm + 2 * wait for warm, wait in zip(self.warms, self.waits, strict=True))

    @property
    def tail(self) -> int:
        """So many of its last actions a rank does not run in turn, at most."""
        return max((self.actions - 1) * warm + wait for warm, wait in zip(self.warms, self.waits, strict=True))

    def reach(self, num_virtual_stages: int) -> int:
        """The most by which an action's index in its rank's order exceeds the index, in its own order, of one that it
        waits for on another rank."""
        pp, both = len(self.warms), [*zip(self.warms, self.waits, strict=True)]
        forward = [-(self.actions - 1) * warm - wait for warm, wait in both]  # where those of one microbatch are
        backward = [warm - wait for warm, wait in both]
        ahead = [own - before for before, own in pairwise(forward)]
        behind = [own - after for own, after in pairwise(backward)]
        around = [2 * pp - self.warms[0] + self.warms[-1]] if num_virtual_stages > 1 else []
        return max([1, *ahead, *behind, *around])


@lru_cache(maxsize=256)
def _turns(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> _Turns | None:
    """The turns of all ranks; None where they are not known to run in turn."""
    if schedule.warm_up is None:
        return None
    sizes = (pp, num_microbatches, num_virtual_stages)
    warms, most_waiting = warm_ups(schedule, *sizes), schedule.most_waiting
    if not schedule.weights_apart:
        return _Turns(2, warms, (0,) * pp)
    if most_waiting is None or not is_built_in(schedule):
        return None
    return _Turns(3, warms, tuple(most_waiting(rank, *sizes) for rank in range(pp)))


@lru_cache(maxsize=256)
def _few(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[int, ...]:
    """Rising numbers of microbatches, fewer than all, whose simulation may tell the time of all; empty if ranks do not
    run in turn."""
    turns = _turns(schedule, pp, num_microbatches, num_virtual_stages)
    if turns is None:
        return ()
    vpp, size = num_virtual_stages, pp if num_virtual_stages > 1 else 1
    count = size * (-(-(turns.begin + turns.tail) // (turns.actions * size * vpp)) + 2)  # two rounds of turns
    found = []
    while 2 * count <= num_microbatches:
        if _turns(schedule, pp, count, vpp) == turns:
            found.append(count)
        count *= 2
    return tuple(found)


def _from_few_s(schedule: Schedule, work: Work, count: int) -> Number | None:
    """The step time of all microbatches from a simulation of `count` of them; None if that does not tell it.

    Behind its warm-up and in front of its last backwards each rank runs actions in turn, in rounds. Start times in one
    round follow from those in the round before, by additions and maxima alone. So if no action starts more than D later
    than the same action in the round before, none ever does, and n more rounds take n D at most. If all start exactly D
    later, they take exactly n D. They also do if the closed form says that it is no less.
    """
    import numpy as np

    m, pp, vpp = work.num_microbatches, work.pp, work.num_virtual_stages
    ordered, *numbers = _on_clock(schedule, work, count)
    total_s, begins = run(ordered, *numbers)
    starts, own = np.asarray(begins), ordered.places_of_ranks
    turns, size = _turns(schedule, pp, count, vpp), pp if vpp > 1 else 1
    assert turns is not None, "`_few` gives no such count"
    end = turns.actions * count * vpp - turns.tail
    at_least = 0.0 if schedule.closed_form is None else _closed_form_s(schedule, work)
    for rounds in range(1, pp + 1):
        length = turns.actions * size * vpp * rounds
        begin = end - max(length, turns.reach(vpp))
        if begin - length < turns.begin:
            return None
        later_s = starts[own[:, begin:end]] - starts[own[:, begin - length : end - length]]
        both_s = later_s.min((0, 1)), later_s.max((0, 1))
        least_s, most_s = (float(one) if isinstance(one, np.floating) else one for one in both_s)
        left, rest = divmod(m - count, size * rounds)
        repeats = _reaches(least_s, most_s)
        if rest and repeats:
            return until_done_s(*_on_clock(schedule, work, count + rest)) + left * most_s
        if not rest and (repeats or _reaches(at_least, total_s + left * most_s)):
            return total_s + left * most_s
    return None


def _reaches(at_least_s: Number, at_most_s: Number) -> bool:
    """Whether a lower and an upper bound meet in all rows, but for rounding."""
    meets = at_most_s <= at_least_s * (1 + SAME)
    return bool(meets.all()) if is_rows(meets) else bool(meets)
