"""The step time of a schedule from a formula, for search: microseconds where the simulation takes milliseconds.

Every path through the dependencies of the actions is a lower bound of the step time; these formulas are the longest of
a few families of paths. So `step_time_s` never exceeds the simulation. How close it comes (tests/unit/test_simulate.py,
and random trials for the shares below):

* Stages alike, no p2p: equal. 1f1b takes (m + pp - 1) * (f + b), interleaved (m * vpp + pp - 1) * (f + b) with one
  chunk's times.
* 1f1b: equal with a heavier first or last stage too. Random stages within 20 % of each other, with short transfers:
  at most 2 % below; stages that differ a hundredfold: 8 %.
* interleaved: equal with a heavier last stage. A first stage 5 % heavier: 1.4 % below; random chunks within 20 % of
  each other: 2 % on average, 22 % at worst. Simulate such candidates before choosing between them.
"""

from collections.abc import Sequence
from itertools import accumulate

from autoshard.schedules.orders import SCHEDULES, WarmUp, actions
from autoshard.schedules.simulate import simulate


def step_time_s(
    schedule: str,
    pp: int,
    num_microbatches: int,
    num_virtual_stages: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    p2p_s: float = 0.0,
    weight_s: Sequence[float] | None = None,
) -> float:
    """Seconds from the first forward to the last backward: a lower bound of `simulate`, often equal to it.

    forward_s, backward_s: of one microbatch, by virtual stage (stage = chunk * pp + rank). p2p_s: between ranks.
    weight_s: the part of backward_s that a schedule with weights apart may put off; the others do not care.
    A schedule without a closed form is simulated. Sizes are taken to be legal (`check_schedule`).
    """
    transfer_s = p2p_s if pp > 1 else 0.0
    warm_up = SCHEDULES[schedule].warm_up
    if warm_up is None or SCHEDULES[schedule].weights_apart:
        orders = actions(schedule, pp, num_microbatches, num_virtual_stages)
        return simulate(orders, forward_s, backward_s, transfer_s, weight_s).total_s
    bound = _rank_bound_s(warm_up, pp, num_microbatches, num_virtual_stages, forward_s, backward_s, transfer_s)
    if schedule == "1f1b" and transfer_s:
        return max(bound, _round_trip_bound_s(pp, num_microbatches, forward_s, backward_s, transfer_s))
    return bound


def _rank_bound_s(
    warm_up: WarmUp,
    pp: int,
    num_microbatches: int,
    num_virtual_stages: int,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    transfer_s: float,
) -> float:
    """The longest, over the ranks, of the ways to the first backward and from the last forward plus what is between.

    A rank's first backward (microbatch 0, its last chunk) waits for its warm-up forwards, which wait for the first
    input, and for microbatch 0 to go through all stages and back. The same, mirrored in time, after its last forward.
    """
    m, vpp, stages = num_microbatches, num_virtual_stages, pp * num_virtual_stages
    all_forward_s, all_backward_s = sum(forward_s), sum(backward_s)
    behind_forward_s = [*accumulate(reversed(forward_s[stages - pp + 1 :]), initial=0.0)][
        ::-1
    ]  # after a rank's last chunk
    behind_backward_s = [*accumulate(reversed(backward_s[stages - pp + 1 :]), initial=0.0)][::-1]
    longest = fill_s = drain_s = 0.0
    for rank in range(pp):
        warm = warm_up(rank, pp, m, vpp)
        warm_s, cool_s, work_s = _work_s(rank, pp, m, vpp, warm, forward_s, backward_s)
        if vpp == 1:  # inputs come no faster than the slowest rank before this one lets them through
            warm_s = max(warm_s, (warm - 1) * max(forward_s[: rank + 1]) + forward_s[rank])
            cool_s = max(cool_s, (warm - 1) * max(backward_s[: rank + 1]) + backward_s[rank])
            middle_s = (m - warm) * (forward_s[rank] + backward_s[rank])
        else:
            middle_s = work_s - warm_s - cool_s
        way_s = transfer_s * (stages + pp - 2 - rank)
        round_trip_s = all_forward_s + behind_backward_s[rank] + way_s
        round_trip_back_s = all_backward_s + behind_forward_s[rank] + way_s
        if warm < m * vpp:
            total_s = max(round_trip_s, fill_s + warm_s) + middle_s + max(round_trip_back_s, cool_s + drain_s)
        else:  # all forwards come before all backwards: the two waits are one
            total_s = max(max(round_trip_s, fill_s + warm_s) + cool_s + drain_s, fill_s + warm_s + round_trip_back_s)
        longest = max(longest, total_s)
        fill_s += forward_s[rank] + transfer_s
        drain_s += backward_s[rank] + transfer_s
    return longest


def _work_s(
    rank: int, pp: int, m: int, vpp: int, warm: int, forward_s: Sequence[float], backward_s: Sequence[float]
) -> tuple[float, float, float]:
    """A rank's own seconds in its first `warm` forwards, in its last `warm` backwards (the mirror), and in all."""
    if vpp == 1:
        return warm * forward_s[rank], warm * backward_s[rank], m * (forward_s[rank] + backward_s[rank])
    blocks, rest = divmod(warm, pp * vpp)
    warm_s = cool_s = work_s = 0.0
    for chunk in range(vpp):
        visits = blocks * pp + min(pp, max(0, rest - chunk * pp))
        forward, backward = forward_s[chunk * pp + rank], backward_s[chunk * pp + rank]
        warm_s, cool_s = warm_s + visits * forward, cool_s + visits * backward
        work_s += m * (forward + backward)
    return warm_s, cool_s, work_s


def _round_trip_bound_s(
    pp: int, m: int, forward_s: Sequence[float], backward_s: Sequence[float], transfer_s: float
) -> float:
    """1f1b with transfers: the round trip between two ranks may be slower than either rank's own work.

    From rank `low`, a forward of microbatch i goes up to rank `high`, which then runs a backward that comes down to
    `low`, which then runs the forward of microbatch i + high - low + 1. The first i for which `high` runs a backward
    next is pp - 1 - high. Looked at are trips to the last rank and to the next one: other trips are the longest only
    where transfers take as long as work, and then by 1 % at most.
    """
    own_s = [forward + backward for forward, backward in zip(forward_s, backward_s, strict=True)]
    work_s = [*accumulate(own_s, initial=0.0)]
    ends_s = work_s[pp] + (2 * pp - 2) * transfer_s  # up to the last rank and down to the first
    longest = slowest_s = 0.0
    for low in range(pp - 1):
        slowest_s = max(slowest_s, forward_s[low])
        for high in {low + 1, pp - 1}:
            trip_s = work_s[high + 1] - work_s[low] + 2 * (high - low) * transfer_s
            first = pp - 1 - high
            trips, rest = divmod(m - 1 - first, high - low + 1)
            if trips >= 1:
                longest = max(longest, ends_s + first * slowest_s + trips * trip_s + rest * own_s[low])
    return longest
