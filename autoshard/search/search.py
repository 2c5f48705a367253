"""The fastest layout that fits: every legal one is looked at, the slow and the large ones only as far as needed."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.layout.strategy import Strategy
from autoshard.search.candidates import (
    check_pins,
    meshes,
    microbatch_sizes,
    recompute_sets,
    virtual_stages,
    with_kernel,
)
from autoshard.search.evaluate import Evaluation, draft_parts, evaluations, state_at_least_bytes
from autoshard.search.result import Candidate, Pins, SearchResult
from autoshard.search.rules import KERNEL_RULES, LAYOUT_RULES, MESH_RULES, Draft, Problem, first_broken
from autoshard.search.shortage import MOST_NODES, smallest_cluster
from autoshard.search.tally import MEMORY, Tally
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec
from autoshard.units import format_bytes


def search(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    pins: Pins = Pins(),  # noqa: B008  a frozen value
    backend: str = "nxd",
    top: int = 5,
    exhaustive: bool = False,
) -> SearchResult:
    """The fastest layout that fits, and up to `top` other ones.

    exhaustive: price every legal layout in full, instead of leaving out what bounds say cannot fit or win.

    Raises AutoshardError where pins contradict each other or no layout is legal, NoLayoutFits where none fits in
    memory.
    """
    problem = Problem(model, training, cluster, backend)
    check_pins(problem, pins)
    tally = Tally()
    fitting = list(fitting_layouts(problem, pins, tally, exhaustive))
    if not fitting:
        raise _nothing(problem, pins, tally)
    ranked = rank(fitting, top + 1, exhaustive)
    best, *others = (Candidate(one.strategy, estimate(model, training, cluster, one.strategy)) for one in ranked)
    return SearchResult(best, tuple(others), tally.considered, tally.fitting, tally.rejections())


def fitting_layouts(problem: Problem, pins: Pins, tally: Tally, exhaustive: bool = False) -> Iterator[Evaluation]:
    """Every layout that breaks no rule and fits, once for each way of cutting its stages that fits.

    Degrees that hold too much state whatever else is chosen come last: they are only looked at to name the nearest
    miss.
    """
    too_large: list[tuple[float, list[Draft]]] = []
    for degrees in meshes(problem, pins):
        mesh = with_kernel(problem, pins, degrees)
        broken = first_broken(MESH_RULES, problem, mesh) or first_broken(KERNEL_RULES, problem, mesh)
        if broken is not None:
            tally.drop(*broken)
            continue
        drafts = _legal(problem, pins, mesh, tally)
        state = state_at_least_bytes(problem, mesh)
        if state > problem.cluster.device.memory_bytes and not exhaustive:
            too_large.append((state, drafts))
        else:
            yield from _fitting(problem, pins, drafts, tally, exhaustive)
    for state, drafts in sorted(too_large, key=lambda pair: pair[0]):
        if state < tally.nearest_miss(MEMORY):
            yield from _fitting(problem, pins, drafts, tally)
        elif drafts:
            tally.drop(MEMORY, "", inf, len(drafts) * len(recompute_sets(pins)))


def _legal(problem: Problem, pins: Pins, mesh: Draft, tally: Tally) -> list[Draft]:
    """All choices of schedule and microbatch that break no rule; microbatches rise within one schedule."""
    legal = []
    for schedule, vpp in virtual_stages(problem, pins, mesh):
        for size in microbatch_sizes(problem, pins, mesh):
            draft = mesh._replace(schedule=schedule, num_virtual_stages=vpp, microbatch_size=size)
            broken = first_broken(LAYOUT_RULES, problem, draft)
            if broken is None:
                legal.append(draft)
            else:
                tally.drop(*broken, count=len(recompute_sets(pins)))
    return legal


def _fitting(
    problem: Problem, pins: Pins, drafts: list[Draft], tally: Tally, exhaustive: bool = False
) -> Iterator[Evaluation]:
    """Memory grows with the microbatch: once one does not fit, larger ones are counted and not looked at."""
    capacity = problem.cluster.device.memory_bytes
    for recompute in recompute_sets(pins):
        full: tuple[str, int] | None = None
        for draft in drafts:
            if (draft.schedule, draft.num_virtual_stages) == full and not exhaustive:
                tally.drop(MEMORY, "", inf)
                continue
            variants = evaluations(problem, draft, recompute, draft_parts(problem, draft, recompute))
            fitting = [variant for variant in variants if variant.memory_bytes <= capacity]
            if fitting:
                tally.keep()
                yield from fitting
                continue
            smallest = min(variants, key=lambda variant: variant.memory_bytes)
            full = (draft.schedule, draft.num_virtual_stages)
            tally.drop(MEMORY, _miss(smallest), smallest.memory_bytes)


def _miss(evaluation: Evaluation) -> str:
    needed, capacity = evaluation.memory_bytes, evaluation.problem.cluster.device.memory_bytes
    too_much = format_bytes(needed - capacity)
    return (
        f"{describe(evaluation.strategy)} needs {format_bytes(needed)} of {format_bytes(capacity)}, {too_much} too much"
    )


def describe(strategy: Strategy) -> str:
    """'tp=32 pp=8 dp=2, microbatch 1, full recompute': the degrees above 1 and what decides about memory."""
    degrees = {"tp": strategy.tp, "pp": strategy.pp, "dp": strategy.dp, "cp": strategy.cp, "ep": strategy.ep}
    degrees["vpp"] = strategy.num_virtual_stages
    shown = " ".join(f"{name}={degree}" for name, degree in degrees.items() if degree > 1) or "one device"
    return f"{shown}, microbatch {strategy.microbatch_size}, {strategy.recompute_name} recompute"


def rank(layouts: list[Evaluation], count: int, exhaustive: bool = False) -> list[Evaluation]:
    """The fastest layout of each of the `count` fastest kinds; of equally fast ones the simplest.

    Looked at in the order of what they take at least, until that is more than the slowest that counts: so it is exact.
    """
    best: dict[tuple[object, ...], tuple[float, tuple[object, ...], Evaluation]] = {}
    limit = inf
    for layout in sorted(layouts, key=lambda one: one.at_least_s):
        if layout.at_least_s > limit and not exhaustive:
            break
        entry = (float(f"{layout.step_time_s:.9g}"), layout.simplicity, layout)
        known = best.get(layout.kind)
        if known is None or entry[:2] < known[:2]:
            best[layout.kind] = entry
            if len(best) >= count:
                limit = sorted(one[0] for one in best.values())[count - 1] * (1 + 1e-8)
    return [one[2] for one in sorted(best.values(), key=lambda one: one[:2])[:count]]


def _nothing(problem: Problem, pins: Pins, tally: Tally) -> AutoshardError:
    """Why there is no answer: no layout is legal, or none fits and this is what would."""
    cluster, name = problem.cluster, problem.model.name
    where = f"{cluster.nodes} x {cluster.instance}"
    if MEMORY not in tally.counts:
        fixed = " ".join(f"{field}={value}" for field, value in pins.fixed.items())
        last = [rule.reason for rule in (*MESH_RULES, *KERNEL_RULES, *LAYOUT_RULES) if rule.reason in tally.counts][-1]
        given = f" with {fixed}" if fixed else ""
        return AutoshardError(f"no layout of {name} on {where}{given} is legal: {tally.nearest[last][1]}")
    needed = tally.nearest_miss(MEMORY)
    capacity = cluster.device.memory_bytes
    larger = smallest_cluster(problem, pins)
    cure = f"no cluster of up to {MOST_NODES:,} nodes would do{_kept_out(tally)}"
    if larger is not None:
        cure = f"{larger[0]:,} nodes would fit ({describe(larger[1])})"
    return NoLayoutFits(
        f"no layout fits {name} on {where}: the smallest needs {format_bytes(needed)} a device, "
        f"which has {format_bytes(capacity)}; {cure}"
    )


def _kept_out(tally: Tally) -> str:
    """The last rule on degrees that dropped some: with more nodes than enough, rules are why nothing fits."""
    broken = [rule.reason for rule in MESH_RULES if rule.reason in tally.counts]
    return f" ({tally.nearest[broken[-1]][1]})" if broken else ""
