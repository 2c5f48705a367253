"""Programs of one local shape in columns, for one sequence a microbatch, and what of them does not grow with it.

Everything that a program counts grows with the microbatch, but for what has no batch: parameters and the loss. So
partitioning once serves all sizes. Tests hold it equal to partitioning for each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from autoshard.cost.program import Issued, ProgramWork, spent_on, working_bytes
from autoshard.graph.count import operator_steps
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep, Step, is_projection
from autoshard.planner.grid.arrays import Array

OPERATORS = ("matmul", "flash", "plain", "norm", "loss", "vector")


class Sent(NamedTuple):
    """Collectives of programs in one direction, one an entry. laws: (kind, axes); law: place among them;
    column: as cost.program.spent_on."""

    laws: tuple[tuple[str, tuple[str, ...]], ...]
    step: Array
    law: Array
    column: Array
    size: Array
    ring: Array


class UnitColumns(NamedTuple):
    """Of some programs, their steps counted through.

    first_step: of each program, and the number of all steps. operators: a row each, as OperatorNeeds, its kind as a
    number; step: in which it runs; fixed_bytes: of what it moves; put_off: (operator, program), the share of its
    backward that a schedule may put off. working_bytes, fixed_working_bytes, waiting_bytes: of each program; the last
    wait for what is put off.
    """

    first_step: tuple[int, ...]
    operators: Array
    step: Array
    fixed_bytes: Array
    put_off: Array
    forward: Sent
    backward: Sent
    working_bytes: Array
    fixed_working_bytes: Array
    waiting_bytes: Array

    def needs(self, sequences: Array) -> Array:
        """(microbatch, operator, field). sequences: of each microbatch."""
        of_each = sequences[:, None]
        rows = np.repeat(self.operators[None], len(sequences), axis=0)
        rows[..., 1] *= of_each
        rows[..., 4] = self.fixed_bytes + of_each * (rows[..., 4] - self.fixed_bytes)
        rows[..., 5] *= of_each
        return rows

    def working_bytes_of(self, sequences: Array | int) -> Array:
        """Of each program, for microbatches of so many sequences: one number, or (microbatch, 1)."""
        return self.fixed_working_bytes + sequences * (self.working_bytes - self.fixed_working_bytes)


def unit_columns(works: Sequence[ProgramWork]) -> UnitColumns:
    """works: of one sequence a microbatch."""
    first_step = (0, *accumulate(len(work.operators) for work in works))
    operators = [
        (first + step, program, one, needs)
        for program, (first, work) in enumerate(zip(first_step, works, strict=False))
        for step, (several, needed) in enumerate(zip(work.program.steps, work.operators, strict=True))
        for one, needs in zip(operator_steps(several), needed, strict=True)
    ]
    put_off = np.zeros((len(operators), len(works)))
    for row, (_, program, one, _) in enumerate(operators):
        put_off[row, program] = 0.5 * is_projection(works[program].program.graph, one.operator)
    return UnitColumns(
        first_step,
        np.array([(OPERATORS.index(needs.kind), *needs[1:]) for *_, needs in operators], dtype=float),
        np.array([step for step, *_ in operators]),
        np.array([_fixed_bytes(works[program].program, one) for _, program, one, _ in operators], dtype=float),
        put_off,
        _sent([issued for work in works for issued in work.forward]),
        _sent([issued for work in works for issued in work.backward]),
        np.array([work.working_bytes for work in works], dtype=float),
        np.array([_fixed_working_bytes(work.program) for work in works], dtype=float),
        np.array([work.weights_waiting_bytes for work in works], dtype=float),
    )


def _sent(issued: Sequence[Issued]) -> Sent:
    every = [(step, *one) for step, several in enumerate(issued) for one in several]
    laws = tuple(dict.fromkeys((kind, axes) for _, kind, axes, _ in every))
    places = {law: place for place, law in enumerate(laws)}
    return Sent(
        laws,
        np.array([step for step, *_ in every], dtype=int),
        np.array([places[kind, axes] for _, kind, axes, _ in every], dtype=int),
        np.array([spent_on(kind, axes) for _, kind, axes, _ in every], dtype=int),
        np.array([size for *_, size in every], dtype=float),
        np.array([kind == "send_recv" for _, kind, *_ in every], dtype=bool),
    )


def _fixed_bytes(program: Program, step: OperatorStep) -> float:
    op = step.operator
    views = (op.output,) if op.kind == "embedding" else (*step.inputs, op.output)  # which moves rows, not its table
    return float(sum(program.local_bytes[view] for view in views if _is_fixed(program, view)))


def _fixed_working_bytes(program: Program) -> float:
    """Of the step that works on most."""
    largest = max(program.steps, key=lambda step: working_bytes(program, step))
    fixed = [view for view in _views(largest) if _is_fixed(program, view) and program.tensor(view).role != "parameter"]
    return float(sum(program.local_bytes[view] for view in fixed))


def _views(step: Step) -> tuple[str, ...]:
    if isinstance(step, RedistributeStep):
        return step.source, step.target
    return tuple(view for one in operator_steps(step) for view in (*one.inputs, one.operator.output))


def _is_fixed(program: Program, view: str) -> bool:
    return "batch" not in program.tensor(view).dims
