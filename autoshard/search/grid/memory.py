"""Bytes on the fullest rank, for many layouts of one schedule and pipeline depth at once.

The formulas of `cost/memory.py` for `software.COMPILED`, whose constants are neutral, with an array of layouts in place
of every number. Tests hold both equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import BOUNDARY_BUFFERS, BUCKET_BYTES
from autoshard.cost.shards import Turns, in_work_bytes
from autoshard.search.grid.parts import PartColumns
from autoshard.search.grid.pipeline import Array
from autoshard.spec.training import DTYPE_BYTES, Precision


class UnitColumns(NamedTuple):
    """Of a block or an end of the model, as cost.shards has it: elements of weights and of sums of gradients on a rank,
    seconds to gather for forward and for backward, and to scatter; what travels, as in cost.shards.Turns."""

    weights: Array
    sums: Array
    gather_s: Array
    again_s: Array
    scatter_s: Array
    travels: Array
    larger: Array
    other: Array
    early: Array
    late: Array
    back_late: Array
    back_after: Array
    back_leaving: Array


class ShardColumns(NamedTuple):
    """Where some layouts are ZeRO-2 or ZeRO-3; travels: which. gathers: 1 under ZeRO-3, else 0. tied: 1 where first and
    last share their table and are both in `first`. shards: ranks that share a table."""

    block: UnitColumns
    first: UnitColumns
    last: UnitColumns
    gathers: Array
    tied: Array
    shards: Array
    travels: Array

    def take(self, rows: Array) -> ShardColumns:
        units = (UnitColumns(*(column[rows] for column in unit)) for unit in self[:3])
        return ShardColumns(*units, *(column[rows] for column in self[3:]))


class StateColumns(NamedTuple):
    """Elements on one rank: parameters of a block and of the ends, and those whose optimizer state the rank keeps.

    shares_state: whether other ranks keep the rest, so that gradients and parameters travel in buckets. shards: None
    where every layout is at most ZeRO-1.
    """

    block: Array
    first: Array
    last: Array
    block_owned: Array
    first_owned: Array
    last_owned: Array
    shares_state: Array
    shards: ShardColumns | None = None

    def take(self, rows: Array) -> StateColumns:
        block, first, last, block_owned, first_owned, last_owned, shares_state = (column[rows] for column in self[:7])
        shards = None if self.shards is None else self.shards.take(rows)
        return StateColumns(block, first, last, block_owned, first_owned, last_owned, shares_state, shards)


class RankColumns(NamedTuple):
    """Of one pipeline rank. blocks: on it. most_blocks: of one of its chunks. The others: as in cost.load.RankLoad."""

    blocks: Array
    most_blocks: Array
    in_flight: Array
    embeddings_in_flight: Array
    heads_in_flight: Array
    weights_waiting: Array | int
    first: bool
    last: bool
    only: bool
    weights_apart: bool


def rank_bytes(
    rank: RankColumns,
    block: PartColumns,
    first: PartColumns,
    last: PartColumns,
    hidden_bytes: Array,
    state: StateColumns,
    precision: Precision,
) -> Array:
    """Without what the runtime and the compiler reserve."""
    lives, in_work, buckets = rank_parts_bytes(rank, block, first, last, hidden_bytes, state, precision)
    return lives + np.maximum(in_work, buckets)


def rank_parts_bytes(
    rank: RankColumns,
    block: PartColumns,
    first: PartColumns,
    last: PartColumns,
    hidden_bytes: Array,
    state: StateColumns,
    precision: Precision,
) -> tuple[Array, Array, Array]:
    """(what lives all the time, what a microbatch in work needs, buckets). The first two grow evenly with the
    blocks."""
    ends = [end for end, has in ((first, rank.first), (last, rank.last)) if has]
    held = np.maximum(rank.embeddings_in_flight, rank.heads_in_flight)
    waiting = rank.weights_waiting
    in_work = rank.most_blocks * (rank.in_flight * block.kept_bytes + waiting * block.weights_waiting_bytes)
    replayed, at_ends, worked = block.replay_bytes, 0.0, block.working_bytes
    if rank.weights_apart:
        left = (rank.most_blocks - 1) * (block.weights_waiting_bytes - block.kept_bytes)
        worked = worked + np.maximum(0.0, left)
    for end in ends:
        in_work = in_work + held * end.kept_bytes + waiting * end.weights_waiting_bytes
        replayed, at_ends = np.maximum(replayed, end.replay_bytes), np.maximum(at_ends, end.working_bytes)
    block_work = replayed + worked
    working = np.maximum(block_work - _over(rank, first, last), at_ends)
    if state.shards is not None:
        working = np.maximum(
            working,
            _travelling_bytes(rank, state.shards, (block, first, last), block_work, at_ends, hidden_bytes, precision),
        )
    in_work = in_work + working
    if not rank.only:
        leaving = rank.in_flight - rank.heads_in_flight
        in_work = in_work + (BOUNDARY_BUFFERS + leaving) * hidden_bytes
    in_ends, owned = _held_and_owned(rank, state)
    count = rank.blocks * state.block + in_ends
    parameter, summed, moment, reduced = (
        DTYPE_BYTES[dtype]
        for dtype in (
            precision.parameter_dtype,
            precision.gradient_accumulation_dtype,
            precision.optimizer_dtype,
            precision.gradient_reduce_dtype,
        )
    )
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    weights = sums = staying = count
    handed_over = rank.most_blocks * state.block + in_ends
    if state.shards is not None:
        travelling = _Travelling(rank, state.shards)
        weights, sums = travelling.held("weights"), travelling.held("sums")
        staying, handed_over = count - travelling.held("travels"), handed_over - travelling.held_by_a_chunk
    lives = weights * parameter + sums * summed + owned * (master + 2 * moment)
    if precision.gradient_accumulation_dtype != precision.parameter_dtype:
        lives = lives + handed_over * parameter
    buckets = np.minimum(BUCKET_BYTES, staying * reduced) + np.minimum(BUCKET_BYTES, staying * parameter)
    return lives, in_work, np.where(state.shares_state, buckets, 0.0)


def _over(rank: RankColumns, first: PartColumns, last: PartColumns) -> Array | float:
    """What the loss of a microbatch no longer keeps when blocks run backward; a head that is tied is in `first`."""
    if not rank.last:
        return 0.0
    tied = (last.forward_s == 0) & rank.only
    kept, waiting = (
        np.where(tied, getattr(first, name), getattr(last, name)) for name in ("kept_bytes", "weights_waiting_bytes")
    )
    over: Array = np.maximum(0.0, kept - waiting * rank.weights_apart)
    return over


def _held_and_owned(rank: RankColumns, state: StateColumns) -> tuple[Array | float, Array]:
    """Elements: parameters of the embedding and the head, where they are here; those whose optimizer state is here, of
    blocks too."""
    in_ends: Array | float = 0.0
    owned: Array = rank.blocks * state.block_owned
    for parameters, kept, has in (
        (state.first, state.first_owned, rank.first),
        (state.last, state.last_owned, rank.last),
    ):
        if has:
            in_ends, owned = in_ends + parameters, owned + kept
    return in_ends, owned


class _Travelling:
    """What cost.shards says of one rank."""

    def __init__(self, rank: RankColumns, shards: ShardColumns):
        self._rank, self._block, self._gathers = rank, shards.block, shards.gathers
        self._ends = [end for end, has in ((shards.first, rank.first), (shards.last, rank.last)) if has]

    def held(self, name: str) -> Array:
        found: Array = self._rank.blocks * getattr(self._block, name)
        return sum((getattr(end, name) for end in self._ends), found)

    @property
    def held_by_a_chunk(self) -> Array:
        found: Array = self._rank.most_blocks * self._block.travels
        return sum((end.travels for end in self._ends), found)


def _travelling_bytes(
    rank: RankColumns,
    shards: ShardColumns,
    parts: tuple[PartColumns, PartColumns, PartColumns],
    block_work: Array,
    at_ends: Array | float,
    hidden_bytes: Array,
    precision: Precision,
) -> Array:
    """In work beside what is kept where something travels, else nothing."""
    block, first, last = parts
    kept_by_loss = last.kept_bytes + shards.tied * first.kept_bytes if rank.last else 0.0
    found: Array = in_work_bytes(
        np.maximum,
        shards.gathers,
        (DTYPE_BYTES[precision.parameter_dtype], DTYPE_BYTES[precision.gradient_reduce_dtype]),
        shards.shards,
        (
            Turns(*shards.block[-len(Turns._fields) :]),
            shards.first.travels if rank.first else 0.0,
            shards.last.travels if rank.last else 0.0,
        ),
        shards.tied if rank.first else 0.0,
        (block_work, at_ends if rank.last else 0.0),
        (rank.most_blocks * block.kept_bytes, kept_by_loss),
        rank.most_blocks,
        hidden_bytes,
    )
    return np.where(shards.travels, found, 0.0)
