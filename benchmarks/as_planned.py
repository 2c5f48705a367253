"""Prices measured GPU layouts the way a plan does: as autoshard's own runtime would run them, on the packaged files.

The scoreboard prices each result with the software that ran it. A plan is for autoshard's runtime, which hides no
transfer behind work: this says by how much other software differs from that, source by source.

    python -m benchmarks.as_planned --write
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from autoshard.calibration.results.gpu_rows import Case, gpu_case
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.regimes import fitted_layout
from autoshard.calibration.results.rows import Unscored, read_rows
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.spec.cluster import load_cluster
from benchmarks.fitted import DATA

RESULTS = Path(__file__).parent / "results" / "as_planned.md"
EVERY = {"ultrascale-ok": 8}
"""Source -> of so many of its rows one is priced, in their order: it has more than all others together."""


class Priced(NamedTuple):
    """One result. log_ratio: log(predicted / measured). inside: whether the plan's 90 % interval holds it."""

    source: str
    log_ratio: float
    inside: bool


def priced(case: Case) -> Priced | None:
    """A result as a plan prices its layout; None for a layout that no plan has, or a part of a node."""
    try:
        cluster = load_cluster(hardware(case)[0], 1)
        nodes, rest = divmod(case.nodes * case.gpus_per_node, cluster.devices_per_node)
        if rest or not case.time_s:
            return None
        strategy = replace(case.strategy, zero=case.zero)
        found = estimate(case.model, case.training, load_cluster(hardware(case)[0], nodes), strategy, dense=case.dense)
    except AutoshardError:
        return None
    inside = found.step_time_low_s <= case.time_s <= found.step_time_high_s
    return Priced(case.source, log(found.step_time_s / case.time_s), inside)


def results() -> list[Priced]:
    """Every timed result whose layout and release are known, or one in EVERY of a source."""
    seen: dict[str, int] = {}
    found = []
    for row in read_rows(DATA / "measured_gpu.csv"):
        source = row["source_id"]
        seen[source] = seen.get(source, 0) + 1
        if seen[source] % EVERY.get(source, 1):
            continue
        try:
            case = gpu_case(row)
        except Unscored:
            continue
        one = priced(case) if case.time_s and fitted_layout(case) else None
        found += [] if one is None else [one]
    return found


def page(found: Sequence[Priced]) -> str:
    """The table by source as Markdown, and the means of sources."""
    lines = [
        "Written by `python -m benchmarks.as_planned --write`. Published GPU results beside what a plan says of the",
        "same layout: the prediction is of autoshard's own runtime, which hides no transfer behind work and runs",
        "compiled passes; what was measured is other software. So this is no error of the cost model, which the",
        "scoreboard has (`benchmarks/RESULTS.md`): it is how far a plan's number is from what others get.",
        "",
        "| source | rows | mean distance | predicted / measured | inside the plan's 90 % interval |",
        "|---|---|---|---|---|",
    ]
    sources = {
        source: [one for one in found if one.source == source] for source in sorted({one.source for one in found})
    }
    for source, rows in sources.items():
        lines.append(f"| {source} | {len(rows)} | {_distance(rows):.1%} | {_ratio(rows):.2f} | {_inside(rows):.0%} |")
    distance, inside = (mean(map(of, sources.values())) for of in (_distance, _inside))
    return "\n".join([*lines, "", f"Mean of sources: {distance:.1%}, {inside:.0%} inside.", ""])


def _distance(rows: Sequence[Priced]) -> float:
    return mean(abs(exp(one.log_ratio) - 1) for one in rows)


def _ratio(rows: Sequence[Priced]) -> float:
    return exp(mean(one.log_ratio for one in rows))


def _inside(rows: Sequence[Priced]) -> float:
    return mean(one.inside for one in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.as_planned", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args(arguments)
    text = page(results())
    print(text)
    if options.write:
        RESULTS.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
