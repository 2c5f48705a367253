"""Bytes on the fullest rank of layouts, at least, however they are cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem, chunks_are_alike
from autoshard.cost.memory import boundary_buffers
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.blocks_bytes import BlocksBytes, held_by_chunk, held_least
from autoshard.planner.grid.price import Family


class PartsBytes(NamedTuple):
    """Bytes of the parts of layouts on one rank, at least, by row. state: of weights, sums and optimizer state of a
    block of each kind, (kind, row). ends: of both ends alike, (end, row). kept, replayed: of one microbatch of a block,
    by each of the sets to choose from, (kind, row, set). working: that a block works with, (kind, row). waiting: that
    wait for gradients of the weights of a block, (kind, row). loss: that one microbatch of the head keeps and works
    with, (row,). ends_kept, ends_waiting: as kept and waiting, of the ends, (end, row). hidden: of what one microbatch
    sends to the next stage, (row,)."""

    state: Array
    ends: Array
    kept: Array
    replayed: Array
    working: Array
    waiting: Array
    loss: Array
    ends_kept: Array
    ends_waiting: Array
    hidden: Array


class Pipeline(NamedTuple):
    """Bytes of pipelines, at least. state: of a block, (kind, rank, row). held: microbatches of it that a rank has at
    once, (rank, row). kept, replayed: of one microbatch of a block, (kind, row, set). room: that is left for blocks
    while the loss is computed, (rank, row). at_end: of the loss, beside what a block works with, (row,)."""

    state: Array
    held: Array
    kept: Array
    replayed: Array
    room: Array
    at_end: Array


class Memory(NamedTuple):
    """Bounds of the memory of layouts, one a row.

    needed: bytes on the fullest rank, at least, by row. pipeline: of several stages. sets_fit: whether one stage has
    room with a set, (row, set).
    """

    needed: Array
    pipeline: Pipeline | None = None
    sets_fit: Array | None = None

    def take(self, rows: Array) -> Memory:
        """These rows alone."""
        needed = self.needed[rows]
        if self.pipeline is None:
            assert self.sets_fit is not None
            return Memory(needed, sets_fit=self.sets_fit[rows])
        axes = Pipeline(state=2, held=1, kept=1, replayed=1, room=1, at_end=0)
        return Memory(needed, Pipeline(*(of.take(rows, axis) for of, axis in zip(self.pipeline, axes, strict=True))))


def least_memory(
    problem: Problem, family: Family, m: Array, parts: PartsBytes, limit_bytes: float, above_bytes: float
) -> Memory:
    """The memory of layouts of one family, at least, with the sets that need least. m: microbatches, (row,).
    limit_bytes: of memory on a rank. above_bytes: more than that: what is said to be needed where only the room for
    whole blocks tells that a layout does not fit."""
    pp, vpp = family.pp, family.num_virtual_stages
    state, (first, last), kept, replayed = parts[:4]
    counts = np.array(problem.blocks.counts)
    working = parts.working.min(0)
    at_end = np.maximum(parts.loss - working, 0.0)
    base = problem.cluster.device.reserved_memory_bytes + working
    if pp == 1:
        # where the first block keeps less than others, this was charged to the embedding
        whole = counts @ state + first + last + base + np.minimum(parts.ends_kept[0], 0.0)
        of_sets = whole[:, None] + np.tensordot(counts, kept, 1) + np.maximum(replayed.min(0), at_end[:, None])
        return Memory(of_sets.min(1), sets_fit=of_sets <= limit_bytes)
    holds = family.holds(m)
    held, waiting = (  # microbatches of each block, by rank, when most are in flight
        np.stack([np.broadcast_to(number, m.shape) for number in numbers]) / vpp
        for numbers in ([one.in_flight for one in holds], [one.together - one.in_flight for one in holds])
    )
    state = state[:, None] + waiting * parts.waiting[:, None]
    one_graph = problem.cluster.hands_over == "stages"
    between = (boundary_buffers(*one[:3], one.more, one.passing, False, one_graph) for one in holds)
    ends = np.stack([np.broadcast_to(number, m.shape) for number in between]) * parts.hidden
    ends[0] += first
    ends[-1] += last + at_end
    several = holds[0].embeddings, holds[-1].heads - 1  # the loss of one microbatch is in at_end
    of_ends = zip((0, -1), several, parts.ends_kept, parts.ends_waiting, strict=True)
    for rank, microbatches, kept_of, waiting_of in of_ends:
        ends[rank] += microbatches * kept_of + (holds[rank].together - holds[rank].in_flight) * waiting_of
    if vpp > 1 and not chunks_are_alike(problem):
        held = held_least(family, m)  # chunks may be small where many are held
    pipeline = Pipeline(state, held, kept, replayed, limit_bytes - base - ends, at_end)
    if vpp > 1 and len(counts) == 1:
        blocks = counts[0] / pp
        needed = base + (blocks * (state[0] + held * kept[0].min(1)) + ends).max(0)
        ends[-1] -= at_end  # what blocks replay comes when the loss is over
        of_block = (held[..., None] * kept[0] + replayed[0] / blocks).min(2)  # some chunk replays so much
        needed = np.maximum(needed, base + (blocks * (state[0] + of_block) + ends).max(0))
        return Memory(needed, pipeline)
    blocks_bytes = BlocksBytes(problem, family, state, held_by_chunk(family, m, held), kept)
    needed = np.maximum(base + blocks_bytes.fullest(ends, working), base - working + ends.max(0))
    if len(counts) > 1:
        beside = blocks_bytes.beside(parts.working - working, replayed, at_end)
        room = above_bytes - base - ends - beside
        needed = np.where(blocks_bytes.whole_fit(room), needed, np.maximum(needed, above_bytes))
    return Memory(needed, pipeline)
