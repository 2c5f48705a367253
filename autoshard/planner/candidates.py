"""Every layout that could be looked at, in a fixed order: degrees that fill the cluster, then batch, stages and
recompute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from autoshard.backends.mesh_rules import ranks_are_counted_so, tp_is_a_group_size
from autoshard.backends.registry import ANYWHERE, BACKENDS
from autoshard.backends.rules import (
    Draft,
    KnownRules,
    Problem,
    check_recompute,
    chunks_are_alike,
    divisors,
    first_broken,
    zero_stage_is_run,
)
from autoshard.errors import AutoshardError
from autoshard.files.fields import check_choice, check_integer
from autoshard.graph.recompute import canonical
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.mesh import AXIS_ORDER, experts_objection, parse_axis_order, tensor_ranks_apart
from autoshard.layout.strategy import ATTENTION_KERNELS, ZERO_STAGES
from autoshard.planner.axis_orders import first_order
from autoshard.planner.beaten_path import check_path
from autoshard.planner.hybrid import replica_degrees
from autoshard.plans.search_result import Pins
from autoshard.schedules import SCHEDULES, usual_schedule

MOST_UNLIKE_CHUNKS = 2
"""Chunks a rank that are tried where these need not have as many blocks: more leave less of a bubble, and no bound."""
DEGREES = ("tp", "pp", "dp", "cp", "ep")
NAMES = {"num_virtual_stages": "vpp"}
"""What errors call a choice, where it is not the field's name."""


def check_pins(problem: Problem, pins: Pins) -> None:
    """Raises AutoshardError for a pin that is no such choice, and for two that contradict each other."""
    check_choice("the request", "backend", problem.backend, BACKENDS)
    check_path(problem, pins)
    for field in (*DEGREES, "num_virtual_stages", "microbatch_size", "etp", "dp_replicate"):
        if getattr(pins, field) is not None:
            check_integer("the pinned layout", NAMES.get(field, field), getattr(pins, field))
    for field, known in (
        ("schedule", SCHEDULES.known(pins.schedule)),
        ("attention_kernel", ATTENTION_KERNELS),
        ("context_parallel", CONTEXT_PARALLEL),
    ):
        if getattr(pins, field) is not None:
            check_choice("the pinned layout", field, getattr(pins, field), known)
    if pins.zero is not None:
        _check_zero(problem, pins)
    if pins.axis_order is not None:
        _check_axis_order(problem, pins.axis_order)
    if pins.recompute is not None:
        check_recompute(problem, (canonical(pins.recompute),))
    _check_world(problem, pins)
    usual, schedule = usual_schedule(1), pins.schedule
    several = (pins.num_virtual_stages or 1) > 1
    if several:
        _check_chunks(pins)
    if schedule not in (None, usual) and pins.pp == 1:
        raise AutoshardError(f"schedule={schedule} has no pipeline with pp=1; use {usual} or pp of 2 or more")
    if _shares_sequences(pins) and pins.cp == 1:
        raise AutoshardError(
            f"context_parallel={pins.context_parallel} has nothing to share with cp=1; use cp of 2 or more"
        )
    if not several:
        _check_chunks(pins)
    if several and pins.pp == 1:
        raise AutoshardError(
            f"vpp={pins.num_virtual_stages} has nothing to interleave with pp=1; use vpp=1 or pp of 2 or more"
        )
    _check_batch(problem, pins)
    if pins.etp is not None and not problem.model.is_moe:
        raise AutoshardError(f"etp={pins.etp} has no experts to place: {problem.model.name} has none; leave it out")
    if (pins.ep or 1) > 1 and not problem.model.is_moe:
        raise AutoshardError(f"ep={pins.ep} has no experts to split: {problem.model.name} has none; use ep=1")
    is_spread_as_told = pins.tp is not None if pins.etp is not None else not pins.searches_etp
    if pins.ep is not None and pins.dp is not None and is_spread_as_told:
        cp, apart = pins.cp or (None if problem.model.is_moe else 1), tensor_ranks_apart(pins.tp or 1, pins.etp)
        if cp is not None and (objection := experts_objection(pins.ep, pins.dp, cp, apart)) is not None:
            raise AutoshardError(objection)


