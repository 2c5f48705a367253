"""Measures how a plan's time and memory grow: with nodes, with layers, with kinds of blocks; backend torch, nothing
pinned.

    python benchmarks/planner_growth.py            some minutes; prints the table
    python benchmarks/planner_growth.py --write    keeps it in results/planner_growth.json and draws planner_growth.svg

Each point is a process of its own, which plans once. Its CPU seconds and memory are those of the whole process, imports
included. A point that takes more than STOP_CPU_S is kept without numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import autoshard
from autoshard.models.registry import load_model
from autoshard.spec.model import ModelSpec

KEPT = Path(__file__).parent / "results" / "planner_growth.json"
DRAWN = KEPT.with_suffix(".svg")
STOP_CPU_S = 40
NODES, LAYERS, KINDS = (4**power for power in range(9)), (2**power for power in range(2, 10)), range(1, 9)
BLOCKS = 16
"""Of the model whose kinds of blocks grow."""
SEQUENCES_A_NODE, LONGEST = 16, 1_048_576
WIDTH, HEIGHT, MARGIN = 300, 220, 40
TIME_COLOR, MEMORY_COLOR = "#1f77b4", "#d62728"


class Point(NamedTuple):
    """One problem. grows: what the series is about: nodes, layers or kinds; `largest` is all at once."""

    grows: str
    value: int

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `autoshard.plan`."""
        if self.grows == "largest":
            batch = SEQUENCES_A_NODE * self.value
            return {"instance": "trn2.48xlarge", "nodes": self.value, "global_batch": batch, "seq_len": LONGEST}
        if self.grows == "nodes":
            batch = max(1024, SEQUENCES_A_NODE * self.value)
            return {"instance": "trn2.48xlarge", "nodes": self.value, "global_batch": batch}
        return {"instance": "h100-80gb", "nodes": 32 if self.grows == "layers" else 8}

    @property
    def model(self) -> ModelSpec:
        if self.grows == "layers":
            return replace(load_model("llama3-8b"), name=f"{self.value} layers", num_hidden_layers=self.value)
        if self.grows == "kinds":
            return with_kinds(self.value)
        return load_model("llama3-70b")


def with_kinds(count: int) -> ModelSpec:
    """Sixteen blocks of Llama 4 Maverick with 16 experts, of so many kinds in turn: with an MLP or experts, full or
    chunked attention, with and without positions."""
    kinds = [*product(("dense", "sparse"), ("full_attention", "chunked_attention"), ("rope", "nope"))][:count]
    mlp, attention, positions = zip(*(kinds[layer % count] for layer in range(BLOCKS)), strict=True)
    types = {"layer_types": attention, "mlp_layer_types": mlp, "position_types": positions}
    fewer = {"num_local_experts": 16, "num_hidden_layers": BLOCKS}
    return replace(load_model("llama4-maverick"), name=f"{count} kinds", **fewer, **types)


def points() -> Iterator[Point]:
    """All points, series by series."""
    for grows, values in (("nodes", NODES), ("layers", LAYERS), ("kinds", KINDS), ("largest", (65_536,))):
        for value in values:
            yield Point(grows, value)


def measured(point: Point) -> dict[str, Any]:
    """CPU seconds and memory of a process that plans a point, and what it found."""
    command = [sys.executable, __file__, "--point", point.grows, str(point.value)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read().strip()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    row: dict[str, Any] = {**point._asdict(), "cpu_s": None, "memory_mib": None, "found": said or None}
    if process.returncode == 0:
        row |= {"cpu_s": usage.ru_utime + usage.ru_stime, "memory_mib": usage.ru_maxrss / 1024}
    return row


def plan_point(point: Point) -> str:
    """What `autoshard.plan` says of a point, in words."""
    try:
        plan = autoshard.plan(point.model, backend="torch", top=0, **point.options)
    except autoshard.NoLayoutFits:
        return "nothing fits"
    assert plan.search is not None
    return f"{plan.estimate.step_time_s:.6g} s a step; {plan.search.optimality}"


def drawing(rows: Sequence[dict[str, Any]]) -> str:
    """CPU seconds and memory over nodes, layers and kinds, side by side, as SVG."""
    series = ("nodes", "layers", "kinds")
    text = '<text x="{:.1f}" y="{:.1f}" font-size="11" text-anchor="{}" fill="{}">{}</text>'
    wide = WIDTH * len(series)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{wide}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for panel, grows in enumerate(series):
        known = [row for row in rows if row["grows"] == grows and row["cpu_s"] is not None]
        left, right, floor = panel * WIDTH + MARGIN, (panel + 1) * WIDTH - MARGIN, HEIGHT - MARGIN
        lines.append(f'<path d="M{left} {MARGIN}V{floor}H{right}V{MARGIN}" fill="none" stroke="#888888"/>')
        lines.append(text.format((left + right) / 2, HEIGHT - 8, "middle", "#222222", grows))
        for name, unit, color, side in (
            ("cpu_s", "CPU s", TIME_COLOR, left),
            ("memory_mib", "MiB", MEMORY_COLOR, right),
        ):
            most = max((row[name] for row in known), default=1.0)
            lines.append(text.format(side, MARGIN - 8, "middle", color, f"{most:.3g} {unit}"))
            step = (right - left) / max(1, len(known) - 1)
            places = [
                (left + place * step, floor - (floor - MARGIN) * row[name] / most) for place, row in enumerate(known)
            ]
            path = " ".join(f"{across:.1f},{down:.1f}" for across, down in places)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for place in {0, len(known) // 2, len(known) - 1} if known else ():
            across = left + place * (right - left) / max(1, len(known) - 1)
            lines.append(text.format(across, floor + 14, "middle", "#222222", f"{known[place]['value']:,}"))
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        resource.setrlimit(resource.RLIMIT_CPU, (STOP_CPU_S, STOP_CPU_S))
        print(plan_point(Point(asked.point[0], int(asked.point[1]))))
        return
    compile_dir(Path(autoshard.__file__).parent, quiet=2)  # or every process does, where it may not keep bytecode
    rows = []
    for point in points():
        row = measured(point)
        rows.append(row)
        numbers = f"{'over ' + str(STOP_CPU_S):>8} {'':>6}"
        if row["cpu_s"] is not None:
            numbers = f"{row['cpu_s']:8.2f} {row['memory_mib']:6.0f}"
        print(f"{point.grows:<8} {point.value:>7,} {numbers}  {row['found']}", flush=True)
    if asked.write:
        report = {"cores_of_this_machine": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
        DRAWN.write_text(drawing(rows))


if __name__ == "__main__":
    main()
