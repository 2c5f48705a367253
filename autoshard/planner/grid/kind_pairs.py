"""Bounds of many layouts whose blocks are of several kinds, with two chunks a rank, by what each rank has room for.

A rank runs two ranges of blocks: a pair of contents. What a pair recomputes at least follows from the rank's memory,
with a price of bytes (Lagrange's relaxation), and from that what a step takes at least. So no rank holds more blocks
than a faster step allows, nor more of their work, and all ranks together must hold all blocks and do all work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.cost.passes import stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import NEVER_S, after_any_cut_at_least_s
from autoshard.planner.grid.kind_room import MOST_BYTES, Blocks, RankRoom
from autoshard.planner.grid.kind_stages import ranges
from autoshard.planner.grid.whole import Whole

PRICES = (0.0, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 5.0)
"""Prices of memory that are tried, as shares of the one at which a mean rank is just full."""
HALVINGS = 16
"""Of the interval in which that one is looked for."""
DEAREST = 1e4
"""The interval's upper end over its lower one."""
ROUNDS = 3
"""Passes that find what all ranks recompute, at least, from what steps may take and the other way round."""
ROUNDING = 1e-9
"""Share of all work by which sums of its parts may be off."""
SMALLEST = 1e-30
"""Less than a block keeps."""
AT_ONCE = 1 << 13
"""So many rows of drafts and sets are priced at a time: each takes some hundred numbers."""
MOST_TOGETHER = 1 << 18
"""So many pairs of contents, of all drafts together, take little memory: an array of theirs stays in a core's cache."""


class Contents(NamedTuple):
    """Ranges of blocks as stages of some drafts, the ends of the model left out. size: their blocks, (content,).
    forward_s, lives_bytes: (content, draft); handed_bytes: alike, of gradients that one backward hands over.
    backward_s, kept_bytes: (content, draft, set), the bytes of one microbatch."""

    size: Array
    forward_s: Array
    backward_s: Array
    kept_bytes: Array
    lives_bytes: Array
    handed_bytes: Array


class Pairs(NamedTuple):
    """Stages of one rank together, with two chunks a rank pairs. stages: their contents, by chunk. size: blocks of
    all, growing.

    (pair, draft) each: forward_s: by chunk. ahead_s: forward of all. later_ahead_s: weighed by the passes behind the
    warm-up. least_s: forward and backward of these blocks as `ChunkRoom.all_s` counts them; least_backward_s: backward
    alone, by chunk. free_bytes: for what is kept, and for what works beside. taken_bytes: of that, what a stage takes
    at least, by chunk, then (content, draft, set). backward_s: of a stage, alike. held: microbatches in flight, (chunk,
    draft). weights: passes of each chunk behind the warm-up, alike.
    """

    rank: int
    stages: tuple[Array, ...]
    size: Array
    forward_s: tuple[Array, ...]
    ahead_s: Array
    later_ahead_s: Array
    least_s: Array
    least_backward_s: tuple[Array, ...]
    free_bytes: Array
    taken_bytes: tuple[Array, ...]
    backward_s: tuple[Array, ...]
    held: Array
    weights: Array

    def take(self, places: Array) -> Pairs:
        """These pairs alone, in their order."""
        return self._replace(
            stages=tuple(content[places] for content in self.stages),
            size=self.size[places],
            forward_s=tuple(of_chunk[places] for of_chunk in self.forward_s),
            ahead_s=self.ahead_s[places],
            later_ahead_s=self.later_ahead_s[places],
            least_s=self.least_s[places],
            least_backward_s=tuple(least_s[places] for least_s in self.least_backward_s),
            free_bytes=self.free_bytes[places],
        )


class Beside(NamedTuple):
    """Seconds before, behind and around the work of a rank. fill_s, drain_s: until its first input; alike at the end.
    up_s: until its first backward; down_s: from its last forward to the end."""

    fill_s: Array
    drain_s: Array
    up_s: Array
    down_s: Array

    def ways(self) -> tuple[Array, Array, Array, Array]:
        """Seconds beside a rank along the four ways of `ChunkRoom.ways`."""
        fill_s, drain_s, up_s, down_s = self
        return fill_s + drain_s, up_s + drain_s, fill_s + down_s, up_s + down_s


