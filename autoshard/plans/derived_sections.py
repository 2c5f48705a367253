"""The sections of plan.json that follow from inputs and choices: written for readers, compared when a plan is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from autoshard.cost.collectives import KINDS
from autoshard.files.codec import Count, Form, Limit, Whole, reader_of, to_json
from autoshard.graph.count import backward_collectives, forward_collectives
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import is_recomputed
from autoshard.graph.states import State
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, sequence_pieces
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES, Mesh
from autoshard.layout.strategy import ZERO_STAGES
from autoshard.layout.template import template_of
from autoshard.models.stage import published_sizes
from autoshard.plans.plan import Plan
from autoshard.spec.training import FloatingDtype, MomentDtype

Section = dict[str, Any]
_NAMES = ["dp_replicate", "dp", "ep", "cp", *TENSOR_PARALLEL_AXES]
_AXES = {"type": "array", "items": {"enum": _NAMES}, "uniqueItems": True}
Axes = Annotated[tuple[str, ...], Form(list, reader_of(tuple[str, ...]), _AXES)]


@dataclass(frozen=True)
class ScheduleSection:
    """How microbatches pass the stages.

    name: As strategy.schedule.
    num_microbatches: Microbatches that each data-parallel rank runs in one step.
    num_virtual_stages: As strategy.num_virtual_stages.
    """

    name: str
    num_microbatches: Count
    num_virtual_stages: Count


@dataclass(frozen=True)
class SequenceSection:
    """Which part of each sequence the ranks of cp hold.

    context_parallel: As strategy.context_parallel.
    ranks: As strategy.cp.
    pieces: Equal pieces of the sequence in the order in which the ranks hold them, as many each: 0 3 1 2 gives the
        first of two ranks both ends.
    """

    context_parallel: Annotated[str, Limit(choices=CONTEXT_PARALLEL)]
    ranks: Count
    pieces: tuple[Whole, ...]


@dataclass(frozen=True)
class OptimizerSection:
    """The optimizer's state.

    zero: As strategy.zero.
    sharded_over: Mesh axes over which it is sharded.
    master_dtype: Of the master weights; null where there are none.
    state_dtype: Of moments.
    """

    zero: Annotated[int, Limit(choices=ZERO_STAGES)]
    sharded_over: Axes
    master_dtype: FloatingDtype | None
    state_dtype: MomentDtype


@dataclass(frozen=True)
class SentCollective:
    """One collective.

    kind: Which.
    axes: Mesh axes that it runs over.
    bytes: The larger of its input and output buffer on one rank, bytes.
    """

    kind: Annotated[str, Limit(choices=KINDS)]
    axes: Axes
    bytes: Whole


@dataclass(frozen=True)
class CommunicatingStep:
    """One step that communicates.

    source: The tensor that is moved, or the operator that communicates inside.
    target: The view that it becomes, or the operator's output.
    forward: Collectives of its forward.
    backward: Collectives of its backward.
    """

    source: str
    target: str
    forward: tuple[SentCollective, ...]
    backward: tuple[SentCollective, ...]


def derived_sections(plan: Plan) -> dict[str, Any]:
    """Section name -> plain JSON value, in the order of the file."""
    precision = plan.training.precision
    return {
        "mesh": mesh_section(plan.mesh),
        "stages": [asdict(stage) for stage in plan.stages],
        "schedule": to_json(
            ScheduleSection(plan.strategy.schedule, plan.num_microbatches, plan.strategy.num_virtual_stages)
        ),
        "sequence": to_json(sequence_section(plan)),
        "recompute": recompute_section(plan),
        "precision": _without_name(to_json(precision)),
        "optimizer": to_json(
            OptimizerSection(plan.strategy.zero, plan.zero_axes, precision.master_dtype, precision.optimizer_dtype)
        ),
        "operators": operators_section(plan),
        "parameters": parameters_section(plan),
        "activations": activations_section(plan),
        "collectives": to_json(collectives_section(plan)),
    }


def mesh_section(mesh: Mesh) -> Section:
    """Sizes of the axes, outermost first, and how ranks are numbered."""
    outermost, *names = (axis.name for axis in mesh.rank_axes)
    folded = ""
    if mesh.fold is not None:
        rows = ", ".join(map(str, mesh.fold.row_order))
        folded = f"; the rows of each node of {mesh.fold.devices_per_node} ranks are counted {rows}"
    return {
        "pp": mesh.pp,
        "axes": [{"name": axis.name, "size": axis.size} for axis in mesh.axes],
        "rank_order": (
            f"{outermost} outermost, then {', '.join(names)}; neighbours along {names[-1]} have neighbouring ranks"
            f"{folded}"
        ),
    }


def sequence_section(plan: Plan) -> SequenceSection:
    """Which piece of each sequence comes where along the dim `seq`; its ranks hold equal parts of that list."""
    kind, cp = plan.strategy.context_parallel, plan.strategy.cp
    return SequenceSection(kind, cp, tuple(sequence_pieces(kind, cp)))


def recompute_section(plan: Plan) -> Section:
    """For each set the operators whose outputs backward computes again instead of finding them in memory."""
    return {
        name: list(dict.fromkeys(template_of(op.name) for op in _operators(plan) if is_recomputed(op, name)))
        for name in dict.fromkeys(plan.strategy.recompute)
    }


def operators_section(plan: Plan) -> Section:
    """By template of the name: kind, module, and along each axis the dim that is split, or I, R or P."""
    operators: Section = {}
    for op in _operators(plan):
        name = template_of(op.name)
        choice = dict(plan.operators[name])
        operators.setdefault(name, {"kind": op.kind, "module": op.module, "choice": choice})
    return operators


def parameters_section(plan: Plan) -> Section:
    """Global shapes, where each rank's piece lies, and which axes sum the gradient once a step.

    published_shape: without padding, where a parameter has some.
    """
    parameters: Section = {}
    published = published_sizes(plan.model)
    for program in plan.sample_programs:
        for tensor in program.graph.parameters():
            entry = {
                "dims": list(tensor.dims),
                "shape": [program.graph.sizes[dim] for dim in tensor.dims],
                **_unpadded(tensor.dims, program.graph.sizes, published),
                "placements": _placements(program, program.states[tensor.name]),
                "gradient_sync": list(program.gradient_sync.get(tensor.name, ())),
            }
            parameters.setdefault(template_of(tensor.name), entry)
    return parameters


def _unpadded(dims: Iterable[str], sizes: Mapping[str, int], published: Mapping[str, int]) -> Section:
    unpadded = [published[dim] for dim in dims]
    return {} if unpadded == [sizes[dim] for dim in dims] else {"published_shape": unpadded}


def activations_section(plan: Plan) -> Section:
    """Inputs, outputs of operators, and views: `tensor@states` is a tensor brought into other states."""
    activations: Section = {}
    for program in plan.sample_programs:
        for view, state in program.states.items():
            tensor = program.tensor(view)
            if tensor.role != "parameter":
                entry = {"dims": list(tensor.dims), "placements": _placements(program, state)}
                activations.setdefault(template_of(view), entry)
    return activations


def collectives_section(plan: Plan) -> list[CommunicatingStep]:
    """Steps that communicate while one microbatch passes the embedding, one block and the head, in order."""
    by_target: dict[str, CommunicatingStep] = {}
    for program in plan.sample_programs:
        for step in program.steps:
            forward = _moves(forward_collectives(program, step))
            backward = _moves(backward_collectives(program, step))
            if forward or backward:
                source, target = (template_of(name) for name in _ends(step))
                by_target.setdefault(target, CommunicatingStep(source, target, forward, backward))
    return list(by_target.values())


def _ends(step: Step) -> tuple[str, str]:
    if isinstance(step, GatherEinsumStep):
        return step.gather.source, step.gather.target
    if isinstance(step, RedistributeStep):
        return step.source, step.target
    return step.operator.name, step.operator.output


def _moves(collectives: Iterable[tuple[str, tuple[str, ...], int]]) -> tuple[SentCollective, ...]:
    return tuple(SentCollective(kind, axes, size) for kind, axes, size in collectives)


def _operators(plan: Plan) -> Iterable[Any]:
    for program in plan.sample_programs:
        yield from program.graph.operators


def _placements(program: Program, state: State) -> dict[str, str]:
    return dict(zip(program.axes, state, strict=True))


def _without_name(values: Section) -> Section:
    return {key: value for key, value in values.items() if key != "name"}
