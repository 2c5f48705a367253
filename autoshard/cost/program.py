"""What an SPMD program costs one rank for one microbatch: seconds by what they are spent on, bytes by how long they
live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from autoshard.cost.backward_release import Moments, moments
from autoshard.cost.collectives import exposed_ring_s
from autoshard.cost.compute import OperatorNeeds, operator_needs, seconds_of
from autoshard.cost.stacks import COMPILED, Software
from autoshard.graph.count import (
    backward_collectives,
    forward_collectives,
    loop_sizes,
    operator_steps,
    parameter_elements,
)
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step, is_projection
from autoshard.graph.recompute import kept_activations, replayed_activations, segments
from autoshard.graph.weight_gradients import waiting_bytes
from autoshard.layout.buckets import is_matrix
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.spec.cluster import Device

BACKWARD_OPERATORS = 2
"""Launches of backward for each one of forward."""

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
        """Of one rank, in seconds."""
        return self.operators + self.collectives

    @property
    def operators(self) -> float:
        """What the device computes, attention included."""
        return self.compute + self.attention

    @property
    def collectives(self) -> float:
        """What ranks exchange inside a microbatch."""
        return self.tensor_parallel + self.context_parallel + self.expert_parallel

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return (self.compute, self.attention, self.tensor_parallel, self.context_parallel, self.expert_parallel)


COMPUTE, ATTENTION, TENSOR, CONTEXT, EXPERT = range(5)
"""Places in Seconds.values."""


def add_up(seconds: Iterable[Seconds]) -> Seconds:
    """Sum, field by field."""
    return Seconds(*map(sum, zip(Seconds().values, *(item.values for item in seconds), strict=True)))


@dataclass(frozen=True)
class Part:
    """One block, the embedding or the head: one microbatch on one rank.

    recompute: what backward repeats of forward, collectives included; backward is without it.
    kept_bytes: from forward to backward. replay_bytes: beyond that, while backward works through the largest recomputed
    segment. working_bytes: gradients and gathered activations while the backward of the largest operator runs.
    parameters: elements on one rank, by the axes over which their gradient is summed; matrices: those that are neither
    norms nor biases. num_tensors: how many parameters these are.
    weight_gradients_s: of backward, what a schedule may put off, half of each projection's; weights_waiting_bytes: what
    waits with it.
    host_s: of forward and of backward with recompute, what the host needs to launch their operators: neither is faster.
    scores_bytes: one copy of all attention scores, where a kernel writes them.
    moments: of a block's backward.
    """

    forward: Seconds
    recompute: Seconds
    backward: Seconds
    kept_bytes: float
    replay_bytes: float
    working_bytes: float
    parameters: Mapping[tuple[str, ...], int]
    host_s: tuple[float, float] = (0.0, 0.0)
    scores_bytes: float = 0.0

    weight_gradients_s: float = 0.0
    weights_waiting_bytes: float = 0.0
    matrices: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    num_tensors: int = 0
    moments: Moments = field(default_factory=Moments)

    @cached_property
    def forward_s(self) -> float:
        """Of one microbatch: what the device takes, or the host that launches it where that is slower."""
        return max(self.forward.total, self.host_s[0])

    @cached_property
    def backward_s(self) -> float:
        """With recompute."""
        return max(self.recompute.total + self.backward.total, self.host_s[1])

    @cached_property
    def all_passes(self) -> Seconds:
        """Forward, recompute and backward."""
        return add_up((self.forward, self.recompute, self.backward))

    @cached_property
    def waiting_s(self) -> float:
        """For the host, forward and backward."""
        return self.forward_s + self.backward_s - self.forward.total - self.recompute.total - self.backward.total

    @cached_property
    def num_parameters(self) -> int:
        """Elements of all parameters on one device."""
        return sum(self.parameters.values())


@dataclass(frozen=True)
class Recompute:
    """What a named recompute set means for one program. repeated: [start, stop) steps that run forward again."""

    repeated: tuple[tuple[int, int], ...]
    kept_bytes: float
    replay_bytes: float


Issued = tuple[tuple[str, tuple[str, ...], int], ...]
"""Collectives: kind, axes, bytes of the larger buffer."""


@dataclass(frozen=True, eq=False)
class ProgramWork:
    """What each step of a program asks for, whatever the device: found once, priced as often as need be."""

    program: Program
    operators: tuple[tuple[OperatorNeeds, ...], ...]
    forward: tuple[Issued, ...]
    backward: tuple[Issued, ...]
    working_bytes: float
    parameters: Mapping[tuple[str, ...], int]
    projections: tuple[OperatorNeeds, ...]
    weights_waiting_bytes: float
    matrices: Mapping[tuple[str, ...], int]
    num_tensors: int
    moments: Moments
    _recompute: dict[str, Recompute] = field(default_factory=dict)

    def recompute(self, name: str) -> Recompute:
        """Of one named recompute set: segments of it run forward again, up to where nothing more is needed."""
        if name not in self._recompute:
            repeated = [segment for segment in segments(self.program, name) if segment.recomputed]
            self._recompute[name] = Recompute(
                tuple((segment.start, segment.replay_stop) for segment in repeated),
                sum(kept_activations(self.program, name).values()),
                max((replayed_activations(self.program, segment) for segment in repeated), default=0.0),
            )
        return self._recompute[name]


@dataclass(frozen=True)
class PricedProgram:
    """A program with the forward and backward seconds of each of its steps."""

    work: ProgramWork
    forward: tuple[Seconds, ...]
    backward: tuple[Seconds, ...]
    software: Software
    weight_gradients_s: float

    def part(self, recompute: str) -> Part:
        """Under one named recompute set."""
        found, work = self.work.recompute(recompute), self.work
        again = add_up(seconds for start, stop in found.repeated for seconds in self.forward[start:stop])
        slower = self.software.replay_slowdown
        if self.software is not COMPILED:
            again = Seconds(again.compute * slower, again.attention * slower, *again.values[2:])
        ahead = sum(map(len, work.operators))
        replayed = sum(len(step) for start, stop in found.repeated for step in work.operators[start:stop])
        launch_s = self.software.cpu_s_per_operator
        return Part(
            add_up(self.forward),
            again,
            add_up(self.backward),
            found.kept_bytes,
            found.replay_bytes,
            work.working_bytes,
            work.parameters,
            (launch_s * ahead, launch_s * (replayed + BACKWARD_OPERATORS * ahead)),
            sum(needs.scores_bytes for step in work.operators for needs in step if needs.kind == "plain"),
            weight_gradients_s=self.weight_gradients_s,
            weights_waiting_bytes=work.weights_waiting_bytes,
            matrices=work.matrices,
            num_tensors=work.num_tensors,
            moments=work.moments,
        )


def program_work(program: Program) -> ProgramWork:
    """Of every step: its operators' needs, and exactly the collectives that it issues."""
    steps = [operator_steps(step) for step in program.steps]
    working = [working_bytes(program, step) for step in program.steps]
    operators = tuple(tuple(operator_needs(program, one) for one in several) for several in steps)
    every = [pair for several in zip(steps, operators, strict=True) for pair in zip(*several, strict=True)]
    parameters: dict[tuple[str, ...], int] = {}
    matrices: dict[tuple[str, ...], int] = {}
    elements = parameter_elements(program)
    for name, count in elements.items():
        axes = program.gradient_sync.get(name, ())
        for counts in (parameters, matrices) if is_matrix(program, name) else (parameters,):
            counts[axes] = counts.get(axes, 0) + count
    return ProgramWork(
        program,
        operators,
        tuple(tuple(forward_collectives(program, step)) for step in program.steps),
        tuple(tuple(backward_collectives(program, step)) for step in program.steps),
        max(working, default=0.0),
        parameters,
        tuple(needs for one, needs in every if is_projection(program.graph, one.operator)),
        waiting_bytes(program),
        matrices,
        len(elements),
        moments(program, working),
    )


