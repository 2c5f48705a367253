"""Fits the collectives of trn2 to public times: `python -m benchmarks.fit_collectives`.

Writes them into the `calibration` of autoshard/hardware/trn2.48xlarge.json with their errors, and prints how well each
kind of collective is met, on trn1 and trn2, as fitted and with each kind over each number of ranks left out in turn.
Constants of trn1 are not fitted here: those that matter come from training results (fit_trainium.py). Results through
torch.distributed hold the time that it takes to start one, which a compiled graph does not pay: a constant for each
number of ranks, which is fitted besides and not kept.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from autoshard.spec.cluster import Cluster
from autoshard.spec.hardware_file import FOLDER
from benchmarks.collective_rows import CollectiveCase, collective_case
from benchmarks.measured_rows import Row, Unscored

DATA = Path(__file__).parent / "data" / "trainium_collectives.csv"
FILE = FOLDER / "trn2.48xlarge.json"
FITTED = "trn2.48xlarge"
SPREAD, NOISE, FRAMEWORK_SPREAD = 0.5, 0.1, 1.5
FRAMEWORK_S = 5e-4
LEAVES = (
    ("collective_launch_s",),
    ("hop_latency_s",),
    ("chip_bus_bandwidth_bytes_per_s", "1"),
    ("chip_bus_bandwidth_bytes_per_s", "2"),
    ("link_efficiency_by_chips", "2"),
    ("link_efficiency_by_chips", "8"),
    ("link_efficiency_by_chips", "16"),
    ("all_to_all_efficiency",),
    ("adapter_efficiency",),
    ("inter_node_hop_latency_s",),
)
"""Of the calibration."""
Values = dict[Any, float]


def read(path: Path = DATA) -> tuple[list[CollectiveCase], int]:
    """(cases, rows that do not say enough)."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    cases = [case for case in map(_case, rows) if case is not None]
    return cases, len(rows) - len(cases)


def _case(row: Row) -> CollectiveCase | None:
    try:
        return collective_case(row)
    except Unscored:
        return None


def entry(calibration: dict[str, Any], leaf: Sequence[str]) -> dict[str, Any]:
    for name in leaf:
        calibration = calibration[name]
    return calibration


def altered(cluster: Cluster, values: Values, links_bytes_per_s: float, adapter_bytes_per_s: float) -> Cluster:
    """With the constants of a calibration. links: of one chip; adapter: one of them; both by datasheet."""
    hop_s = values[("hop_latency_s",)]
    per_chip = cluster.devices_per_chip
    links = []
    for devices, link in cluster.intra_node:
        chips = devices // per_chip
        bandwidth = (
            values[("chip_bus_bandwidth_bytes_per_s", str(cluster.lnc))]
            if chips == 1
            else links_bytes_per_s * values[("link_efficiency_by_chips", str(chips))]
        )
        links.append((devices, replace(link, bandwidth_bytes_per_s=bandwidth, latency_s=hop_s)))
    inter = replace(
        cluster.inter_node,
        bandwidth_bytes_per_s=adapter_bytes_per_s * values[("adapter_efficiency",)],
        latency_s=values[("inter_node_hop_latency_s",)],
    )
    return replace(
        cluster,
        intra_node=tuple(links),
        inter_node=inter,
        collective_launch_s=values[("collective_launch_s",)],
        all_to_all_efficiency=values[("all_to_all_efficiency",)],
    )