def _check_chunks(pins: Pins) -> None:
    """Raise AutoshardError where the pinned schedule does not accept the pinned chunks a rank."""
    if pins.schedule is None or pins.num_virtual_stages is None:
        return
    pp = max(2, pins.pp or 2)
    objection = SCHEDULES[pins.schedule].objection_to_chunks(pp, pins.num_virtual_stages)
    if objection is not None:
        raise AutoshardError(objection)


def _check_zero(problem: Problem, pins: Pins) -> None:
    if type(pins.zero) is not int or pins.zero not in ZERO_STAGES:
        raise AutoshardError(
            f"zero={pins.zero!r} of the pinned layout must be one of: {', '.join(map(str, ZERO_STAGES))}"
        )
    wrong = zero_stage_is_run(problem, Draft(1, 1, 1, 1, 1, zero=pins.zero))
    if wrong is not None:
        raise AutoshardError(wrong)
    if pins.zero > 1 and pins.schedule is not None and SCHEDULES[pins.schedule].weights_apart:
        raise AutoshardError(
            f"schedule={pins.schedule} puts off gradients that zero={pins.zero} sends at once; "
            f"use {usual_schedule(1)} or zero=1"
        )


def _check_axis_order(problem: Problem, order: str) -> None:
    parsed = parse_axis_order(order)
    wrong = ranks_are_counted_so(problem, Draft(1, 1, 1, 1, 1, axis_order=parsed))
    if wrong is not None:
        raise AutoshardError(wrong)


def _check_world(problem: Problem, pins: Pins) -> None:
    """Raise AutoshardError where the pinned degrees leave no room for the others."""
    fixed = {name: getattr(pins, name) for name in ("tp", "pp", "dp", "cp") if getattr(pins, name) is not None}
    product, cluster = prod(fixed.values()), problem.cluster
    world, where = cluster.world_size, f"{cluster.nodes} x {cluster.instance}"
    names = " x ".join(f"{name}={degree}" for name, degree in fixed.items())
    if world % product or (len(fixed) == 4 and product != world):
        wants = "must be" if len(fixed) == 4 else "must divide"
        raise AutoshardError(f"{names} is {product:,} devices, which {wants} the {world:,} of {where}")
    if _shares_sequences(pins) and "cp" not in fixed and product == world:
        taken = f", which {names} takes" if names else ""
        raise AutoshardError(
            f"context_parallel={pins.context_parallel} needs cp of 2 or more; {where} has {world:,} "
            f"device{'s' * (world > 1)}{taken}"
        )


def _check_batch(problem: Problem, pins: Pins) -> None:
    """Raise AutoshardError where the pinned ones of dp and the microbatch size do not divide the batch."""
    names = ("dp", "microbatch_size")
    fixed = {name: getattr(pins, name) for name in names if getattr(pins, name) is not None}
    batch = problem.training.global_batch_size
    if batch % prod(fixed.values()):
        names_and_values = " x ".join(f"{name}={value}" for name, value in fixed.items())
        raise AutoshardError(f"{names_and_values} must divide global_batch_size={batch}")


