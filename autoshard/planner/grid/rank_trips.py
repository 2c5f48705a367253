"""Bounds of a step by round trips between any two ranks, of many layouts with one chunk a rank.

The closed forms (schedules/closed_form.py) are for layouts by the million. Of kimi-k2 on 32 unlike ranks with transfers
of 3 % of the work they are 3 to 4 % below the clock; these, found in as many passes over the rows as there are ranks,
0.2 % at most.
"""

from __future__ import annotations

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.schedules import Work


def round_trips_at_least_s(work: Work) -> Array:
    """Seconds that a step of 1f1b takes at least, by row. work: seconds by (rank, row), as many microbatches in all
    rows.

    Why: a rank's first backward waits for microbatch 0 to go through all ranks and back. Its next forward goes up to
    any rank behind, which runs a backward next; that comes down, and the rank then runs the forward behind as many
    others as there are ranks on the trip. The last forward goes through all ranks behind and back to the first one.
    """
    pp, m, hop_s = work.pp, _microbatches(work), work.transfer_s
    own_s = np.asarray(work.forward_s) + np.asarray(work.backward_s)
    upto_s = _upto(own_s)
    begin = max(0, pp + 1 - m)  # ranks in front have all forwards before their first backward
    low = np.arange(begin, pp)[:, None]
    around_s = upto_s[-1] - upto_s[begin:-1] + 2 * (pp - 1 - low) * hop_s
    longest_s = np.zeros(own_s.shape[1])
    for ranks in range(1, len(low) + 1):
        count = len(low) + 1 - ranks
        trips, rest = np.divmod(m - 1 - (pp - low[:count]), ranks)
        trip_s = upto_s[begin + ranks :] - upto_s[begin : begin + count] + 2 * (ranks - 1) * hop_s
        turns_s = trips * trip_s + rest * own_s[begin : begin + count]
        longest_s = np.maximum(longest_s, (around_s[:count] + turns_s).max(0))
    found_s: Array = upto_s[-1] + 2 * (pp - 1) * hop_s + longest_s
    return found_s


def apart_round_trips_at_least_s(work: Work) -> Array:
    """`round_trips_at_least_s` where weight gradients are put off, one on rank 1, two on rank 2, and so on.

    Why: the same trips wait for no weight gradients but those of the lower rank, whose first backwards have none behind
    them. After its last forward that rank has backwards left. The last of them goes down through all ranks in front, of
    which each has put off some weight gradients until then.
    """
    pp, m, hop_s, apart_s = work.pp, _microbatches(work), work.transfer_s, np.asarray(work.weight_s)
    forward_s, back_s = np.asarray(work.forward_s), np.asarray(work.backward_s) - apart_s
    filled_s, drained_s = np.empty_like(forward_s), np.empty_like(forward_s)
    fill_s = drain_s = np.zeros_like(apart_s[0])
    for rank in range(pp):
        filled_s[rank] = fill_s + (pp - rank) * forward_s[rank]
        drained_s[rank] = drain_s = np.maximum(drain_s, min(rank + 1, m) * apart_s[rank])
        fill_s, drain_s = fill_s + forward_s[rank] + hop_s, drain_s + back_s[rank] + hop_s
    begin = max(0, pp + 1 - m)  # ranks in front have all forwards before their first backward
    low = np.arange(begin, pp)[:, None]
    warm, there_s = pp - low, (pp - 1 - low) * hop_s
    ahead_s, behind_s = (seconds[::-1].cumsum(0)[::-1][begin:] + there_s for seconds in (forward_s, back_s))
    forward_s, back_s, apart_s, upto_s, all_forward_s = (
        forward_s[begin:],
        back_s[begin:],
        apart_s[begin:],
        _upto(forward_s + back_s)[begin:],
        forward_s.sum(0) + (pp - 1) * hop_s,
    )
    start_s = np.maximum(filled_s[begin:] + back_s, all_forward_s + behind_s)
    left = np.maximum(0, m - 1 - np.maximum(m - warm, low))  # weight gradients in front of the last backward
    end_s = np.maximum(ahead_s + behind_s, forward_s + warm * back_s + left * apart_s)
    around_s = start_s + end_s + drained_s[begin:]
    longest_s = np.zeros(forward_s.shape[1])
    for ranks in range(1, len(low) + 1):
        count = len(low) + 1 - ranks
        trips, rest = np.divmod(m - 1 - warm[:count], ranks)
        without = np.maximum(low[:count] - 1, 0)  # backwards behind the first one with no weight gradients behind them
        without = np.minimum(trips, without // ranks) + np.clip(without - trips * ranks, 0, rest)
        trip_s = upto_s[ranks:] - upto_s[:count] + 2 * (ranks - 1) * hop_s
        turns_s = trips * trip_s + rest * (forward_s + back_s)[:count] + (trips + rest - without) * apart_s[:count]
        longest_s = np.maximum(longest_s, (around_s[:count] + turns_s).max(0))
    return longest_s


def _microbatches(work: Work) -> int:
    return int(np.asarray(work.num_microbatches).flat[0])


def _upto(seconds: Array) -> Array:
    """The sums over the ranks in front of each, and over all, (rank + 1, row)."""
    return np.concatenate([np.zeros_like(seconds[:1]), seconds.cumsum(0)])
