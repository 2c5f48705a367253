"""Lower bounds of many layouts with several chunks a rank at once, whatever each virtual stage recomputes."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from autoshard.cost.memory import BUCKET_BYTES, rank_memory
from autoshard.cost.passes import stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import (
    RankBackward,
    after_at_least_s,
    busiest_rank_at_least_s,
    recomputed_at_least_s,
    unlike_chunks_at_least_s,
)
from autoshard.planner.grid.price import Family, layouts_ends, rank_rows
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.planner.grid.whole import Whole
from autoshard.rows import Number, pieces
from autoshard.schedules.closed_form import chunk_visits
from autoshard.schedules.held import RankHolds

AT_ONCE = 1 << 18
"""Seconds that are weighted at once: they stay in a core's cache."""


def warm_up_visits(family: Family, rank: int) -> Array:
    """How many forwards of a rank's warm-up go through each of its chunks: in flight when the warm-up ends."""
    return np.array(chunk_visits(family.warm_ups[rank], family.pp, family.num_virtual_stages), dtype=float)


class MixedLeast:
    """Drafts of one interleaved family, with every recompute set that their virtual stages may choose from."""

    def __init__(self, whole: Whole, draft: Array, limit_bytes: float):
        self._whole, self._draft, self._limit_bytes = whole, draft, limit_bytes
        family, problem = whole.family, whole.problem
        self._pp, self._vpp, self._m = family.pp, family.num_virtual_stages, whole.count[draft]
        self._layers = problem.model.num_hidden_layers // (self._pp * self._vpp)
        sets = len(whole.sets)
        self._after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state[draft])
        self._rows = np.repeat(draft, sets)
        self._block, self._first, self._last, self._state = whole.parts_of(
            self._rows, np.tile(np.arange(sets), len(draft))
        )
        self._per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        self._chunk_s, back_s = stage_passes(
            self._layers, self._block, self._state.block, problem.cluster.device, self._per_parameter
        )
        self._back_s = self._by_set(back_s)
        self._kept_bytes = self._by_set(self._layers * self._block.kept_bytes)

    def _by_set(self, column: Array) -> Array:
        """(draft, set)."""
        return column.reshape(len(self._draft), -1)

    @cached_property
    def _forward_s(self) -> Array:
        """(virtual stage, draft)."""
        block, first, last = (
            self._by_set(column)[:, 0] for column in (self._chunk_s, self._first.forward_s, self._last.forward_s)
        )
        seconds = np.repeat(block[None], self._pp * self._vpp, axis=0)
        seconds[0] += first
        seconds[-1] += last
        return seconds

    @cached_property
    def of_ranks(self) -> list[RankBackward]:
        """The backwards of each rank, at least, by draft."""
        first_s, last_s = (
            self._by_set(part.backward_s + self._per_parameter * unit.parameters)
            for part, unit in ((self._first, self._state.first), (self._last, self._state.last))
        )
        later_of_ranks = self._m[:, None] - self._visits[:, None]
        sums_s = [self.weighted_s(weights) for weights in (np.ones_like(later_of_ranks), later_of_ranks)]
        ranks = []
        for rank, (later, chunks_s, later_s) in enumerate(zip(later_of_ranks, *sums_s, strict=True)):
            ends_s = np.zeros((len(self._draft), self._vpp))
            ends_s[:, 0] += first_s.min(1) if rank == 0 else 0.0
            ends_s[:, -1] += last_s[:, 0] if rank == self._pp - 1 else 0.0
            chunk_s = self._back_s.min(1)
            ranks.append(
                RankBackward(
                    chunks_s + ends_s.sum(1),
                    chunk_s + ends_s[:, 0],
                    chunk_s + ends_s[:, -1],
                    later_s + (ends_s * later).sum(1),
                )
            )
        return ranks

    def weighted_s(self, weights: Array) -> Array:
        """Weighted backward seconds of the blocks of each rank, at least, (rank, draft). weights: (rank, draft, chunk),
        the chunk may be counted so often."""
        some = pieces(self._pp, AT_ONCE // (self._vpp * self._back_s.size))
        return np.concatenate([self._of_some_s(weights[ranks], ranks) for ranks in some])

    def _of_some_s(self, weights: Array, ranks: slice) -> Array:
        """`weighted_s` of some ranks; weights: of these."""
        visits, rooms_bytes = self._visits[ranks, None], self._rooms_bytes[ranks]
        rows = (
            weights,
            *(np.broadcast_to(column, (len(weights), *column.shape)) for column in (self._back_s, self._kept_bytes)),
            np.broadcast_to(visits, weights.shape),
        )
        weights, back_s, kept_bytes, visits = (column.reshape(-1, column.shape[-1]) for column in rows)
        return recomputed_at_least_s(weights, back_s, visits, kept_bytes, rooms_bytes.ravel()).reshape(
            len(rooms_bytes), -1
        )

    @cached_property
    def _visits(self) -> Array:
        """(rank, chunk), as `warm_up_visits` has them."""
        return np.array([warm_up_visits(self._whole.family, rank) for rank in range(self._pp)])

    @cached_property
    def _rooms_bytes(self) -> Array:
        """(rank, draft)."""
        between = max(1, AT_ONCE // len(self._rows))  # ranks between the ends differ in what they hold, no more
        inner = [range(begin, min(begin + between, self._pp - 1)) for begin in range(1, self._pp - 1, between)]
        return np.concatenate([self._room_bytes(ranks) for ranks in (range(1), *inner, range(self._pp - 1, self._pp))])

    def _room_bytes(self, ranks: range) -> Array:
        """Bytes left for what blocks keep of all microbatches in flight, at most, (rank, draft). ranks: one, or some
        without ends.

        The rest of a rank's memory is what it needs with much kept, less that: from then on it does not depend on it.
        """
        whole, problem = self._whole, self._whole.problem
        much = self._limit_bytes + 2 * BUCKET_BYTES
        blocks, sets = np.full(len(self._rows), self._layers), len(whole.sets)
        of_fields = zip(*(self._holds[rank] for rank in ranks), strict=True)
        held: list[Number] = [np.stack(np.broadcast_arrays(blocks, *most)[1:]) for most in of_fields]
        first = PartColumns(*(np.repeat(self._by_set(column).min(1), sets) for column in self._first))
        last = PartColumns(*(np.repeat(self._by_set(column)[:, 0], sets) for column in self._last))
        ends, hidden_bytes = layouts_ends(whole.family, first, last, self._state), whole.hidden_bytes(self._rows)
        holds = RankHolds(*held)
        of_rank = rank_rows(whole.family, holds, blocks, ranks[0], self._block, ends, hidden_bytes)
        block = self._block._replace(kept_bytes=much / (of_rank.in_flight * self._layers))
        needed = rank_memory(of_rank.made_of(block), self._state, problem.training.precision).total
        free: Array = self._limit_bytes + much - problem.cluster.device.reserved_memory_bytes
        return free - needed.reshape(len(ranks), -1, sets).min(2)

    @cached_property
    def _holds(self) -> list[RankHolds]:
        """The microbatches that each rank holds, by row."""
        return self._whole.family.holds(self._whole.count[self._rows])

    def steps_s(self) -> Array:
        """Seconds of a step, at least, by draft: by sums of forward and of backward seconds."""
        family, hop_s = self._whole.family, self._whole.hop_s[self._draft]
        seconds: Array = unlike_chunks_at_least_s(
            family.warm_ups, self._vpp, self._m, self._forward_s, hop_s, self.of_ranks
        )
        return seconds + self._after_s

    def work_s(self) -> Array:
        """Seconds of a step, at least, by draft: by sums of forward and backward alone, which are all that is known of
        sharded operators."""
        hop_s = self._whole.hop_s[self._draft]
        chunks_s = [self._forward_s[rank :: self._pp].sum(0) for rank in range(self._pp)]
        work_s = [forward_s + back.chunks_s for forward_s, back in zip(chunks_s, self.of_ranks, strict=True)]
        passed_s = [self._forward_s[rank] + back.first_s + 2 * hop_s for rank, back in enumerate(self.of_ranks)]
        seconds: Array = busiest_rank_at_least_s(self._m, work_s, passed_s)
        return seconds + self._after_s
