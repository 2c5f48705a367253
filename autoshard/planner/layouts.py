"""Every legal layout, but for recompute sets and stage cuts; the others are counted by the rule that they break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from autoshard.backends.rules import Draft, KnownRules, Problem
from autoshard.layout.mesh import tensor_ranks_apart
from autoshard.models.stage import parameters_by_dims
from autoshard.planner.beaten_path import OFF, Precedent, precedent
from autoshard.planner.candidates import meshes, microbatch_sizes, variants, virtual_stages
from autoshard.planner.ranking import degrees_of
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.schedules import usual_schedule
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import DTYPE_BYTES, MUON, TrainingSpec, of_any_batch

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


NO_SCHEDULE: Scheduled = usual_schedule(1), 1, 1
"""What the way of a layout has in place of its schedule: a Draft's defaults."""


def by_way(drafts: Iterable[Draft]) -> list[MeshDrafts]:
    """Layouts by their ways to use a mesh."""
    schedules: dict[Draft, list[Scheduled]] = {}
    for draft in drafts:
        schedule = draft.schedule, draft.num_virtual_stages, draft.microbatch_size
        schedules.setdefault(draft.scheduled(*NO_SCHEDULE), []).append(schedule)
    return [MeshDrafts(0.0, way, several) for way, several in schedules.items()]


def together(layouts: Iterable[MeshDrafts]) -> list[MeshDrafts]:
    """The layouts with those of one way in one entry."""
    of_ways: dict[Draft, tuple[float, list[Scheduled]]] = {}
    for state_bytes, way, schedules in layouts:
        of_ways.setdefault(way, (state_bytes, []))[1].extend(schedules)
    return [MeshDrafts(state_bytes, way, schedules) for way, (state_bytes, schedules) in of_ways.items()]


def legal_layouts(problem: Problem, pins: Pins, tally: Tally) -> list[MeshDrafts]:
    """The legal layouts: one entry for each (tp, pp, dp, cp, ep) that breaks no rule and each way to use it. tally:
    counts those that break one."""
    legal, rules = [], KnownRules(problem)
    sets = len(recompute_sets(problem, pins))
    path = precedent(problem, pins) if pins.beaten_path else None
    of_meshes: dict[tuple[int, int], _Legal] = {}
    of_ways: dict[tuple[int, int, int], _Legal] = {}
    for mesh, alike, broken in _used_meshes(problem._replace(training=of_any_batch(problem.training)), pins):
        if broken is not None:
            tally.drop(*broken)
            continue
        of_mesh = of_meshes.get((mesh.pp, mesh.dp))
        if of_mesh is None:
            of_mesh = of_meshes[mesh.pp, mesh.dp] = _of_mesh(problem, pins, mesh, rules)
        of_mesh.tell(tally, len(alike) * sets)
        for state_bytes, way in alike:
            of_way = of_ways.get((way.pp, way.dp, way.zero))
            if of_way is None:
                of_way = of_ways[way.pp, way.dp, way.zero] = _of_way(way, of_mesh.schedules, rules)
            of_way.tell(tally, sets)
            found = of_way.schedules
            if path is not None:
                found = _on_path(path, way, found, tally, sets)
            if found:
                legal.append(MeshDrafts(state_bytes, way, found))
    return legal


class _UsedMesh(NamedTuple):
    """A mesh and the legal ways to use it, each with the bytes of its state. broken: as of `variants`."""

    mesh: Draft
    ways: list[tuple[float, Draft]]
    broken: tuple[str, str] | None


@lru_cache(maxsize=4)
def _used_meshes(problem: Problem, pins: Pins) -> list[_UsedMesh]:
    """Every mesh of a problem of any batch: rules on meshes and on ways to use them read none."""
    rules, found = KnownRules(problem), list[_UsedMesh]()
    for mesh in meshes(problem, pins):
        alike, broken = variants(problem, pins, mesh, rules)
        known: dict[tuple[int, int], float] = {}  # ways of one mesh differ in little that decides what a rank holds
        for way in alike:
            if (way.zero, way.dp_replicate) not in known:
                known[way.zero, way.dp_replicate] = state_at_least_bytes(problem, way)
        found.append(_UsedMesh(mesh, [(known[way.zero, way.dp_replicate], way) for way in alike], broken))
    return found


class _Legal(NamedTuple):
    """Schedules that break no rule. broken: (reason, what is wrong) of the others, and how many break it so."""

    schedules: list[Scheduled]
    broken: Mapping[tuple[str, str], int]

    def tell(self, tally: Tally, times: int) -> None:
        """Count those that break a rule. times: layouts that each of them stands for."""
        for (reason, words), count in self.broken.items():
            tally.drop(reason, words, count=times * count)


def _of_mesh(problem: Problem, pins: Pins, mesh: Draft, rules: KnownRules) -> _Legal:
    """All schedules of a mesh: the same for all meshes with its pp and dp."""
    legal, broken = list[Scheduled](), Counter[tuple[str, str]]()
    for schedule, vpp in virtual_stages(problem, pins, mesh):
        for size in microbatch_sizes(problem, pins, mesh):
            wrong = rules.layout(mesh.scheduled(schedule, vpp, size))
            if wrong is None:
                legal.append((schedule, vpp, size))
            else:
                broken[wrong] += 1
    return _Legal(legal, broken)


def _of_way(way: Draft, schedules: list[Scheduled], rules: KnownRules) -> _Legal:
    """The schedules with which the stage of ZeRO of a way may send. schedules: all of its mesh."""
    wrong = {name: rules.sending(way.scheduled(name, 1, 1)) for name in {name for name, _, _ in schedules}}
    broken = Counter(found for name, _, _ in schedules if (found := wrong[name]) is not None)
    return _Legal([one for one in schedules if wrong[one[0]] is None], broken)


def _on_path(path: Precedent, way: Draft, schedules: list[Scheduled], tally: Tally, sets: int) -> list[Scheduled]:
    found = []
    for schedule in schedules:
        draft = way.scheduled(*schedule)
        if path.draft_is_known(draft):
            found.append(schedule)
        else:
            tally.drop(OFF, f"{degrees_of(draft)}, microbatch {draft.microbatch_size}", count=sets)
    return found


def state_at_least_bytes(problem: Problem, draft: Draft) -> float:
    """Bytes that the fullest rank holds at least: parameters, gradients and optimizer state if all ranks held equal
    shares. What experts have is cut and shared apart from the rest."""
    sizes, apart = state_dtypes_bytes(problem.training), tensor_ranks_apart(draft.tp, draft.etp)
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


def state_dtypes_bytes(training: TrainingSpec) -> tuple[int, int, float]:
    """Bytes for each parameter at least: of the weight, of the sum of its gradients, of master weight and moments."""
    precision = training.precision
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    parameter, gradient = (
        DTYPE_BYTES[dtype] for dtype in (precision.parameter_dtype, precision.gradient_accumulation_dtype)
    )
    return parameter, gradient, master + (1 if training.optimizer == MUON else 2) * precision.moment_bytes


@lru_cache(maxsize=16)
def _parameters(model: ModelSpec) -> tuple[int, int]:
    """Numbers of parameters that are learned: (but for experts, in matrices of experts). Routers and biases of experts
    are left out."""
    counts = parameters_by_dims(model, learned_only=True)
    others = sum(count for dims, count in counts.items() if "expert" not in dims)
    return others, sum(count for dims, count in counts.items() if "expert" in dims and len(dims) > 2)
