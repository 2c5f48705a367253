"""Seconds that ranks with parts of one sequence take at least to see each other's parts, in each microbatch.

Other bounds take a microbatch's cost from the same degrees without context parallelism, where nothing of this is sent.
What is sent follows from the programs there: keys and values as large as they are whole, or a piece of them for each
hop of a ring (layout/context_parallel.py); and all tokens of the sequence to the ranks that share the experts, and
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.collectives import CollectiveLaw, exposed_ring_s
from autoshard.cost.local_shape import LocalShape
from autoshard.graph.count import operator_steps
from autoshard.graph.ir import summed_bytes
from autoshard.graph.partition import is_projection
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, RINGS
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_laws import best_law, best_laws
from autoshard.planner.grid.unit_costs import Units, kept_by_set
from autoshard.spec.training import DTYPE_BYTES

ATTENTION = ("forward.attention", "backward.attention")
"""Seconds of parts that hops of a ring may hide behind."""


class Attended(NamedTuple):
    """Bytes on a rank of what attention reads and writes in a block of each kind, (kind, shape), for one microbatch
    without context parallelism. own_key, own_value: of keys and values that the block makes, 0 for those of another
    one, which gathered them."""

    query: Array
    key: Array
    value: Array
    out: Array
    own_key: Array
    own_value: Array


class Dispatched(NamedTuple):
    """Bytes on a rank in a block of each kind for one microbatch without context parallelism, 0 without experts.
    tokens: those of a sequence that are sorted by experts, (kind, shape). waiting: of these, what waits for gradients
    of weights as it was gathered for the block's other products too, (kind, shape). shared: what is kept for both under
    each recompute set, (kind, shape, set). With context parallelism these read the rank's own tokens, which backward
    gathers again."""

    tokens: Array
    waiting: Array
    shared: Array


class Exchanged(NamedTuple):
    """Seconds of the mean block for one microbatch, by row, in which a rank sends and receives alone."""

    forward_s: Array
    backward_s: Array


class Exchanges:
    """Collectives that blocks of local shapes without context parallelism would issue with it. units: the programs of
    each. attention_s: seconds of attention, (pass, kind, shape). counts: blocks of each kind. has_experts: which blocks
    have experts that ranks share, (kind, shape). sets: recompute sets; none where only seconds are asked for."""

    def __init__(
        self,
        problem: Problem,
        shapes: Sequence[LocalShape],
        units: Sequence[Units],
        attention_s: Array,
        counts: Sequence[int],
        has_experts: Array,
        sets: tuple[str, ...],
    ):
        self._problem, self._attention_s = problem, attention_s
        self._share = np.array(counts)[:, None] / sum(counts)
        size = np.array([shape.microbatch_size for shape in shapes])[:, None, None]
        attended = size * np.array([_attended_of_one(programs) for programs in units])
        dispatched = size * np.array([_dispatched_of_one(programs, sets) for programs in units])
        self._attended = Attended(*attended.transpose(2, 1, 0))
        tokens, waiting = dispatched[..., :2].T
        self.dispatched = Dispatched(tokens, waiting, dispatched[..., 2:].transpose(1, 0, 2))
        self._with_experts = self._share * has_experts
        self._shares = bool(has_experts.any())
        training, cluster = problem.training, problem.cluster
        self._tp, self._splits = (
            np.array(column) for column in zip(*((one.tp, one.sequence_parallel) for one in shapes), strict=True)
        )
        self._tp_laws = [
            CollectiveLaw(*np.array([(law.latency_s, law.seconds_per_byte) for law in laws]).T)
            for laws in (
                [best_law(cluster, kind, one.tp, dict(one.placement)["tp"], 1) for one in shapes]
                for kind in ("all_gather", "reduce_scatter")
            )
        ]
        self._element_bytes = DTYPE_BYTES[training.precision.compute_dtype]

    def of(self, shape: Array, cp: Array, context: Array, stride: Array) -> Exchanged:
        """By row. shape: the place of its local shape without context parallelism. context: the place of its kind in
        CONTEXT_PARALLEL. stride: between neighbours along cp, 0 where that is not known."""
        seconds = np.zeros((2, len(shape)))
        rows = np.flatnonzero(cp > 1)
        if len(rows):
            columns = shape[rows], context[rows], cp[rows], stride[rows]
            sizes = tuple(int(column.max()) + 1 for column in columns)
            different, which = np.unique(np.ravel_multi_index(columns, sizes), return_inverse=True)
            shape, context, cp, stride = np.unravel_index(different, sizes)
            found = self._of_experts(shape, cp, stride) + np.zeros((2, 1))
            for place, kind in enumerate(CONTEXT_PARALLEL):
                alike = np.flatnonzero(context == place)
                if len(alike):
                    found[:, alike] += self._of_attention(kind, shape[alike], cp[alike], stride[alike])
            seconds[:, rows] = found[:, which]
        return Exchanged(*seconds)

    def _of_attention(self, kind: str, shape: Array, cp: Array, stride: Array) -> Array:
        """Seconds of the mean block, (pass, row), in which one kind of context parallelism is not hidden."""
        query, key, value, out, *gathered = (one[:, shape] for one in self._attended)
        share, tp = self._share, self._tp[shape]

        def laws_of(*kinds: str) -> list[CollectiveLaw]:
            return best_laws(self._problem.cluster, kinds, cp, tp, strides=stride)

        if kind == "ulysses":
            (law,) = laws_of("all_to_all")
            once_s = sum(law.time_s(size / cp) for size in (query, key, value, out))
            return np.stack([(share * once_s).sum(0)] * 2)
        if kind not in RINGS:
            passes_s = (
                sum(np.where(size > 0, law.time_s(size), 0.0) for size in gathered)
                for law in laws_of("all_gather", "reduce_scatter")
            )
            return np.stack([(share * seconds).sum(0) for seconds in passes_s])
        values = (key + value) / cp
        gradients = values * summed_bytes(self._element_bytes) / self._element_bytes
        hops = cp - 1
        (law,) = laws_of("send_recv")
        of_values_s, of_gradients_s = law.time_s(values), law.time_s(gradients)
        ring_s = hops * of_values_s, hops * (of_values_s + of_gradients_s) + of_gradients_s
        sent = hops, 2 * hops + 1
        return np.stack(
            [
                (share * exposed_ring_s(seconds, work_s[:, shape] / cp, count)).sum(0)
                for seconds, work_s, count in zip(ring_s, self._attention_s, sent, strict=True)
            ]
        )

    def _of_experts(self, shape: Array, cp: Array, stride: Array) -> Array:
        """Seconds of the mean block, in either pass, by row, in which tokens come to experts from all ranks of the
        sequence and go back. Where tensor-parallel ranks share them too, one collective over both is in place of one
        that is counted."""
        splits, tp, size = self._splits[shape], self._tp[shape], self.dispatched.tokens[:, shape]
        found = np.zeros_like(size)
        kinds, cluster = ("all_gather", "reduce_scatter"), self._problem.cluster
        if not self._shares:
            return found.sum(0)
        together = best_laws(cluster, kinds, cp * tp, along_two=True)  # others may lie between tp's ranks and cp's
        apart = best_laws(cluster, kinds, cp, tp, strides=stride)
        for *of_kind, of_tp in zip(together, apart, self._tp_laws, strict=True):
            together_s, apart_s = (law.time_s(size) for law in of_kind)
            counted_s = CollectiveLaw(of_tp.latency_s[shape], of_tp.seconds_per_byte[shape]).time_s(size) / cp
            found += np.where(splits, np.maximum(together_s - counted_s, 0.0), apart_s)
        of_all: Array = (found * self._with_experts[:, shape]).sum(0)
        return of_all


@lru_cache(maxsize=2048)
def _dispatched_of_one(units: Units, sets: tuple[str, ...]) -> Array:
    """The bytes of `Dispatched` for a block of each kind, those of tokens, those that wait and then those that each set
    keeps, with microbatches of one sequence."""
    found = np.zeros((len(units.blocks), 2 + len(sets)))
    for sizes, block in zip(found, units.blocks, strict=True):
        program = block.program
        steps = [single for several in program.steps for single in operator_steps(several)]
        for view in (step.inputs[0] for step in steps if step.operator.kind == "dispatch"):
            both = any(view in step.inputs and is_projection(program.graph, step.operator) for step in steps)
            sizes[0] += program.local_bytes[view]
            if sets and both and view != program.tensor(view).name:
                sizes[1] += program.local_bytes[view]
                sizes[2:] += kept_by_set(program, view, sets)
    return found


@lru_cache(maxsize=2048)
def _attended_of_one(units: Units) -> Array:
    """The bytes of `Attended` for a block of each kind, (kind, field), with microbatches of one sequence."""
    found = np.zeros((len(units.blocks), len(Attended._fields)))
    for sizes, block in zip(found, units.blocks, strict=True):
        for step in (single for several in block.program.steps for single in operator_steps(several)):
            if step.operator.kind == "attention":
                views = (*step.inputs[:3], step.operator.output)
                read = [float(block.program.local_bytes[view]) for view in views]
                own = [block.program.tensor(view).role != "input" for view in views[1:3]]
                sizes += [*read, *(is_own * size for is_own, size in zip(own, read[1:3], strict=True))]
    return found
