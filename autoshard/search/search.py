"""The fastest layout that fits: every legal one is priced."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.search.candidates import check_pins, recompute_sets
from autoshard.search.layouts import MeshDrafts, legal_layouts
from autoshard.search.ranking import Timed, best_of_each_kind, describe
from autoshard.search.result import Candidate, Pins, SearchResult
from autoshard.search.rules import KERNEL_RULES, LAYOUT_RULES, MESH_RULES, Problem
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

    exhaustive: price also layouts of which a bound says that they cannot fit.

    Raises AutoshardError where pins contradict each other or no layout is legal, NoLayoutFits where none fits in
    memory.
    """
    problem = Problem(model, training, cluster, backend)
    check_pins(problem, pins)
    tally = Tally()
    ranked = best_of_each_kind(fitting_layouts(problem, pins, tally, exhaustive), top + 1)
    if not ranked:
        raise _nothing(problem, pins, tally)
    best, *others = (Candidate(one.strategy, estimate(model, training, cluster, one.strategy)) for one in ranked)
    return SearchResult(best, tuple(others), tally.considered, tally.fitting, tally.rejections())


def fitting_layouts(problem: Problem, pins: Pins, tally: Tally, exhaustive: bool = False) -> Iterator[Timed]:
    """Every layout that breaks no rule and fits, fastest first.

    Degrees that hold too much state whatever else is chosen come last: they are only looked at to name the nearest
    miss.
    """
    legal = legal_layouts(problem, pins, tally)
    capacity = problem.cluster.device.memory_bytes
    found = _priced(problem, pins, [mesh for mesh in legal if exhaustive or mesh.state_bytes <= capacity], tally)
    large = [mesh for mesh in legal if mesh.state_bytes > capacity and not exhaustive]
    for mesh in sorted(large, key=lambda one: one.state_bytes):
        if mesh.state_bytes < tally.nearest_miss(MEMORY):
            _priced(problem, pins, [mesh], tally)
        elif mesh.drafts:
            tally.drop(MEMORY, "", inf, len(mesh.drafts) * len(recompute_sets(problem, pins)))
    return found


def _priced(problem: Problem, pins: Pins, meshes: list[MeshDrafts], tally: Tally) -> Iterator[Timed]:
    """Those that fit, fastest first; all of them are counted."""
    from autoshard.search.grid.order import fastest_first
    from autoshard.search.grid.table import Table

    table = Table(problem, recompute_sets(problem, pins))
    for mesh in meshes:
        for draft in mesh.drafts:
            table.add(draft)
    priced, capacity = [*table.price()], problem.cluster.device.memory_bytes
    for one in priced:
        fitting, dropped = one.pairs(capacity)
        tally.keep(fitting)
        if dropped:
            needed, strategy = one.nearest_miss(capacity)
            too_much = format_bytes(needed - capacity)
            words = (
                f"{describe(strategy)} needs {format_bytes(needed)} of {format_bytes(capacity)}, {too_much} too much"
            )
            tally.drop(MEMORY, words, needed, dropped)
    return fastest_first(problem, priced)


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
