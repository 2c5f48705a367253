"""Fits a device's constants to its measurements, so that the cost model's own formulas come closest.

Every residual is log(predicted / measured). An operator is weighted by its share of its program's time, and a whole
pass more than any operator, because the time of a step is what matters. Errors count by their size, not by their
square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Any

import numpy as np

from autoshard.calibration.least_squares import Prior, by_size, slope_of, stepped
from autoshard.calibration.values import CollectiveTime, Measurements, OperatorTime, PassTime
from autoshard.cost.collectives import GroupShape, collective_law
from autoshard.cost.compute import memory_s, seconds_of
from autoshard.cost.stacks import COMPILED
from autoshard.spec.cluster import Cluster, Device, Link

PASS_WEIGHT, MEMORY_WEIGHT = 3.0, 0.5
LEAST = 0.03
"""Smaller residuals count as this one: repeats of one measurement differ by as much."""
STRAY = 0.1
"""How strongly constants are held at their starting values, against one residual."""


@dataclass(frozen=True)
class Point:
    """One measurement beside the value that the fitted constants give. family: the series it is plotted with."""

    family: str
    name: str
    measured_s: float
    fitted_s: float

    @property
    def error(self) -> float:
        return abs(self.fitted_s / self.measured_s - 1)


@dataclass(frozen=True)
class Fit:
    """A fit. values: by the name of a field of Device or Cluster. points: all measurements that were used."""

    values: dict[str, float]
    points: tuple[Point, ...]

    def error(self, *families: str) -> tuple[int, float]:
        """(number of points, median error) of the named families, or of all where none is named."""
        errors = [point.error for point in self.points if not families or point.family in families]
        return len(errors), median(errors) if errors else 0.0


def fit_device(found: Measurements, device: Device, dtype: str) -> Fit:
    """Fits the constants of a device to its operators, passes and memory times.

    device: holds the peak FLOP/s of dtype and the memory bandwidth that the efficiencies are shares of.
    """
    starts = {
        "matmul_efficiency": 0.5,
        "matmul_k0": 50.0,
        "memory_efficiency": 0.3,
        "operator_overhead_s": 5e-6,
        "pass_launch_s": 1e-4,
    }
    if found.device == "cuda" and any(one.needs.kind == "flash" for one in found.operators):
        starts["attention_efficiency"] = 0.5  # a kernel of its own, whose rate no other product tells

    def points(values: dict[str, float]) -> list[Point]:
        return device_points(found, _with(device, values), dtype)

    return _fitted(starts, _weights(found), points)


def left_out_device(found: Measurements, device: Device, dtype: str) -> list[float] | None:
    """Errors |predicted / measured - 1| of all operators and passes, with constants fitted without their program; None
    if there is only one program."""
    programs = dict.fromkeys(_program(one) for one in found.operators)
    if len(programs) == 1:
        return None
    errors = []
    for program in programs:
        others = replace(
            found,
            operators=tuple(one for one in found.operators if _program(one) != program),
            passes=tuple(one for one in found.passes if _program(one) != program),
        )
        without = _with(device, fit_device(others, device, dtype).values)
        points = device_points(found, without, dtype)
        errors += [point.error for point in points if point.name.endswith(f" of {program}")]
    return errors


def device_points(found: Measurements, device: Device, dtype: str) -> list[Point]:
    """Points for operators (forward and backward), passes and memory, in the order of `_weights`."""
    peak, points = device.peak_flops_per_s(dtype), []
    sums: dict[str, float] = {}
    for one in found.operators:
        seconds = seconds_of(one.needs, device, peak, COMPILED)
        for phase, measured_s, fitted_s in (
            ("forward", one.forward_s, seconds.forward),
            ("backward", one.backward_s, seconds.backward),
        ):
            if measured_s is not None:
                whole = f"{phase} of {_program(one)}"
                sums[whole] = sums.get(whole, 0.0) + fitted_s
                points.append(Point(one.needs.kind, f"{phase} {one.name}", measured_s, fitted_s))
    passes = [Point("pass", one.name, one.seconds, sums[one.name] + device.pass_launch_s) for one in found.passes]
    memory = [Point("memory", one.name, one.seconds, memory_s(one.moved_bytes, device)) for one in found.memory]
    return [*points, *passes, *memory]


def fit_collectives(found: Sequence[CollectiveTime], cluster: Cluster) -> Fit:
    """Fits the launch, hop, bandwidth and all-to-all share of collectives among the devices of one machine."""
    starts = {"collective_launch_s": 1e-4, "bandwidth_bytes_per_s": 1e9, "all_to_all_efficiency": 0.7}
    return _fitted(starts, [1.0] * len(found), lambda values: collective_points(found, values, cluster))


def left_out_collectives(found: Sequence[CollectiveTime], cluster: Cluster) -> list[float]:
    """|predicted / measured - 1| of every time, with constants fitted without collectives of its kind."""
    errors = []
    for kind in dict.fromkeys(one.kind for one in found):
        without = fit_collectives([one for one in found if one.kind != kind], cluster)
        errors += [point.error for point in collective_points(found, without.values, cluster) if point.family == kind]
    return errors


def collective_points(found: Sequence[CollectiveTime], values: dict[str, float], cluster: Cluster) -> list[Point]:
    """A point for each collective time. values: constants by name, in place of the cluster's."""
    link = Link("measured", values["bandwidth_bytes_per_s"], 0.0)
    machine = replace(
        cluster,
        collective_launch_s=values["collective_launch_s"],
        all_to_all_efficiency=values["all_to_all_efficiency"],
        intra_node=((cluster.devices_per_node, link),),
    )
    return [Point(one.kind, _size(one), one.seconds, _collective_s(one, machine)) for one in found]


