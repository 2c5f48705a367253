"""The step time of 1F1B round by round, all ranks together: the additions and maxima of the clock without its actions.

In round j rank r runs forward of microbatch j + pp - 1 - r, then backward of microbatch j; in front of round 0 there
are forwards alone. A rank that has no forward left is as far as it was. When the forwards of a round end is all that
the next one follows from.

That is by additions and maxima alone. So where the forwards of a round end D later on all ranks than those so many
rounds before, they do so ever after, and the rounds between are left out. So many are as many as ranks are on the
slowest trip: from its lowest rank up to its highest and back, which comes once in that many rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from autoshard.rows import Number, different, is_rows, pieces
from autoshard.schedules.closed_form import Work

SAME = 1e-12
"""Share of a trip by which its seconds may differ for rounding."""
FIRST = 4
"""The round in which it is first asked whether rounds repeat themselves; later each time a quarter as many."""
TOGETHER = 1 << 14
"""Numbers of a round, of all ranks and rows, that stay in a core's cache."""


def in_rounds_s(work: Work) -> Number:
    """Seconds of a step in which rank r runs pp - r forwards, or all of them, and then backward and forward in turn;
    for one layout or for rows. One chunk a rank, backwards in one piece, as many microbatches in all rows.

    Two ranks, and 0.5 s on the way: each trip up and back, 7 s for two microbatches, follows the one before.

    >>> in_rounds_s(Work(2, 3, 1, [1.0, 1.0], [2.0, 2.0], 0.5))
    14.0
    """
    if not is_rows(work.forward_s):
        full = work.num_microbatches - work.pp
        return _drained_s(work, max(0, full), _in_round(work, full) if full > 0 else _filled(work))
    import numpy as np

    forward_s, backward_s, transfer_s = np.broadcast_arrays(work.forward_s, work.backward_s, work.transfer_s)
    parts = pieces(forward_s.shape[1], TOGETHER // work.pp)
    return np.concatenate(
        [_rows_s(Work(*work[:3], forward_s[:, rows], backward_s[:, rows], transfer_s[0, rows])) for rows in parts]
    )


def _filled(work: Work) -> list[float]:
    """The ends of the forwards in front of the first backwards, by rank."""
    ahead = [0.0] * work.pp
    for diagonal in range(work.pp):
        for rank in range(diagonal, max(0, diagonal - work.num_microbatches + 1) - 1, -1):
            came = ahead[rank - 1] + work.transfer_s if rank else 0.0
            ahead[rank] = max(came, ahead[rank]) + work.forward_s[rank]
    return ahead


def _in_round(work: Work, number: int) -> list[float]:
    """The ends of the forwards of a round in which each rank has one, by rank."""
    ahead = _filled(work)
    before, asked, period = [ahead], FIRST, 0
    for this in range(1, number + 1):
        ahead = _forwards(work, ahead, _backwards(work, ahead), 0)
        before.append(ahead)
        if this == asked:
            period = period or _period(work)
            asked = max(this + 1 + this // 4, period)
            if this < period:
                continue
            later_s = [now - then for now, then in zip(ahead, before[this - period], strict=True)]
            if max(later_s) <= min(later_s) * (1 + SAME):
                times = -((this - number) // period)
                return [then + times * max(later_s) for then in before[number - times * period]]
    return ahead


def _drained_s(work: Work, number: int, ahead: list[float]) -> float:
    """The end of the step. ahead: the ends of the forwards of a round, by rank, which the first rank's last is in."""
    for low in range(number + work.pp - work.num_microbatches + 1, work.pp):
        ahead = _forwards(work, ahead, _backwards(work, ahead), low)
    return _backwards(work, ahead)[0]


def _forwards(work: Work, ahead: Sequence[float], clock: Sequence[float], low: int) -> list[float]:
    """The ends of a round's forwards, by rank. ahead, clock: of the forwards and backwards of the round before. low:
    the first rank that has one."""
    transfer_s, own = work.transfer_s, [*clock[:low]] if low else [clock[0] + work.forward_s[0]]
    first = len(own)
    own += [
        (came if (came := sent + transfer_s) > free else free) + seconds
        for sent, free, seconds in zip(ahead[first - 1 :], clock[first:], work.forward_s[first:], strict=False)
    ]
    return own


def _backwards(work: Work, ahead: Sequence[float]) -> list[float]:
    """The ends of a round's backwards, by rank. ahead: of its forwards."""
    end, ends, transfer_s = -inf, [], work.transfer_s
    for forward, seconds in zip(reversed(ahead), reversed(work.backward_s), strict=True):
        end += transfer_s
        if forward > end:
            end = forward
        end += seconds
        ends.append(end)
    ends.reverse()
    return ends


def _period(work: Work) -> int:
    """The number of ranks on the slowest trip, by its seconds over that number."""
    own_s = [forward + backward for forward, backward in zip(work.forward_s, work.backward_s, strict=True)]
    trips_s, slowest_s, found = [0.0] * work.pp, 0.0, 1
    for count in range(1, work.pp + 1):
        trips_s = [trip_s + seconds for trip_s, seconds in zip(trips_s, own_s[count - 1 :], strict=False)]
        mean_s = (max(trips_s) + 2 * (count - 1) * work.transfer_s) / count
        if mean_s > slowest_s * (1 + SAME):
            slowest_s, found = mean_s, count
    return found


def _rows_s(work: Work) -> Any:
    """`in_rounds_s` of rows, all numbers by row: (rank, row), those of transfers (row,)."""
    import numpy as np

    pp, m, _, forward_s, backward_s, transfer_s, _ = work
    reach_s = np.cumsum(backward_s + transfer_s, 0)
    passed_s = reach_s - backward_s
    ahead = np.zeros_like(forward_s)
    for diagonal in range(pp):
        low, high = max(0, diagonal - m + 1), diagonal + 1
        ahead[low:high] = _rows_forwards(ahead, ahead, forward_s, transfer_s, low)[low:high]
    full = m - pp
    if full > 0:
        ahead = _rows_in_round(ahead, (forward_s, backward_s, transfer_s, reach_s, passed_s), full)
    for low in range(max(0, full) - full + 1, pp):
        clock = _rows_backwards(ahead, reach_s, passed_s)
        ahead = _rows_forwards(ahead, clock, forward_s, transfer_s, low)
    return _rows_backwards(ahead, reach_s, passed_s)[0]


def _rows_in_round(ahead: Any, seconds: tuple[Any, ...], number: int) -> Any:
    """`_in_round` of rows. ahead: the ends of the forwards in front of the first backwards. seconds: by row, of
    forward, backward, transfers, and both of `_rows_backwards`."""
    import numpy as np

    found, left = np.empty_like(ahead), np.arange(ahead.shape[1])
    periods = _rows_periods(seconds[0] + seconds[1], seconds[2])
    before, asked = [ahead], FIRST
    for this in range(1, number + 1):
        forward_s, _, transfer_s, reach_s, passed_s = seconds
        clock = _rows_backwards(ahead, reach_s, passed_s)
        ahead = _rows_forwards(ahead, clock, forward_s, transfer_s, 0)
        before.append(ahead)
        if this != asked:
            continue
        asked = this + 1 + this // 4
        stays = np.ones(len(left), dtype=bool)
        for period in different(periods[periods <= this]):
            alike = np.flatnonzero(periods == period)
            later_s = ahead[:, alike] - before[-1 - period][:, alike]
            most_s = later_s.max(0)
            repeats = most_s <= later_s.min(0) * (1 + SAME)
            rows, times = alike[repeats], -((this - number) // period)
            found[:, left[rows]] = before[number - this - times * period - 1][:, rows] + times * most_s[repeats]
            stays[rows] = False
        if not stays.all():
            if not stays.any():
                return found
            left, periods = left[stays], periods[stays]
            before = [one[:, stays] for one in before[-1 - periods.max() :]]
            ahead, seconds = before[-1], tuple(one[..., stays] for one in seconds)
    found[:, left] = ahead
    return found


def _rows_forwards(ahead: Any, clock: Any, forward_s: Any, transfer_s: Any, low: int) -> Any:
    """`_forwards` of rows."""
    import numpy as np

    ends, first = clock.copy(), max(1, low)
    np.maximum(ahead[first - 1 : -1] + transfer_s, clock[first:], out=ends[first:])
    ends[low:] += forward_s[low:]
    return ends


def _rows_backwards(ahead: Any, reach_s: Any, passed_s: Any) -> Any:
    """`_backwards` of rows: each rank ends with the latest of what comes down to it. reach_s: of the backwards of all
    ranks up to it, each with a transfer; passed_s: the same without its own backward."""
    import numpy as np

    latest_s = np.maximum.accumulate((ahead + reach_s)[::-1], 0)[::-1]
    return latest_s - passed_s


def _rows_periods(own_s: Any, transfer_s: Any) -> Any:
    """`_period` by row."""
    import numpy as np

    trips_s = np.zeros_like(own_s)
    slowest_s, found = np.zeros(own_s.shape[1]), np.ones(own_s.shape[1], dtype=int)
    for count in range(1, len(own_s) + 1):
        trips_s = trips_s[: len(own_s) + 1 - count] + own_s[count - 1 :]
        mean_s = (trips_s.max(0) + 2 * (count - 1) * transfer_s) / count
        slower = mean_s > slowest_s * (1 + SAME)
        slowest_s, found = np.where(slower, mean_s, slowest_s), np.where(slower, count, found)
    return found
