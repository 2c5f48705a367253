"""Bounds of layouts with one chunk a rank and blocks of one kind, wherever they are cut into stages."""

from __future__ import annotations

import numpy as np

from autoshard.cost.memory import passing_buffers, rank_memory
from autoshard.cost.passes import unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.travelling_bytes import FEW_BLOCKS
from autoshard.cost.zero_sharding import Unit
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_at_least_s, slowest_stage_at_least_s, slowest_stage_at_most_s
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.planner.grid.whole import Whole
from autoshard.rows import anywhere, largest
from autoshard.schedules.held import RankHolds

ROUNDING = 1e-9
"""Share of a block by which a stage that holds it may be too small for rounding."""


def _with_more(holds: RankHolds) -> RankHolds:
    """What a rank between the ends holds if more microbatches are to come."""
    return holds._replace(more=1, passing=1)


class FreeCutBounds:
    """Bounds of some layouts. draft, recompute: places, (layout, set that a stage may choose)."""

    def __init__(self, whole: Whole, draft: Array, recompute: Array):
        self.draft, self.recompute = draft, recompute
        self._whole, problem = whole, whole.problem
        flat = draft.ravel()
        block, first, last, self._state = whole.parts_of(flat, recompute.ravel())
        self._parts = (block, first, last)
        self._launch_s, self._layers = 2 * problem.cluster.device.pass_launch_s, problem.model.num_hidden_layers
        per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)

        def seconds(part: PartColumns, unit: Unit) -> Array:
            return unit_work_s(part, unit, per_parameter).reshape(draft.shape)

        self._block_s = seconds(block, self._state.block)
        self._ends_s = (seconds(first, self._state.first), seconds(last, self._state.last))
        pp, drafts = whole.family.pp, draft[:, 0]
        self._m, self._hop_s = whole.count[drafts], whole.hop_s[drafts]
        self._waits = whole.family.waits_for_all(self._m), whole.family.is_at_once(self._m)
        self._holds = whole.family.holds(whole.count[flat])
        self._between: tuple[list[Array], list[Array]] | None = None
        self._after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state[drafts])
        ends_s = sum(end.min(1) for end in self._ends_s)
        self._work_s = pp * self._launch_s + self._layers * self._block_s.min(1) + ends_s

    def at_least_s(self) -> Array:
        """Seconds of a step, by layout, whatever its cut."""
        pp, work_s = self._whole.family.pp, self._work_s
        seconds: Array = slowest_stage_at_least_s(pp, self._m, work_s, work_s / pp, self._hop_s, *self._waits)
        return seconds + self._after_s

    def has_room(self, limit_bytes: float, known_s: float) -> Array:
        """Whether stages that are no slower than a faster step allows, and fit, can hold all blocks, by layout."""
        pp, m = self._whole.family.pp, self._m
        in_time_s = known_s - self._after_s
        slowest_s = slowest_stage_at_most_s(pp, m, self._work_s, in_time_s, self._hop_s, *self._waits)[:, None]
        room = np.zeros(len(m))
        for rank, fewest in enumerate(self._whole.fewest_of_stages.tolist()):
            ends_s = sum(end for end, has in zip(self._ends_s, (rank == 0, rank == pp - 1), strict=True) if has)
            blocks = np.minimum(
                (slowest_s - self._launch_s - ends_s) / self._block_s, self._fitting(rank, fewest, limit_bytes)
            )
            stage = np.floor(blocks.max(1) + ROUNDING)
            room = np.where(stage >= fewest, room + stage, -np.inf)
        return room >= self._layers

    def _fitting(self, rank: int, fewest: int, limit_bytes: float) -> Array:
        """Blocks that fit on a rank, at most; it has no fewer than `fewest`.

        From a few blocks on memory grows at least evenly with them; fewer, or none, may need less than that line says.
        """
        few = FEW_BLOCKS if self._state.travels is not False else 1
        of_few, of_more, *of_fewer = self._needed_bytes(rank, (few, few + 1, *range(fewest, few)))
        slope = of_more - of_few
        base = of_few - few * slope
        for blocks, needed in enumerate(of_fewer, start=fewest):
            base = np.minimum(base, needed - blocks * slope)
        free = limit_bytes - self._whole.problem.cluster.device.reserved_memory_bytes - base
        return (free / slope).reshape(self.draft.shape)

    def _needed_bytes(self, rank: int, blocks: tuple[int, ...]) -> list[Array]:
        """Bytes that a rank needs with each of these numbers of blocks. Ranks between the ends differ in what is in
        flight, and memory grows evenly with that."""
        first, last = 1, self._whole.family.pp - 2
        if not first < rank < last or self._whole.family.rules.weights_apart:
            return self._needed_on(rank, blocks)
        if self._between is None:  # as if each of them had more microbatches to come
            self._between = self._needed_on(first, blocks, more=True), self._needed_on(last, blocks, more=True)
        most, own, least = (self._holds[one].in_flight for one in (first, rank, last))
        if anywhere((most == least) & (own != most)):
            return self._needed_on(rank, blocks)
        share, holds = (most - own) / largest(most - least, 1), self._holds[rank]
        many, few = (
            passing_buffers(own, holds.embeddings, one.more, one.passing, self._state.one_graph)
            for one in (_with_more(holds), holds)
        )
        passing = (many - few) * self._whole.hidden_bytes(self.draft.ravel())
        return [
            of_first + share * (of_last - of_first) - passing for of_first, of_last in zip(*self._between, strict=True)
        ]

    def _needed_on(self, rank: int, blocks: tuple[int, ...], more: bool = False) -> list[Array]:
        """The bytes of `_needed_bytes`. more: as if not all microbatches of a step were there."""
        whole, flat = self._whole, self.draft.ravel()
        hidden_bytes, precision = whole.hidden_bytes(flat), whole.problem.training.precision
        holds = _with_more(self._holds[rank]) if more else self._holds[rank]
        block, first, last = self._parts
        ends = layouts_ends(whole.family, first, last, self._state)
        of_each = np.array(blocks)[:, None]
        of_rank = rank_rows(whole.family, holds, of_each, rank, block, ends, hidden_bytes)
        memory = rank_memory(of_rank, self._state, precision)
        return [*np.broadcast_to(memory.lives + memory.in_work, (len(blocks), len(flat)))]
