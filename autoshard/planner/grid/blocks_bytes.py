"""Bytes of blocks on the ranks of a pipeline, at least, however the blocks are cut."""

from __future__ import annotations

import numpy as np

from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Problem
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.kind_cuts import most_behind
from autoshard.planner.grid.price import Family
from autoshard.rows import by_count
from autoshard.schedules.closed_form import chunk_visits

ROUNDING = 1e-9
"""The share of a number by which a bound may be off for rounding."""


def held_least(family: Family, m: Array) -> Array:
    """How many microbatches of every chunk a rank holds at the end of its warm-up, at least, (rank, row)."""
    return held_by_chunk(family, m, np.zeros((family.pp, len(m)))).min(1)


def held_by_chunk(family: Family, m: Array, held: Array) -> Array:
    """How many microbatches a rank holds of each chunk at one moment, (rank, chunk, row): with several chunks at the
    end of its warm-up. held: with one chunk, the most that it holds, (rank, row)."""
    pp, vpp, warm_up = family.pp, family.num_virtual_stages, family.rules.warm_up
    if vpp == 1:
        return held[:, None]
    if warm_up is None:
        return np.zeros((pp, vpp, len(m)))

    def of_ranks(count: int) -> list[int]:
        return [visits for rank in range(pp) for visits in chunk_visits(warm_up(rank, pp, count, vpp), pp, vpp)]

    return np.stack([np.broadcast_to(held, m.shape) for held in by_count(of_ranks, m)]).reshape(pp, vpp, len(m))


class BlocksBytes:
    """Bytes of blocks on several ranks, whatever the cut is. Every virtual stage has a block, but for those that may be
    an end of the model alone; no block is split.

    state: of a block of each kind, (kind, rank, row). visits: microbatches that are held of each chunk, (rank, chunk,
    row). kept: of one microbatch, (kind, row, set).
    """

    def __init__(self, problem: Problem, family: Family, state: Array, visits: Array, kept: Array):
        self._every, self._family, self._state, self._visits, self._kept = problem.blocks, family, state, visits, kept
        self._counts = np.array(self._every.counts)
        self._blocks = state[:, :, None] + visits * kept.min(2)[:, None, None]  # (kind, rank, chunk, row)
        self._pinned = np.ones(visits.shape[:2])
        if BACKENDS[problem.backend].unlike_stages:
            self._pinned[0, 0] = self._pinned[-1, -1] = 0.0

    def fullest(self, ends: Array, working: Array) -> Array:
        """Bytes on the fullest rank beside what every block works with, at least, by row.

        Why: the ranks' bytes, weighed by any prices, are no more than the fullest one's, weighed by all prices. Each
        block costs no less than on the chunk where its price is lowest; a block that some chunk must have costs more by
        what that chunk is dearer, for the kind for which that is least.

        ends: of the ends, (rank, row). working: what every block works with, by row, which a rank without blocks does
        not need.
        """
        pinned, kept = self._pinned[..., None], self._kept.min(2)
        owns: Array = self._pinned.any(1)
        ends = ends - np.where(owns[:, None], 0.0, working)
        found: Array = (ends + self._own)[owns].max(0, initial=0.0)
        for held in (self._visits.min(1), self._visits.mean(1))[: self._visits.shape[1]]:
            price = 1 / np.maximum(self._state.mean(0) + held * kept.mean(0), 1.0)
            costs = price[:, None] * self._blocks
            cheapest = costs.min((1, 2))
            dearer = (costs - cheapest[:, None, None]).min(0)
            blocks = self._counts @ cheapest + (pinned * dearer).sum((0, 1))
            np.maximum(found, (blocks + (price * ends).sum(0)) / price.sum(0), out=found)
        return found

    @property
    def _own(self) -> Array:
        """Bytes of the blocks that a rank must have, at least, (rank, row)."""
        found: Array = (self._pinned[..., None] * self._blocks.min(0)).sum(1)
        return found

    def beside(self, working: Array, replayed: Array, at_end: Array) -> Array:
        """Bytes that a rank with a block of a kind needs at least beside what every block works with, the loss, and
        what is kept if all keep least, (kind, rank, row).

        Why: when the last block of the kind runs backward, its rank replays it or keeps more, and has all but what
        blocks behind it kept and, on the last rank, what the loss worked with.

        working: of a block of each kind, beside what every block works with, (kind, row). replayed: (kind, row, set).
        at_end: of the loss, beside what every block works with, by row.
        """
        more = self._kept - self._kept.min(2, keepdims=True)
        fewest = self._visits.min((0, 1))  # of what is kept of the block, on any chunk
        in_work = working + (replayed + fewest[:, None] * more).min(2)
        found = np.repeat(in_work[:, None], len(self._visits), axis=1)
        found[:, -1] -= at_end
        if self._family.num_virtual_stages == 1:
            behind = most_behind(self._every)
            found -= np.tensordot(behind, self._kept.max(2), 1)[:, None]
            found[behind.any(1), -1] = 0.0  # the loss is in front of them
        return np.maximum(found, 0.0)

    def whole_fit(self, room: Array) -> Array:
        """Whether the ranks have room for all blocks of each kind and of any, by row.

        room: bytes for blocks, at least one of a kind among them, (kind, rank, row).
        """
        block, pinned = self._blocks.min(2), self._pinned.sum(1)
        of_kinds = np.floor(np.maximum(room, 0.0) / block + ROUNDING)
        spare = room.max(0) - self._own
        of_any = pinned[:, None] + np.floor(np.maximum(spare, 0.0) / block.min(0) + ROUNDING)
        own_fit = (spare >= 0.0)[pinned > 0].all(0)
        fit: Array = own_fit & (of_kinds.sum(1) >= self._counts[:, None]).all(0) & (of_any.sum(0) >= self._counts.sum())
        return fit