class Problem:
    """Residuals log(predicted / measured) of cases as a function of the logarithms of the constants."""

    def __init__(self, cases: Sequence[CollectiveCase], content: dict[str, Any]) -> None:
        self.cases = cases
        self.links = content["chip_link_bandwidth_bytes_per_s"]["value"]
        self.adapter = content["adapter_bandwidth_bytes_per_s"]["value"]
        starts: Values = {leaf: entry(content["calibration"], leaf)["value"] for leaf in LEAVES}
        starts.update({case.ranks: FRAMEWORK_S for case in cases if case.framework})
        self.keys = list(starts)
        self.start = np.log([starts[key] for key in self.keys])
        self.spread = np.array([SPREAD if isinstance(key, tuple) else FRAMEWORK_SPREAD for key in self.keys])
        self.clusters = {(case.lnc, case.nodes): case.cluster() for case in cases}

    def values(self, logs: np.ndarray) -> Values:
        return {key: exp(one) for key, one in zip(self.keys, logs, strict=True)}

    def residuals(self, logs: np.ndarray) -> np.ndarray:
        values = self.values(logs)
        known = {key: altered(cluster, values, self.links, self.adapter) for key, cluster in self.clusters.items()}
        found = []
        for case in self.cases:
            started_s = values[case.ranks] if case.framework else 0.0
            found.append(log((case.predicted_s(known[case.lnc, case.nodes]) + started_s) / case.time_s))
        return np.array(found)

    def fit(self, rows: np.ndarray, at: np.ndarray, rounds: int) -> np.ndarray:
        """Gauss-Newton, every group counting as the square root of its rows, errors by their size."""
        groups = [case.group for case in self.cases]
        weights = np.array([1 / groups.count(group) ** 0.5 for group in groups]) * rows
        for _ in range(rounds):
            now, step = self.residuals(at), 1e-3
            slope = np.array([(self.residuals(at + step * unit) - now) / step for unit in np.eye(len(at))]).T
            robust = weights / np.maximum(np.abs(now), NOISE) / NOISE
            A = (slope * robust[:, None]).T @ slope + np.diag(1 / self.spread**2)
            b = -(slope * robust[:, None]).T @ now - (at - self.start) / self.spread**2
            at = np.minimum(at + np.clip(np.linalg.solve(A, b), -0.4, 0.4), self._tops())
        return at

    def _tops(self) -> np.ndarray:
        shares = [isinstance(key, tuple) and "efficiency" in key[0] for key in self.keys]
        return np.where(shares, -1e-3, np.inf)


def left_out(problem: Problem, at: np.ndarray) -> np.ndarray:
    """Residuals of every case with constants that were fitted without its group, from the fit of all on."""
    groups = [case.group for case in problem.cases]
    found = np.zeros(len(groups))
    for group in set(groups):
        own = np.array([one == group for one in groups])
        found[own] = problem.residuals(problem.fit(~own, at, rounds=2))[own]
    return found


def table(cases: Sequence[CollectiveCase], columns: Mapping[str, Sequence[float]]) -> list[str]:
    """Mean absolute residual by instance, LNC and kind, one column each; nothing where there is none."""
    by_kind: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        by_kind[case.instance.split(".")[0], case.lnc, case.kind].append(index)
    lines = [f"| instance | collective | rows | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    for (instance, lnc, kind), rows in sorted(by_kind.items()):
        name = f"{instance}, lnc {lnc}" if instance == "trn2" else instance
        errors = [f"{mean(abs(column[i]) for i in rows):.2f}" for column in columns.values()]
        lines.append(f"| {name} | {kind} | {len(rows)} | {' | '.join(errors)} |")
    return lines


def shipped() -> list[str]:
    """The table of all cases with the constants of the hardware files."""
    cases, _ = read()
    found = [log(case.predicted_s(case.cluster()) / case.time_s) for case in cases if not case.framework]
    return table([case for case in cases if not case.framework], {"as shipped": found})


def main() -> None:
    cases, unscored = read()
    ours = [case for case in cases if case.instance == FITTED]
    content = json.loads(FILE.read_text(encoding="utf-8"))
    problem = Problem(ours, content)
    at = problem.fit(np.ones(len(ours)), problem.start, rounds=20)
    as_fitted, held_out = problem.residuals(at), left_out(problem, at)
    today = datetime.now(timezone.utc).date().isoformat()
    errors = f"mean error of the logarithm {mean(abs(as_fitted)):.2f}, left out {mean(abs(held_out)):.2f}"
    source = (
        f"fitted by benchmarks/fit_collectives.py on {today} to {len(ours)} third-party times in {DATA.name}: {errors}"
    )
    for leaf, value in problem.values(at).items():
        if isinstance(leaf, tuple):
            entry(content["calibration"], leaf).update(value=float(f"{value:.3g}"), source=source)
    content["calibration"]["about"] = f"Compute: guesses, no trn2 training result is public. Collectives: {source}"
    FILE.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    trn1 = [case for case in cases if case.instance != FITTED]
    plain = [log(case.predicted_s(case.cluster()) / case.time_s) for case in trn1]
    print(f"{unscored} rows do not say what was timed on what")
    print("\n".join(table(ours, {"as fitted": list(as_fitted), "left out": list(held_out)})))
    print("\n".join(table(trn1, {"with the constants of training": plain})))
    for key, value in problem.values(at).items():
        print(key, f"{value:.3g}")


if __name__ == "__main__":
    main()