def price_program(
    work: ProgramWork, device: Device, dtype: str, collective_s: CollectiveSeconds, software: Software = COMPILED
) -> PricedProgram:
    """Price every step on a device. dtype: of the matrix products."""
    peak, forward, backward = device.peak_flops_per_s(dtype), [], []
    for step, operators, issued, issued_back in zip(
        work.program.steps, work.operators, work.forward, work.backward, strict=True
    ):
        ahead, back = _operators(operators, device, peak, software)
        if software.whole_logits and operators and operators[0].kind == "loss":
            issued = (*issued, *_gathered_logits(work.program))
        forward.append(add_up((ahead, _collectives(issued, collective_s, ahead.attention))) if issued else ahead)
        sent = _collectives(issued_back, collective_s, back.attention) if issued_back else None
        if sent is not None and software.tensor_overlap and isinstance(step, GatherEinsumStep):
            hidden = software.tensor_overlap * back.compute
            sent = replace(sent, tensor_parallel=max(0.0, sent.tensor_parallel - hidden))
        backward.append(back if sent is None else add_up((back, sent)))
    weights = sum(seconds_of(needs, device, peak, software).backward for needs in work.projections) / 2
    return PricedProgram(work, tuple(forward), tuple(backward), software, weights)


def _gathered_logits(program: Program) -> Issued:
    """What a stack issues that gathers the logits before the loss."""
    axes = tuple(axis for axis in program.axes if axis in TENSOR_PARALLEL_AXES)
    if not axes:
        return ()
    logits = next(op.inputs[0] for op in program.graph.operators if op.kind == "cross_entropy")
    shards = prod(program.axes[axis] for axis in axes)
    return (("all_gather", axes, shards * program.local_bytes[logits]),)


