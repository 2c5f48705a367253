"""The cost of an SPMD program on one rank for one microbatch: seconds by what they are spent on, bytes by how long
they live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from operator import add
from typing import Any, NamedTuple

from autoshard.cost.backward_release import Moments, WithGradients, moments, with_gradients
from autoshard.cost.collectives import CollectiveLaw, exposed_ring_s
from autoshard.cost.compute import OperatorNeeds, QuantizedProducts, memory_s, operator_needs, seconds_of
from autoshard.cost.orthogonal import MatricesByAxes, matrix_work
from autoshard.cost.part import ATTENTION, COMPUTE, CONTEXT, EXPERT, TENSOR, Part, Seconds, add_up
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.working_bytes import LOSSES, AtSteps, at_steps, given_bytes
from autoshard.graph.count import (
    backward_collectives,
    forward_collectives,
    operand_bytes,
    operator_steps,
    parameter_elements,
)
from autoshard.graph.ir import Graph, Operator, Tensor
from autoshard.graph.loss_kinds import num_chunks
from autoshard.graph.partition import GatherEinsumStep, OperatorStep, Program, RedistributeStep, Step, learns_projection
from autoshard.graph.recompute import (
    FULL_RECOMPUTE,
    NO_RECOMPUTE,
    held_bytes,
    kept_activations,
    replay_held_bytes,
    replayed_activations,
    segments,
    waiting_twice_bytes,
)
from autoshard.graph.routing_kinds import AROUND_EXPERTS
from autoshard.graph.states import REPLICATED
from autoshard.layout.buckets import sharing_axes
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.rows import Number, added_up, largest, where
from autoshard.spec.cluster import Device

BACKWARD_OPERATORS = 2
"""Launches of backward for each one of forward."""
ADAPTER_OPERATORS = 2
"""Launches of forward for the adapter of a linear layer: its two products."""
LawOf = Callable[[str, tuple[str, ...]], CollectiveLaw]
"""(kind, axes) -> seconds over bytes of the larger buffer."""


@dataclass(frozen=True)
class Recompute:
    """The meaning of a named recompute set for one program. repeated: [start, stop) steps that run forward again.
    kept_bytes, replay_bytes, segment_bytes, again_bytes, at_weights_bytes, for_weights_bytes, weights_waiting_bytes: as
    in Part."""

    repeated: tuple[tuple[int, int], ...]
    kept_bytes: float
    replay_bytes: float
    segment_bytes: float
    again_bytes: float
    at_weights_bytes: float
    for_weights_bytes: float
    weights_waiting_bytes: float


Issued = tuple[tuple[str, tuple[str, ...], int], ...]
"""Collectives: kind, axes, bytes of the larger buffer."""


class Operators(NamedTuple):
    """Operators of one kind: a plain one, or a row for each of many.

    put_off: the share of backward that a schedule may put off, half for projections. step: by row, the place of its
    step among those that are priced together; None where that is one step.
    """

    needs: OperatorNeeds
    put_off: Number = 0.0
    step: Any = None


class Sent(NamedTuple):
    """Collectives whose seconds are counted at one place of Seconds.values: a plain one, or a row for each of many.

    is_ring: whether they are hops of a ring, which run beside the attention of their step. size: bytes of the larger
    buffer. times: how often they are sent, one after another. step: as in Operators.
    """

    spent_on: int
    is_ring: bool
    law: CollectiveLaw
    size: Number
    times: Number = 1
    step: Any = None


class StepWork(NamedTuple):
    """The operators and collectives of one step, or of many steps that are priced together.

    forward, backward: collectives of each pass. gathers: whether a step gathers the input that its products share, as
    all-gathers of backward may hide behind these.
    """

    operators: Sequence[Operators]
    forward: Sequence[Sent]
    backward: Sequence[Sent]
    gathers: Any = False
    num_steps: int = 1


class StepSeconds(NamedTuple):
    """Seconds of each step, over steps. put_off_s: of backward, what a schedule may put off."""

    forward: Seconds
    backward: Seconds
    put_off_s: Number


class Fullest(NamedTuple):
    """Bytes at the fullest step of a program's backward. place: of that step, None where there is none. tile_bytes:
    of these, what is in its tile of scores. untiled_bytes: at the fullest step if none had a tile."""

    bytes: float
    place: int | None
    tile_bytes: float
    untiled_bytes: float


@dataclass(frozen=True, eq=False)
class ProgramWork:
    """The operators and collectives of each step of a program, whatever the device, and what it holds: each counted
    once, when somebody asks, as bounds of seconds ask for no bytes. Fields that Part has are as there."""

    program: Program
    _recompute: dict[str, Recompute] = field(default_factory=dict)

    @cached_property
    def operators(self) -> tuple[tuple[Operators, ...], ...]:
        """The operators of each step."""
        program = self.program
        return tuple(tuple(_operator(program, single) for single in operator_steps(step)) for step in program.steps)

    @cached_property
    def forward(self) -> tuple[Issued, ...]:
        """Exactly the collectives that each step issues forward."""
        return tuple(tuple(forward_collectives(self.program, step)) for step in self.program.steps)

    @cached_property
    def backward(self) -> tuple[Issued, ...]:
        """Exactly the collectives that each step issues backward."""
        return tuple(tuple(backward_collectives(self.program, step)) for step in self.program.steps)

    @cached_property
    def at_steps(self) -> AtSteps:
        """Bytes at the backward of each step."""
        return at_steps(self.program)

    @cached_property
    def _held_bytes(self) -> list[float]:
        """Bytes that are held at the backward of each step, less those that are kept to the end."""
        kept = sum(kept_activations(self.program, NO_RECOMPUTE).values())
        return [of_step - kept for of_step in held_bytes(self.program, NO_RECOMPUTE)]

    @cached_property
    def _needed_bytes(self) -> list[float]:
        """Bytes at the backward of each step, but for its tile and what is kept to the end."""
        return [*map(add, self.at_steps.working, self._held_bytes)]

    @cached_property
    def fullest(self) -> Fullest:
        """The step that decides `working_bytes`."""
        return _fullest(self._needed_bytes, self.at_steps.tiles)

    @property
    def working_bytes(self) -> float:
        """Bytes that the fullest step of backward works with, as Part has them."""
        return self.fullest.bytes

    @cached_property
    def moments(self) -> Moments:
        begins = [*map(add, self.at_steps.gradients, self._held_bytes)]
        over = given_bytes(self.program) - sum(kept_activations(self.program, NO_RECOMPUTE).values())
        forward = self._forward_bytes if self.frozen_matrices else (0.0, 0.0)
        return moments(self.program, self._needed_bytes, self.at_steps.tiles, begins, over, forward)

    @property
    def _forward_bytes(self) -> tuple[float, float]:
        """Moments.forward."""
        inside = [*map(add, self.at_steps.forward, self.at_steps.forward_tiles)]
        held = held_bytes(self.program, FULL_RECOMPUTE)
        again = max(map(add, held, inside), default=0.0) - sum(kept_activations(self.program, FULL_RECOMPUTE).values())
        return max(inside, default=0.0), max(0.0, again)

    @cached_property
    def _elements(self) -> Mapping[str, int]:
        return parameter_elements(self.program)

    @cached_property
    def _learned(self) -> list[str]:
        return [tensor.name for tensor in self.program.graph.learned()]

    def _by_axes(self, names: Iterable[str]) -> dict[tuple[str, ...], int]:
        """Elements of some weights by the axes over which their gradients are summed."""
        counts: dict[tuple[str, ...], int] = {}
        for name in names:
            axes = self.program.gradient_sync.get(name, ())
            counts[axes] = counts.get(axes, 0) + self._elements[name]
        return counts

    @cached_property
    def parameters(self) -> Mapping[tuple[str, ...], int]:
        return self._by_axes(self._learned)

    @cached_property
    def matrices(self) -> Mapping[tuple[str, ...], int]:
        return self._by_axes(name for name in self._learned if name in self.program.graph.matrices)

    @cached_property
    def quantized(self) -> Mapping[tuple[str, ...], int]:
        singles = (one for step in self.program.steps for one in operator_steps(step))
        marked = {one.operator.inputs[1] for one in singles if operand_bytes(self.program, one) is not None}
        return self._by_axes(name for name in self._learned if name in marked)

    @cached_property
    def orthogonal(self) -> MatricesByAxes:
        return matrix_work(self.program, self._elements)

    @property
    def num_tensors(self) -> int:
        return len(self._learned)

    @cached_property
    def at_weights(self) -> Sequence[WithGradients]:
        """The steps that have gradients of weights."""
        return with_gradients(self.program, self._elements)

    @cached_property
    def _frozen(self) -> list[Tensor]:
        return [tensor for tensor in self.program.graph.parameters() if not tensor.differentiable]

    @cached_property
    def frozen(self) -> int:
        matrices = self.program.graph.matrices
        others = [tensor for tensor in self._frozen if tensor.name not in matrices]
        return _frozen_elements(self.program.graph, others, self._elements)

    @cached_property
    def frozen_matrices(self) -> Mapping[tuple[str, ...], int]:
        counts: dict[tuple[str, ...], int] = {}
        for tensor in self._frozen:
            if tensor.name in self.program.graph.matrices:
                axes = sharing_axes(self.program, tensor.name)
                counts[axes] = counts.get(axes, 0) + self._elements[tensor.name]
        return counts

    @cached_property
    def chunks_loss(self) -> bool:
        return any(num_chunks(op) > 1 for op in self.program.graph.operators)

    @cached_property
    def head_gradients(self) -> int:
        return _head_gradients(self.program, {name: self._elements[name] for name in self._learned})

    def recompute(self, name: str) -> Recompute:
        """The meaning of a named recompute set: its segments run forward again, up to where nothing more is needed.

        Of each step forward has, the first time, what its backward holds, and buffers of its own. Where it runs again,
        of what waits for gradients of weights there is what does when the backward of its segment begins.
        """
        if name not in self._recompute:
            repeated = [segment for segment in segments(self.program, name) if segment.recomputed]
            kept = sum(kept_activations(self.program, name).values())
            saved = [sum(replayed_activations(self.program, one).values()) for one in repeated]
            held, again = held_bytes(self.program, name), replay_held_bytes(self.program, name)
            working, tiles, forward, forward_tiles, gradients, put_off, waits = self.at_steps
            twice = waiting_twice_bytes(self.program, name)
            put_off = [*map(add, put_off, twice)]
            inside = [*map(add, forward, forward_tiles)]
            ends = any(op.kind in LOSSES for op in self.program.graph.operators)  # there backward has most
            at_first = 0.0 if ends else max(map(add, held, inside), default=0.0)
            backward = [*map(sum, zip(held, working, tiles, strict=True))]
            forward_bytes = [
                max(map(add, again[one.start : one.replay_stop], inside[one.start : one.replay_stop]), default=0.0)
                + gradients[one.last]
                for one in repeated
            ]
            waiting_bytes = [
                *map(add, backward, put_off),
                *(size + put_off[one.last] for size, one in zip(forward_bytes, repeated, strict=True)),
            ]
            most = max([at_first, *backward, *forward_bytes])
            self._recompute[name] = Recompute(
                tuple((segment.start, segment.replay_stop) for segment in repeated),
                kept,
                max(0.0, most - kept - self.working_bytes),
                max(saved, default=0.0),
                self.moments.again_bytes([one + other - kept for one, other in zip(held, working, strict=True)]),
                max((held[place] + working[place] + sum(more) for place, *more in self.at_weights), default=0.0) - kept,
                max(0.0, max(waiting_bytes, default=0.0) - max(most, kept + self.working_bytes)),
                waits + sum(twice[:1]),
            )
        return self._recompute[name]


@dataclass(frozen=True, eq=False)
class PricedProgram:
    """A program with the seconds of each of its steps."""

    work: ProgramWork
    steps: tuple[StepSeconds, ...]
    software: Software
    _parts: dict[str, Part] = field(default_factory=dict)

    def part(self, recompute: str) -> Part:
        """The whole program as one part under a named recompute set."""
        if recompute not in self._parts:
            self._parts[recompute] = self._part(self.work.recompute(recompute))
        return self._parts[recompute]

    def _part(self, recompute: Recompute) -> Part:
        work, software = self.work, self.software
        again = add_up(step.forward for start, stop in recompute.repeated for step in self.steps[start:stop])
        if software is not COMPILED:
            slower = software.replay_slowdown
            again = Seconds(again.compute * slower, again.attention * slower, *again.values[2:])
        ahead, backward = (add_up(getattr(step, name) for step in self.steps) for name in ("forward", "backward"))
        launches, reads_back = launch_seconds(work, software), software.reads_back and _routes(work.program)
        launch_s, replay_s = sum(launches), sum(sum(launches[start:stop]) for start, stop in recompute.repeated)
        back_s = BACKWARD_OPERATORS * launch_s - (_frozen(work) * software.cpu_s_per_operator if software.adapts else 0)
        if software.expert_overlap:
            ahead = _beside_work(ahead, launch_s if reads_back else 0.0, software.expert_overlap)
            again, backward = (_beside_work(one, 0.0, software.expert_overlap) for one in (again, backward))
        waits_s = ahead.total if reads_back else 0.0
        part = Part(
            ahead,
            again,
            backward,
            recompute.kept_bytes,
            recompute.replay_bytes,
            work.working_bytes,
            work.parameters,
            (launch_s + waits_s, replay_s + back_s),
            sum(needs.scores_bytes for step in work.operators for needs, *_ in step if needs.kind == "plain"),
            segment_bytes=recompute.segment_bytes,
            again_bytes=recompute.again_bytes,
            at_weights_bytes=recompute.at_weights_bytes,
            weight_gradients_s=sum(step.put_off_s for step in self.steps),
            weights_waiting_bytes=recompute.weights_waiting_bytes,
            for_weights_bytes=recompute.for_weights_bytes,
            matrices=work.matrices,
            num_tensors=work.num_tensors,
            moments=work.moments,
            quantized=work.quantized,
            frozen=work.frozen,
            frozen_matrices=work.frozen_matrices,
            chunks_loss=work.chunks_loss,
            head_gradients=work.head_gradients,
            orthogonal=work.orthogonal,
        )
        if not software.adapts:
            return part
        others = replace(part, parameters={}, matrices={}, num_tensors=0, weight_gradients_s=0.0, frozen_matrices={})
        return replace(others, frozen=part.num_parameters + part.frozen + sum(part.frozen_matrices.values()))


def _frozen(work: ProgramWork) -> int:
    """The number of products with a weight."""
    return sum(asked.put_off > 0 for step in work.operators for asked in step)


def _routes(program: Program) -> bool:
    return any(op.kind == "dispatch" for op in program.graph.operators)


def _beside_work(seconds: Seconds, waits_s: Number, share: float) -> Seconds:
    """The same pass where exchanges with experts hide behind a share of its work and of its waits for the host."""
    exposed_s = largest(0.0, seconds.expert_parallel - share * (seconds.operators + waits_s))
    return replace(seconds, expert_parallel=exposed_s)


def launch_seconds(work: ProgramWork, software: Software) -> list[Number]:
    """Seconds that the host takes to launch the operators of each step forward."""
    if software is COMPILED:
        return [0.0] * len(work.operators)
    return [
        sum(
            software.cpu_s_per_operator * (1 + ADAPTER_OPERATORS * (software.adapts and asked.put_off > 0))
            + software.group_launch_s * (asked.needs.groups if asked.needs.groups > 1 else 0)
            for single, asked in zip(operator_steps(step), operators, strict=True)
            if not _is_graphed(single.operator, software.graphs)
        )
        for step, operators in zip(work.program.steps, work.operators, strict=True)
    ]


def _is_graphed(op: Operator, graphs: str) -> bool:
    if graphs in ("none", "all"):
        return graphs == "all"
    routes = op.module == "mlp_norm" or op.kind == "top_k_gate" or ("expert" in op.loop_dims and op.kind == "einsum")
    is_router = routes and "capacity" not in op.loop_dims
    return is_router or (graphs == "attention" and op.module in ("attention_norm", "attention"))


def _fullest(needed: Sequence[float], tiles: Sequence[float]) -> Fullest:
    """The fullest of some steps. needed: bytes of each without its tile; tiles: of that."""
    if not needed:
        return Fullest(0.0, None, 0.0, 0.0)
    with_tile, place = max((need + tile, -place) for place, (need, tile) in enumerate(zip(needed, tiles, strict=True)))
    return Fullest(with_tile, -place, tiles[-place], max(needed))


def _frozen_elements(graph: Graph, frozen: Iterable[Tensor], elements: Mapping[str, int]) -> int:
    """Elements of weights that are not learned; what is held in FP32, such as a table of experts, counts as so many of
    the others as take its room. elements: of each weight."""
    return sum(
        elements[one.name] * (1 if graph.rounded(one) else graph.summed_bytes(one.name) // one.element_bytes)
        for one in frozen
    )


def _head_gradients(program: Program, elements: Mapping[str, int]) -> int:
    """Elements of the head's table where the losses of two modules read it, else 0. elements: of each weight that is
    learned."""
    heads = Counter(
        name
        for step in program.steps
        for one in operator_steps(step)
        if one.operator.kind in LOSSES or "vocab" in program.tensor(one.operator.output).dims
        for name in {*one.inputs} & elements.keys()
    )
    return max((elements[name] for name, uses in heads.items() if uses > 1), default=0)


def _operator(program: Program, step: OperatorStep) -> Operators:
    return Operators(operator_needs(program, step), 0.5 * learns_projection(program.graph, step.operator))


def price_program(
    work: ProgramWork,
    device: Device,
    dtype: str,
    law_of: LawOf,
    software: Software = COMPILED,
    products: QuantizedProducts | None = None,
) -> PricedProgram:
    """The program with the seconds of every step on a device. dtype: of the matrix products. law_of: of collectives.
    products: those that are quantised."""
    peak_flops_per_s = device.peak_flops_per_s(dtype)

    split = _split_dispatch(work.program) if software.splits_dispatch else None

    def sent(issued: Issued, of_tokens: bool) -> list[Sent]:
        if split is not None:
            issued = tuple(one for collective in issued for one in split(*collective))
        return [
            Sent(spent_on(kind, axes, of_tokens), kind == "send_recv", law_of(kind, axes), size, times)
            for (kind, axes, size), times in Counter(issued).items()
        ]

    sorts = software.sorts_copies and any(one.needs.groups > 1 for step in work.operators for one in step)
    steps = []
    for step, operators, issued, issued_back, of_tokens in zip(
        work.program.steps, work.operators, work.forward, work.backward, moves_tokens(work.program), strict=True
    ):
        if software.whole_logits and operators and operators[0].needs.kind == "loss":
            issued = (*issued, *_gathered_logits(work.program))
        if software.gathers_quantized and (share := quantized_share(work.program, step)) is not None:
            issued, issued_back = (_gathered_as(share, one) for one in (issued, issued_back))
        forward, backward = (sent(one, of_tokens) for one in (issued, issued_back))
        asked = StepWork(operators, forward, backward, isinstance(step, GatherEinsumStep))
        priced = step_seconds(asked, device, peak_flops_per_s, software, products)
        if sorts:
            priced = priced._replace(
                forward=_with_sorting(priced.forward, issued, device, software),
                backward=_with_sorting(priced.backward, issued_back, device, software),
            )
        steps.append(priced)
    return PricedProgram(work, tuple(steps), software)


def quantized_share(program: Program, step: Step) -> float | None:
    """The bytes of a quantised operand over those of the tensor that a step moves, where the products that its
    all-gathers feed read quantised operands; else None.

    Forward, all-gathers bring the inputs of linear layers; backward, these again, and gradients of the outputs of
    layers that are split by their inputs. Leaves out that formats with scales by block send gradients in two copies.
    """
    if isinstance(step, GatherEinsumStep):
        moved, fed = step.gather.source, list(step.einsums)
    elif isinstance(step, RedistributeStep):
        moved = step.source
        made = program.tensor(moved).name
        fed = [one for each in program.steps for one in operator_steps(each) if one.operator.output == made]
    else:
        return None
    operands = [operand_bytes(program, one) for one in fed]
    known = [one for one in operands if one is not None]
    return known[0] / program.tensor(moved).element_bytes if known and len(known) == len(operands) else None


def _gathered_as(share: float, issued: Issued) -> Issued:
    """The same collectives, all-gathers between tensor-parallel ranks of `share` of their bytes."""
    return tuple(
        (kind, axes, round(share * size) if kind == "all_gather" and spent_on(kind, axes) == TENSOR else size)
        for kind, axes, size in issued
    )


def _with_sorting(seconds: Seconds, issued: Issued, device: Device, software: Software) -> Seconds:
    """The same pass where what is exchanged with experts is sorted by them on the way: read and written once more.

    issued: (kind, axes, bytes) of the step's collectives.
    """
    moved = 2 * sum(size for kind, axes, size in issued if kind == "all_to_all" and "ep" in axes)
    more_s = memory_s(moved, device) * software.compute_slowdown * software.route_passes
    return replace(seconds, compute=seconds.compute + more_s)


def step_seconds(
    asked: StepWork,
    device: Device,
    peak_flops_per_s: float,
    software: Software,
    products: QuantizedProducts | None = None,
) -> StepSeconds:
    """Seconds of one step as plain numbers or numbers with derivatives, or of many steps, a row each.

    peak_flops_per_s: of the matrix products' dtype. products: those that are quantised.
    """
    forward, backward, put_off_s = [0.0] * 5, [0.0] * 5, 0.0
    for needs, put_off, step in asked.operators:
        seconds = seconds_of(needs, device, peak_flops_per_s, software, products)
        place = ATTENTION if needs.kind in ("flash", "plain") else COMPUTE
        forward[place] = forward[place] + added_up(seconds.forward, step, asked.num_steps)
        backward[place] = backward[place] + added_up(seconds.backward, step, asked.num_steps)
        if needs.kind == "matmul":
            put_off_s = put_off_s + added_up(put_off * seconds.backward, step, asked.num_steps)
    _add_collectives(forward, asked.forward, asked.num_steps)
    _add_collectives(backward, asked.backward, asked.num_steps)
    if software.tensor_overlap and asked.backward:
        exposed_s = largest(0.0, backward[TENSOR] - software.tensor_overlap * backward[COMPUTE])
        backward[TENSOR] = where(asked.gathers, exposed_s, backward[TENSOR])
    return StepSeconds(Seconds(*forward), Seconds(*backward), put_off_s)


def _add_collectives(seconds: list[Number], sent: Sequence[Sent], count: int) -> None:
    """Add what steps send in one pass to their seconds, as in Seconds.values. A ring runs beside its step's
    attention."""
    has_ring, ring_s, hops = False, 0.0, 0
    for place, is_ring, law, size, times, step in sent:
        sending_s = added_up(times * law.time_s(size), step, count)
        if is_ring:
            has_ring, ring_s, hops = True, ring_s + sending_s, hops + added_up(times, step, count)
        else:
            seconds[place] = seconds[place] + sending_s
    if has_ring:
        seconds[CONTEXT] = seconds[CONTEXT] + exposed_ring_s(ring_s, seconds[ATTENTION], hops)


def _split_dispatch(program: Program) -> Callable[[str, tuple[str, ...], int], Issued] | None:
    """(kind, axes, bytes) of a collective -> what is sent in its place where the ranks of tensor parallelism, which
    have the same tokens for the experts, exchange a part each and gather what arrives. None where none have the same.

    The gathering of the tokens before they are copied for their experts, which is not needed then, counts in it.
    """
    steps = [single for step in program.steps for single in operator_steps(step)]
    routing = next((one for one in steps if one.operator.kind == "dispatch"), None)
    if routing is None:
        return None
    top_k = next(int(str(one.operator.attributes["top_k"])) for one in steps if one.operator.kind == "top_k_gate")
    alike = tuple(
        axis for axis in program.axes if axis in TENSOR_PARALLEL_AXES and routing.choice.get(axis) == REPLICATED
    )
    ranks = prod(program.axes[axis] for axis in alike)

    def split(kind: str, axes: tuple[str, ...], size: int) -> Issued:
        if kind != "all_to_all" or "ep" not in axes:
            return ((kind, axes, size),)
        return (kind, axes, size // ranks), ("all_gather", alike, size - size // top_k)

    return split if alike else None


def _gathered_logits(program: Program) -> Issued:
    """The collectives of a stack that gathers the logits before the loss."""
    axes = tuple(axis for axis in program.axes if axis in TENSOR_PARALLEL_AXES)
    if not axes:
        return ()
    logits = next(op.inputs[0] for op in program.graph.operators if op.kind == "cross_entropy")  # of each loss alike
    shards = prod(program.axes[axis] for axis in axes)
    return (("all_gather", axes, shards * program.local_bytes[logits]),)


def moves_tokens(program: Program) -> tuple[bool, ...]:
    """Whether each step brings tokens to their experts or back, before they are sorted by these or behind that."""
    routing = [one for step in program.steps for one in operator_steps(step) if one.operator.kind in AROUND_EXPERTS]
    sorted_ = {name for one in routing if one.operator.kind == "dispatch" for name in one.inputs}
    joined = {one.operator.output for one in routing if one.operator.kind == "combine"}

    def moves(step: Step) -> bool:
        if not isinstance(step, RedistributeStep):
            return False
        tensor = program.tensor(step.source)
        return step.target in sorted_ or tensor.name in joined or "capacity" in tensor.dims

    return tuple(map(moves, program.steps))


def spent_on(kind: str, axes: tuple[str, ...], of_tokens: bool = False) -> int:
    """The place in Seconds.values that counts a collective over these axes. of_tokens: of a step of which
    `moves_tokens` says so."""
    if kind == "send_recv":
        return CONTEXT
    spreads = of_tokens and (kind == "all_to_all" or "cp" in axes)  # tensor-parallel ranks gather their tokens anyway
    if spreads or "ep" in axes or axes == ("dp",):  # of replicas, only what routers know of each other
        return EXPERT
    if any(axis in TENSOR_PARALLEL_AXES for axis in axes):
        return TENSOR
    assert "cp" in axes, axes  # with replicas: the gradient of a table that its two readers hold in different ways
    return CONTEXT
