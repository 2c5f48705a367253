"""Hybrid sharding (HSDP): where shards fill what fast links join, and what it would give beside a plan with FSDP."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from autoshard.backends.mesh_rules import mesh_rules
from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import Draft, Problem, first_broken
from autoshard.cost.estimate import estimate
from autoshard.cost.interval import difference_factors
from autoshard.layout.strategy import Strategy
from autoshard.plans.names import sharding_name
from autoshard.plans.search_result import Candidate, Pins
from autoshard.units import format_bytes, format_seconds, percent

SEARCHED_STAGE = 3
"""The stage of ZeRO that gathers in every microbatch, for which fewer ranks that shard may pay."""


def replica_degrees(problem: Problem, pins: Pins, mesh: Draft, zero: int) -> tuple[int, ...]:
    """The degrees of dp_replicate to try with a stage of ZeRO: the pinned one or 1, and where they are searched those
    at which the ranks that shard fill a node, or nodes that links faster than the network join."""
    if not pins.searches_replicas or pins.dp_replicate is not None or zero != SEARCHED_STAGE:
        return (mesh.dp_replicate,)
    return (1, *filling_degrees(problem, mesh))


def filling_degrees(problem: Problem, mesh: Draft) -> tuple[int, ...]:
    """The legal degrees of dp_replicate, rising, at which the ranks that shard fill such a domain of a cluster."""
    if not BACKENDS[problem.backend].repeats_shards:
        return ()
    cluster, degrees = problem.cluster, {"tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp}
    inside = prod(degrees[name] for name in mesh.axis_order[mesh.axis_order.index("dp") + 1 :])
    found = []
    for devices in (cluster.devices_per_node * cluster.nodes_per_domain, cluster.devices_per_node):
        degree, rest = divmod(mesh.dp * inside, devices)
        if rest or degree < 2 or degree in found:
            continue
        if first_broken(mesh_rules(problem.backend), problem, mesh._replace(dp_replicate=degree)) is None:
            found.append(degree)
    return tuple(found)


def beside_fsdp(problem: Problem, pins: Pins, best: Candidate, fit_probability: float) -> tuple[str, ...]:
    """A sentence on HSDP beside a chosen layout of ZeRO-3 whose shards leave a node, where it was not searched: the
    same layout with the fastest degree that fits; none where no degree is legal."""
    chosen = best.strategy
    if chosen.zero != SEARCHED_STAGE or pins.dp_replicate is not None or pins.searches_replicas:
        return ()
    draft = Draft.of(chosen)
    degrees = filling_degrees(problem, draft)
    if not degrees:
        return ()
    priced = [_priced(problem, replace(chosen, dp_replicate=degree)) for degree in degrees]
    fitting = [one for one in priced if one.estimate.fits_probability >= fit_probability]
    search = "--dp-replicate auto searches it"
    if not fitting:
        least = min(priced, key=lambda one: one.estimate.fullest.total_bytes)
        needed = format_bytes(least.estimate.fullest.total_bytes)
        name, room = sharding_name(least.strategy), format_bytes(problem.cluster.device.memory_bytes)
        return (f"{name}, the same layout otherwise, needs {needed} of {room} a device; {search}",)
    other = min(fitting, key=lambda one: one.estimate.step_time_s)
    ratio = other.estimate.step_time_s / best.estimate.step_time_s
    low, high = difference_factors(problem.cluster, chosen, other.strategy)
    beside = (
        f"{sharding_name(other.strategy)}, the same layout otherwise: predicted "
        f"{format_seconds(other.estimate.step_time_s)} a step, {100 * (ratio - 1):+.1f} % (90 %: "
        f"{100 * (low * ratio - 1):+.1f}% to {100 * (high * ratio - 1):+.1f}%), fits with "
        f"{percent(other.estimate.fits_probability)} probability; --dp-replicate {other.strategy.dp_replicate} "
        f"takes it, {search}"
    )
    return (beside,)


def _priced(problem: Problem, strategy: Strategy) -> Candidate:
    return Candidate(strategy, estimate(problem.model, problem.training, problem.cluster, strategy))
