"""Seconds from the first forward to the last backward, for many layouts of one pipeline depth at once.

The formulas of `schedules/closed_form.py` with an array of layouts in place of every number: a rank is a turn of a
loop, a layout an entry. Tests hold both equal.

F, B: forward and backward seconds of one microbatch, (virtual stage, layout). m: microbatches. t: of one transfer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
"""numpy.ndarray: named so that the planner's types do not depend on numpy's stubs."""


def one_chunk_s(F: Array, B: Array, m: Array, t: Array, at_once: bool = False) -> Array:
    """1F1B, or where all forwards come at once GPipe. F, B: (pp, n); m, t: (n,). Where pp is 1, t is 0."""
    pp = len(F)
    all_forward_s, all_backward_s = F.sum(0), B.sum(0)
    fewest = int(m.min())
    longest: Array = np.zeros_like(all_forward_s)
    fill_s, drain_s = np.zeros_like(longest), np.zeros_like(longest)
    behind_forward_s, behind_backward_s = all_forward_s.copy(), all_backward_s.copy()
    slowest_forward_s, slowest_backward_s = np.zeros_like(longest), np.zeros_like(longest)
    for rank in range(pp):
        forward_s, backward_s = F[rank], B[rank]
        behind_forward_s -= forward_s
        behind_backward_s -= backward_s
        np.maximum(slowest_forward_s, forward_s, out=slowest_forward_s)
        np.maximum(slowest_backward_s, backward_s, out=slowest_backward_s)
        warm = m if at_once else pp - rank if fewest >= pp - rank else np.minimum(pp - rank, m)
        own_s, way_s = forward_s + backward_s, t * (2 * pp - 2 - rank)
        filled_s = (warm - 1) * slowest_forward_s + (fill_s + forward_s)
        drained_s = (warm - 1) * slowest_backward_s + (drain_s + backward_s)
        round_trip_s = all_forward_s + behind_backward_s + way_s
        round_trip_back_s = all_backward_s + behind_forward_s + way_s
        first_s = np.maximum(round_trip_s, filled_s)
        total_s = first_s + (m - warm) * own_s + np.maximum(round_trip_back_s, drained_s)
        if at_once or fewest <= pp - rank:  # where all forwards come before all backwards the two waits are one
            at_once_s = np.maximum(first_s + drained_s, filled_s + round_trip_back_s)
            total_s = at_once_s if at_once else np.where(m > pp - rank, total_s, at_once_s)
        np.maximum(longest, total_s, out=longest)
        fill_s += forward_s + t
        drain_s += backward_s + t
    if pp > 1 and not at_once and t.any():
        np.maximum(longest, _round_trips_s(F, B, m, t), out=longest)
    return longest


def _round_trips_s(F: Array, B: Array, m: Array, t: Array) -> Array:
    """Round trips from each rank to the last one and to the next one."""
    pp = len(F)
    own_s = F + B
    behind_s = own_s.sum(0)
    ends_s = behind_s + (2 * pp - 2) * t
    longest: Array = np.zeros_like(behind_s)
    slowest_forward_s = np.zeros_like(behind_s)
    for low in range(pp - 1):
        np.maximum(slowest_forward_s, F[low], out=slowest_forward_s)
        ranks, own = pp - low, own_s[low]
        trips = np.floor((m - 1) / ranks)
        total_s = ends_s + trips * (behind_s + 2 * (ranks - 1) * t) + (m - 1 - ranks * trips) * own
        np.maximum(longest, np.where(trips > 0, total_s, 0.0), out=longest)
        first = pp - 2 - low
        later = m - 1 - first
        trips = np.floor(later / 2)
        total_s = (
            ends_s + first * slowest_forward_s + trips * (own + own_s[low + 1] + 2 * t) + (later - 2 * trips) * own
        )
        np.maximum(longest, np.where(trips > 0, total_s, 0.0), out=longest)
        behind_s = behind_s - own
    return longest


def weights_apart_at_least_s(F: Array, B: Array, W: Array, m: Array, t: Array) -> Array:
    """A lower bound of 1F1B with weight gradients apart, of which W of each backward may be put off.

    A rank waits for its first input and, before its first backward, for microbatch 0 to go through all stages and back;
    then it has work for all microbatches.
    """
    pp = len(F)
    passed_s = B - W + t
    behind_s = F.sum(0) + passed_s.sum(0) + (pp - 1) * t
    longest, fill_s = np.zeros_like(behind_s), np.zeros_like(behind_s)
    for rank in range(pp):
        behind_s = behind_s - passed_s[rank]
        warm = np.minimum(pp - rank, m)
        until_backward_s = np.maximum(fill_s + warm * F[rank], behind_s)
        np.maximum(longest, until_backward_s + (m - warm) * F[rank] + m * B[rank], out=longest)
        fill_s = fill_s + F[rank] + t
    return longest


def interleaved_s(
    F: Array, B: Array, m: Array, t: Array, pp: int, warm_up: Callable[[int], int], at_once: bool
) -> Array:
    """Interleaved 1F1B. F, B: (pp * vpp, n).

    warm_up: forwards of a rank before its first backward, the same for all these layouts. at_once: m is pp for all of
    them, so that all forwards come before all backwards.
    """
    stages = len(F)
    vpp = stages // pp
    all_forward_s, all_backward_s = F.sum(0), B.sum(0)
    behind_forward_s, behind_backward_s = F[stages - pp :].sum(0), B[stages - pp :].sum(0)
    longest: Array = np.zeros_like(all_forward_s)
    fill_s, drain_s = np.zeros_like(longest), np.zeros_like(longest)
    for rank in range(pp):
        forward_s, backward_s = F[rank::pp], B[rank::pp]
        behind_forward_s = behind_forward_s - forward_s[-1]
        behind_backward_s = behind_backward_s - backward_s[-1]
        visits = chunk_visits(warm_up(rank), pp, vpp)
        filled_s, drained_s = fill_s + visits @ forward_s, drain_s + visits @ backward_s
        way_s = t * (stages + pp - 2 - rank)
        round_trip_s = all_forward_s + behind_backward_s + way_s
        round_trip_back_s = all_backward_s + behind_forward_s + way_s
        first_s = np.maximum(round_trip_s, filled_s)
        if at_once:
            total_s = np.maximum(first_s + drained_s, filled_s + round_trip_back_s)
        else:
            between_s = m * forward_s.sum(0) + m * backward_s.sum(0) - visits @ forward_s - visits @ backward_s
            total_s = first_s + between_s + np.maximum(round_trip_back_s, drained_s)
        np.maximum(longest, total_s, out=longest)
        fill_s = fill_s + forward_s[0] + t
        drain_s = drain_s + backward_s[0] + t
    return longest


def chunk_visits(warm: int, pp: int, vpp: int) -> Array:
    """How often the first `warm` forwards of a rank go through each of its chunks."""
    rounds, rest = divmod(warm, pp * vpp)
    return np.array([rounds * pp + min(pp, max(0, rest - chunk * pp)) for chunk in range(vpp)], dtype=float)