def _collective_s(one: CollectiveTime, cluster: Cluster) -> float:
    group = GroupShape(one.ranks, one.ranks, 1, 1, one.ranks, one.ranks)
    return float(collective_law(one.kind, group, cluster).time_s(one.payload_bytes))


def _size(one: CollectiveTime) -> str:
    return f"{one.kind} of {one.payload_bytes:.0f} bytes over {one.ranks} ranks"


def _program(one: OperatorTime | PassTime) -> str:
    return one.name.partition(" of ")[2]


def _weights(found: Measurements) -> list[float]:
    """Weights of the residuals: an operator's share of its pass, PASS_WEIGHT for a pass. All points of a curve, which
    has no pass, weigh alike, and together as much as one."""
    whole = {one.name: one.operators_s for one in found.passes}
    alone = Counter(_program(one) for one in found.operators if f"forward of {_program(one)}" not in whole)
    weights = []
    for one in found.operators:
        if points := alone[_program(one)]:
            weights += [1 / points] * (1 if one.backward_s is None else 2)
            continue
        weights.append(one.forward_s / whole[f"forward of {_program(one)}"])
        if one.backward_s is not None:
            weights.append(one.backward_s / whole[f"backward of {_program(one)}"])
    return [*weights, *[PASS_WEIGHT] * len(found.passes), *[MEMORY_WEIGHT] * len(found.memory)]


def _with(device: Device, values: dict[str, float]) -> Device:
    changed: Any = values
    return replace(device, **changed)


def _fitted(
    starts: dict[str, float], weights: Sequence[float], points: Callable[[dict[str, float]], list[Point]]
) -> Fit:
    """Gauss-Newton on the logarithms of the constants, reweighted so that outliers do not pull. starts: first values by
    name."""
    names, at, step = list(starts), np.log(list(starts.values())), 1e-3
    tops = np.array([-step if name.endswith("efficiency") else np.inf for name in names])
    prior = Prior(at, np.full(len(at), STRAY**-0.5), tops)

    def values(logs: np.ndarray) -> dict[str, float]:
        return {name: exp(one) for name, one in zip(names, logs, strict=True)}

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.array([log(one.fitted_s / one.measured_s) for one in points(values(logs))])

    for _ in range(40):
        now = residuals(at)
        slope = slope_of(residuals, at, now, np.full(len(at), step))
        at = stepped(at, now, slope, np.array(weights) * by_size(now, LEAST), prior, limit=0.5)
    return Fit({name: float(f"{one:.4g}") for name, one in values(at).items()}, tuple(points(values(at))))
