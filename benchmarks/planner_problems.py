"""Measures plans of a generated set of problems: any built-in model, any packaged instance, 1 to 1,024 nodes, backend
torch, nothing pinned. Each is a whole process of `autoshard plan`.

    python -m benchmarks.planner_problems                          all 200, once each
    python -m benchmarks.planner_problems --problems 40            the first 40, a sample of the same set
    python -m benchmarks.planner_problems --such granite           those with this text in their names
    python -m benchmarks.planner_problems --exhaustive             also whether the answer is the exhaustive one
    python -m benchmarks.planner_problems --before FOLDER          also another copy of the project, in the same run
    python -m benchmarks.planner_problems --write                  keeps them in results/planner_problems.json

The last line is JSON. Problems of which no layout fits count too: they need an answer as soon as others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from compileall import compile_dir
from pathlib import Path
from typing import Any, NamedTuple

import autoshard
from autoshard.models.registry import builtin_models
from autoshard.spec.cluster import instances
from benchmarks.whole_process import finished

KEPT = Path(__file__).parent / "results" / "planner_problems.json"
PROBLEMS = 200
SEED = 21
MOST_NODES_LOG2 = 10
LARGE_CLUSTER_NODES = 128
"""From here on steps have more sequences."""
MAY_CPU_S, MOST_CPU_S = 1.5, 2.0
"""CPU seconds that 95 % of the problems and all of them may take."""
STOP_S, EXHAUSTIVE_STOP_S = 120, 900
"""Wall seconds that a search may take, and an exhaustive one."""


class Question(NamedTuple):
    """One problem of the set."""

    model: str
    instance: str
    nodes: int
    global_batch: int

    @property
    def options(self) -> list[str]:
        """Options of `autoshard plan`."""
        words = ["--model", self.model, "--instance", self.instance, "--nodes", str(self.nodes)]
        return [*words, "--global-batch", str(self.global_batch), "--backend", "torch"]

    def __str__(self) -> str:
        return f"{self.model}, {self.nodes} x {self.instance}"


def questions(count: int = PROBLEMS) -> list[Question]:
    """The first `count` problems of the set: always the same."""
    draw = random.Random(SEED)
    models, known = builtin_models(), instances()
    found = []
    for _ in range(count):
        nodes = 2 ** draw.randrange(MOST_NODES_LOG2 + 1)
        batch = 1024 if nodes < LARGE_CLUSTER_NODES else 4096
        found.append(Question(draw.choice(models), draw.choice(known), nodes, batch))
    return found


def whole_process(
    question: Question, options: Sequence[str] = (), copy: Path | None = None, stop_s: int = STOP_S
) -> dict[str, Any]:
    """Wall and CPU seconds and memory of one process, and what it answered in stop_s seconds: a step time, or that
    nothing fits. copy: of the project, the folder of another one."""
    environment = dict(os.environ) if copy is None else {**os.environ, "PYTHONPATH": str(copy)}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "autoshard", "plan", *question.options, *options, "--out", str(out)]
        done = finished(command, stop_s, copy, environment)
        plan = json.loads(out.read_text()) if out.exists() else None
    return {
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "memory_mib": done.memory_mib,
        "step_time_s": None if plan is None else plan["estimate"]["step_time_s"],
        "optimality": None if plan is None else plan["search"]["optimality"],
        "load": os.getloadavg()[0],
        "in_time": done.in_time,
        "refused": done.errors or None,
    }


def summed_up(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What the rows have in common: medians, the slowest, how many are as fast as is wanted."""
    cpu_s = sorted(row["cpu_s"] for row in rows)
    return {
        "problems": len(rows),
        "cpu_s_median": cpu_s[len(cpu_s) // 2],
        "cpu_s_95_percent": cpu_s[min(len(cpu_s) - 1, int(0.95 * len(cpu_s)))],
        "cpu_s_most": cpu_s[-1],
        "memory_mib_most": max(row["memory_mib"] for row in rows),
        "within_may": sum(seconds <= MAY_CPU_S for seconds in cpu_s) / len(rows),
        "within_most": sum(seconds <= MOST_CPU_S for seconds in cpu_s) / len(rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--such", default="", help="only problems whose name has this text")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    for copy in (Path(autoshard.__file__).parent.parent, *filter(None, [asked.before])):
        compile_dir(copy / "autoshard", quiet=2)  # or every process does, where it may not keep bytecode
    rows: list[dict[str, Any]] = []
    print(f"{'problem':<48} {'wall s':>7} {'CPU s':>7} {'MiB':>5}  step s")
    for question in (one for one in questions(asked.problems) if asked.such in str(one)):
        found = whole_process(question)
        row = {"problem": str(question), **found}
        step_s = found["step_time_s"]
        words = "nothing fits" if step_s is None else f"{step_s:.6g}"
        if asked.exhaustive:
            every = whole_process(question, ("--exhaustive",), stop_s=EXHAUSTIVE_STOP_S)
            row["exhaustive_step_time_s"] = every_s = every["step_time_s"]
            same = step_s == every_s or (step_s and every_s and abs(step_s / every_s - 1) <= 1e-6)
            in_time = " as exhaustive" if same else f" NOT {every_s}"
            words += in_time if every["in_time"] else f" exhaustive takes more than {EXHAUSTIVE_STOP_S} s"
        if asked.before:
            row["before"] = before = whole_process(question, copy=asked.before.resolve())
            words += f", before {before['cpu_s']:.2f} CPU s"
        print(f"{question!s:<48} {found['wall_s']:7.2f} {found['cpu_s']:7.2f} {found['memory_mib']:5.0f}  {words}")
        rows.append(row)
    summary = summed_up(rows)
    report: dict[str, Any] = {"cores_of_this_machine": os.cpu_count(), "summary": summary}
    if asked.before:
        report["summary_before"] = summed_up([row["before"] for row in rows])
    report["rows"] = rows
    if asked.write:
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
