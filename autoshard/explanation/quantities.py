"""The quantities of a problem that can be turned up and down one at a time: bandwidths, memory, batch and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2

from autoshard.backends.rules import Problem
from autoshard.spec.cluster import Cluster, Link
from autoshard.units import TFLOPS, format_bytes, format_number

FURTHEST, FURTHEST_MEMORY = 4.0, 2.0
CLOSE = 1.03
"""A flip whose two sides are known to this factor is shown as one number."""


@dataclass(frozen=True)
class Quantity:
    """One quantity of a problem.

    name: as the page shows it. now: its value, SI. shown: a value as text in people's units. scaled: (problem, factor)
    -> the problem with that many times the quantity. furthest: it is looked at from now / furthest to now * furthest.
    whole: it is a whole number, looked at by doubling, and by halving and rounding. makes_room: with more of it layouts
    fit that do not today. takes_all: with any other value of it other layouts are legal or promising.
    """

    name: str
    now: float
    shown: Callable[[float], str]
    scaled: Callable[[Problem, float], Problem]
    furthest: float = FURTHEST
    whole: bool = False
    makes_room: bool = False
    takes_all: bool = False

    def value(self, factor: float) -> float:
        """So many times the quantity, SI; a whole number where it is one."""
        return float(_whole(self.now * factor)) if self.whole else self.now * factor

    def steps(self, furthest: float) -> tuple[float, ...]:
        """The factors at which a whole number is looked at, up to `furthest`: those that change it."""
        doublings = range(1, 1 + round(abs(log2(furthest))))
        factors = [2.0**count if furthest > 1 else 0.5**count for count in doublings]
        values = (self.now, *map(self.value, factors))
        return tuple(factor for factor, (one, other) in zip(factors, pairwise(values), strict=True) if one != other)

    def needs_all(self, furthest: float) -> bool:
        """Whether layouts that are not promising today may win up to `furthest` times the quantity."""
        return self.takes_all or (self.makes_room and furthest > 1)


def quantities(problem: Problem) -> tuple[Quantity, ...]:
    """The quantities on which the choice of a layout depends; links between nodes only where there are several
    nodes."""
    cluster, training = problem.cluster, problem.training
    dtype = training.precision.fastest_dtype
    links = []
    if cluster.devices_per_node > 1:
        inside = cluster.intra_node[-1][1].bandwidth_bytes_per_s
        links.append(Quantity("links in a node, each device", inside, _rate, _with_intra_node))
    if cluster.nodes > 1 and cluster.intra_domain is not None:
        near = cluster.intra_domain
        links.append(Quantity(f"{near.name}, each chip", near.bandwidth_bytes_per_s, _rate, _with_intra_domain))
    if cluster.nodes > 1:
        between = cluster.inter_node.bandwidth_bytes_per_s
        links.append(Quantity("network, each adapter", between, _rate, _with_inter_node))
    return (
        *links,
        Quantity(
            "memory, each device",
            cluster.device.memory_bytes,
            format_bytes,
            _with_memory,
            FURTHEST_MEMORY,
            makes_room=True,
        ),
        Quantity("peak, each device", cluster.device.peak_flops_per_s(dtype), _tflops, _with_flops),
        Quantity(
            "batch, sequences", float(training.global_batch_size), _count, _with_batch, whole=True, takes_all=True
        ),
        Quantity(
            "sequence length, tokens", float(training.sequence_length), _count, _with_length, whole=True, takes_all=True
        ),
    )


def _rate(value: float) -> str:
    return f"{format_bytes(value)}/s"


def _tflops(value: float) -> str:
    return f"{format_number(value / TFLOPS)} TFLOP/s"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _faster(link: Link, factor: float) -> Link:
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)


def _with_cluster(problem: Problem, **changes: object) -> Problem:
    cluster: Cluster = replace(problem.cluster, **changes)  # type: ignore[arg-type]
    return problem._replace(cluster=cluster)


def _with_intra_node(problem: Problem, factor: float) -> Problem:
    links = tuple((devices, _faster(link, factor)) for devices, link in problem.cluster.intra_node)
    return _with_cluster(problem, intra_node=links)


def _with_intra_domain(problem: Problem, factor: float) -> Problem:
    link = problem.cluster.intra_domain
    assert link is not None, "it is a quantity only where there is such a link"
    return _with_cluster(problem, intra_domain=_faster(link, factor))


def _with_inter_node(problem: Problem, factor: float) -> Problem:
    return _with_cluster(problem, inter_node=_faster(problem.cluster.inter_node, factor))


def _with_memory(problem: Problem, factor: float) -> Problem:
    """The problem with `factor` times the device memory; what runtime and compiler reserve stays the same."""
    device = problem.cluster.device
    return _with_cluster(problem, device=replace(device, memory_bytes=device.memory_bytes * factor))


def _with_flops(problem: Problem, factor: float) -> Problem:
    device = problem.cluster.device
    peaks = tuple((dtype, peak * factor) for dtype, peak in device.flops_per_s)
    return _with_cluster(problem, device=replace(device, flops_per_s=peaks))


def _whole(value: float) -> int:
    return max(1, round(value))


def _with_batch(problem: Problem, factor: float) -> Problem:
    batch = _whole(problem.training.global_batch_size * factor)
    return problem._replace(training=replace(problem.training, global_batch_size=batch))


def _with_length(problem: Problem, factor: float) -> Problem:
    length = _whole(problem.training.sequence_length * factor)
    return problem._replace(training=problem.training.of_length(length))
