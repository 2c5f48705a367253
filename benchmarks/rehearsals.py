"""Rehearses plans of real models that the planner found for random clusters and choices: each must equal one process.

Plan 0 is llama3-8b on 4 H100 nodes with tp=2, cp=4 and Ulysses. A plan's number alone says what is asked. Results go to
results/rehearsals.json, beside those of other runs, and as a table to results/rehearsals.md.

    python -m benchmarks.rehearsals                       # plans 0 to 19, some 10 minutes on 2 idle cores
    python -m benchmarks.rehearsals --first 20 --plans 50 # others; the last line is JSON
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.models import builtin_models
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.names import layout_name
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.options import RunOptions
from autoshard.runtime.rehearse import rehearse
from autoshard.runtime.run import run_plan

RESULTS = Path(__file__).parent / "results"
REPORTED = PlanRequest("llama3-8b", "h100-80gb", 4, pins={"tp": 2, "cp": 4, "context_parallel": "ulysses"})
CLUSTERS = (
    ("trn1.32xlarge", (1, 2, 4, 16)),
    ("trn2.48xlarge", (1, 2, 4)),
    ("h100-80gb", (1, 2, 4)),
    ("a100-80gb", (2, 4)),
    ("b200-180gb", (1, 2)),
)
"""(instance, numbers of nodes) that problems are drawn from."""
PINNED: tuple[dict[str, Any], ...] = (
    {"tp": 8},
    {"tp": 2, "pp": 2},
    {"pp": 4},
    {"pp": 4, "vpp": 2},
    {"pp": 2, "schedule": "zero_bubble"},
    {"cp": 2},
    {"cp": 2, "context_parallel": "ulysses"},
    {"cp": 2, "context_parallel": "zigzag_ring"},
    {"cp": 2, "tp": 2, "context_parallel": "all_gather"},
    {"ep": 4},
    {"ep": 4, "cp": 2},
    {"zero": 2},
    {"zero": 3},
    {"micro_batch": 2},
    {"recompute": "full"},
)
STEPS = 3
"""Steps of each run: the FP32 step decides, and a few in the plan's precision are compared."""
HEADER = ("plan", "what", "layout", "here", "left out", "verdict", "seconds")


def drawn(number: int) -> Plan:
    """The plan of a number: one of the best layouts for a random request that has an answer."""
    random = Random(number)
    while True:
        instance, nodes = random.choice(CLUSTERS)
        request = PlanRequest(
            random.choice(builtin_models()),
            instance,
            random.choice(nodes),
            global_batch=random.choice((64, 256, 1024)),
            precision=random.choice(("mixed_precision", "mixed_precision", "bf16_sr", "fp32")),
            pins=random.choice(PINNED),
        )
        try:
            plan = plan_for(request if number else REPORTED)
        except AutoshardError:  # no such layout of this model there
            continue
        if not number or not plan.runners_up or random.random() < 0.5:
            return plan
        one = random.choice(plan.runners_up)
        return make_plan(plan.model, plan.training, plan.cluster, plan.backend, one.strategy, one.estimate)


def rehearsed(number: int, processes: int) -> dict[str, Any]:
    """The results of rehearsing one plan."""
    plan, said = drawn(number), io.StringIO()
    found: dict[str, Any] = {
        "plan": number,
        "what": f"{plan.model.name}, {plan.cluster.nodes} x {plan.cluster.instance}, {plan.backend}",
        "layout": layout_name(plan.strategy),
    }
    start = perf_counter()
    try:
        small = rehearse(plan, processes, 256)
        found |= {"here": layout_name(small.plan.strategy), "left out": ", ".join(small.left_out)}
        with (
            TemporaryDirectory(prefix="autoshard-rehearsal-") as folder,
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            run_plan(plan, RunOptions(steps=STEPS, processes=processes, output=Path(folder), device="cpu"))
        line = said.getvalue().strip().splitlines()[-1]
    except AutoshardError as error:
        line = f"error: {error}"
    return {**found, "verdict": line.partition(":")[0] if line.startswith("OK") else line, "seconds": seconds(start)}


def seconds(start: float) -> int:
    return round(perf_counter() - start)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    cells = [HEADER, ("---",) * len(HEADER), *([str(row.get(name, "")) for name in HEADER] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=8)
    arguments = parser.parse_args()
    file = RESULTS / "rehearsals.json"
    rows = {row["plan"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    wrong = []
    for number in range(arguments.first, arguments.first + arguments.plans):
        row = rows[number] = rehearsed(number, arguments.processes)
        print(f"{number}: {row['what']}, {row['layout']}: {row['verdict']} ({row['seconds']} s)", flush=True)
        wrong += [number] if row["verdict"] != "OK" else []
        file.write_text(json.dumps([rows[one] for one in sorted(rows)], indent=1) + "\n")
        (RESULTS / "rehearsals.md").write_text(table([rows[one] for one in sorted(rows)]))
    print(json.dumps({"plans": arguments.plans, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