class Costs(NamedTuple):
    """Seconds of a step at least by pairs of one rank. around_s: of the ways that count what all ranks do for one
    microbatch. more_s: by how much more that is than the least, for this rank. The first axis is of pairs. size: their
    blocks. least_s: the work of these, as of `Pairs`."""

    size: Array
    least_s: Array
    own_s: Array
    around_s: Array
    more_s: Array

    def with_more_s(self, more_s: Array | float) -> Array:
        """Seconds of a step at least. more_s: what all ranks do beside the least for one microbatch, at least."""
        found: Array = np.maximum(self.own_s, self.around_s + more_s)
        return found


def windows(pp: int, vpp: int, layers: int, most: int, bare: int) -> list[list[Array]]:
    """By rank, then chunk, the places where its stage may begin. most: blocks of a rank. bare: 1 where the first and
    the last stage may have none, else 0."""

    def begins(stage: int) -> Array:
        behind = pp * vpp - stage
        ranks = min(pp, behind)  # so many ranks have all blocks from here on
        return np.arange(max(0, stage - bare, layers - ranks * most), min(stage * most, layers - behind + bare) + 1)

    return [[begins(chunk * pp + rank) for chunk in range(vpp)] for rank in range(pp)]


class ChunkRoom:
    """The pairs of some drafts and what steps with them take at least."""

    def __init__(self, whole: Whole, drafts: Array, sets: Array, limit_bytes: float, limit_s: float):
        """drafts, sets: places. limit_s: only steps that take less are of interest."""
        self._whole, self.after_s = (
            whole,
            after_any_cut_at_least_s(whole.kind_counts, whole.states, whole.state[drafts]),
        )
        self.limit_s, self._sets, self._hop_s = limit_s - self.after_s, sets, whole.hop_s[drafts]
        self._blocks = blocks = Blocks(whole, drafts, limit_bytes)
        self.pp, self.vpp, self.m = blocks.pp, blocks.vpp, blocks.m
        self.layers, self.bare = int(blocks.counts.sum()), int(whole.bare_ends)
        self.launch_s = whole.problem.cluster.device.pass_launch_s
        self._forward_s, self._backward_s = blocks.forward_s.min(2), blocks.backward_s[..., sets].min(2)
        self._prepare_ends(drafts)
        self.upto_s = self._upto(self._forward_s), self._upto(self._backward_s)
        self.all_s = [
            upto[-1] + self.vpp * self.pp * self.launch_s + sum(ends)
            for upto, ends in zip(self.upto_s, (self.ends_forward_s, self.ends_least_s), strict=True)
        ]
        self.work_s: Array = self.all_s[0] + self.all_s[1]
        """Work of all ranks for one microbatch at least, by draft."""
        self.most = self._longest()
        self.ranges = ranges(whole.problem.blocks, self.most, in_order=False)
        self._drafts = drafts
        self._of_ends: dict[int, Array] = {}

    @property
    def at_once(self) -> int:
        """So many drafts are bounded together in little memory."""
        return int(max(1, MOST_TOGETHER // self.ranges.counts.shape[1] ** self.vpp))

    @cached_property
    def pairs(self) -> list[Pairs]:
        """The pairs of each rank."""
        return [*self._of_ranks()]

    def _of_ranks(self) -> Iterator[Pairs]:
        """The pairs of one rank after another: those of all ranks and many drafts take much memory together."""
        return map(self._pairs, self._blocks.ranks())

    def _prepare_ends(self, drafts: Array) -> None:
        """Forward of both ends, (draft,) each; backward by (draft, set), and the least of all sets."""
        sets, problem = self._sets, self._whole.problem
        _, first, last, state = self._whole.parts_of(np.repeat(drafts, len(sets)), np.tile(sets, len(drafts)))
        per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        shape, ends = (len(drafts), len(sets)), ((first, state.first), (last, state.last))
        self.ends_forward_s = [part.forward_s.reshape(shape)[:, 0] for part, _ in ends]
        self.ends_backward_s = [
            (part.backward_s + per_parameter * unit.parameters).reshape(shape) for part, unit in ends
        ]
        self.ends_least_s = [backward_s.min(1) for backward_s in self.ends_backward_s]

    def _upto(self, blocks_s: Array) -> Array:
        """Seconds of the blocks in front of each, (block, draft). blocks_s: (kind, draft)."""
        every = self._whole.problem.blocks
        places = [every.kinds.index(kind) for kind in every.kind_of]
        return np.concatenate([np.zeros((1, blocks_s.shape[1])), blocks_s[places].cumsum(0)])

    def _longest(self) -> int:
        """The most blocks of a rank that does not work longer than the limit, one after another or not."""
        least_s = self.m * (self._forward_s + self._backward_s)
        cheapest = np.sort(np.repeat(least_s.min(1), self._blocks.counts)).cumsum()  # of any draft
        limit_s = float(self.limit_s.max())
        return max(1, min(self.layers, int((cheapest < limit_s).sum())))

    @cached_property
    def contents(self) -> Contents:
        """All ranges of so many blocks."""
        blocks, counts, sets, drafts = self._blocks, self.ranges.counts, self._sets, self._drafts
        at_once = max(1, AT_ONCE // (len(drafts) * len(sets)))
        pieces = [
            self._passes(drafts, counts[:, begin : begin + at_once]) for begin in range(0, counts.shape[1], at_once)
        ]
        forward_s, backward_s = map(np.concatenate, zip(*pieces, strict=True))
        kept, lives, handed = (
            np.tensordot(counts, of_kinds, (0, 0))
            for of_kinds in (
                blocks.kept_bytes[..., sets],
                blocks.state_bytes[..., 0] - blocks.handed_bytes,
                blocks.vpp * blocks.handed_bytes,
            )
        )
        return Contents(counts.sum(0), forward_s, backward_s, kept, lives, handed)

    def _passes(self, drafts: Array, counts: Array) -> tuple[Array, Array]:
        """Seconds of one microbatch: forward, (content, draft), and backward, (content, draft, set). counts: blocks of
        each kind, (kind, content)."""
        sets, whole, size = self._sets, self._whole, counts.sum(0)
        each, device = len(drafts) * len(sets), whole.problem.cluster.device
        rows, of_sets = np.tile(np.repeat(drafts, len(sets)), len(size)), np.tile(sets, len(size) * len(drafts))
        block, _, _, state = whole.parts_of(rows, of_sets, [np.repeat(count, each) for count in counts])
        per_parameter = accumulation_s_per_parameter(whole.problem.training.precision, device)
        passes = stage_passes(np.repeat(size, each), block, state.block, device, per_parameter)
        forward_s, backward_s = (seconds.reshape(len(size), len(drafts), len(sets)) for seconds in passes)
        return forward_s[..., 0], backward_s

    def _places(self, begin: Array) -> Array:
        """The different contents of stages that begin at some places."""
        found = np.unique(self.ranges.content[begin])
        return found[found >= 0]

    def _pairs(self, room: RankRoom) -> Pairs:
        """All pairs of one rank of which no stage is too long."""
        rank, contents, vpp = room.rank, self.contents, self.vpp
        stages, size = self._together(rank)
        # the first stage of the first rank and the last one of the last rank have the ends of the model
        ends = [[(0, chunk == 0 and rank == 0), (1, chunk == vpp - 1 and rank == self.pp - 1)] for chunk in range(vpp)]

        def of_ends(seconds: Sequence[Array], chunk: int) -> Array:
            return sum(seconds[end] * has for end, has in ends[chunk])

        forward_s, least_back_s, least_s = [], [], np.zeros((len(size), len(self.m)))
        for chunk, content in enumerate(stages):
            counts = self.ranges.counts[:, content].T
            forward_s.append(contents.forward_s[content] + of_ends(self.ends_forward_s, chunk))
            least_back_s.append(counts @ self._backward_s + self.launch_s + of_ends(self.ends_least_s, chunk))
            least_ahead_s = counts @ self._forward_s + self.launch_s + of_ends(self.ends_forward_s, chunk)
            least_s += least_ahead_s + least_back_s[-1]
        shared = self.beside_bytes(rank) / vpp  # the largest is no less than the mean
        handed_bytes = np.maximum.reduce([contents.handed_bytes[content] for content in stages])
        lives_bytes = handed_bytes + sum(contents.lives_bytes[content] for content in stages)
        weights = np.maximum(self.m - room.held, 0)
        return Pairs(
            rank=rank,
            stages=stages,
            size=size,
            forward_s=tuple(forward_s),
            ahead_s=sum(forward_s),
            later_ahead_s=sum(weight * seconds for weight, seconds in zip(weights, forward_s, strict=True)),
            least_s=least_s,
            least_backward_s=tuple(least_back_s),
            free_bytes=np.minimum(room.room_bytes + self._blocks.working_bytes - lives_bytes, MOST_BYTES),
            taken_bytes=tuple(held[:, None] * contents.kept_bytes + shared for held in room.held),
            backward_s=tuple(contents.backward_s + of_ends(self.ends_backward_s, chunk) for chunk in range(vpp)),
            held=room.held,
            weights=weights,
        )

    def _together(self, rank: int) -> tuple[tuple[Array, ...], Array]:
        """(contents by chunk, blocks of all) of the stages that a rank may have together, of which the other ranks can
        hold the rest."""
        pp, vpp, sizes = self.pp, self.vpp, self.contents.size
        stages, size = np.zeros((0, 1), dtype=int), np.zeros(1, dtype=int)
        for chunk, begin in enumerate(windows(pp, vpp, self.layers, self.most, self.bare)[rank]):
            may_be_bare = self.bare and (chunk, rank) in ((0, 0), (vpp - 1, pp - 1))
            content = self._places(begin)
            content = content[sizes[content] >= 1 - may_be_bare]
            if not self._whole.moves_blocks:
                content = content[sizes[content] == self.layers // (vpp * pp)]
            both = size[:, None] + sizes[content]
            old, new = np.nonzero(both <= self.most)
            stages, size = np.vstack([stages[:, old], content[new]]), both[old, new]
        order = np.flatnonzero(size >= self.layers - (pp - 1) * self.most)
        order = order[size[order].argsort(kind="stable")]
        return tuple(stages[:, order]), size[order]

    def beside_bytes(self, rank: int) -> Array:
        """Bytes that a rank with a stage needs beside its state and what is kept, at least, (content, draft, set)."""
        group = self._blocks.alike(rank)
        if group not in self._of_ends:
            of_places = [self._blocks.beside_bytes(group, place)[..., self._sets] for place in self._blocks.places]
            least = of_places[0].min((0, 2))[:, None]  # of the other stage, where this one has no blocks
            counts = self.ranges.counts
            there, last = counts > 0, np.clip(counts, 1, len(of_places)) - 1  # the place of the last block of a kind
            of_kinds = np.stack(of_places)[last, np.arange(len(counts))[:, None]]  # (kind, content, draft, set)
            self._of_ends[group] = np.where(there[..., None, None], of_kinds, least).max(0)
        return self._of_ends[group]

    def _prices(self) -> list[Array]:
        """Seconds of backward that a rank with its share of all blocks pays for a byte, by rank, then draft."""
        blocks, share = self._blocks, self._blocks.counts / self.pp
        rooms = [*blocks.ranks()]
        held = np.stack([room.held.mean(0) for room in rooms])
        free = np.stack([room.room_bytes for room in rooms]) - share @ blocks.state_bytes[..., 0]
        back_s, kept_bytes = (
            np.tensordot(share, of_each[..., self._sets], 1) for of_each in (blocks.backward_s, blocks.kept_bytes)
        )
        taken_bytes = held[..., None] * kept_bytes  # (rank, draft, set)
        ratio = np.ptp(back_s, axis=1) / np.maximum(np.ptp(taken_bytes, axis=2), SMALLEST)
        low, high = (np.maximum(ratio, SMALLEST) * share for share in (DEAREST**-0.5, DEAREST**0.5))
        for _ in range(HALVINGS):
            middle = np.sqrt(low * high)
            best = (back_s + middle[..., None] * taken_bytes).argmin(2)[..., None]
            fits = np.take_along_axis(taken_bytes, best, 2)[..., 0] <= free
            low, high = np.where(fits, low, middle), np.where(fits, middle, high)
        return list(high)

    def _backward_at_least_s(self, pairs: Pairs, price: Array, weights: Sequence[Array]) -> Array:
        """Backward seconds of pairs, at least, (pair, draft), with the sets that fit. weights: of each chunk, (draft,)
        each. price: about what a byte costs."""
        found: Array = np.zeros_like(pairs.free_bytes)
        for share in PRICES:
            byte_s = share * sum(weights) / len(weights) * price
            cost_s = [
                (weight[:, None] * backward_s + byte_s[:, None] * taken_bytes).min(2)
                for weight, backward_s, taken_bytes in zip(weights, pairs.backward_s, pairs.taken_bytes, strict=True)
            ]
            spent_s = sum(cost[content] for cost, content in zip(cost_s, pairs.stages, strict=True))
            np.maximum(found, spent_s - byte_s * pairs.free_bytes, out=found)
        return found

    def beside(self, rank: int, first: Array | None = None, end: Array | None = None) -> Beside:
        """Seconds beside the work of a rank, (place, draft). first: where its first stage begins. end: where its second
        one ends; by default where least is in front and behind."""
        first = np.array([max(0, rank - self.bare)]) if first is None else first
        end = np.array([self.layers - max(0, self.pp - 1 - rank - self.bare)]) if end is None else end
        fill_s, drain_s = (
            upto[first] + rank * (self.launch_s + self._hop_s) + ends[0] * (rank > 0)
            for upto, ends in zip(self.upto_s, (self.ends_forward_s, self.ends_least_s), strict=True)
        )
        behind_forward_s, behind_backward_s = (
            upto[-1] - upto[end] + (self.pp - 1 - rank) * self.launch_s + ends[1] * (rank < self.pp - 1)
            for upto, ends in zip(self.upto_s, (self.ends_forward_s, self.ends_least_s), strict=True)
        )
        hops_s = ((self.vpp + 1) * self.pp - 2 - rank) * self._hop_s
        return Beside(
            fill_s, drain_s, self.all_s[0] + behind_backward_s + hops_s, self.all_s[1] + behind_forward_s + hops_s
        )

    def through_s(self, rank: int, end: Array) -> tuple[Array, Array]:
        """Seconds in which one microbatch goes through all stages up to a rank's second one, at least: forward, and,
        the other way round, backward, (place, draft) each. end: where that stage ends."""
        hops_s, stages = (self.pp + rank) * self._hop_s, self.pp + rank + 1
        forward_s, backward_s = (
            upto[end] + stages * self.launch_s + ends[0] + ends[1] * (rank == self.pp - 1) + hops_s
            for upto, ends in zip(self.upto_s, (self.ends_forward_s, self.ends_least_s), strict=True)
        )
        return forward_s, backward_s

    def ways(self, pairs: Pairs, both_s: Array, later_s: Array) -> tuple[Array, Array, Array, Array]:
        """Seconds of a rank's work, (pair, draft), along four ways; with `Beside.ways` of that rank a step takes at
        least as long. both_s, later_s: backward of both stages, and as weighed by the passes behind the warm-up.

        Why: the ways of schedules.closed_form.alternating_at_least_s through this rank. Its first backward waits for
        microbatch 0 to come back or for its own warm-up, and the same, mirrored in time, at the end: none of these,
        the first one, the last one, both.
        """
        ahead_s, back_s = self.m * pairs.ahead_s, self.m * both_s
        has_both = self._whole.family.warm_ups[pairs.rank] < self.vpp * self.m.min()
        later_ahead_s, later_s = (pairs.later_ahead_s, later_s) if has_both else (0.0, 0.0)
        around_s = later_ahead_s + later_s if has_both else np.full_like(ahead_s, NEVER_S)
        return ahead_s + back_s, later_ahead_s + back_s, ahead_s + later_s, around_s

    def costs(self, pairs: Pairs, beside: Beside, both_s: Array, later_s: Array) -> Costs:
        """The longest of the ways through a rank with what is beside it."""
        own_s = self.ways(pairs, both_s, later_s)
        *ways, around_s = (beside_s + way_s for beside_s, way_s in zip(beside.ways(), own_s, strict=True))
        more_s = np.maximum(pairs.ahead_s + both_s - pairs.least_s, 0.0)
        return Costs(pairs.size, pairs.least_s, np.maximum.reduce(ways), around_s, more_s)

    def relaxed(self, every: Iterable[Pairs] | None = None) -> list[Costs]:
        """By rank, seconds of steps with each of its pairs, at least, whatever they recompute. every: `pairs`, where
        they are needed again; by default none are kept."""
        found = []
        for pairs, price in zip(self._of_ranks() if every is None else every, self._prices(), strict=True):
            ones = np.ones_like(price)
            both_s = self._backward_at_least_s(pairs, price, [ones] * self.vpp)
            later_s = self._backward_at_least_s(pairs, price, [*pairs.weights])
            found.append(self.costs(pairs, self.beside(pairs.rank), both_s, later_s))
        return found

    def rounds(self, costs: Sequence[Costs]) -> Array:
        """Seconds that all ranks work for one microbatch beside the least, at least, in a step that takes less than the
        limit, by draft; infinite where there is none."""
        more_s = np.zeros_like(self.limit_s)
        for _ in range(ROUNDS):
            upto = np.full((self.layers + 1, len(more_s)), inf)
            upto[0] = 0.0
            for of_rank in costs:
                allowed = of_rank.with_more_s(more_s) < self.limit_s
                after, least = (
                    np.full_like(upto, inf),
                    self._by_size(of_rank.size, np.where(allowed, of_rank.more_s, inf)),
                )
                for size in np.flatnonzero(np.isfinite(least).any(1)).tolist():
                    np.minimum(after[size:], upto[: self.layers + 1 - size] + least[size], out=after[size:])
                upto = after
            more_s = np.maximum(more_s, upto[self.layers])
        return more_s

    def _by_size(self, size: Array, seconds: Array) -> Array:
        """The least by blocks, (blocks, draft). size: of each pair. seconds: (pair, draft)."""
        least = np.full((self.most + 1, seconds.shape[1]), inf)
        if len(size):
            begin = np.flatnonzero(np.diff(size, prepend=-1))
            least[size[begin]] = np.minimum.reduceat(seconds, begin, axis=0)
        return least

    def steps_s(self, costs: Sequence[Costs], more_s: Array | None = None) -> Array:
        """Seconds of a step, at least, by draft, as far as they are below the limit. more_s: what `rounds` gives, where
        it is known."""
        more_s = self.rounds(costs) if more_s is None else more_s
        seconds = [of_rank.with_more_s(more_s) for of_rank in costs]
        least_s = np.maximum(self._all_blocks_s(costs, seconds), self._all_work_s(costs, seconds))
        return np.minimum(np.where(np.isfinite(more_s), least_s, inf), self.limit_s) + self.after_s

    def _all_blocks_s(self, costs: Sequence[Costs], seconds: Sequence[Array]) -> Array:
        """Seconds in which the ranks have room for all blocks, each by the most that it may have, by draft. seconds: of
        steps with each pair, by rank."""
        found = []
        for of_rank, steps_s in zip(costs, seconds, strict=True):
            least = self._by_size(of_rank.size, steps_s)
            found.append(np.minimum.accumulate(least[::-1])[::-1][1:])
        of_all = np.sort(np.concatenate(found), axis=0)
        return of_all[self.layers - 1] if len(of_all) >= self.layers else np.full_like(self.limit_s, inf)

    def _all_work_s(self, costs: Sequence[Costs], seconds: Sequence[Array]) -> Array:
        """Seconds in which the ranks have time for the work of all blocks, each by the most that it may have, by draft:
        blocks that take long are not on fewer ranks than they need. seconds: of steps with each pair, by rank."""
        return np.array([self._all_work_of(draft, costs, seconds) for draft in range(len(self.limit_s))])

    def _all_work_of(self, draft: int, costs: Sequence[Costs], seconds: Sequence[Array]) -> float:
        """`_all_work_s` of one draft; infinite where the ranks have no time for it below the limit."""
        times, more = [], []
        for of_rank, steps_s in zip(costs, seconds, strict=True):
            time_s = steps_s[:, draft]
            rows = np.flatnonzero(time_s < self.limit_s[draft])
            rows = rows[time_s[rows].argsort()]
            times.append(time_s[rows])
            more.append(np.diff(np.maximum.accumulate(of_rank.least_s[rows, draft]), prepend=0.0))
        time_s, work_s = np.concatenate(times), np.concatenate(more)
        order = time_s.argsort()
        place = np.searchsorted(work_s[order].cumsum(), self.work_s[draft] * (1 - ROUNDING))
        return float(time_s[order[place]]) if place < len(order) else inf
