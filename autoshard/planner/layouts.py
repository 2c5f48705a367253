"""Every legal layout, but for recompute sets and stage cuts; the others are counted by the rule that they break."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.backends.rules import LAYOUT_RULES, SENDING_RULES, Draft, Problem, first_broken
from autoshard.layout.mesh import tensor_ranks_apart
from autoshard.models.stage import parameters_by_dims
from autoshard.planner.beaten_path import OFF, Precedent, precedent
from autoshard.planner.candidates import meshes, microbatch_sizes, variants, virtual_stages
from autoshard.planner.ranking import degrees_of
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES, Precision

Scheduled = tuple[str, int, int]
"""(schedule, vpp, microbatch size)."""


class MeshDrafts(NamedTuple):
    """The legal layouts of one mesh that is used in one way. state_bytes: what the fullest device holds at least,
    whatever else is chosen. way: the layout but for its schedule and the size of its microbatches. schedules: these."""

    state_bytes: float
    way: Draft
    schedules: Sequence[Scheduled]

    @property
    def drafts(self) -> list[Draft]:
        """The layouts one by one."""
        return [self.way.scheduled(*schedule) for schedule in self.schedules]


def legal_layouts(problem: Problem, pins: Pins, tally: Tally) -> list[MeshDrafts]:
    """The legal layouts: one entry for each (tp, pp, dp, cp, ep) that breaks no rule and each way to use it. tally:
    counts those that break one."""
    legal = []
    sets = len(recompute_sets(problem, pins))
    path = precedent(problem, pins) if pins.beaten_path else None
    for mesh in meshes(problem, pins):
        alike, broken = variants(problem, pins, mesh)
        if broken is not None:
            tally.drop(*broken)
            continue
        schedules = _schedules(problem, pins, mesh, tally, len(alike) * sets)
        for way in alike:
            found = _sending(problem, way, schedules, tally, sets)
            if path is not None:
                found = _on_path(path, way, found, tally, sets)
            if found:
                legal.append(MeshDrafts(state_at_least_bytes(problem, way), way, found))
    return legal


def _sending(problem: Problem, way: Draft, schedules: list[Scheduled], tally: Tally, sets: int) -> list[Scheduled]:
    """The schedules with which the way's stage of ZeRO may send. The rules read no more than these two."""
    first = {one[0]: one for one in reversed(schedules)}
    broken = {name: first_broken(SENDING_RULES, problem, way.scheduled(*one)) for name, one in first.items()}
    if not any(broken.values()):
        return schedules
    for name, rule in broken.items():
        if rule is not None:
            tally.drop(*rule, count=sets * sum(one[0] == name for one in schedules))
    return [one for one in schedules if broken[one[0]] is None]


def _on_path(path: Precedent, way: Draft, schedules: list[Scheduled], tally: Tally, sets: int) -> list[Scheduled]:
    found = []
    for schedule in schedules:
        draft = way.scheduled(*schedule)
        if path.draft_is_known(draft):
            found.append(schedule)
        else:
            tally.drop(OFF, f"{degrees_of(draft)}, microbatch {draft.microbatch_size}", count=sets)
    return found


def _schedules(problem: Problem, pins: Pins, mesh: Draft, tally: Tally, times: int) -> list[Scheduled]:
    """All schedules that break no rule. times: layouts that each of them stands for."""
    legal = []
    for schedule, vpp in virtual_stages(problem, pins, mesh):
        for size in microbatch_sizes(problem, pins, mesh):
            draft = mesh.scheduled(schedule, vpp, size)
            broken = first_broken(LAYOUT_RULES, problem, draft)
            if broken is None:
                legal.append((schedule, vpp, size))
            else:
                tally.drop(*broken, count=times)
    return legal


def state_at_least_bytes(problem: Problem, draft: Draft) -> float:
    """Bytes that the fullest rank holds at least: parameters, gradients and optimizer state if all ranks held equal
    shares. What experts have is cut and shared apart from the rest."""
    sizes, apart = state_dtypes_bytes(problem.training.precision), tensor_ranks_apart(draft.tp, draft.etp)
    others, experts = _parameters(problem.model)
    owners = max(1, draft.dp * draft.cp // draft.dp_replicate)

    def held_bytes(elements: float, sharers: int) -> float:
        parameter, gradient, optimizer = sizes
        weights, sums, states = (sharers if draft.zero >= stage else 1 for stage in (3, 2, 1))
        return elements * (parameter / weights + gradient / sums + optimizer / states)

    return (
        held_bytes(others / (draft.pp * draft.tp), owners)
        + held_bytes(experts / (draft.pp * draft.ep * (draft.etp or draft.tp)), max(1, owners * apart // draft.ep))
        + problem.cluster.device.reserved_memory_bytes
    )


def state_dtypes_bytes(precision: Precision) -> tuple[int, int, int]:
    """Bytes for each parameter: of the weight, of the sum of its gradients, of master weight and moments."""
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    parameter, gradient, moment = (
        DTYPE_BYTES[dtype]
        for dtype in (precision.parameter_dtype, precision.gradient_accumulation_dtype, precision.optimizer_dtype)
    )
    return parameter, gradient, master + 2 * moment


@lru_cache(maxsize=16)
def _parameters(model: ModelSpec) -> tuple[int, int]:
    """Numbers of parameters: (but for experts, in matrices of experts). Routers and biases of experts are left out."""
    counts = parameters_by_dims(model)
    others = sum(count for dims, count in counts.items() if "expert" not in dims)
    return others, sum(count for dims, count in counts.items() if "expert" in dims and len(dims) > 2)
