"""Programs of one local shape in columns, for one sequence a microbatch, and what of them does not grow with it.

Everything that a program counts grows with the microbatch, but for what has no batch: parameters and the loss. So
partitioning once serves all sizes. Tests hold it equal to partitioning for each size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from autoshard.cost.program import Fullest, Issued, ProgramWork, moves_tokens, spent_on
from autoshard.cost.working_bytes import view_bytes
from autoshard.graph.count import operator_steps, times_read
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep, Step
from autoshard.planner.grid.arrays import Array

OPERATORS = ("matmul", "flash", "plain", "norm", "loss", "chunked_loss", "choice", "route", "activation", "vector")


class SentColumns(NamedTuple):
    """Collectives of programs in one pass: arrays with an entry for each.

    laws: the different (kind, axes). step: in which it is issued. law: its place among laws. spent_on: its place in
    cost.part.Seconds.values; RING for a hop of a ring. size: bytes of the larger buffer. times: how often the step
    issues it.
    """

    laws: tuple[tuple[str, tuple[str, ...]], ...]
    step: Array
    law: Array
    spent_on: Array
    size: Array
    times: Array


RING = 5
"""SentColumns.spent_on of a hop of a ring, whose seconds are counted with its step's attention."""


class FullestColumns(NamedTuple):
    """Bytes at the fullest step of programs, with an entry for each: those that grow with the microbatch, and those
    that do not. untiled: all of it grows, and with large microbatches it may be more."""

    growing: Array
    fixed: Array
    untiled: Array


class BytesColumns(NamedTuple):
    """Bytes of programs of one local shape, with an entry for each. working: of ProgramWork.fullest. waiting_bytes:
    what waits for gradients of weights that are put off, where nothing runs again."""

    working: FullestColumns
    waiting_bytes: Array


class UnitColumns(NamedTuple):
    """Programs of one local shape as arrays, their steps counted through.

    first_step: of each program, and the number of all steps. operators: (operator, field of OperatorNeeds), its kind as
    a number; for each operator also step: in which it runs; fixed_bytes: of what it moves; put_off: the share of its
    backward that a schedule may put off.
    """

    first_step: tuple[int, ...]
    operators: Array
    step: Array
    fixed_bytes: Array
    put_off: Array
    forward: SentColumns
    backward: SentColumns

    def needs(self, sequences: Array) -> Array:
        """The needs of each operator, (microbatch, operator, field). sequences: (microbatch,)."""
        of_each = sequences[:, None]
        rows = np.repeat(self.operators[None], len(sequences), axis=0)
        rows[..., 1] *= of_each
        rows[..., 4] = self.fixed_bytes + of_each * (rows[..., 4] - self.fixed_bytes)
        rows[..., 5] *= of_each
        rows[..., 6] *= of_each
        return rows


def working_bytes_of(work: ProgramWork, sequences: int) -> float:
    """Bytes that a program works with for microbatches of so many sequences. work: for one."""
    return fullest_bytes(work.program, work.fullest, sequences)


def fullest_bytes(program: Program, fullest: Fullest, sequences: int) -> float:
    """Bytes at the fullest step for microbatches of so many sequences. fullest: for one."""
    growing, fixed, untiled = _by_growth(program, fullest)
    return max(fixed + sequences * growing, sequences * untiled)


def unit_columns(works: Sequence[ProgramWork]) -> UnitColumns:
    """The arrays of some programs. works: for one sequence a microbatch."""
    first_step = (0, *accumulate(len(work.operators) for work in works))
    operators = [
        (first + step, work.program, operator, asked)
        for first, work in zip(first_step, works, strict=False)
        for step, (several, needed) in enumerate(zip(work.program.steps, work.operators, strict=True))
        for operator, asked in zip(operator_steps(several), needed, strict=True)
    ]
    of_tokens = [moves for work in works for moves in moves_tokens(work.program)]
    return UnitColumns(
        first_step,
        np.array([(OPERATORS.index(asked.needs.kind), *asked.needs[1:]) for *_, asked in operators], dtype=float),
        np.array([step for step, *_ in operators]),
        np.array([_fixed_bytes(program, operator) for _, program, operator, _ in operators], dtype=float),
        np.array([asked.put_off for *_, asked in operators], dtype=float),
        _sent([issued for work in works for issued in work.forward], of_tokens),
        _sent([issued for work in works for issued in work.backward], of_tokens),
    )


def bytes_columns(works: Sequence[ProgramWork]) -> BytesColumns:
    """The bytes of some programs. works: for one sequence a microbatch."""
    return BytesColumns(
        _fullest_columns([_by_growth(work.program, work.fullest) for work in works]),
        np.array([work.at_steps.waiting_bytes for work in works], dtype=float),
    )


def _fullest_columns(several: Sequence[tuple[float, float, float]]) -> FullestColumns:
    return FullestColumns(*np.array(several, dtype=float).reshape(-1, 3).T)


def _sent(issued: Sequence[Issued], of_tokens: Sequence[bool]) -> SentColumns:
    """The collectives of some steps. of_tokens: whether each brings tokens to their experts or back."""
    every = [(step, *one, times) for step, several in enumerate(issued) for one, times in Counter(several).items()]
    laws = tuple(dict.fromkeys((kind, axes) for _, kind, axes, _, _ in every))
    places = {law: place for place, law in enumerate(laws)}
    return SentColumns(
        laws,
        np.array([step for step, *_ in every], dtype=int),
        np.array([places[kind, axes] for _, kind, axes, _, _ in every], dtype=int),
        np.array(
            [
                RING if kind == "send_recv" else spent_on(kind, axes, of_tokens[step])
                for step, kind, axes, _, _ in every
            ],
            dtype=int,
        ),
        np.array([size for *_, size, _ in every], dtype=float),
        np.array([times for *_, times in every], dtype=float),
    )


def _fixed_bytes(program: Program, step: OperatorStep) -> float:
    op = step.operator
    views = (op.output,) if op.kind == "embedding" else (*step.inputs, op.output)  # which moves rows, not its table
    return float(
        sum(times_read(program, step, one) * program.local_bytes[one] for one in views if _is_fixed(program, one))
    )


def _by_growth(program: Program, fullest: Fullest) -> tuple[float, float, float]:
    """The numbers of FullestColumns of one program."""
    if fullest.place is None:
        return 0.0, 0.0, 0.0
    fixed_bytes = fixed_bytes_of(program, fullest.place) + fullest.tile_bytes
    return fullest.bytes - fixed_bytes, fixed_bytes, fullest.untiled_bytes if fullest.tile_bytes else 0.0


def fixed_bytes_of(program: Program, place: int) -> float:
    """Bytes that backward of the step at a place works with and that do not grow with the microbatch, but for its
    tile."""
    return sum(view_bytes(program, view) for view in _views(program.steps[place]) if _is_fixed(program, view))


def _views(step: Step) -> tuple[str, ...]:
    if isinstance(step, RedistributeStep):
        return step.source, step.target
    return tuple(view for single in operator_steps(step) for view in (*single.inputs, single.operator.output))


def _is_fixed(program: Program, view: str) -> bool:
    return "batch" not in program.tensor(view).dims
