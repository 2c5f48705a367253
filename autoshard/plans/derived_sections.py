"""The sections of plan.json that follow from inputs and choices: written for readers, compared when a plan is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from autoshard.graph.count import backward_collectives, forward_collectives
from autoshard.graph.partition import GatherEinsumStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import is_recomputed
from autoshard.graph.states import State
from autoshard.layout.context_parallel import sequence_pieces
from autoshard.layout.mesh import Mesh
from autoshard.layout.template import template_of
from autoshard.models.stage import published_sizes
from autoshard.plans.plan import Plan

Section = dict[str, Any]


def derived_sections(plan: Plan) -> dict[str, Any]:
    """Section name -> plain JSON value, in the order of the file."""
    return {
        "mesh": mesh_section(plan.mesh),
        "stages": [asdict(stage) for stage in plan.stages],
        "schedule": {
            "name": plan.strategy.schedule,
            "num_microbatches": plan.num_microbatches,
            "num_virtual_stages": plan.strategy.num_virtual_stages,
        },
        "sequence": sequence_section(plan),
        "recompute": recompute_section(plan),
        "precision": _without_name(asdict(plan.training.precision)),
        "optimizer": {
            "zero": plan.strategy.zero,
            "sharded_over": list(plan.zero_axes),
            "master_dtype": plan.training.precision.master_dtype,
            "state_dtype": plan.training.precision.optimizer_dtype,
        },
        "operators": operators_section(plan),
        "parameters": parameters_section(plan),
        "activations": activations_section(plan),
        "collectives": collectives_section(plan),
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


def sequence_section(plan: Plan) -> Section:
    """Which piece of each sequence comes where along the dim `seq`; its ranks hold equal parts of that list."""
    kind, cp = plan.strategy.context_parallel, plan.strategy.cp
    return {"context_parallel": kind, "ranks": cp, "pieces": list(sequence_pieces(kind, cp))}


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


def collectives_section(plan: Plan) -> list[Section]:
    """Steps that communicate while one microbatch passes the embedding, one block and the head, in order."""
    by_target: dict[str, Section] = {}
    for program in plan.sample_programs:
        for step in program.steps:
            forward = _moves(forward_collectives(program, step))
            backward = _moves(backward_collectives(program, step))
            if forward or backward:
                source, target = (template_of(name) for name in _ends(step))
                by_target.setdefault(
                    target, {"source": source, "target": target, "forward": forward, "backward": backward}
                )
    return list(by_target.values())


def _ends(step: Step) -> tuple[str, str]:
    if isinstance(step, GatherEinsumStep):
        return step.gather.source, step.gather.target
    if isinstance(step, RedistributeStep):
        return step.source, step.target
    return step.operator.name, step.operator.output


def _moves(collectives: Iterable[tuple[str, tuple[str, ...], int]]) -> list[Section]:
    return [{"kind": kind, "axes": list(axes), "bytes": size} for kind, axes, size in collectives]


def _operators(plan: Plan) -> Iterable[Any]:
    for program in plan.sample_programs:
        yield from program.graph.operators


def _placements(program: Program, state: State) -> dict[str, str]:
    return dict(zip(program.axes, state, strict=True))


def _without_name(values: Section) -> Section:
    return {key: value for key, value in values.items() if key != "name"}
