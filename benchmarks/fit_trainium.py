"""Fits trn1 to published training results: `python -m benchmarks.fit_trainium [--trainium CSV]`.

Writes the constants into the `calibration` of autoshard/hardware/trn1.32xlarge.json and trn1n.32xlarge.json, with their
data, date, points and errors, and prints every result as fitted and with its model left out of the fit. All results of
one model share a layout and differ in the release of the SDK: each model counts as one.
"""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from autoshard.cost.estimate import estimate
from autoshard.spec.cluster import Cluster
from autoshard.spec.hardware_file import FOLDER
from benchmarks.constants import Constant
from benchmarks.trainium_rows import TrainiumCase, trainium_case

DATA = Path(__file__).parent / "data" / "measured_trainium.csv"
FILES = ("trn1.32xlarge", "trn1n.32xlarge")
NOISE = 0.06
"""Of the logarithm of a step time: one layout differs by 6 to 27 % between releases."""
ROUNDS = 8
Leaf = tuple[str, ...]
Values = Mapping[Leaf, float]

CONSTANTS: dict[Leaf, Constant] = {
    ("matmul_efficiency",): Constant(0.82, 0.1, "share of the peak that a large matrix product reaches; prior: GPUs'"),
    ("memory_efficiency",): Constant(
        0.66, 0.1, "share of the memory bandwidth; prior: the NKI guide's 16 DMA engines a core move 272 GB/s of 410"
    ),
    ("pass_launch_s",): Constant(0.01, 0.5, "once a pass of a microbatch through a stage; prior: a guess, as on trn2"),
    ("link_efficiency_by_chips", "4"): Constant(
        0.15, 0.25, "share of a chip's links for tp=8; prior: 0.56 of that over 16 chips, as 8 chips of trn2 reach"
    ),
    ("link_efficiency_by_chips", "16"): Constant(
        0.27, 0.2, "share of a chip's links for tp=32; prior: all_reduce of 512 MiB over 16 ranks, nccom-test.rst"
    ),
}
"""No prior is a fit to these results, but about ten sets of priors were tried while the errors with layouts left out
were looked at: those errors are somewhat optimistic."""


def shipped(name: str = FILES[0]) -> dict[Leaf, float]:
    """What the hardware file says."""
    calibration = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["calibration"]
    return {leaf: float(_entry(calibration, leaf)["value"]) for leaf in CONSTANTS}


def _entry(calibration: dict[str, Any], leaf: Leaf) -> dict[str, Any]:
    for name in leaf:
        calibration = calibration[name]
    return calibration


