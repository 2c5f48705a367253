"""Bounds of rows of layouts by the parts of some local shapes: what ranks work on, send and hold at least.

Nothing here knows how layouts are found: `mesh_bounds.py` makes the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import inf
from operator import sub
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.local_shape import LocalShape
from autoshard.cost.memory import BUCKET_BYTES
from autoshard.cost.program import ProgramWork
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.travelling_bytes import FEW_BLOCKS
from autoshard.cost.zero_sharding import gathered_difference_bytes
from autoshard.graph.count import parameter_elements
from autoshard.graph.partition import Program
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_laws import best_laws, stage_laws_at_best
from autoshard.planner.grid.blocks_bytes import ROUNDING, held_least
from autoshard.planner.grid.exchange_bounds import ATTENTION, Exchanges
from autoshard.planner.grid.least_memory import Memory, PartsBytes, least_memory
from autoshard.planner.grid.price import Family
from autoshard.planner.grid.unit_costs import (
    PARTS,
    StageColumns,
    Units,
    as_columns,
    mean_columns,
    part_numbers,
    programs_of,
)
from autoshard.planner.grid.work_bounds import by_work_at_least_s
from autoshard.planner.layouts import state_dtypes_bytes
from autoshard.spec.training import DTYPE_BYTES

ADDED = 2
"""Place of what is added to the answers of experts among whose parameters are: no message goes with it alone."""
LONG_S = 1e9
"""Longer than any microbatch takes."""
PRICES = 8
"""Prices of memory that are tried."""
HALVINGS = 9
"""Passes that look for the seconds of the slowest stage."""
AT_ONCE = 1 << 15
"""Numbers of an array that stays in a core's cache."""
WORKED_ON = 1 << 14
"""Rows whose work is found together: of more, what is in between would take tens of MB."""


class Rows:
    """Layouts, an entry each, whatever their schedules are.

    shape: the place of the local shape without context parallelism. size: sequences a microbatch. numbers: as
    `mesh_bounds._numbers` has them. elsewhere: whether the axes are in another order. least_s: of forward and of
    backward of the mean block, where more is known than its shape says, (row, pass). of: (other rows, which of them
    these are), where they are some of others. Mutable: remembers their work.
    """

    def __init__(
        self,
        problem: Problem,
        shape: Array,
        size: Array,
        numbers: Array,
        elsewhere: Array,
        least_s: Array,
        of: tuple[Rows, Array] | None = None,
    ):
        self._problem, self._columns, self._of = problem, (shape, size, numbers, elsewhere, least_s), of
        self.pp, dp, shard, self.cp, ep, self.zero, self.context, *strides, alike = numbers.T
        self.shape, self.least_s = shape, least_s
        self.pp_stride, self.cp_stride, *owner_strides = (np.where(elsewhere, 0, one) for one in strides)
        self.owner_strides = *owner_strides, np.where(self.cp == 1, owner_strides[0], 0)
        self.m = problem.training.global_batch_size // (dp * size)
        # by whose they are, as `_held_of` tells apart
        self.owners = shard * self.cp, shard * self.cp // ep, shard
        self.pieces = np.stack([np.ones_like(self.cp), np.ones_like(self.cp), self.cp])
        self.sends = 2 * alike + elsewhere
        self._work: _Work | None = None

    def take(self, rows: Array) -> Rows:
        """These rows alone."""
        of = (self, rows) if self._of is None else (self._of[0], self._of[1][rows])
        shape, size, numbers, elsewhere, least_s = (column[rows] for column in self._columns)
        return Rows(self._problem, shape, size, numbers, elsewhere, least_s, of)

    def work(self, find: Callable[[Rows], _Work]) -> _Work:
        """Their work, which is found at once for all of those that these are some of: not where none of these fits."""
        if self._work is None and self._of is not None:
            every, places = self._of
            self._work = _Work(*(column[places] for column in every.work(find)))
        elif self._work is None:
            several = np.split(np.arange(len(self.shape)), range(WORKED_ON, len(self.shape), WORKED_ON))
            found = [find(self.take(rows)) for rows in several]
            self._work = _Work(*map(np.concatenate, zip(*found, strict=True)))
        return self._work


