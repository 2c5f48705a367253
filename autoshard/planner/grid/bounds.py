"""Lower bounds of a step's time, each written once: they discard layouts, and the simulation decides about the rest.

No bound is ever above `schedules.simulate`; how far it may be below differs. A bound takes values and returns values:
numbers of one layout or arrays with an entry for each layout (rows.py). All use the same words:

* pp ranks, vpp chunks a rank, m microbatches; a stage is a chunk of a rank, and stage s belongs to rank s % pp.
* work: seconds of forward and backward, launches and gradient accumulation included, of one microbatch.
* transfer_s: between neighbouring stages on different ranks.
* waits: whether no rank has more forwards in front of its first backward than under 1f1b (`Family.waits_for_all`).
  Each then waits until the first microbatch has been through all ranks behind it and is back.
  With several chunks: whether each has a forward of its last chunk before its first backward.
* at_once: whether all forwards of a rank come before all of its backwards (`Family.is_at_once`), as under gpipe.

The examples have pp=4, m=8, and stages that take 1 s forward and 2 s backward: vpp=1 takes 33 s, vpp=2 takes 57 s.
`tests/unit/test_bounds.py` runs them and compares every bound with simulations of random stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.ranks import RankState
from autoshard.rows import Number, largest, smallest, total, weighted, where
from autoshard.schedules.closed_form import Stages, chunk_visits

NEVER_S = -1e30
"""Seconds of a way that there is not: finite, so that its sum with what does not fit is infinite."""
PRICES = 8
"""Prices of memory that `recomputed_at_least_s` tries one after the other: with more, bounds hardly rise."""


def share_at_least_s(pp: int, m: Number, work_s: Number) -> Number:
    """Seconds of the busiest rank, which has at least its share of all work.

    Why: ranks do m * work_s together.

    work_s: through all stages. Equal to the simulation where pp is 1:

    >>> share_at_least_s(pp=4, m=8, work_s=24)  # vpp=2
    48.0
    """
    return m * work_s / pp


def put_off_at_least_s(
    warm_ups: Sequence[Number],
    m: Number,
    forward_s: Number,
    backward_s: Number,
    beside_s: Number = 0.0,
    first_s: Number = 0.0,
    last_s: Number = 0.0,
    back_s: Number = 0.0,
    transfer_s: Number = 0.0,
) -> Number:
    """Seconds of a step that puts weight gradients off, whatever the cut of its equal blocks; one chunk a rank.

    Why: before its first backward a rank waits until the first microbatch is forward through all stages, and back
    through those behind it. From there on it has the forwards behind its warm-up and all backwards. A mean of such sums
    is a bound too: the ranks weigh so much that a block counts alike on each of them. The weights add up to 1 and fall
    from rank to rank.

    warm_ups: by rank, forwards before its first backward. forward_s, backward_s: of all blocks, at least. beside_s:
    work of each stage beside its blocks. first_s, last_s: work of the ends of the model. back_s: of backward_s what is
    not put off, at least.

    Equal to the simulation where pp is 1, and where stages are equal and transfers take no time. Of stages on 4 ranks
    that take 2 s backward, half of it put off:

    >>> put_off_at_least_s(warm_ups=(1,), m=8, forward_s=4, backward_s=8)
    96.0
    >>> put_off_at_least_s(warm_ups=(4, 3, 2, 1), m=8, forward_s=4, backward_s=8, back_s=4)
    27.0
    >>> round(put_off_at_least_s(warm_ups=(4, 3, 2, 1), m=8, forward_s=4, backward_s=8), 2)  # 24 s: the share of each
    25.44
    """
    sums_s = [m * (forward_s + backward_s) - warm_up * forward_s for warm_up in warm_ups]
    shares, before = list[Number](), 0.0  # weights but for a factor, and their sum in front of a rank
    for sum_s in sums_s:
        shares.append((1 - back_s * before) / sum_s)
        before = before + shares[-1]
    mean_s, last = 1 / before, len(shares) - 1
    weights = [mean_s * share for share in shares]
    # of the first end forward counts on the way through all stages, and then but for the warm-up
    first_times = smallest(m * weights[0], 1 + (m - warm_ups[0]) * weights[0])
    hops = sum(weight * (2 * last - rank) for rank, weight in enumerate(weights))
    ends_s = first_times * first_s + m * weights[-1] * last_s
    return forward_s + mean_s + m * beside_s + ends_s + hops * transfer_s


def work_at_most_s(pp: int, m: Number, step_s: Number) -> Number:
    """Seconds of work through all stages that a step of step_s has time for: `share_at_least_s` solved for work_s.

    >>> work_at_most_s(pp=4, m=8, step_s=57.0)
    28.5
    """
    return step_s * pp / m


def through_at_least_s(stages: int, work_s: Number, transfer_s: Number = 0.0) -> Number:
    """Seconds of one microbatch on its way up through all stages and back.

    Why: each action waits for the one before it. The schedule must not put off weight gradients.

    stages: pp * vpp. work_s: through all of them. Equal to the simulation where m is 1:

    >>> through_at_least_s(stages=8, work_s=24, transfer_s=0.5)  # vpp=2: 14 transfers
    31.0
    """
    return work_s + 2 * (stages - 1) * transfer_s


def slowest_stage_at_least_s(
    pp: int,
    m: Number,
    work_s: Number,
    slowest_s: Number,
    transfer_s: Number,
    waits: Number | bool,
    at_once: Number | bool,
) -> Number:
    """Seconds of a step, whatever the cut, by its slowest stage: one chunk a rank.

    Why: the slowest stage works on m microbatches. If it waits and m > pp, it stands still until the first microbatch
    has been through the stages behind it and is back, and in the same way at the end: work_s, the work of all stages
    behind it, and m less (ranks from it to the last) times its own. Stages in front of it are no slower than it is,
    which bounds those behind it from below. With fewer microbatches it still works on at least half of the others
    besides work_s, and with `at_once` on all of them: see `this_stage_at_least_s`.

    work_s: through all stages, at least. slowest_s: of the slowest stage, at least; work_s / pp always holds.

    Equal to the simulation where stages are equal, transfers take no time, and `waits` and m > pp hold, or `at_once`:

    >>> slowest_stage_at_least_s(4, m=8, work_s=12, slowest_s=3, transfer_s=0, waits=True, at_once=False)  # 24 + 3 * 3
    33
    >>> slowest_stage_at_least_s(4, m=8, work_s=12, slowest_s=3, transfer_s=0, waits=False, at_once=True)  # 12 + 7 * 3
    33
    >>> slowest_stage_at_least_s(4, m=8, work_s=15, slowest_s=6, transfer_s=0, waits=True, at_once=False)  # 30 + 3 * 6
    48
    """
    through_s = through_at_least_s(pp, work_s, transfer_s)
    busy_s = largest(m * slowest_s, through_s)
    few_s = largest(busy_s, through_s + (m - 1) / 2 * slowest_s)
    many_s = largest(few_s, through_s + work_s + (m - pp - 1) * slowest_s)
    waiting_s = where(waits, where(m > pp, many_s, few_s), busy_s)
    return where(at_once, largest(busy_s, through_s + (m - 1) * slowest_s), waiting_s)


def slowest_stage_at_most_s(
    pp: int,
    m: Number,
    work_s: Number,
    step_s: Number,
    transfer_s: Number,
    waits: Number | bool,
    at_once: Number | bool,
) -> Number:
    """Seconds that no stage exceeds in a step of step_s: `slowest_stage_at_least_s` solved for its slowest stage.

    >>> slowest_stage_at_most_s(4, m=8, work_s=12, step_s=33, transfer_s=0, waits=True, at_once=False)
    3.0
    """
    busy_s, spare_s = step_s / m, step_s - through_at_least_s(pp, work_s, transfer_s)
    few_s = smallest(busy_s, where(m > 1, 2 * spare_s / largest(m - 1, 1), busy_s))
    many_s = smallest(few_s, (spare_s - work_s) / largest(m - pp - 1, 1))
    waiting_s = where(waits, where(m > pp + 1, many_s, few_s), busy_s)
    return where(at_once & (m > 1), smallest(busy_s, spare_s / largest(m - 1, 1)), waiting_s)


def this_stage_at_least_s(
    pp: int, warm_up: int, m: int, work_s: float, stage_s: Number, transfer_s: float, at_once: bool
) -> Number:
    """Seconds of a step in which the stage of one rank takes stage_s: one chunk a rank.

    Why: it works on m microbatches. One path goes up to this rank, through the forwards of its warm-up and its work in
    turn, and with its last forward up to the last rank and all the way back: work_s and, once for all but the first
    microbatch, a forward, for all but those of the warm-up also a backward. Mirrored in time, the path stays for as
    many backwards instead. The longer of the two stays for at least half the stage's work. If all forwards come
    before all backwards, one path stays for both.

    warm_up: forwards of the rank before its first backward. work_s: through all stages, at least.
    Equal to the simulation where stages are equal, transfers take no time, and warm_up is 1 or `at_once` holds:

    >>> this_stage_at_least_s(pp=4, warm_up=1, m=8, work_s=12, stage_s=3, transfer_s=0, at_once=False)  # 12 + 7 * 3
    33.0
    >>> this_stage_at_least_s(pp=4, warm_up=4, m=8, work_s=12, stage_s=3, transfer_s=0, at_once=False)  # 12 + 5.5 * 3
    28.5
    """
    stays = m - 1 if at_once else (warm_up - 1) / 2 + m - warm_up
    busy_s = m * stage_s
    return largest(busy_s, through_at_least_s(pp, work_s, transfer_s) + stays * stage_s) if stays else busy_s


def busiest_rank_at_least_s(m: Number, work_s: Sequence[Number], passed_s: Sequence[Number]) -> Number:
    """Seconds of the rank for which its own work, and the ranks in front of it, take longest; any number of chunks.

    Why: a rank works on m microbatches. Before its first forward the ranks in front of it run theirs, and after its
    last backward they run theirs: each for one microbatch and its first chunk. No schedule does without.

    work_s: by rank, of one microbatch through all of its chunks. passed_s: by rank, of one microbatch up through its
    first chunk to the next rank and back, transfers included; forward alone where weight gradients are put off. Equal
    ranks in a row may be left out but for the last, their passed_s added to the one before.

    Equal to the simulation where stages are equal and transfers take no time:

    >>> busiest_rank_at_least_s(8, work_s=[6, 6, 6, 6], passed_s=[3, 3, 3, 3])  # vpp=2: 3 * 3 + 8 * 6
    57.0
    """
    longest: Number = 0.0
    in_front_s: Number = 0.0
    for rank_work_s, rank_passed_s in zip(work_s, passed_s, strict=True):
        longest = largest(longest, in_front_s + m * rank_work_s)
        in_front_s = in_front_s + rank_passed_s
    return longest


def equal_chunks_at_least_s(
    pp: int, vpp: int, m: Number, chunk_s: Number, first_s: Number, last_s: Number, transfer_s: Number = 0.0
) -> Number:
    """Seconds of a step whose chunks have equal blocks: `busiest_rank_at_least_s` of the first and the last rank.

    Why: the ranks between have no end of the model, so the last one has no less work and more ranks in front of it.

    chunk_s: work of one chunk, ends left out. first_s, last_s: work of the ends of the model. pp is at least 2.
    Equal to the simulation where first_s is 0 and transfers take no time:

    >>> equal_chunks_at_least_s(pp=4, vpp=2, m=8, chunk_s=3, first_s=0, last_s=1)  # 3 * 3 + 8 * (6 + 1)
    65.0
    """
    passed_s = (pp - 1) * (chunk_s + 2 * transfer_s) + first_s
    return busiest_rank_at_least_s(m, (vpp * chunk_s + first_s, vpp * chunk_s + last_s), (passed_s, 0.0))


class RankBackward(NamedTuple):
    """Backward seconds of one rank, at least; infinite where nothing fits.

    chunks_s: one microbatch through all of its chunks. first_s, last_s: through its first and its last one. later_s:
    all microbatches but those of the warm-up, each chunk counted as often as it is visited.
    """

    chunks_s: Number
    first_s: Number
    last_s: Number
    later_s: Number


def unlike_chunks_at_least_s(
    warm_ups: Sequence[int],
    vpp: int,
    m: Number,
    forward_s: Stages,
    transfer_s: Number,
    ranks: Sequence[RankBackward],
) -> Number:
    """Seconds of a step of `alternate`'s orders, of which the backwards are known in sums by rank only.

    Why: schedules.closed_form.alternating_at_least_s adds, for each rank, the time until its first backward, its work
    and the time from its last forward to the end. Here the last backwards of the ranks behind are left out, and all
    else grows with the sums in `RankBackward`: the least of each, whatever virtual stages recompute, gives a bound of
    every choice.

    warm_ups: by rank, forwards before its first backward. forward_s: by virtual stage along the first axis.

    Equal to the simulation where stages are equal and transfers take no time; vpp=2, warm-ups of interleaved 1F1B:

    >>> warm_ups = (11, 9, 7, 5)
    >>> ranks = [RankBackward(4.0, 2.0, 2.0, 2.0 * (16 - warm)) for warm in warm_ups]
    >>> float(unlike_chunks_at_least_s(warm_ups, 2, 8, np.ones(8), 0.0, ranks))  # 19 times 3 s
    57.0
    """
    pp = len(warm_ups)
    all_backward_s = sum(backward.chunks_s for backward in ranks)
    warm_s = [weighted(chunk_visits(warm, pp, vpp), forward_s[rank::pp]) for rank, warm in enumerate(warm_ups)]
    fills_s, drains_s = (
        [*accumulate(seconds, initial=0.0)]
        for seconds in (
            (forward_s[rank] + transfer_s for rank in range(pp)),
            (backward.first_s + transfer_s for backward in ranks),
        )
    )
    until_s = total(forward_s) + (pp * vpp - 1) * transfer_s  # of the last rank, until its first backward
    behind_s = until_s - total(forward_s)  # of the last rank, forwards and transfers behind it
    longest: Number = 0.0
    for rank in range(pp - 1, -1, -1):
        backward = ranks[rank]
        if rank < pp - 1:
            until_s = until_s + ranks[rank + 1].last_s + transfer_s
            behind_s = behind_s + forward_s[rank + 1 - pp] + transfer_s
        until_s = largest(until_s, fills_s[rank] + warm_s[rank])
        around_s, rank_backward_s = all_backward_s + behind_s, m * backward.chunks_s + drains_s[rank]
        turns_s = m * total(forward_s[rank::pp]) - warm_s[rank] + largest(backward.later_s + around_s, rank_backward_s)
        at_once_s = largest(until_s + rank_backward_s, fills_s[rank] + warm_s[rank] + around_s)
        longest = largest(longest, where(warm_ups[rank] < m * vpp, until_s + turns_s, at_once_s))
    return longest


def recomputed_at_least_s(weights: Array, back_s: Array, visits: Array, kept_bytes: Array, room_bytes: Array) -> Array:
    """Weighted backward seconds of a rank's chunks, by layout, whichever recompute sets fit in its memory.

    Why: as if memory had a price, each chunk takes the set that is cheapest in seconds and in the price of what it
    keeps. The sum, less the price of all room, is below the seconds of every choice that fits (Lagrange's relaxation).
    Of all prices the best one is found as on a convex curve: it lies between one with which too much is kept and one
    with which room is left, and where their lines meet is the next one to try. Infinite where no choice fits.

    weights: (layout, chunk). back_s, kept_bytes: seconds of a chunk's backward and bytes that it keeps of a
    microbatch, (layout, set). visits: microbatches that a chunk holds, by chunk or (layout, chunk). room_bytes: by
    layout.

    Rank 0 of pp=4, vpp=2 holds 7 and 4 microbatches. Its chunks take 2 s and keep 10 bytes of each, or take 3 s and
    keep nothing. 40 bytes are room for the second chunk, 75 for half of the first one too, as if it could be split:

    >>> sets = np.array([[2.0, 3.0]]), np.array([7.0, 4.0]), np.array([[10.0, 0.0]])
    >>> recomputed_at_least_s(np.ones((1, 2)), *sets, np.array([40.0])).tolist()  # the best choice takes 5 s
    [5.0]
    >>> recomputed_at_least_s(np.ones((1, 2)), *sets, np.array([75.0])).tolist()  # it still does
    [4.5]
    """
    every = np.arange(len(room_bytes))[:, None]

    def cheapest(price: Array) -> tuple[Array, Array]:
        """(seconds, bytes) of the sets that chunks take at a price."""
        costs = weights[..., None] * back_s[:, None] + (price[:, None] * visits)[..., None] * kept_bytes[:, None]
        sets = costs.argmin(2)
        return (weights * back_s[every, sets]).sum(1), (kept_bytes[every, sets] * visits).sum(1)

    over_s, over_bytes = cheapest(np.zeros(len(room_bytes)))
    smallest_set = kept_bytes.argmin(1)
    under_s, under_bytes = back_s[every[:, 0], smallest_set] * weights.sum(1), kept_bytes.min(1) * visits.sum(-1)
    at_least_s = np.where(over_bytes <= room_bytes, over_s, 0.0)
    for _ in range(PRICES):
        saved = over_bytes - under_bytes
        price = np.divide(under_s - over_s, saved, out=np.zeros_like(saved), where=saved > 0)
        seconds, kept = cheapest(np.maximum(price, 0.0))
        np.maximum(at_least_s, seconds + np.maximum(price, 0.0) * (kept - room_bytes), out=at_least_s)
        over = kept > room_bytes
        over_s, over_bytes = np.where(over, seconds, over_s), np.where(over, kept, over_bytes)
        under_s, under_bytes = np.where(over, under_s, seconds), np.where(over, under_bytes, kept)
    return np.where(kept_bytes.min(1) * visits.sum(-1) > room_bytes, np.inf, at_least_s)


def any_cut_at_least_s(stage_s: Array, layers: int) -> float:
    """Seconds of work of one microbatch through all stages, whatever the cut; exact, by dynamic programming.

    stage_s: of each stage, (stage, blocks), infinite where it may not have so many or they do not fit.

    A block takes 3 s, the head on the last of 4 stages 1 s; a second block on stage 0 has to be recomputed for 1 s:

    >>> stage_s = np.array([[np.inf, 3.0, 7.0], [np.inf, 3.0, 6.0], [np.inf, 3.0, 6.0], [1.0, 4.0, 7.0]])
    >>> any_cut_at_least_s(stage_s, layers=6), any_cut_at_least_s(stage_s, layers=8)
    (19.0, 26.0)
    """
    least = np.full(layers + 1, np.inf)
    least[0] = 0.0
    for seconds_of in stage_s:
        after = np.full(layers + 1, np.inf)
        for blocks in np.flatnonzero(np.isfinite(seconds_of)).tolist():
            np.minimum(after[blocks:], least[: layers + 1 - blocks] + seconds_of[blocks], out=after[blocks:])
        least = after
    return float(least[layers])


def fewest_blocks(pp: int, vpp: int, layers: int, bare: bool) -> tuple[int, int, int]:
    """Blocks of the first, the fullest middle and the last rank for which `RankState.after_s` is a bound of every cut.

    Why: what follows the pipeline takes as long as for the slowest of the three. With free cuts an end may have one
    block, or none (`bare`). Some rank has at least the average; an end with so many takes no less than a middle rank.
    With several chunks a rank, or one rank, every rank has equally many, so the bound is exact.

    >>> fewest_blocks(pp=4, vpp=1, layers=30, bare=False), fewest_blocks(pp=4, vpp=2, layers=32, bare=False)
    ((1, 8, 1), (8, 8, 8))
    """
    equal = layers // pp
    if pp == 1 or vpp > 1:
        return equal, equal if pp > 2 else 0, equal
    at_ends = 0 if bare else 1
    return at_ends, -(-layers // pp) if pp > 2 else 0, at_ends


def after_at_least_s(fewest: tuple[int, int, int], states: Sequence[RankState], places: Array) -> Array:
    """Seconds that follow the pipeline, at least, by layout: gradient sums, update, gathering.

    Why: see `fewest_blocks`, which `fewest` comes from. states: of all meshes. places: by layout, the one of its mesh.

    >>> from types import SimpleNamespace
    >>> slow, fast = (SimpleNamespace(after_s=lambda *blocks, s=s: s * max(blocks)) for s in (0.5, 0.25))
    >>> after_at_least_s((8, 8, 8), states=(slow, fast), places=np.array([0, 1, 1])).tolist()
    [4.0, 2.0, 2.0]
    """
    return np.array([states[place].after_s(*fewest) for place in places.tolist()])


def after_any_cut_at_least_s(blocks: tuple[int, ...], states: Sequence[RankState], places: Array) -> Array:
    """`after_at_least_s` where blocks are of several kinds. blocks: how many the model has of each kind.

    Why: see `RankState.after_any_cut_s`.

    >>> from types import SimpleNamespace
    >>> slow, fast = (SimpleNamespace(after_any_cut_s=lambda blocks, s=s: s * sum(blocks)) for s in (0.5, 0.25))
    >>> after_any_cut_at_least_s((2, 6), states=(slow, fast), places=np.array([0, 1, 1])).tolist()
    [4.0, 2.0, 2.0]
    """
    return np.array([states[place].after_any_cut_s(blocks) for place in places.tolist()])


def unlike_stages_at_least_s(
    pp: int,
    vpp: int,
    m: Number,
    work_s: Number,
    transfer_s: Number,
    waits: Number | bool,
    at_once: Number | bool,
    apart: bool,
) -> Number:
    """Seconds of a step, whatever the cut, where stages need not be alike, by their work alone.

    Why: with one chunk a rank the slowest stage has its share of all work at least. With several see
    `unlike_chunks_work_at_least_s`. Where weight gradients are put off (`apart`), a rank has its share.

    waits: with several chunks, see there.

    >>> unlike_stages_at_least_s(4, 1, m=8, work_s=12, transfer_s=0, waits=True, at_once=False, apart=False)
    33.0
    >>> unlike_stages_at_least_s(4, 2, m=8, work_s=24, transfer_s=0, waits=True, at_once=False, apart=False)
    52.5
    """
    if apart:
        return share_at_least_s(pp, m, work_s)
    if vpp > 1:
        return unlike_chunks_work_at_least_s(pp, vpp, m, work_s, transfer_s, waits, at_once)
    return slowest_stage_at_least_s(pp, m, work_s, work_s / pp, transfer_s, waits, at_once)


def unlike_chunks_work_at_least_s(
    pp: int, vpp: int, m: Number, work_s: Number, transfer_s: Number, waits: Number | bool, at_once: Number | bool
) -> Number:
    """Seconds of a step of `alternate`'s orders with several chunks a rank, whatever the cut, by their work alone.

    Why, if all forwards come before all backwards (`at_once`): one path goes up to any stage, stays for the forwards of
    all microbatches, and goes on up; on its way down it stays in the same way. On average over the stages it has the
    work of one microbatch and m - 1 times the mean stage.

    Why, if each rank `waits`: for any rank r and any chunk a, one path goes up with the first microbatch to chunk a of
    rank r, has all that r does from there on, up to the last backward of chunk a, and goes down with that. Of the
    chunks before a it has one microbatch on all ranks, and on r the first pp ones less; of chunk a one on the ranks
    before r; of r's other chunks all. Weigh the paths of a >= 1 with 1 / (pp vpp), those of a = 0 with that and
    (r - (pp - 1) / 2) / (m pp vpp). The weights are a mean, and each stage counts m / pp + (pp - 1) / (2 pp vpp) times
    at least: half the ramp of equal stages.

    work_s: through all stages. waits: whether m is a multiple of pp and each rank has a forward of its last chunk
    before its first backward.

    A step of equal stages takes 57 s where a rank waits; with m=4 all forwards come first, and it takes 33 s:

    >>> unlike_chunks_work_at_least_s(4, 2, m=8, work_s=24, transfer_s=0.0, waits=True, at_once=False)
    52.5
    >>> unlike_chunks_work_at_least_s(4, 2, m=4, work_s=24, transfer_s=0.0, waits=True, at_once=True)
    33.0
    """
    stages = pp * vpp
    through_s = through_at_least_s(stages, work_s, transfer_s)
    plain_s = largest(share_at_least_s(pp, m, work_s), through_s)
    half_s = share_at_least_s(pp, m, work_s) + (pp - 1) / (2 * stages) * work_s + (stages - 1) * transfer_s
    waiting_s = where(waits, largest(plain_s, half_s), plain_s)
    return where(at_once, largest(waiting_s, through_s + (m - 1) / stages * work_s), waiting_s)
