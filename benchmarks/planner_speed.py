"""How fast the planner is: whole processes on named problems, layouts a second, and growth with the cluster.

    python benchmarks/planner_speed.py            about a minute; the last line is JSON

Wall time depends on what else the machine does; CPU time much less. A whole process is `autoshard plan` from start to
the written plan, on as many cores as the machine has (the planner uses one).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.models.registry import load_model
from autoshard.search import Pins, search
from autoshard.search import evaluate as evaluation
from autoshard.search.candidates import meshes
from autoshard.search.rules import MESH_RULES, Problem, first_broken
from autoshard.search.search import fitting_layouts
from autoshard.search.tally import Tally
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

PROBLEMS = (
    ("llama3-70b", "trn1.32xlarge", 16, 1024, 0.7),
    ("llama3.1-405b", "trn2.48xlarge", 1024, 4096, 3.0),
    ("mixtral-8x22b", "trn1.32xlarge", 64, 1024, 2.0),
)
"""(model, instance, nodes, sequences a step, seconds that a whole process may take)."""
MOST_MEMORY_MIB = 500
WANTED_PER_CPU_S = 300_000
REPEATS = 3
GROWTH = range(5, 18)
"""Powers of two of logical cores."""


def whole_process(model: str, instance: str, nodes: int, batch: int) -> dict[str, float]:
    """The quickest of a few runs: seconds of wall and CPU, memory."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "autoshard", "plan", "--model", model, "--instance", instance]
        command += ["--nodes", str(nodes), "--global-batch", str(batch), "--out", str(Path(folder) / "plan.json")]
        for _ in range(REPEATS):
            begin = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, command
            runs.append((wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return {
        "wall_s": min(run[0] for run in runs),
        "cpu_s": min(run[1] for run in runs),
        "memory_mib": max(run[2] for run in runs),
    }


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the layouts whose step time is asked for."""
    count = [0]
    original = evaluation.time_values

    def counting(*arguments: Any) -> Any:
        count[0] += 1
        return original(*arguments)

    evaluation.time_values = counting
    try:
        yield count
    finally:
        evaluation.time_values = original


def layouts_per_cpu_s(model: str, instance: str, nodes: int, batch: int) -> dict[str, float]:
    """Every layout that fits, with memory and step time, and every layout that the search considers."""
    training = TrainingSpec(8192, batch, load_precision("mixed_precision"))
    problem = Problem(load_model(model), training, load_cluster(instance, nodes), "nxd")
    search(*problem[:3])  # tables of the cost model are filled once
    begin = time.process_time()
    fitting = list(fitting_layouts(problem, Pins(), Tally()))
    with counted() as count:
        for one in fitting:
            assert one.memory_bytes > 0 and one.step_time_s > 0
    full_s = time.process_time() - begin
    begin = time.process_time()
    considered = search(*problem[:3]).considered
    return {
        "fully_evaluated": float(count[0]),
        "fully_evaluated_per_cpu_s": count[0] / full_s,
        "considered_per_cpu_s": considered / (time.process_time() - begin),
    }


def growth() -> list[dict[str, float]]:
    """llama3-70b on ever more trn1 cores, 8 sequences a core."""
    rows = []
    model = load_model("llama3-70b")
    for power in GROWTH:
        cores = 2**power
        cluster = load_cluster("trn1.32xlarge", cores // 32)
        device = replace(cluster.device, memory_bytes=4 * cluster.device.memory_bytes)  # so that one node fits too
        training = TrainingSpec(8192, max(64, cores // 8), load_precision("mixed_precision"))
        problem = Problem(model, training, replace(cluster, device=device), "nxd")
        legal = sum(first_broken(MESH_RULES, problem, mesh) is None for mesh in meshes(problem, Pins()))
        begin = time.process_time()
        result = search(*problem[:3])
        cpu_s = time.process_time() - begin
        rows.append({"cores": cores, "legal_meshes": legal, "considered": result.considered, "cpu_s": cpu_s})
    return rows


def main() -> None:
    report: dict[str, Any] = {"problems": [], "cores_of_this_machine": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"{'problem':<40} {'wall s':>7} {'CPU s':>7} {'may':>5} {'MiB':>5}")
    for model, instance, nodes, batch, may_s in PROBLEMS:
        found = whole_process(model, instance, nodes, batch)
        name = f"{model}, {nodes} x {instance}"
        print(f"{name:<40} {found['wall_s']:7.2f} {found['cpu_s']:7.2f} {may_s:5.1f} {found['memory_mib']:5.0f}")
        report["problems"].append({"problem": name, "may_s": may_s, **found})
    report["layouts"] = layouts_per_cpu_s("llama3-70b", "trn1.32xlarge", 16, 1024)
    rates = report["layouts"]
    print(
        f"\nlayouts a CPU second: {rates['considered_per_cpu_s']:,.0f} considered, "
        f"{rates['fully_evaluated_per_cpu_s']:,.0f} priced in full (wanted {WANTED_PER_CPU_S:,})"
    )
    print(f"\n{'cores':>8} {'legal meshes':>13} {'considered':>11} {'CPU s':>7} {'ms a mesh':>10}")
    report["growth"] = growth()
    for row in report["growth"]:
        each = 1e3 * row["cpu_s"] / row["legal_meshes"]
        print(f"{row['cores']:8,} {row['legal_meshes']:13,} {row['considered']:11,} {row['cpu_s']:7.2f} {each:10.1f}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