class Parts:
    """Blocks and ends of local shapes under each recompute set, whatever the order of axes."""

    def __init__(self, problem: Problem, shapes: list[LocalShape], sets: tuple[str, ...] | None):
        """sets: None where nothing is recomputed and nobody asks what fits."""
        self._problem, model = problem, problem.model
        in_memory, sets = sets is not None, sets or (NO_RECOMPUTE,)
        laws = lru_cache(maxsize=None)(lambda shape: stage_laws_at_best(problem, shape))
        numbers = part_numbers(problem, shapes, sets, laws=laws, more=ATTENTION, in_memory=in_memory)
        columns = as_columns(problem, shapes, numbers[..., : -len(ATTENTION)])
        self._counts = problem.blocks.counts
        self._accumulation_s = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        units = programs_of(problem, shapes)
        held = [_held_of(programs, shape.ep > 1) for programs, shape in zip(units, shapes, strict=True)]
        self._tp = np.array([shape.tp for shape in shapes])
        self._parameters, self._matrices = (np.array(counts).transpose(2, 1, 0) for counts in zip(*held, strict=True))
        blocks = [0, *range(len(PARTS), numbers.shape[2])]
        attention_s = numbers[:, 0, blocks, -len(ATTENTION) :].transpose(2, 1, 0)
        self._exchange_tokens = np.array([not model.is_moe or dict(one.placement)["size"] > 1 for one in shapes])
        spread = np.array([shape.ep > 1 and shape.etp is None for shape in shapes])
        has_experts = (self._matrices[1, : len(blocks)] > 0) & spread
        kept_by = sets if in_memory else ()
        self._exchanges = Exchanges(problem, shapes, units, attention_s, self._counts, has_experts, kept_by)

        def by_set(column: Array) -> Array:
            return column.reshape(len(shapes), len(sets))

        self._hidden_bytes = by_set(columns.hidden_bytes)[:, 0]

        block = mean_columns(columns.blocks, [np.full(1, count) for count in self._counts])
        self._forward_s, self._backward_s = by_set(block.forward_s)[:, 0], by_set(block.backward_s)
        back_s = np.stack([by_set(one.backward_s) for one in columns.blocks])
        self._more_s = back_s - back_s.min(2, keepdims=True)
        ends = [columns.ends(slice(None), together) for together in (False, True)]
        self._put_off_s = [by_set(one.weight_gradients_s).max(1) for one in (block, *ends[0])]
        self._ends_s = np.array([[by_set(end.forward_s + end.backward_s).min(1) for end in both] for both in ends])
        if in_memory:
            self._count_bytes(columns, by_set)

    def _count_bytes(self, columns: StageColumns, by_set: Callable[[Array], Array]) -> None:
        """Count all that `fitted` asks of memory. by_set: makes (shape, set) of a column."""
        ends = [columns.ends(slice(None), together) for together in (False, True)]
        self._kept_bytes, self._replay_bytes = (
            np.stack([by_set(getattr(one, name)) for one in columns.blocks]) for name in ("kept_bytes", "replay_bytes")
        )
        self._kept_with_cp_bytes = self._kept_bytes - self._exchanges.dispatched.shared
        self._waiting_bytes = np.stack([by_set(one.weights_waiting_bytes).min(1) for one in columns.blocks])
        self._waiting_with_cp_bytes = self._waiting_bytes - self._exchanges.dispatched.waiting
        self._working_bytes = np.stack([by_set(one.working_bytes)[:, 0] for one in columns.blocks])
        self._working_with_cp_bytes = self._working_bytes - self._exchanges.dispatched.waiting
        self._ends_held_bytes = np.array(
            [[by_set(getattr(end, name)).min(1) for end in ends[0]] for name in ("kept_bytes", "weights_waiting_bytes")]
        )
        self._ends_bytes = np.array(
            [[by_set(end.kept_bytes + end.working_bytes).min(1) for end in both] for both in ends]
        )

    def steps_s(self, family: Family, rows: Rows) -> Array:
        """Seconds of a step, by row, as if memory had no limit."""
        return self._by_work_s(family, rows, rows.work(self._work).block_s.min(1))

    def _by_work_s(self, family: Family, rows: Rows, block_s: Array, slowest_s: Array | float = 0.0) -> Array:
        work = rows.work(self._work)
        of_pipeline = work.ends_s, work.hop_s, slowest_s, work.opening_s, work.forward_s
        if not family.rules.weights_apart:
            seconds = by_work_at_least_s(self._problem, family, rows.m, block_s, *of_pipeline)
        else:
            put_off_s, *of_ends_s = (seconds[rows.shape] / rows.cp for seconds in self._put_off_s)
            stays_s, launch_s = block_s - put_off_s, self._problem.cluster.device.pass_launch_s
            back_s = np.maximum(stays_s - work.forward_s, 0.0)
            seconds = by_work_at_least_s(self._problem, family, rows.m, block_s, *of_pipeline, back_s)
            # of one microbatch through all stages and back
            passes_s = 2 * family.pp * launch_s + 2 * (family.pp - 1) * work.hop_s + sum(work.ends_s) - sum(of_ends_s)
            seconds = np.maximum(seconds, passes_s + sum(self._counts) * stays_s)
        return (seconds + work.after_s) * (1 - ROUNDING)

    def _mean(self, of_units: Array) -> Array:
        """(of the mean block, of the first end, of the last). of_units: of a block of each kind, then of the ends."""
        counts = np.array(self._counts)
        return np.vstack([counts @ of_units[: len(counts)] / counts.sum(), of_units[len(counts) :]])

    def _work(self, rows: Rows) -> _Work:
        """Their work, whatever their schedules are."""
        parameters = sum(
            self._mean(of)[:, rows.shape] / pieces for of, pieces in zip(self._parameters, rows.pieces, strict=True)
        )
        sent = self._sent_alike(rows)
        sums_s = self._accumulation_s * parameters
        first_s, last_s = self._ends_s[(rows.pp == 1).astype(int), :, rows.shape].T / rows.cp
        back_s = (sent.gather_s + sent.scatter_s)[0][:, None]
        exchanged = self._exchanges.of(rows.shape, rows.cp, rows.context, rows.cp_stride)
        ahead_s = np.maximum(self._forward_s[rows.shape] / rows.cp + exchanged.forward_s, rows.least_s[:, 0])
        behind_s = self._backward_s[rows.shape] / rows.cp[:, None] + exchanged.backward_s[:, None]
        behind_s += np.maximum(rows.least_s[:, 1:] - behind_s.min(1, keepdims=True), 0.0)  # replays come on top
        forward_s = np.maximum(ahead_s, sent.gather_s[0]) + sums_s[0]
        backward_s = np.maximum(behind_s, back_s)
        ends_s = (
            first_s + sums_s[1] + sent.gather_s[1] + sent.scatter_s[1],
            (last_s + sums_s[2] + 2 * sent.gather_s[2] + sent.scatter_s[2]),
        )
        alone_s = ahead_s + behind_s.min(1) + sums_s[0]
        return _Work(
            forward_s[:, None] + backward_s, ahead_s, alone_s, *ends_s, sent.opening_s, self._hop_s(rows), sent.after_s
        )

    def _hop_s(self, rows: Rows) -> Array:
        """Seconds from a stage to the next one, where the order of axes says between which ranks that is."""
        cluster, found = self._problem.cluster, np.zeros(len(rows.m))
        placed = np.flatnonzero((rows.pp > 1) & (rows.pp_stride > 0))
        if len(placed):
            pp, shape = rows.pp[placed], rows.shape[placed]
            (law,) = best_laws(cluster, ("send_recv",), pp, self._tp[shape], strides=rows.pp_stride[placed])
            found[placed] = law.time_s(self._hidden_bytes[shape] / rows.cp[placed])
        return found

    def _sent_alike(self, rows: Rows) -> _Sent:
        """The seconds of `_sent`, found once for rows that send the same."""
        _, first, inverse = np.unique(rows.sends, return_index=True, return_inverse=True)
        return _Sent(*(column[..., inverse] for column in self._sent(rows.take(first))))

    def _sent(self, rows: Rows) -> _Sent:
        """Seconds that gathering weights and reducing gradients take at least."""
        layers, reduced = sum(self._counts), DTYPE_BYTES[self._problem.training.precision.gradient_reduce_dtype]
        tp = self._tp[rows.shape]
        kinds, sizes = ("reduce_scatter", "all_gather", "all_reduce"), (reduced, self._gathered_bytes, reduced)
        each_s, once_s = np.zeros((2, 3, 3, len(tp)))  # each time, and in buckets; by (kind, unit, row)
        opening_s = np.zeros((2, len(self._counts), len(tp)))  # to scatter and to gather a block of each kind
        of_owners = zip(self._matrices, rows.pieces, rows.owners, rows.owner_strides, strict=True)
        for place, (matrices, pieces, owners, stride) in enumerate(of_owners):
            if not matrices.any():
                continue
            elements = self._mean(matrices)[:, rows.shape] / pieces
            issued = self._mean((matrices > 0) & (place < ADDED))[:, rows.shape]
            laws = best_laws(self._problem.cluster, kinds, owners, tp, along_two=True, strides=stride)
            for kind, (size, law) in enumerate(zip(sizes, laws, strict=True)):
                bytes_s = elements * size * law.seconds_per_byte
                each_s[kind] += bytes_s + issued * law.latency_s
                once_s[kind] += bytes_s + elements * size / BUCKET_BYTES * law.latency_s
            of_kinds = matrices[: len(self._counts), rows.shape] / pieces
            begins = (of_kinds > 0) & (place < ADDED)
            for kind, (size, law) in enumerate(zip(sizes[:2], laws[:2], strict=True)):
                opening_s[kind] += of_kinds * size * law.seconds_per_byte + begins * law.latency_s
        scatter_s, gather_s, reduce_s = once_s
        unit_s = np.where(rows.zero < 2, scatter_s, 0.0) + np.where(rows.zero < 3, gather_s, 0.0)
        unit_s = np.where(rows.zero == 0, reduce_s, unit_s)
        after_s = (layers * unit_s[0] + unit_s[1] + unit_s[2]) / rows.pp
        scattered, gathered = rows.zero >= 2, rows.zero == 3
        # a stage opens with the mean of its blocks, which may be of the kind that takes least
        least_s = (2 * gathered * opening_s[1] + scattered * opening_s[0]).min(0)
        return _Sent(np.where(gathered, each_s[1], 0.0), np.where(scattered, each_s[0], 0.0), least_s, after_s)

    def fitted_below(
        self, family: Family, several: Sequence[Rows], limit_bytes: float, below_s: float
    ) -> tuple[list[Array], Array]:
        """The same as `fitted`, but of layouts that take no less than below_s in whatever memory these seconds, and no
        bytes."""
        if below_s == inf:
            return self.fitted(family, several, limit_bytes)
        found = [self.steps_s(family, rows) for rows in several]
        needed, below = np.zeros(len(found[0])), np.flatnonzero(np.min(found, axis=0) < below_s)
        if len(below):
            fitted, needed[below] = self.fitted(family, [rows.take(below) for rows in several], limit_bytes)
            for seconds, fitted_s in zip(found, fitted, strict=True):
                seconds[below] = fitted_s
        return found, needed

    def fitted(self, family: Family, several: Sequence[Rows], limit_bytes: float) -> tuple[list[Array], Array]:
        """(seconds of a step, infinite where nothing fits, of each of several; bytes on the fullest rank), by row.
        several: the same layouts in other orders of axes."""
        memory = self._memory(family, several[0], limit_bytes)
        needed, found = memory.needed * (1 - ROUNDING), [np.full(len(memory.needed), np.inf) for _ in several]
        fit = np.flatnonzero(needed <= limit_bytes)
        if len(fit):
            if len(fit) < len(needed):
                several, memory = [rows.take(fit) for rows in several], memory.take(fit)
            for rows, seconds in zip(several, found, strict=True):
                block_s, slowest_s = self._fitting_s(family, rows, memory, limit_bytes)
                slowest_s = np.minimum(slowest_s, LONG_S)
                found_s = self._by_work_s(family, rows, block_s, slowest_s)
                seconds[fit] = np.where(slowest_s < LONG_S, found_s, np.inf)
            needed[fit] = np.where(np.isfinite(found[0][fit]), needed[fit], np.maximum(needed[fit], limit_bytes))
        return found, needed

    def _memory(self, family: Family, rows: Rows, limit_bytes: float) -> Memory:
        of_each = self._of_each(rows) / rows.pieces
        *kinds, first, last = (self._parameters[:, :, rows.shape] * of_each[:, None]).sum(0)
        shares = rows.cp > 1
        kept = np.where(shares[:, None], self._kept_with_cp_bytes[:, rows.shape], self._kept_bytes[:, rows.shape])
        waiting = np.where(shares, self._waiting_with_cp_bytes[:, rows.shape], self._waiting_bytes[:, rows.shape])
        ends_kept, ends_waiting = self._ends_held_bytes[:, :, rows.shape] / rows.cp
        parts = PartsBytes(
            np.array(kinds),
            np.array([first, last]),
            kept / rows.cp[:, None],
            self._replay_bytes[:, rows.shape] / rows.cp[:, None],
            self._working(rows) + np.where(rows.zero == 3, self._gathered(family, rows), 0.0),
            waiting / rows.cp,
            self._ends_bytes[int(family.pp == 1)][:, rows.shape].max(0) / rows.cp,
            ends_kept,
            ends_waiting,
            self._hidden_bytes[rows.shape] / rows.cp,
        )
        most_bytes = limit_bytes * (1 + ROUNDING)
        return least_memory(self._problem, family, rows.m, parts, most_bytes, most_bytes * (1 + ROUNDING))

    def _fitting_s(self, family: Family, rows: Rows, memory: Memory, limit_bytes: float) -> tuple[Array, Array]:
        """(seconds of a block, seconds of one microbatch on the slowest rank where that is known), by row: at least,
        with sets that fit."""
        work, unknown_s = rows.work(self._work), np.zeros(len(rows.m))
        if memory.pipeline is None:
            assert memory.sets_fit is not None
            return np.where(memory.sets_fit, work.block_s, LONG_S).min(1), unknown_s
        state, held, kept, replayed, room, at_end = memory.pipeline
        block_s = work.block_s.min(1)
        if len(self._counts) > 1:
            if not family.rules.weights_apart:
                more_s = self._more_s[:, rows.shape] / rows.cp[:, None]
                block_s = np.maximum(block_s, work.alone_s + self._replays_s(state, held, kept, room, more_s))
            return block_s, unknown_s
        may, slowest_s = memory.needed <= limit_bytes, unknown_s
        if family.num_virtual_stages > 1:
            blocks = self._counts[0] / family.pp
            of_first = room[0][may] / blocks - state[0, 0, may]
            slowest_s[may] = blocks * self._mixed_s(family, rows.m[may], of_first, work.block_s[may], kept[0][may])
            return block_s, slowest_s + work.ends_s[0]
        first_s, last_s = (end_s[may] for end_s in work.ends_s)
        of_set = replayed[0][may].T, kept[0][may].T, work.block_s[may].T
        at_last = room[-1, may]
        after_loss = room[:, may]
        after_loss[-1] += at_end[may]  # what blocks replay comes when the loss is over
        slowest_s[may] = self._slowest_s(
            after_loss, at_last, state[0][:, may], held[:, may], *of_set, (first_s, last_s)
        )
        return block_s, slowest_s

    def _working(self, rows: Rows) -> Array:
        """Bytes that a block of each kind works with, at least, (kind, row). Experts that only ranks of one sequence
        share exchange no tokens, which is what a block works with most. With context parallelism the gradient of what
        the block's other products read is added to the hidden state's before theirs."""
        alone, exchanges = rows.cp == 1, self._exchange_tokens[rows.shape]
        several = np.where(exchanges, np.maximum(self._working_with_cp_bytes[:, rows.shape], 0.0) / rows.cp, 0.0)
        return np.where(alone, self._working_bytes[:, rows.shape], several)

    def _of_each(self, rows: Rows) -> Array:
        """Bytes of weights, sums and optimizer state of one parameter, at least: (whose it is, row)."""
        parameter, gradient, optimizer = state_dtypes_bytes(self._problem.training)
        shares = [[np.where(rows.zero >= stage, owners, 1) for stage in (3, 2, 1)] for owners in rows.owners]
        return np.array([parameter / of[0] + gradient / of[1] + optimizer / of[2] for of in shares])

    def _gathered(self, family: Family, rows: Rows) -> Array:
        """Bytes of weights that are gathered at a time under ZeRO-3, at least, (kind, row): those of the block at work
        and, where others are behind it, the larger bucket of the next one. Experts that no other rank has are whole."""
        matrices: Array = sum(
            np.where(owners > 1, of_each[: len(self._counts), rows.shape] / pieces, 0.0)
            for of_each, pieces, owners in zip(self._matrices, rows.pieces, rows.owners, strict=True)
        )
        if family.pp == 1 and sum(self._counts) >= FEW_BLOCKS:
            matrices = matrices + 0.5 * matrices.min(0)
        return matrices * self._gathered_bytes

    @property
    def _gathered_bytes(self) -> float:
        """Bytes of a weight as it is gathered, at least: products may read any of them quantised."""
        precision = self._problem.training.precision
        return DTYPE_BYTES[precision.parameter_dtype] + min(0.0, gathered_difference_bytes(precision))

    def _replays_s(self, state: Array, held: Array, kept: Array, room: Array, more_s: Array) -> Array:
        """Mean seconds that a block replays, at least, by row, whichever sets fit and however blocks are cut.

        Why: as `BlocksBytes.fullest`, with the seconds that a price of memory adds (Lagrange's relaxation). A block is
        cheapest where most microbatches of it are held or fewest: on the first rank or the last.

        kept: by (kind, row, set). room: bytes for blocks, (rank, row). more_s: what a set takes more, (kind, row, set).
        """
        counts = np.array(self._counts)
        price = 1 / np.maximum(state.mean(0) + held * kept.min(2).mean(0), 1.0)
        space = (price * np.maximum(room, 0.0)).sum(0)
        taken = [price[end, :, None] * (state[:, end, :, None] + held[end, :, None] * kept) for end in (0, -1)]
        mean_s, mean_taken = (np.tensordot(counts, one, 1) for one in (more_s, taken[0]))
        saved = mean_taken.max(1, keepdims=True) - mean_taken
        prices_s = np.divide(mean_s, saved, out=np.zeros_like(saved), where=saved > 0)
        least_s = np.zeros(len(space))
        for price_s in prices_s.T[:: -(-prices_s.shape[1] // PRICES)]:
            cheapest_s = np.minimum(*((more_s + price_s[:, None] * one).min(2) for one in taken))
            np.maximum(least_s, counts @ cheapest_s - price_s * space, out=least_s)
        found: Array = least_s / counts.sum()
        return found

    def _mixed_s(self, family: Family, m: Array, room: Array, block_s: Array, kept: Array) -> Array:
        """Mean seconds of a block on the first rank, at least, by row, whichever sets its chunks choose.

        Why: see `recomputed_at_least_s`; each block is held at least as often as those of the chunk that is held least.
        The prices that are tried lead from the fastest set to each other one.

        room: bytes for a block, by row. block_s, kept: by (row, set).
        """
        if not len(m):
            return block_s.min(1)
        kept = kept * held_least(family, m)[0][:, None]
        fastest = block_s.argmin(1)[:, None]
        saved = np.take_along_axis(kept, fastest, 1) - kept
        more_s = block_s - np.take_along_axis(block_s, fastest, 1)
        prices = np.divide(more_s, saved, out=np.zeros_like(saved), where=saved > 0)
        least_s = block_s.min(1)
        for price in prices.T[:: -(-prices.shape[1] // PRICES)]:
            np.maximum(least_s, (block_s + price[:, None] * kept).min(1) - price * room, out=least_s)
        return least_s

    def _slowest_s(
        self,
        room: Array,
        at_last: Array,
        state: Array,
        held: Array,
        replayed: Array,
        kept: Array,
        block_s: Array,
        ends_s: tuple[Array, Array],
    ) -> Array:
        """Seconds of one microbatch on the slowest rank, at least, by row; one chunk a rank, blocks of one kind.

        Why: a rank holds no more blocks than fit with some set, nor more than it works on in time. So the ranks hold
        all blocks only if the slowest one has time enough.

        room: bytes for blocks, (rank, row). at_last: the same on the last rank while the loss is computed, (row,).
        state: bytes of a block, held: microbatches of it, (rank, row). replayed, kept: bytes of a microbatch, block_s:
        its seconds, (set, row). ends_s: of the ends, (row,).
        """
        slowest_s = np.empty(room.shape[1])
        at_once = max(1, AT_ONCE // (len(room) * len(block_s)))
        for begin in range(0, len(slowest_s), at_once):
            rows = slice(begin, begin + at_once)
            free = room[:, rows] - replayed[:, None, rows]
            free[:, -1] = np.minimum(free[:, -1], at_last[rows])
            fit = np.maximum(free / (state[:, rows] + held[:, rows] * kept[:, None, rows]), 0.0)
            of_ends = ends_s[0][rows], ends_s[1][rows]
            slowest_s[rows] = self._slowest_of(fit, block_s[:, rows], of_ends)
        return slowest_s

    def _slowest_of(self, fit: Array, block_s: Array, ends_s: tuple[Array, Array]) -> Array:
        """The seconds of `_slowest_s`, by row. fit: blocks that fit, (set, rank, row)."""
        layers, ranks = self._problem.model.num_hidden_layers, fit.shape[1]
        own_s = np.zeros(fit.shape[1:])
        own_s[0] += ends_s[0]
        own_s[-1] += ends_s[1]
        low, high = layers * block_s.min(0) / ranks, layers * block_s.max(0)
        whole = np.floor(fit + ROUNDING)
        fits = whole.max(0).sum(0) >= layers

        def is_enough(seconds: Array, rows: Array) -> Array:
            free_s = np.maximum(seconds - own_s[:, rows], 0.0)
            in_time = free_s / block_s[:, None, rows]
            blocks = np.minimum(whole[:, :, rows], np.floor(in_time * (1 + ROUNDING))).max(0)
            enough: Array = blocks.sum(0) >= layers
            return enough

        rows = np.flatnonzero(fits)
        nearest = low + (high - low) / (1 << HALVINGS)
        rows = rows[~is_enough(nearest[rows], rows)]  # of the others no pass would move the lower end
        for _ in range(HALVINGS if len(rows) else 0):
            middle = (low[rows] + high[rows]) / 2
            enough = is_enough(middle, rows)
            low[rows], high[rows] = np.where(enough, low[rows], middle), np.where(enough, middle, high[rows])
        return np.where(fits, low, LONG_S)


class _Work(NamedTuple):
    """Seconds of one microbatch, gradients added up, by row: of a block, (row, set), of its forward, and of one without
    replays and waits; of the first end and the last; for each virtual stage beside its blocks; to the next one.
    after_s: behind the pipeline."""

    block_s: Array
    forward_s: Array
    alone_s: Array
    first_s: Array
    last_s: Array
    opening_s: Array
    hop_s: Array
    after_s: Array

    @property
    def ends_s(self) -> tuple[Array, Array]:
        return self.first_s, self.last_s


class _Sent(NamedTuple):
    """Seconds in which weights are gathered and gradients scattered for one microbatch, (unit, row): of a block, of the
    ends. opening_s: of both passes through a virtual stage, what no work hides, at least, by row. after_s: the same as
    the first two once a step, behind the pipeline."""

    gather_s: Array
    scatter_s: Array
    opening_s: Array
    after_s: Array


Held = tuple[list[list[float]], list[list[float]]]


@lru_cache(maxsize=2048)
def _held_of(units: Units, spread: bool) -> Held:
    """(parameters, matrices) of a block of each kind and of the ends on a rank: each (but for experts, of experts, what
    is added to the experts' answers as tokens come back: with context parallelism a rank has a piece of that).

    A table that both ends share counts with the first one alone, as one rank may have both. units: the programs of a
    rank. spread: whether ranks share the experts.
    """
    several = [*units.blocks, units.embedding, units.head if units.tied is None else units.tied]

    def split(one: ProgramWork, name: str) -> list[float]:
        program, counts = one.program, Counter[tuple[str, ...]](getattr(one, name))
        elements = {bias: parameter_elements(program)[bias] for bias in _added(program)}
        if name == "matrices":
            elements = {bias: count for bias, count in elements.items() if bias in program.graph.matrices}
        for bias, count in elements.items():
            counts[program.gradient_sync.get(bias, ())] -= count
        shared = sum(count for axes, count in counts.items() if not spread or "ep" in axes)
        return [float(shared), float(sum(counts.values()) - shared), float(sum(elements.values()))]

    parameters, matrices = ([split(one, name) for one in several] for name in ("parameters", "matrices"))
    if units.tied is not None:
        for counts in (parameters, matrices):
            counts[-1] = [*map(sub, counts[-1], counts[-2])]
    return parameters, matrices


def _added(program: Program) -> Iterator[str]:
    """Names of the parameters that are added to the answers of experts."""
    learned = {tensor.name for tensor in program.graph.learned()}
    for op in program.graph.operators:
        if op.kind == "combine":
            yield from learned.intersection(op.inputs)