def altered(cluster: Cluster, now: Values, values: Values) -> Cluster:
    """With other constants. now: what the cluster was read with."""
    ratios = {leaf: values[leaf] / now[leaf] for leaf in CONSTANTS}
    links = []
    for devices, link in cluster.intra_node:
        ratio = ratios.get(("link_efficiency_by_chips", str(devices // cluster.devices_per_chip)), 1.0)
        links.append((devices, replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * ratio)))
    device = replace(
        cluster.device,
        matmul_efficiency=values[("matmul_efficiency",)],
        memory_efficiency=values[("memory_efficiency",)],
        pass_launch_s=values[("pass_launch_s",)],
    )
    return replace(cluster, device=device, intra_node=tuple(links))


class Problem:
    """Residuals log(predicted / measured) and their slope by the logarithms of the constants."""

    def __init__(self, cases: Sequence[TrainiumCase]) -> None:
        self.cases, self.now = list(cases), shipped()
        self.groups = [case.group for case in cases]
        self.prior = np.log([constant.prior for constant in CONSTANTS.values()])
        self.spread = np.array([constant.spread for constant in CONSTANTS.values()])

    def predicted_s(self, case: TrainiumCase, logs: np.ndarray) -> float:
        values = {leaf: exp(one) for leaf, one in zip(CONSTANTS, logs, strict=True)}
        cluster = altered(case.cluster, self.now, values)
        return estimate(case.model, case.training, cluster, case.strategy).step_time_s

    def residuals(self, logs: np.ndarray) -> np.ndarray:
        """Equal questions are asked once."""
        known: dict[object, float] = {}
        for case in self.cases:
            asked = (case.model, case.training, case.cluster, case.strategy)
            if asked not in known:
                known[asked] = self.predicted_s(case, logs)
        return np.array([log(known[c.model, c.training, c.cluster, c.strategy] / c.time_s) for c in self.cases])

    def slope(self, logs: np.ndarray, now: np.ndarray, step: float = 0.01) -> np.ndarray:
        columns = [(self.residuals(logs + step * unit) - now) / step for unit in np.eye(len(logs))]
        return np.stack(columns, axis=1)

    def solve(self, at: np.ndarray, now: np.ndarray, slope: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Least squares of those rows, each group as one, and of the distance to the priors, on the straight line."""
        weights = np.array([1 / self.groups.count(group) for group in self.groups]) * rows / NOISE**2
        A = (slope * weights[:, None]).T @ slope + np.diag(1 / self.spread**2)
        b = -(slope * weights[:, None]).T @ now - (at - self.prior) / self.spread**2
        found: np.ndarray = at + np.clip(np.linalg.solve(A, b), -0.5, 0.5)
        return found


def fit(problem: Problem) -> np.ndarray:
    """Logarithms of the constants, fitted to all."""
    at, everything = problem.prior, np.ones(len(problem.cases))
    for _ in range(ROUNDS):
        now = problem.residuals(at)
        at = problem.solve(at, now, problem.slope(at, now), everything)
    return at


def left_out_predictions(cases: Sequence[TrainiumCase]) -> list[float]:
    """Seconds of each case with constants fitted to all other groups, on the straight line through the shipped ones."""
    problem = Problem(cases)
    at = np.log(list(problem.now.values()))
    now = problem.residuals(at)
    slope, found = problem.slope(at, now), {}
    for group in dict.fromkeys(problem.groups):
        rows = np.array([float(one != group) for one in problem.groups])
        found[group] = problem.solve(at, now, slope, rows) if rows.any() else at
    return [problem.predicted_s(case, found[case.group]) for case in cases]


def read(path: Path = DATA) -> list[TrainiumCase]:
    with path.open(encoding="utf-8", newline="") as file:
        return [trainium_case(row) for row in csv.DictReader(file)]


def write(values: Values, source: str) -> None:
    """Into the calibration of both instance types, whose chips and links are the same."""
    for name in FILES:
        path = FOLDER / f"{name}.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        for leaf, constant in CONSTANTS.items():
            text = f"{source}; {constant.meaning} ({constant.prior:g})"
            _entry(content["calibration"], leaf).update(value=float(f"{values[leaf]:.3g}"), source=text)
        content["calibration"]["about"] = f"Compute and links: {source}. Latencies and adapters: nccom-test, README.md."
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("--trainium", type=Path, default=DATA)
    path = parser.parse_args().trainium
    cases = read(path)
    problem = Problem(cases)
    at = fit(problem)
    fitted = np.abs(np.exp(problem.residuals(at)) - 1)
    today = datetime.now(timezone.utc).date().isoformat()
    counts = f"{len(cases)} results of {len(set(problem.groups))} layouts in {path.name}"
    values = {leaf: exp(one) for leaf, one in zip(CONSTANTS, at, strict=True)}
    write(values, f"fitted by benchmarks/fit_trainium.py on {today} to {counts}, mean error {fitted.mean():.1%}")
    held_out = left_out_predictions(cases)
    errors = [abs(seconds / case.time_s - 1) for case, seconds in zip(cases, held_out, strict=True)]
    for case, error, seconds in zip(cases, fitted, held_out, strict=True):
        print(f"{case.key:5} {case.group:30} {case.time_s:8.2f} s, fitted {error:6.1%} off, left out {seconds:8.2f} s")
    for leaf, value in values.items():
        print(f"{'.'.join(leaf):32} {value:.3g} (prior {CONSTANTS[leaf].prior:g})")
    print(f"as fitted: mean {fitted.mean():.1%}, worst {fitted.max():.1%}")
    print(f"layouts left out: mean {mean(errors):.1%}, worst {max(errors):.1%}")


if __name__ == "__main__":
    main()
