"""Bytes on the fullest rank, for many layouts of one schedule and pipeline depth at once.

The formulas of `cost/memory.py` for `software.COMPILED`, whose constants are neutral, with an array of layouts in place
of every number. Tests hold both equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import BOUNDARY_BUFFERS, BUCKET_BYTES
from autoshard.search.grid.parts import PartColumns
from autoshard.search.grid.pipeline import Array
from autoshard.spec.training import DTYPE_BYTES, Precision


class StateColumns(NamedTuple):
    """Elements on one rank: parameters of a block and of the ends, and those whose optimizer state the rank keeps.

    shares_state: whether other ranks keep the rest, so that gradients and parameters travel in buckets.
    """

    block: Array
    first: Array
    last: Array
    block_owned: Array
    first_owned: Array
    last_owned: Array
    shares_state: Array


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
    in_work = in_work + np.maximum(replayed + worked, at_ends)
    if not rank.only:
        leaving = rank.in_flight - rank.heads_in_flight
        in_work = in_work + (BOUNDARY_BUFFERS + leaving) * hidden_bytes
    count, owned, in_ends = rank.blocks * state.block, rank.blocks * state.block_owned, 0.0
    for parameters, kept, has in (
        (state.first, state.first_owned, rank.first),
        (state.last, state.last_owned, rank.last),
    ):
        if has:
            in_ends, owned = in_ends + parameters, owned + kept
    count = count + in_ends
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
    lives = count * (parameter + summed) + owned * (master + 2 * moment)
    if precision.gradient_accumulation_dtype != precision.parameter_dtype:
        lives = lives + (rank.most_blocks * state.block + in_ends) * parameter
    buckets = np.minimum(BUCKET_BYTES, count * reduced) + np.minimum(BUCKET_BYTES, count * parameter)
    return lives, in_work, np.where(state.shares_state, buckets, 0.0)
