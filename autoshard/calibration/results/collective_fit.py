"""Fits the links of an instance type to times of collectives.

Results through torch.distributed hold the time that it takes to start one, which a compiled graph does not pay: a
constant for each number of ranks, which is fitted besides and not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import numpy as np

from autoshard.calibration.calibration import Leaf, leaf_entry, leaves
from autoshard.calibration.least_squares import Prior, by_size, slope_of, stepped
from autoshard.calibration.results.collective_rows import CollectiveCase
from autoshard.spec.cluster import Cluster

SPREAD, NOISE, FRAMEWORK_SPREAD = 0.5, 0.1, 1.5
FRAMEWORK_S = 5e-4
ROUNDS, LEFT_OUT_ROUNDS, STEP = 20, 2, 1e-3
LINKS = (
    "collective_launch_s",
    "hop_latency_s",
    "chip_bus_bandwidth_bytes_per_s",
    "link_efficiency_by_chips",
    "all_to_all_efficiency",
    "adapter_efficiency",
    "inter_node_hop_latency_s",
)
"""The constants of a calibration that are fitted to times of collectives."""
PUBLISHED: dict[str, dict[Leaf, tuple[float, str]]] = {
    "trn2.48xlarge": {
        ("collective_launch_s",): (1e-4, "compiled collectives of 4 KB take 98 to 142 us"),
        ("hop_latency_s",): (
            2.8e-6,
            "all_reduce of 4 KB, 282 us over 16 ranks and 370 us over 32, two hops more for each rank",
        ),
        ("chip_bus_bandwidth_bytes_per_s", "1"): (6.4e10, "all_reduce over 8 ranks of a chip"),
        ("chip_bus_bandwidth_bytes_per_s", "2"): (1e11, "all_reduce of 128 MiB over 4 ranks of a chip"),
        ("link_efficiency_by_chips", "2"): (0.076, "all_reduce over 8 ranks at lnc 2, bus bandwidth 78 GB/s"),
        ("link_efficiency_by_chips", "8"): (
            0.105,
            "all_reduce over 16 and 32 ranks at lnc 2, 119 GB/s; all_gather and reduce_scatter 76 to 92",
        ),
        ("link_efficiency_by_chips", "16"): (0.16, "all_reduce over 64 ranks at lnc 2, 173 GB/s"),
        ("all_to_all_efficiency",): (0.2, "28 GB/s over 8 ranks, 17 over 16 and 32"),
        ("adapter_efficiency",): (0.77, "all_reduce and all_gather over 2 nodes x 4 ranks of one chip"),
        ("inter_node_hop_latency_s",): (
            1.5e-5,
            "about/collectives.rst: 15 us for the smallest packet from HBM to HBM across servers",
        ),
    }
}
"""Instance type -> constants fitted to published times from scratch. Each has its prior, read off single rows by hand,
and the source of that."""
Values = dict[Any, float]


def own_priors(content: Mapping[str, Any]) -> dict[Leaf, tuple[float, str]]:
    """Priors for any hardware file: its own values, with their sources."""
    calibration = content["calibration"]
    found = {leaf: leaf_entry(calibration, leaf)["value"] for leaf in leaves(calibration) if leaf[0] in LINKS}
    return {leaf: (value, "what the file said before") for leaf, value in found.items() if value > 0}


def altered(cluster: Cluster, now: Mapping[Leaf, float], values: Values) -> Cluster:
    """The cluster with some constants changed. now: the constants that the cluster was read with. values: the new
    ones."""

    def ratio(*leaf: str) -> float:
        return values[leaf] / now[leaf] if leaf in now else 1.0

    hop, inter = ratio("hop_latency_s"), cluster.inter_node
    links = []
    for devices, link in cluster.intra_node:
        chips = devices // cluster.devices_per_chip
        inside = ("chip_bus_bandwidth_bytes_per_s", str(cluster.lnc))
        faster = ratio(*(inside if chips == 1 else ("link_efficiency_by_chips", str(chips))))
        bandwidth = link.bandwidth_bytes_per_s * faster
        links.append((devices, replace(link, bandwidth_bytes_per_s=bandwidth, latency_s=link.latency_s * hop)))
    return replace(
        cluster,
        intra_node=tuple(links),
        inter_node=replace(
            inter,
            bandwidth_bytes_per_s=inter.bandwidth_bytes_per_s * ratio("adapter_efficiency"),
            latency_s=inter.latency_s * ratio("inter_node_hop_latency_s"),
        ),
        collective_launch_s=cluster.collective_launch_s * ratio("collective_launch_s"),
        all_to_all_efficiency=cluster.all_to_all_efficiency * ratio("all_to_all_efficiency"),
    )


class Problem:
    """The fit as a function: logarithms of the constants -> residuals log(predicted / measured) of the cases."""

    def __init__(
        self, cases: Sequence[CollectiveCase], priors: Mapping[Leaf, tuple[float, str]], content: Mapping[str, Any]
    ) -> None:
        """content: the hardware file that the clusters of the cases are read from."""
        self.cases = cases
        self.now = {leaf: float(leaf_entry(content["calibration"], leaf)["value"]) for leaf in priors}
        starts: Values = {leaf: prior for leaf, (prior, _) in priors.items()}
        starts.update({case.ranks: FRAMEWORK_S for case in cases if case.framework})
        self.keys = list(starts)
        spread = np.array([SPREAD if isinstance(key, tuple) else FRAMEWORK_SPREAD for key in self.keys])
        shares = [isinstance(key, tuple) and "efficiency" in key[0] for key in self.keys]
        start = np.log([starts[key] for key in self.keys])
        self.prior = Prior(start, spread, np.where(shares, -STEP, np.inf))
        self.clusters = list(dict.fromkeys(case.cluster for case in cases))
        self.places = [self.clusters.index(case.cluster) for case in cases]

    def values(self, logs: np.ndarray) -> Values:
        return {key: exp(one) for key, one in zip(self.keys, logs, strict=True)}

    def residuals(self, logs: np.ndarray) -> np.ndarray:
        values = self.values(logs)
        clusters = [altered(cluster, self.now, values) for cluster in self.clusters]
        found = []
        for case, place in zip(self.cases, self.places, strict=True):
            started_s = values[case.ranks] if case.framework else 0.0
            found.append(log((case.predicted_s(clusters[place]) + started_s) / case.time_s))
        return np.array(found)

    def fit(self, rows: np.ndarray, at: np.ndarray, rounds: int) -> np.ndarray:
        """The fitted logarithms, by Gauss-Newton from `at`. Each group counts as the square root of its rows; errors
        count by their size. rows: indices of the cases that are used."""
        groups = [case.group for case in self.cases]
        weights = np.array([1 / groups.count(group) ** 0.5 for group in groups]) * rows
        for _ in range(rounds):
            now = self.residuals(at)
            slope = slope_of(self.residuals, at, now, np.full(len(at), STEP))
            at = stepped(at, now, slope, weights * by_size(now, NOISE) / NOISE, self.prior, limit=0.4)
        return at


@dataclass(frozen=True)
class CollectiveFit:
    """A fit of the links. values: fitted to all cases. residuals: log(predicted / measured) with them. left_out:
    residuals with constants fitted without the case's group, starting from `values`; None if there is only one
    group."""

    values: dict[Leaf, float]
    residuals: np.ndarray
    left_out: np.ndarray | None


def fit_collectives(
    cases: Sequence[CollectiveCase], priors: Mapping[Leaf, tuple[float, str]], content: Mapping[str, Any]
) -> CollectiveFit:
    """Fits the links to all cases; arguments as in Problem. The values are rounded to three digits."""
    problem = Problem(cases, priors, content)
    at = problem.fit(np.ones(len(cases)), problem.prior.at, ROUNDS)
    values = {key: float(f"{one:.3g}") for key, one in problem.values(at).items() if isinstance(key, tuple)}
    groups = dict.fromkeys(case.group for case in cases)
    return CollectiveFit(
        values, problem.residuals(at), _left_out(problem, at, list(groups)) if len(groups) > 1 else None
    )


def _left_out(problem: Problem, at: np.ndarray, groups: Sequence[object]) -> np.ndarray:
    """The residual of every case with constants fitted without its group, starting from the fit of all."""
    found = np.zeros(len(problem.cases))
    for group in groups:
        own = np.array([case.group == group for case in problem.cases])
        found[own] = problem.residuals(problem.fit(~own, at, LEFT_OUT_ROUNDS))[own]
    return found
