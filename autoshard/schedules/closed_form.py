"""Lower bounds of a schedule's step time, in microseconds where the simulation takes milliseconds.

The bounds discard layouts; the simulation (step_time.py) decides.

Every path through the dependencies of the actions is a lower bound. These formulas are the longest of a few families
of paths. How close they come (tests/unit/test_simulate.py, and random trials for the shares below):

* Equal stages, no p2p: exact. 1f1b takes (m + pp - 1) * (f + b), interleaved (m * vpp + pp - 1) * (f + b) with one
  chunk's times.
* gpipe: exact, however unequal the stages are. 1f1b: exact where transfers take no time; with transfers of 5 % of a
  forward and stages within 20 % of each other at most 1.2 % below, 0.07 % on average.
* interleaved: exact with a heavier last stage. A first stage 5 % heavier: 1 % below; random chunks within 20 % of each
  other: 0.2 % on average, 3 % at worst; chunks up to eight times as long as others: 3 % on average, 16 % at worst; with
  as many microbatches as ranks 1 % and 8 %.

All are formulas over rows (rows.py): seconds and microbatches are numbers of one layout, arrays of layouts, or numbers
with derivatives. pp and the number of virtual stages are the same in all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from autoshard.rows import (
    Number,
    anywhere,
    by_count,
    by_stage,
    either,
    floor,
    largest,
    running_largest,
    running_total,
    smallest,
    total,
    weighted_by_rank,
    where,
)

WarmUp = Callable[[int, int, int, int], int]
"""(rank, pp, num_microbatches, num_virtual_stages) -> forwards before the first backward, at least 1."""


Stages = Any
"""A sequence with a number a virtual stage, or an array with a row a virtual stage."""


class Work(NamedTuple):
    """A pipeline's work in one step.

    forward_s, backward_s: of one microbatch, by virtual stage (stage = chunk * pp + rank). transfer_s: between ranks,
    0 where pp is 1. weight_s: the part of backward_s that a schedule with weights apart may put off; None is half.
    """

    pp: int
    num_microbatches: Number
    num_virtual_stages: int
    forward_s: Stages
    backward_s: Stages
    transfer_s: Number = 0.0
    weight_s: Stages | None = None


ClosedForm = Callable[[Work], Number]
"""Seconds that a step takes at least."""


def alternating_at_least_s(warm_up: WarmUp, work: Work) -> Number:
    """Seconds that a step with the orders of `alternate(..., warm_up)` takes at least.

    For each rank the bound adds three parts: the time until its first backward, its work until its last forward, and
    the time from there to the end. The longest rank counts.

    A rank's first backward, of microbatch 0 and its last chunk, waits for its own warm-up forwards and for the first
    backward of the rank behind, which waits in the same way; on the last rank it waits for all stages. The same,
    mirrored in time, holds after its last forward.
    """
    pp, m, vpp, forward_s, backward_s, transfer_s, _ = work
    warms = by_count(lambda count: [warm_up(rank, pp, count, vpp) for rank in range(pp)], m)
    visits = [chunk_visits(warm, pp, vpp) for warm in warms] if vpp > 1 else []
    warm_s, filled_s = _filled_s(warms, visits, forward_s, transfer_s)
    cool_s, drained_s = _filled_s(warms, visits, backward_s, transfer_s)
    through_s = (pp * vpp - 1) * transfer_s
    first_s, last_s = total(forward_s) + through_s, total(backward_s) + through_s
    longest = 0.0
    for rank in range(pp - 1, -1, -1):
        if rank < pp - 1:
            behind = rank + 1 - pp  # the last chunk of the rank behind
            first_s, last_s = first_s + backward_s[behind] + transfer_s, last_s + forward_s[behind] + transfer_s
        first_s, last_s = largest(first_s, filled_s[rank]), largest(last_s, drained_s[rank])
        total_s = either(
            warms[rank] < m * vpp,
            lambda: first_s + _between_s(work, rank, warms[rank], warm_s, cool_s) + last_s,  # noqa: B023  called at once
            # all forwards come before all backwards: the two waits are one
            lambda: largest(first_s + drained_s[rank], filled_s[rank] + last_s),  # noqa: B023
        )
        longest = largest(longest, total_s)
    return longest


def _between_s(work: Work, rank: int, warm: Number, warm_s: Sequence[Number], cool_s: Sequence[Number]) -> Number:
    """Seconds of a rank's work between its first backward and its last forward.

    warm: its warm-up forwards. warm_s, cool_s: by rank, seconds of the warm-up forwards and of the backwards at the
    end.
    """
    pp, m, vpp, forward_s, backward_s, *_ = work
    if vpp == 1:
        return (m - warm) * (forward_s[rank] + backward_s[rank])
    own_s = total(forward_s[rank::pp]) + total(backward_s[rank::pp])
    return m * own_s - warm_s[rank] - cool_s[rank]


def _filled_s(
    warms: Sequence[Number], visits: Sequence[Sequence[Number]], forward_s: Stages, transfer_s: Number
) -> tuple[Sequence[Number], Sequence[Number]]:
    """Two lists by rank: seconds of its warm-up forwards (empty with one chunk), and the earliest time they are done.

    The forwards wait for the first input, and inputs come no faster than the slowest rank in front lets them through.
    warms: warm-up forwards of each rank. visits: how often these go through each chunk, by rank; empty with one chunk.
    Given backward seconds as forward_s, the lists are about the way from the last backwards to the end.
    """
    if visits:
        return _chunks_filled_s(visits, forward_s, transfer_s)
    filled_s = []
    fill_s = slowest_s = 0.0
    for forward, warm in zip(forward_s, warms, strict=True):
        slowest_s = largest(slowest_s, forward)
        filled_s.append((warm - 1) * slowest_s + (fill_s + forward))
        fill_s = fill_s + forward + transfer_s
    return [], filled_s


def _chunks_filled_s(
    visits: Sequence[Sequence[Number]], forward_s: Stages, transfer_s: Number
) -> tuple[Sequence[Number], Sequence[Number]]:
    """`_filled_s` with several chunks a rank.

    A rank's warm-up is its work on the first pp microbatches, chunk by chunk as far as it goes, and then what is left.
    """
    pp, filled_s, own_s = len(visits), [], weighted_by_rank(visits, forward_s)
    left = [[where(count >= pp, count - pp, count) for count in visited] for visited in visits]
    left_s = weighted_by_rank(left, forward_s)
    begins_s, ends_s = _first_round_s(pp, forward_s, transfer_s)
    for rank, visited in enumerate(visits):
        done_s, end_s = begins_s[rank] + own_s[rank], 0.0
        for count, of_chunk in zip(visited, ends_s, strict=True):  # the last one that is whole
            end_s = where(count >= pp, of_chunk[rank], end_s)
        filled_s.append(largest(done_s, end_s + left_s[rank]))
    return own_s, filled_s


def _first_round_s(pp: int, forward_s: Stages, transfer_s: Number) -> tuple[Stages, list[Stages]]:
    """(by rank, when it may begin; by chunk, then rank, when it is done with the first pp microbatches): the earliest.

    They go through each stage one after another, and through a rank's next chunk when all have gone through the one
    before. So a stage is done with all of them after the first one came and all ran there, or when the last one came
    from the stage in front and ran.
    """
    begins_s, ends_s = None, list[Stages]()
    came_s = 0.0  # when the first microbatch comes to a chunk
    for first in range(0, len(forward_s), pp):
        forwards = forward_s[first : first + pp]
        passed_s = running_total(by_stage(lambda forward: forward + transfer_s, forwards))
        begin_s = by_stage(lambda passed, forward: came_s + passed - forward - transfer_s, passed_s, forwards)  # noqa: B023
        if begins_s is None:
            begins_s = begin_s
        else:
            begin_s = by_stage(largest, begin_s, ends_s[-1])
        # how much later than if it had come through this chunk without a wait
        late_s = by_stage(lambda begin, passed, forward: begin + pp * forward - passed, begin_s, passed_s, forwards)
        if ends_s:
            late_s[0] = largest(late_s[0], ends_s[-1][-1])
        ends_s.append(by_stage(lambda late, passed: late + passed, running_largest(late_s), passed_s))
        came_s = came_s + passed_s[-1]
    return begins_s, ends_s


def chunk_visits(warm: Number, pp: int, vpp: int) -> list[Number]:
    """How often the first `warm` forwards of a rank go through each of its chunks."""
    rounds, rest = divmod(warm, pp * vpp)
    return [rounds * pp + smallest(pp, largest(0, rest - chunk * pp)) for chunk in range(vpp)]


def in_turns_at_least_s(warm_up: WarmUp, work: Work) -> Number:
    """Seconds that a step of 1f1b takes at least.

    1f1b has one forward more in flight than there are ranks behind. With transfers, the round trip between two ranks
    may be slower than the work of either.

    From rank `low`, a forward of microbatch i goes up to rank `high`, which then runs a backward that comes down to
    `low`, which then runs the forward of microbatch i + high - low + 1. The first i for which `high` runs a backward
    next is pp - 1 - high. The bound looks at trips to the last rank and to the next one. For 32 unlike ranks with
    transfers of 3 % of their work (kimi-k2) it is 3 % below the clock; planner/grid/rank_trips.py looks at all trips of
    few layouts.
    """
    longest = alternating_at_least_s(warm_up, work)
    pp, m, _, forward_s, backward_s, transfer_s, _ = work
    if not anywhere(transfer_s):
        return longest
    own_s = [forward + backward for forward, backward in zip(forward_s, backward_s, strict=True)]
    behind_s = [*accumulate(reversed(own_s))][::-1]  # of a rank and all behind it
    ends_s = behind_s[0] + (2 * pp - 2) * transfer_s  # up to the last rank and down to the first
    slowest_s = 0.0
    for low in range(pp - 1):
        slowest_s = largest(slowest_s, forward_s[low])
        for high in {low + 1, pp - 1}:
            trip_s = behind_s[low] if high == pp - 1 else own_s[low] + own_s[high]
            first, ranks = pp - 1 - high, high - low + 1
            later = m - 1 - first
            trips = floor(later / ranks)
            trips_s = trips * (trip_s + 2 * (high - low) * transfer_s) + (later - ranks * trips) * own_s[low]
            total_s = ends_s + trips_s + first * slowest_s if first else ends_s + trips_s
            longest = largest(longest, where(trips >= 1, total_s, 0.0))
    return longest


def weights_apart_at_least_s(work: Work) -> Number:
    """Seconds that a step of 1f1b with weight gradients apart (`I` and `W`) takes at least.

    A rank waits for its first input and, before its first backward, for microbatch 0 to go through all stages and back.
    Then it has work for all microbatches.
    """
    pp, m, _, forward_s, backward_s, transfer_s, weight_s = work
    weight_s = [backward / 2 for backward in backward_s] if weight_s is None else weight_s
    passed_s = [backward - weight + transfer_s for backward, weight in zip(backward_s, weight_s, strict=True)]
    behind_s = [*accumulate(reversed(passed_s), initial=0.0)][::-1]
    all_forward_s = total(forward_s) + (pp - 1) * transfer_s
    longest = fill_s = 0.0
    for rank in range(pp):
        warm = smallest(pp - rank, m)
        until_backward_s = largest(fill_s + warm * forward_s[rank], all_forward_s + behind_s[rank + 1])
        longest = largest(longest, until_backward_s + (m - warm) * forward_s[rank] + m * backward_s[rank])
        fill_s = fill_s + forward_s[rank] + transfer_s
    return longest