def _operators(
    operators: tuple[OperatorNeeds, ...], device: Device, peak: float, software: Software
) -> tuple[Seconds, Seconds]:
    """(forward, backward) of the operators of a step."""
    compute, attention = [0.0, 0.0], [0.0, 0.0]
    for needs in operators:
        seconds = seconds_of(needs, device, peak, software)
        spent = attention if needs.kind in ("flash", "plain") else compute
        spent[0] += seconds.forward
        spent[1] += seconds.backward
    return Seconds(compute[0], attention[0]), Seconds(compute[1], attention[1])


def _collectives(issued: Issued, collective_s: CollectiveSeconds, attention_s: float) -> Seconds:
    """Seconds of the collectives of one step. attention_s: of the same step, beside which its ring runs."""
    seconds, ring_s, hops = [0.0] * 5, 0.0, 0
    for kind, axes, size in issued:
        if kind == "send_recv":
            ring_s, hops = ring_s + collective_s(kind, axes, size), hops + 1
        else:
            seconds[spent_on(kind, axes)] += collective_s(kind, axes, size)
    seconds[CONTEXT] += exposed_ring_s(ring_s, attention_s, hops)
    return Seconds(*seconds)


def spent_on(kind: str, axes: tuple[str, ...]) -> int:
    """The place in Seconds.values that counts a collective over these axes."""
    if kind == "send_recv":
        return CONTEXT
    if "ep" in axes or axes == ("dp",):  # of replicas, only what routers know of each other
        return EXPERT
    if any(axis in TENSOR_PARALLEL_AXES for axis in axes):
        return TENSOR
    assert axes == ("cp",), axes
    return CONTEXT


def working_bytes(program: Program, step: Step) -> float:
    """Backward of a step beside what forward kept: gradients of what it read and wrote, what it gathers again.

    Of its own the loss makes the gradient of probabilities, and plain attention that of its scores.
    """
    if isinstance(step, RedistributeStep):
        return _view_bytes(program, step.source) + _view_bytes(program, step.target)
    if isinstance(step, GatherEinsumStep):
        written = sum(_view_bytes(program, one.operator.output) for one in step.einsums)
        return 2 * _view_bytes(program, step.gather.target) + written
    op = step.operator
    extra = KINDS[op.kind].extra_saved(op, program.graph, loop_sizes(program, step))
    return sum(_view_bytes(program, view) for view in (*step.inputs, op.output)) + sum(e.bytes for e in extra)


def _view_bytes(program: Program, view: str) -> float:
    """0 for a parameter: it is charged where it lives."""
    return 0.0 if program.tensor(view).role == "parameter" else program.local_bytes[view]
