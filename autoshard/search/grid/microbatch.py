"""A program for larger microbatches from the one for a microbatch of one sequence.

Everything that a program counts grows with the microbatch, but for what has no batch: parameters and the loss. So
partitioning once serves all sizes. Tests hold it equal to partitioning for each size.
"""

from __future__ import annotations

from typing import NamedTuple

from autoshard.cost.compute import OperatorNeeds
from autoshard.cost.program import Issued, ProgramWork
from autoshard.graph.count import operator_steps
from autoshard.graph.partition import OperatorStep, Program
from autoshard.graph.redistribute import local_bytes
from autoshard.graph.weight_gradients import projections


class UnitWork(NamedTuple):
    """Of one sequence a microbatch. fixed_bytes: of what each operator moves, and of the working buffers, what does not
    grow with the microbatch."""

    work: ProgramWork
    fixed_bytes: tuple[tuple[float, ...], ...]
    fixed_of_projections: tuple[float, ...]
    fixed_working_bytes: float

    def working_bytes(self, sequences: int) -> float:
        return self.fixed_working_bytes + sequences * (self.work.working_bytes - self.fixed_working_bytes)

    def times(self, sequences: int, weights_apart: bool = True) -> ProgramWork:
        """What the steps ask for; `program` and `recompute` of the result are still those of one sequence.

        weights_apart: whether some schedule puts off gradients of weights.
        """
        work = self.work
        if sequences == 1 and weights_apart:
            return work
        return ProgramWork(
            work.program,
            tuple(
                tuple(_times(one, fixed, sequences) for one, fixed in zip(operators, all_fixed, strict=True))
                for operators, all_fixed in zip(work.operators, self.fixed_bytes, strict=True)
            ),
            tuple(_issued(one, sequences) for one in work.forward),
            tuple(_issued(one, sequences) for one in work.backward),
            self.working_bytes(sequences),
            work.parameters,
            tuple(
                _times(one, fixed, sequences)
                for one, fixed in zip(work.projections, self.fixed_of_projections, strict=True)
            )
            if weights_apart
            else (),
            sequences * work.weights_waiting_bytes,
            work.matrices,
        )


def unit_work(work: ProgramWork, of_two: ProgramWork | None = None) -> UnitWork:
    """of_two: the same program for two sequences, where it has a loss."""
    fixed_working = 0.0 if of_two is None else 2 * work.working_bytes - of_two.working_bytes
    program = work.program
    fixed = tuple(tuple(_fixed_bytes(program, one) for one in operator_steps(step)) for step in program.steps)
    return UnitWork(work, fixed, tuple(_fixed_bytes(program, one) for one in projections(program)), fixed_working)


def _fixed_bytes(program: Program, step: OperatorStep) -> float:
    op = step.operator
    views = (op.output,) if op.kind == "embedding" else (*step.inputs, op.output)  # which moves rows, not its table
    fixed = [view for view in views if "batch" not in program.tensor(view).dims]
    return float(
        sum(local_bytes(program.graph, program.tensor(view).name, program.states[view], program.axes) for view in fixed)
    )


def _times(needs: OperatorNeeds, fixed_bytes: float, sequences: int) -> OperatorNeeds:
    return needs._replace(
        m=sequences * needs.m,
        moving_bytes=fixed_bytes + sequences * (needs.moving_bytes - fixed_bytes),
        scores_bytes=sequences * needs.scores_bytes,
        flops=sequences * needs.flops,
    )


def _issued(issued: Issued, sequences: int) -> Issued:
    return tuple((kind, axes, sequences * size) for kind, axes, size in issued)
