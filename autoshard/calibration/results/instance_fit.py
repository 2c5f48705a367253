"""Fits the devices and links of an instance type to training results on it.

Results of one group share a layout and differ in the release of the SDK: each group counts as one result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import numpy as np

from autoshard.calibration.calibration import Leaf, leaf_entry, leaves
from autoshard.calibration.least_squares import Prior, slope_of, stepped
from autoshard.calibration.results.constants import Constant
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.cost.estimate import estimate
from autoshard.spec.cluster import Cluster

NOISE, OWN_NOISE = 0.06, 0.02
"""Spread of the logarithm of a step time. One published layout differs by 6 to 27 % between releases; one's own runs,
all of one release, repeat better (a guess)."""
ROUNDS, STEP = 8, 0.01
Values = Mapping[Leaf, float]

PUBLISHED: dict[str, dict[Leaf, Constant]] = {
    "trn1.32xlarge": {
        ("matmul_efficiency",): Constant(
            0.82, 0.1, "share of the peak that a large matrix product reaches; prior: GPUs'"
        ),
        ("memory_efficiency",): Constant(
            0.66,
            0.1,
            "share of the memory bandwidth; prior: the NKI guide's 16 DMA engines a core move 272 GB/s of 410",
        ),
        ("pass_launch_s",): Constant(
            0.01, 0.5, "once a pass of a microbatch through a stage; prior: a guess, as on trn2"
        ),
        ("link_efficiency_by_chips", "4"): Constant(
            0.15, 0.25, "share of a chip's links for tp=8; prior: 0.56 of that over 16 chips, as 8 chips of trn2 reach"
        ),
        ("link_efficiency_by_chips", "16"): Constant(
            0.27, 0.2, "share of a chip's links for tp=32; prior: all_reduce of 512 MiB over 16 ranks, nccom-test.rst"
        ),
    }
}
"""Instance type -> what is fitted to published results, from scratch. No prior is a fit to these results, but about ten
sets of priors were tried while the errors of layouts left out were looked at: those are somewhat optimistic."""

OWN = {
    "matmul_efficiency": (0.2, "share of the peak that a large matrix product reaches"),
    "memory_efficiency": (0.2, "share of the memory bandwidth"),
    "pass_launch_s": (0.7, "once a pass of a microbatch through a stage"),
    "link_efficiency_by_chips": (0.4, "share of a chip's links over so many chips"),
    "adapter_efficiency": (0.4, "share of the network adapters that collectives reach"),
}
"""Constants that are fitted to results of one's own: how far each may stray from the hardware file's value, and its
meaning."""


def own_constants(content: Mapping[str, Any]) -> dict[Leaf, Constant]:
    """The constants to fit for any hardware file; its own values are the priors."""
    calibration = content["calibration"]
    return {
        leaf: Constant(leaf_entry(calibration, leaf)["value"], *OWN[leaf[0]])
        for leaf in leaves(calibration)
        if leaf[0] in OWN and leaf_entry(calibration, leaf)["value"] > 0
    }


def altered(cluster: Cluster, now: Values, values: Values) -> Cluster:
    """The cluster with some constants changed. now: the constants that the cluster was read with. values: the new
    ones."""
    ratios = {leaf: values[leaf] / now[leaf] for leaf in values}
    links = []
    for devices, link in cluster.intra_node:
        ratio = ratios.get(("link_efficiency_by_chips", str(devices // cluster.devices_per_chip)), 1.0)
        links.append((devices, replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * ratio)))
    of_device: Any = {leaf[0]: value for leaf, value in values.items() if hasattr(cluster.device, leaf[0])}
    adapter_bytes_per_s = cluster.inter_node.bandwidth_bytes_per_s * ratios.get(("adapter_efficiency",), 1.0)
    return replace(
        cluster,
        device=replace(cluster.device, **of_device),
        intra_node=tuple(links),
        inter_node=replace(cluster.inter_node, bandwidth_bytes_per_s=adapter_bytes_per_s),
    )


class Problem:
    """The fit as a function: logarithms of the constants -> residuals log(predicted / measured), and their slope."""

    def __init__(
        self,
        cases: Sequence[InstanceCase],
        constants: Mapping[Leaf, Constant],
        content: Mapping[str, Any],
        noise: float = NOISE,
    ) -> None:
        """content: the hardware file that the clusters of the cases were read from."""
        self.cases, self.constants, self.noise = list(cases), constants, noise
        self.now = {leaf: float(leaf_entry(content["calibration"], leaf)["value"]) for leaf in constants}
        self.groups = [case.group for case in cases]
        self.prior = Prior(
            np.log([constant.prior for constant in constants.values()]),
            np.array([constant.spread for constant in constants.values()]),
            np.array([0.0 if "efficiency" in leaf[0] else np.inf for leaf in constants]),
        )

    def values(self, logs: np.ndarray) -> dict[Leaf, float]:
        return {leaf: exp(one) for leaf, one in zip(self.constants, logs, strict=True)}

    def predicted_s(self, case: InstanceCase, logs: np.ndarray) -> float:
        cluster = altered(case.cluster, self.now, self.values(np.minimum(logs, self.prior.tops)))
        return estimate(case.model, case.training, cluster, case.strategy).step_time_s

    def residuals(self, logs: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of each case, [m]. Cases that ask the same question are priced once."""
        known: dict[object, float] = {}
        for case in self.cases:
            asked = (case.model, case.training, case.cluster, case.strategy)
            if asked not in known:
                known[asked] = self.predicted_s(case, logs)
        return np.array([log(known[c.model, c.training, c.cluster, c.strategy] / c.time_s) for c in self.cases])

    def slope(self, logs: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Derivatives [m, n] of the residuals by finite differences, downwards for a share that is at 1."""
        return slope_of(self.residuals, logs, now, np.where(logs + STEP > self.prior.tops, -STEP, STEP))

    def solve(self, at: np.ndarray, now: np.ndarray, slope: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The logarithms that minimise the linearised residuals of `rows`, each group weighted as one result, and the
        distance to the priors."""
        weights = np.array([1 / self.groups.count(group) for group in self.groups]) * rows / self.noise**2
        return stepped(at, now, slope, weights, self.prior, limit=0.5)


@dataclass(frozen=True)
class InstanceFit:
    """A fit to results on an instance type. values: fitted to all. predicted_s: of every case with them. left_out_s: of
    every case with constants fitted to all other groups, linearised at `values`; None if there is only one group."""

    values: dict[Leaf, float]
    predicted_s: list[float]
    left_out_s: list[float] | None


def fit(problem: Problem) -> np.ndarray:
    """The logarithms of the constants, fitted to all cases."""
    at, everything = problem.prior.at, np.ones(len(problem.cases))
    for _ in range(ROUNDS):
        now = problem.residuals(at)
        at = problem.solve(at, now, problem.slope(at, now), everything)
    return at


def left_out_predictions(problem: Problem, at: np.ndarray) -> list[float]:
    """Seconds of each case with constants fitted to all other groups, linearised at `at`."""
    now = problem.residuals(at)
    slope, found = problem.slope(at, now), {}
    for group in dict.fromkeys(problem.groups):
        rows = np.array([float(one != group) for one in problem.groups])
        found[group] = problem.solve(at, now, slope, rows) if rows.any() else at
    return [problem.predicted_s(case, found[case.group]) for case in problem.cases]


def fit_instance(
    cases: Sequence[InstanceCase], constants: Mapping[Leaf, Constant], content: Mapping[str, Any], noise: float = NOISE
) -> InstanceFit:
    """Fits an instance type; arguments as in Problem. The values are rounded to three digits."""
    problem = Problem(cases, constants, content, noise)
    values = {leaf: float(f"{value:.3g}") for leaf, value in problem.values(fit(problem)).items()}
    at = np.log(list(values.values()))
    predicted = [problem.predicted_s(case, at) for case in cases]
    several = len(set(problem.groups)) > 1
    return InstanceFit(values, predicted, left_out_predictions(problem, at) if several else None)