def meshes(problem: Problem, pins: Pins, such: Callable[[Draft], bool] = lambda draft: True) -> Iterator[Draft]:
    """Every (tp, pp, dp, cp, ep) that fills the cluster, legal or not, in the first order of its axes that is. such:
    of a mesh in the default order, whether it is wanted."""
    world, experts = problem.cluster.world_size, problem.model.num_local_experts
    for tp in _choices(pins.tp, divisors(world)):
        is_group = tp_is_a_group_size(problem, Draft(tp, 1, 1, 1, 1)) is None  # else no order is legal
        for pp in _choices(pins.pp, divisors(world // tp)):
            for cp in _choices(pins.cp, divisors(world // (tp * pp))):
                if cp == 1 and _shares_sequences(pins):
                    continue
                dp = world // (tp * pp * cp)
                if dp * tp * pp * cp != world or pins.dp not in (None, dp):
                    continue
                for etp in _expert_degrees(problem, pins, tp):
                    for ep in _choices(pins.ep, _spreads(tp, dp, cp, etp, experts)):
                        replicas = pins.dp_replicate or 1
                        draft = Draft(tp, pp, dp, cp, ep, sequence_parallel=tp > 1, etp=etp, dp_replicate=replicas)
                        if not such(draft):
                            continue
                        order = first_order(problem, pins, draft) if is_group else AXIS_ORDER
                        yield draft if order == AXIS_ORDER else draft._replace(axis_order=order)


def _expert_degrees(problem: Problem, pins: Pins, tp: int) -> Sequence[int | None]:
    """The degrees of etp to try: the pinned one, else that experts are cut as the rest, and where it is searched every
    part of tp."""
    if pins.etp is not None:
        return (None if pins.etp == tp else pins.etp,)
    searched = pins.searches_etp and problem.model.is_moe and problem.backend == ANYWHERE.name
    return (None, *divisors(tp)[:-1]) if searched else (None,)


def _spreads(tp: int, dp: int, cp: int, etp: int | None, experts: int) -> Sequence[int]:
    """The degrees of ep to try, rising; where none is small enough for the experts, the smallest: a rule says so."""
    if etp is None:
        every: Sequence[int] = divisors(dp * cp)
    else:
        together = cp * tensor_ranks_apart(tp, etp)
        every = [together * replicas for replicas in divisors(dp)]
    return [ep for ep in every if ep <= max(1, experts)] or every[:1]


def _shares_sequences(pins: Pins) -> bool:
    """Whether a kind of context parallelism is pinned that needs ranks which share a sequence."""
    return pins.context_parallel not in (None, UNUSED)


def _choices(pinned: int | None, values: Sequence[int]) -> Sequence[int]:
    """A pinned degree may be one that divides nothing: the rules say so."""
    return values if pinned is None else (pinned,)


def variants(
    problem: Problem, pins: Pins, mesh: Draft, rules: KnownRules
) -> tuple[list[Draft], tuple[str, str] | None]:
    """(the legal ways to use a mesh, or the first rule that all of them break). rules: of the problem.

    With and without sequence parallelism, every stage of ZeRO, as far as there is a difference; replicas of shards,
    where they are searched; every kind of context parallelism, each with the first attention kernel that the rules
    allow it: flash keeps less and computes less than plain.
    """
    first = rules.tp(mesh)
    if first is not None:
        return [], first
    legal: list[Draft] = []
    for sequence_parallel in (True, False) if mesh.tp > 1 else (False,):
        draft = mesh._replace(sequence_parallel=sequence_parallel)
        broken = first_broken(rules.of_mesh, problem, draft)
        if broken is None:
            kernels, broken = _kernels(problem, pins, draft, rules)
            stages = zero_stages(problem, pins, mesh)
            shared = [(zero, replicas) for zero in stages for replicas in replica_degrees(problem, pins, draft, zero)]
            for zero, replicas in shared:
                for variant in (kernel._replace(zero=zero, dp_replicate=replicas) for kernel in kernels):
                    broken_by_state = rules.state(variant)
                    if broken_by_state is None:
                        legal.append(variant)
                    broken = broken or broken_by_state
        first = first or broken
    return legal, None if legal else first


def zero_stages(problem: Problem, pins: Pins, mesh: Draft) -> Sequence[int]:
    """The stages of ZeRO to try, the default first."""
    if pins.zero is not None:
        return (pins.zero,)
    if mesh.dp * mesh.cp == 1:
        return (1,)
    return BACKENDS[problem.backend].zero_stages


def _kernels(
    problem: Problem, pins: Pins, mesh: Draft, rules: KnownRules
) -> tuple[list[Draft], tuple[str, str] | None]:
    """(each kind of context parallelism that is legal, with the best kernel that it takes, what is wrong with the first
    draft where none is)."""
    legal, first = dict[str, Draft](), None
    for drafts in kernel_choices(problem, pins, mesh):
        for draft in drafts:
            if draft.context_parallel not in legal:
                broken = rules.kernel(draft)
                if broken is None:
                    legal[draft.context_parallel] = draft
                first = first or broken
    return [*legal.values()], None if legal else first


def kernel_choices(problem: Problem, pins: Pins, mesh: Draft) -> list[list[Draft]]:
    """For each attention kernel, the best first, drafts with every kind of context parallelism, legal or not."""
    names = ATTENTION_KERNELS if pins.attention_kernel is None else (pins.attention_kernel,)
    kinds = BACKENDS[problem.backend].context_parallel if mesh.cp > 1 else (UNUSED,)
    if pins.context_parallel is not None:
        kinds = (pins.context_parallel,)
    return [[mesh._replace(attention_kernel=name, context_parallel=kind) for kind in kinds] for name in names]


def with_kernel(problem: Problem, pins: Pins, mesh: Draft) -> Draft:
    """The draft with the pinned attention kernel and kind of context parallelism, else with the first ones that the
    rules allow; where nothing is allowed, with flash and the first kind."""
    legal, _ = _kernels(problem, pins, mesh, KnownRules(problem))
    if legal:
        return legal[0]
    kind = pins.context_parallel or (UNUSED if mesh.cp == 1 else BACKENDS[problem.backend].context_parallel[0])
    return mesh._replace(attention_kernel=pins.attention_kernel or ATTENTION_KERNELS[0], context_parallel=kind)


def microbatch_sizes(problem: Problem, pins: Pins, mesh: Draft) -> Sequence[int]:
    """Sequences of a microbatch, rising: each number that cuts a data-parallel rank's share of the batch into equal
    parts; the pinned number, or 1 where dp does not divide the batch."""
    if pins.microbatch_size is not None:
        return (pins.microbatch_size,)
    batch = problem.training.global_batch_size
    return divisors(batch // mesh.dp) if batch % mesh.dp == 0 else (1,)


def virtual_stages(problem: Problem, pins: Pins, mesh: Draft) -> list[tuple[str, int]]:
    """(schedule, vpp): every schedule that the backend has, with one chunk a rank and with each number that divides a
    rank's blocks, and up to MOST_UNLIKE_CHUNKS where chunks may differ. Where what is pinned leaves none, one that a
    rule says more about."""
    layers = problem.model.num_hidden_layers
    chunks: Sequence[int] = (1,)
    if mesh.pp > 1 and layers % mesh.pp == 0:
        chunks = divisors(layers // mesh.pp)
    if mesh.pp > 1 and not chunks_are_alike(problem):
        chunks = sorted({*chunks, *range(1, min(MOST_UNLIKE_CHUNKS, layers // mesh.pp) + 1)})
    if pins.num_virtual_stages is not None:
        chunks = (pins.num_virtual_stages,)
    if pins.schedule is not None:
        names: Sequence[str] = (pins.schedule,)
    elif mesh.pp == 1:
        names = [usual_schedule(vpp) for vpp in chunks]
    else:  # what is usual comes first
        names = [name for name in SCHEDULES if BACKENDS[problem.backend].runs_schedule(name)]
        names = sorted(names, key=lambda name: not SCHEDULES[name].nxd)
    pairs = [(name, vpp) for name in names for vpp in chunks if SCHEDULES[name].accepts_chunks(mesh.pp, vpp)]
    if pairs:
        return pairs
    name = pins.schedule or usual_schedule(chunks[0])
    fitting = (vpp for vpp in (*chunks, 1, 2) if SCHEDULES[name].accepts_chunks(mesh.pp, vpp))
    return [(name, next(fitting, chunks[0]))]
