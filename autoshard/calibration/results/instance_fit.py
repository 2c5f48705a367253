"""Fits the devices and links of an instance type to training results on it.

Results of one group share a layout and differ in the release of the SDK. Of published results what releases, stacks
and layouts add is fitted besides (effects.py); of one's own each group counts as one result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log
from typing import Any

import numpy as np

from autoshard.calibration.calibration import Leaf, leaf_entry, leaves
from autoshard.calibration.least_squares import Prior, by_size, slope_of, stepped
from autoshard.calibration.results.constants import Constant
from autoshard.calibration.results.effects import ROW_SPREAD, Effects
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.cost.estimate import step_time_s
from autoshard.spec.cluster import Cluster

NOISE, OWN_NOISE = 0.06, 0.02
"""Spread of the logarithm of a step time, of one's own runs the second: all of one release, they repeat better (a
guess)."""
ROUNDS, CONVERGED, STEP = 50, 1e-5, 0.01
"""At most so many rounds; fewer where no logarithm moves by more than the second. The last is of finite
differences."""
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
            0.01,
            0.3,
            "once a pass of a microbatch through a stage; prior: a guess, which layouts that are left out bear out: "
            "they are missed by 7.4 %, with 0.1 ms (a graph's start on trn2) and with 20 ms by 8.1 %",
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
    ones. A share of the peak is at most 1, as a release that is faster than the others leaves it (Cluster.slowed)."""
    ratios = {leaf: values[leaf] / now[leaf] for leaf in values}
    links = []
    for devices, link in cluster.intra_node:
        ratio = ratios.get(("link_efficiency_by_chips", str(devices // cluster.devices_per_chip)), 1.0)
        links.append((devices, replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * ratio)))
    of_device: Any = {
        leaf[0]: min(getattr(cluster.device, leaf[0]) * ratio, 1.0 if "efficiency" in leaf[0] else inf)
        for leaf, ratio in ratios.items()
        if hasattr(cluster.device, leaf[0])
    }
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
        effects: Effects | None = None,
    ) -> None:
        """content: the hardware file that the clusters of the cases were read from. effects: of the cases, which are
        fitted besides: further logarithms after those of the constants."""
        self.cases, self.constants, self.noise, self.effects = list(cases), constants, noise, effects
        self.now = {leaf: float(leaf_entry(content["calibration"], leaf)["value"]) for leaf in constants}
        self.groups = [case.group for case in cases]
        questions: dict[object, int] = {}
        self.question = np.array([questions.setdefault(self._asked(case), len(questions)) for case in cases])
        self.measured_logs = np.array([log(case.time_s) for case in cases])
        self.columns = np.zeros((len(self.cases), 0)) if effects is None else effects.columns
        beside = np.zeros(0) if effects is None else effects.spread
        self.prior = Prior(
            np.append(np.log([constant.prior for constant in constants.values()]), 0.0 * beside),
            np.append([constant.spread for constant in constants.values()], beside),
            np.append([0.0 if "efficiency" in leaf[0] else np.inf for leaf in constants], np.inf + beside),
        )

    def values(self, logs: np.ndarray) -> dict[Leaf, float]:
        return {leaf: exp(one) for leaf, one in zip(self.constants, logs, strict=False)}

    def predicted_s(self, case: InstanceCase, logs: np.ndarray) -> float:
        """Seconds of a case with these constants, under the newest release and neuronx-distributed where effects are
        fitted besides."""
        cluster = case.cluster if self.effects is None else case.alike
        cluster = altered(cluster, self.now, self.values(np.minimum(logs, self.prior.tops)))
        return step_time_s(case.model, case.training, cluster, case.strategy, case.software)

    def _asked(self, case: InstanceCase) -> object:
        """All of a case that its predicted seconds depend on."""
        cluster = case.cluster if self.effects is None else case.alike
        return case.model, case.training, cluster, case.strategy, case.software

    def _each_predicted_s(self, logs: np.ndarray, wanted: Sequence[int]) -> list[float]:
        """`predicted_s` of the cases with these indices; those that ask the same question are priced once."""
        known: dict[int, float] = {}
        for index in wanted:
            if (question := int(self.question[index])) not in known:
                known[question] = self.predicted_s(self.cases[index], logs)
        return [known[int(self.question[index])] for index in wanted]

    def all_predicted_s(self, logs: np.ndarray, wanted: Sequence[int] | None = None) -> list[float]:
        """Seconds of every case, or of those with the wanted indices, under its own release and stack."""
        columns = self.columns if self.effects is None else self.effects.shared()
        beside = np.exp(columns @ logs[len(self.constants) :])
        wanted = range(len(self.cases)) if wanted is None else wanted
        return [
            time_s * float(beside[index])
            for index, time_s in zip(wanted, self._each_predicted_s(logs, wanted), strict=True)
        ]

    def residuals(self, logs: np.ndarray) -> np.ndarray:
        """log(predicted / measured) of each case, [m]."""
        predicted = np.array([log(one) for one in self._each_predicted_s(logs, range(len(self.cases)))])
        together: np.ndarray = predicted - self.measured_logs + self.columns @ logs[len(self.constants) :]
        return together

    def slope(self, logs: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Derivatives [m, n] of the residuals: of constants by finite differences, downwards for a share that is at
        1."""
        count = len(self.constants)
        steps = np.where(logs + STEP > self.prior.tops, -STEP, STEP)[:count]
        changed = slope_of(lambda of: self.residuals(np.append(of, logs[count:])), logs[:count], now, steps)
        return np.hstack([changed, self.columns])

    def solve(self, at: np.ndarray, now: np.ndarray, slope: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The logarithms that minimise the linearised residuals of `rows` and the distance to the priors.

        Of one's own results each group counts as one, and an error by its size, so that a run that something slowed
        down does not pull.
        """
        weights = rows / ROW_SPREAD**2
        if self.effects is None:
            sizes = Counter(self.groups)
            alone = np.array([1 / sizes[group] for group in self.groups])
            weights = alone * rows * by_size(now, self.noise) / self.noise
        return stepped(at, now, slope, weights, self.prior, limit=0.5)


@dataclass(frozen=True)
class InstanceFit:
    """A fit to results on an instance type. values: fitted to all. predicted_s: of every case with them. left_out_s: of
    every case with constants fitted to all other groups, linearised at `values`; None if there is only one group.
    beside: what releases and stacks add, as sdk.json has it; empty where that was not fitted."""

    values: dict[Leaf, float]
    predicted_s: list[float]
    left_out_s: list[float] | None
    beside: dict[str, Any] = field(default_factory=dict)


def fit(problem: Problem, rows: np.ndarray | None = None) -> np.ndarray:
    """The logarithms of the constants, fitted to the cases whose entry of `rows` is 1; None: to all of them."""
    at, everything = problem.prior.at, np.ones(len(problem.cases)) if rows is None else rows
    for _ in range(ROUNDS):
        now = problem.residuals(at)
        before, at = at, problem.solve(at, now, problem.slope(at, now), everything)
        if np.abs(at - before).max() < CONVERGED:
            break
    return at


def left_out_predictions(problem: Problem, at: np.ndarray, used: np.ndarray | None = None) -> list[float]:
    """Seconds of each case with constants fitted to all other groups, linearised at `at`. used: as rows of `fit`."""
    now = problem.residuals(at)
    slope, found = problem.slope(at, now), [0.0] * len(problem.cases)
    members: dict[str, list[int]] = {}
    for index, group in enumerate(problem.groups):
        members.setdefault(group, []).append(index)
    for indices in members.values():
        rows = np.ones(len(problem.cases)) if used is None else np.array(used, dtype=float)
        rows[indices] = 0.0
        logs = problem.solve(at, now, slope, rows) if rows.any() else at
        for index, time_s in zip(indices, problem.all_predicted_s(logs, indices), strict=True):
            found[index] = time_s
    return found


def fit_instance(
    cases: Sequence[InstanceCase],
    constants: Mapping[Leaf, Constant],
    content: Mapping[str, Any],
    noise: float = NOISE,
    effects: Effects | None = None,
) -> InstanceFit:
    """Fits an instance type; arguments as in Problem. The values are rounded to three digits."""
    problem = Problem(cases, constants, content, noise, effects)
    logs = fit(problem)
    values = {leaf: float(f"{value:.3g}") for leaf, value in problem.values(logs).items()}
    at = np.append(np.log(list(values.values())), logs[len(values) :])
    several = len(set(problem.groups)) > 1
    return InstanceFit(
        values,
        problem.all_predicted_s(at),
        left_out_predictions(problem, at) if several else None,
        {} if effects is None else effects.content(at[len(values) :], _covariance(problem, at)),
    )


def _covariance(problem: Problem, at: np.ndarray) -> np.ndarray:
    """The covariance [q, q] of the effects, by the slope at a fit."""
    slope = problem.slope(at, problem.residuals(at))
    inverse: np.ndarray = np.linalg.inv(slope.T @ slope / ROW_SPREAD**2 + np.diag(1 / problem.prior.spread**2))
    count = len(problem.constants)
    return inverse[count:, count:]
