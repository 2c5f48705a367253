"""What an SPMD program costs one rank for one microbatch: seconds by what they are spent on, bytes by how long they
live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoshard.cost.compute import operator_seconds
from autoshard.graph.count import (
    backward_collectives,
    forward_collectives,
    loop_sizes,
    operator_steps,
    parameter_elements,
)
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import kept_activations, replayed_activations, segments
from autoshard.graph.redistribute import local_bytes
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.spec.cluster import Device

CollectiveSeconds = Callable[[str, tuple[str, ...], int], float]
"""(kind, axes, bytes of the larger buffer) -> seconds."""


@dataclass(frozen=True)
class Seconds:
    """Time of one rank by what it is spent on. All of it is exposed: nothing in a microbatch hides behind anything
    else."""

    compute: float = 0.0
    attention: float = 0.0
    tensor_parallel: float = 0.0
    context_parallel: float = 0.0
    expert_parallel: float = 0.0

    @cached_property
    def total(self) -> float:
        return self.operators + self.collectives

    @property
    def operators(self) -> float:
        return self.compute + self.attention

    @property
    def collectives(self) -> float:
        return self.tensor_parallel + self.context_parallel + self.expert_parallel

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return (self.compute, self.attention, self.tensor_parallel, self.context_parallel, self.expert_parallel)


def add_up(seconds: Iterable[Seconds]) -> Seconds:
    """Sum, field by field."""
    return Seconds(*map(sum, zip(Seconds().values, *(item.values for item in seconds), strict=True)))


@dataclass(frozen=True)
class Part:
    """One block, the embedding or the head: one microbatch on one rank.

    recompute: what backward repeats of forward, collectives included; backward is without it.
    kept_bytes: from forward to backward. replay_bytes: beyond that, while backward works through the largest recomputed
    segment. working_bytes: activations that the largest operator reads and writes; as many hold gradients in its
    backward. parameters: elements on one rank, by the axes over which their gradient is summed once a step.
    """

    forward: Seconds
    recompute: Seconds
    backward: Seconds
    kept_bytes: float
    replay_bytes: float
    working_bytes: float
    parameters: Mapping[tuple[str, ...], int]

    @cached_property
    def forward_s(self) -> float:
        return self.forward.total

    @cached_property
    def backward_s(self) -> float:
        """With recompute."""
        return self.recompute.total + self.backward.total

    @cached_property
    def num_parameters(self) -> int:
        return sum(self.parameters.values())


@dataclass(frozen=True)
class PricedProgram:
    """A program with the forward and backward seconds of each of its steps."""

    program: Program
    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    working_bytes: float
    parameters: Mapping[tuple[str, ...], int]

    def part(self, recompute: str) -> Part:
        """Under one named recompute set: segments of it run forward again, up to where nothing more is needed."""
        repeated = [segment for segment in segments(self.program, recompute) if segment.recomputed]
        return Part(
            add_up(self.forward),
            add_up(seconds for segment in repeated for seconds in self.forward[segment.start : segment.replay_stop]),
            add_up(self.backward),
            sum(kept_activations(self.program, recompute).values()),
            max((replayed_activations(self.program, segment) for segment in repeated), default=0.0),
            self.working_bytes,
            self.parameters,
        )


def price_program(program: Program, device: Device, dtype: str, collective_s: CollectiveSeconds) -> PricedProgram:
    """Price every step: its operators on the device, and exactly the collectives that the program issues.

    dtype: of the matrix products.
    """
    forward, backward = [], []
    for step in program.steps:
        ahead, back = _operators(program, step, device, dtype)
        forward.append(add_up((ahead, _collectives(forward_collectives(program, step), collective_s))))
        backward.append(add_up((back, _collectives(backward_collectives(program, step), collective_s))))
    parameters: dict[tuple[str, ...], int] = {}
    for name, count in parameter_elements(program).items():
        axes = program.gradient_sync.get(name, ())
        parameters[axes] = parameters.get(axes, 0) + count
    working = max((_working_bytes(program, step) for step in program.steps), default=0.0)
    return PricedProgram(program, tuple(forward), tuple(backward), working, parameters)


def _operators(program: Program, step: Step, device: Device, dtype: str) -> tuple[Seconds, Seconds]:
    """(forward, backward) of the operators of a step."""
    compute, attention = [0.0, 0.0], [0.0, 0.0]
    for one in operator_steps(step):
        seconds = operator_seconds(program, one, device, dtype)
        spent = attention if one.operator.kind == "attention" else compute
        spent[0] += seconds.forward
        spent[1] += seconds.backward
    return Seconds(compute[0], attention[0]), Seconds(compute[1], attention[1])


def _collectives(issued: Iterable[tuple[str, tuple[str, ...], int]], collective_s: CollectiveSeconds) -> Seconds:
    tensor = context = expert = 0.0
    for kind, axes, size in issued:
        seconds = collective_s(kind, axes, size)
        if "ep" in axes:
            expert += seconds
        elif any(axis in TENSOR_PARALLEL_AXES for axis in axes):
            tensor += seconds
        else:
            assert axes == ("cp",), axes
            context += seconds
    return Seconds(0.0, 0.0, tensor, context, expert)


def _working_bytes(program: Program, step: Step) -> float:
    """Activations of a step: what it reads (gathered, where it gathers), writes, and keeps of its own."""
    if isinstance(step, RedistributeStep):
        return _view_bytes(program, step.source) + _view_bytes(program, step.target)
    return max(_operator_bytes(program, one) for one in operator_steps(step))


def _operator_bytes(program: Program, step: OperatorStep) -> float:
    op = step.operator
    extra = KINDS[op.kind].extra_saved(op, program.graph, loop_sizes(program, step))
    return sum(_view_bytes(program, view) for view in (*step.inputs, op.output)) + sum(e.bytes for e in extra)


def _view_bytes(program: Program, view: str) -> float:
    """0 for a parameter: it is charged where it lives."""
    tensor = program.tensor(view)
    return (
        0.0
        if tensor.role == "parameter"
        else local_bytes(program.graph, tensor.name, program.states[view], program.axes)
    )
