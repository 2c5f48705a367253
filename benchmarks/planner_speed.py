"""Measures how fast the planner is: whole processes on named problems, layouts a second, and growth with the cluster.

    python benchmarks/planner_speed.py            some minutes; the last line is JSON
    python benchmarks/planner_speed.py --write    keeps it in benchmarks/results/planner_speed.json

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
from collections.abc import Sequence
from compileall import compile_dir
from dataclasses import replace
from pathlib import Path
from typing import Any

import autoshard
from autoshard.backends.rules import Problem, first_broken, mesh_rules
from autoshard.models.registry import load_model
from autoshard.planner.candidates import meshes
from autoshard.planner.collector import uncollected
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

KEPT = Path(__file__).parent / "results" / "planner_speed.json"
PROBLEMS = (
    ("llama3-70b", "trn1.32xlarge", 16, 1024, 0.7),
    ("llama3.1-405b", "trn2.48xlarge", 1024, 4096, 3.0),
    ("llama3.1-405b", "trn2u.48xlarge", 1024, 4096, 3.0),
    ("mixtral-8x22b", "trn1.32xlarge", 64, 1024, 2.0),
)
"""(model, instance, nodes, sequences a step, seconds that a whole process may take)."""
LAYOUTS = (
    ("llama3-70b", "trn1.32xlarge", 16, 1024, "nxd"),
    ("llama3-70b", "trn1.32xlarge", 16, 1024, "torch"),
    ("llama3.1-405b", "trn2.48xlarge", 1024, 4096, "torch"),
)
"""(model, instance, nodes, sequences a step, backend) of problems for which every legal layout is priced."""
TORCH = (
    ("llama3-70b", "trn1.32xlarge", 16, 1024, ()),
    ("mixtral-8x7b", "trn1.32xlarge", 16, 1024, ()),
    ("llama3-70b", "h100-80gb", 16, 1024, ()),
    ("llama3-8b", "trn1.32xlarge", 4, 1024, ("--operators", "solver", "--tp", "8")),
    ("llama3-70b", "trn1.32xlarge", 16, 1024, ("--operators", "solver", "--tp", "8")),
    ("llama3-8b", "trn1.32xlarge", 4, 1024, ("--operators", "solver")),
    ("llama3-70b", "trn1.32xlarge", 16, 1024, ("--operators", "solver")),
)
"""(model, instance, nodes, sequences a step, options) for backend torch: no rules of NxD leave out layouts, and the
solver shards operators."""
MOST_MEMORY_MIB = 500
WANTED_PER_CPU_S = 300_000
REPEATS = 3
GROWTH = range(5, 18)
"""Numbers of logical cores, as powers of two."""


def whole_process(model: str, instance: str, nodes: int, batch: int, options: Sequence[str] = ()) -> dict[str, float]:
    """The fastest of a few runs: seconds of wall and CPU time, memory."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "autoshard", "plan", "--model", model, "--instance", instance]
        command += ["--nodes", str(nodes), "--global-batch", str(batch), "--out", str(Path(folder) / "plan.json")]
        command += options
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


@uncollected()
def layouts_per_cpu_s(model: str, instance: str, nodes: int, batch: int, backend: str) -> dict[str, Any]:
    """Whole layouts, each with the step time and the memory of its fullest stage that `cost.estimate` would give it.

    Counted is what `--exhaustive` prices first: every draft that breaks no rule, under each recompute set for all
    stages alike, with its even cut and balanced ones that differ. Layouts that break a rule are not counted, nor are
    other cuts and sets by stage. `per_cpu_s` leaves out what layouts share: rules and parts (blocks and ends by local
    shape and recompute set), which are partitioned and priced once. `with_parts_per_cpu_s` counts all of it, from
    nothing known to the last price: the fewer layouts share the parts, the lower it is. Without garbage collection, as
    `search` runs.
    """
    training = TrainingSpec(8192, batch, load_precision("mixed_precision"))
    problem = Problem(load_model(model), training, load_cluster(instance, nodes), backend)
    begin = time.process_time()
    table = Table(problem, recompute_sets(problem, Pins()))
    for mesh in legal_layouts(problem, Pins(), Tally()):
        for draft in mesh.drafts:
            table.add(draft)
    assert len(table.parts.hidden_bytes)
    priced_s = time.process_time() - begin
    begin = time.process_time()
    layouts = sum(len(one.step_time_s) for one in table.price())
    combined_s = time.process_time() - begin
    return {
        "problem": f"{model}, {nodes} x {instance}, {backend}",
        "layouts": layouts,
        "per_cpu_s": layouts / combined_s,
        "with_parts_per_cpu_s": layouts / (priced_s + combined_s),
    }


def growth() -> list[dict[str, float]]:
    """Times for llama3-70b on ever more trn1 cores, 8 sequences a core."""
    rows = []
    model = load_model("llama3-70b")
    for power in GROWTH:
        cores = 2**power
        cluster = load_cluster("trn1.32xlarge", cores // 32)
        device = replace(cluster.device, memory_bytes=4 * cluster.device.memory_bytes)  # so that one node fits too
        training = TrainingSpec(8192, max(64, cores // 8), load_precision("mixed_precision"))
        problem = Problem(model, training, replace(cluster, device=device), "nxd")
        rules = mesh_rules(problem.backend)
        legal = sum(first_broken(rules, problem, mesh) is None for mesh in meshes(problem, Pins()))
        begin = time.process_time()
        result = search(*problem[:3])
        cpu_s = time.process_time() - begin
        rows.append({"cores": cores, "legal_meshes": legal, "considered": result.considered, "cpu_s": cpu_s})
    return rows


def main() -> None:
    compile_dir(Path(autoshard.__file__).parent, quiet=2)  # or every process does, where it may not keep bytecode
    report: dict[str, Any] = {"problems": [], "cores_of_this_machine": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"{'problem':<40} {'wall s':>7} {'CPU s':>7} {'may':>5} {'MiB':>5}")
    for model, instance, nodes, batch, may_s in PROBLEMS:
        found = whole_process(model, instance, nodes, batch)
        name = f"{model}, {nodes} x {instance}"
        print(f"{name:<40} {found['wall_s']:7.2f} {found['cpu_s']:7.2f} {may_s:5.1f} {found['memory_mib']:5.0f}")
        report["problems"].append({"problem": name, "may_s": may_s, **found})
    print(f"\n{'backend torch':<60} {'wall s':>7} {'CPU s':>7} {'MiB':>5}")
    report["torch"] = []
    for model, instance, nodes, batch, options in TORCH:
        found = whole_process(model, instance, nodes, batch, ("--backend", "torch", *options))
        name = " ".join((f"{model}, {nodes} x {instance}", *options))
        print(f"{name:<60} {found['wall_s']:7.2f} {found['cpu_s']:7.2f} {found['memory_mib']:5.0f}")
        report["torch"].append({"problem": name, **found})
    print(
        f"\n{'layouts a CPU second':<40} {'layouts':>9} {'priced':>9} {'with parts':>11}, wanted {WANTED_PER_CPU_S:,}"
    )
    report["layouts"] = [layouts_per_cpu_s(*problem) for problem in LAYOUTS]
    for rates in report["layouts"]:
        numbers = f"{rates['layouts']:9,} {rates['per_cpu_s']:9,.0f} {rates['with_parts_per_cpu_s']:11,.0f}"
        print(f"{rates['problem']:<40} {numbers}")
    print(f"\n{'cores':>8} {'legal meshes':>13} {'considered':>11} {'CPU s':>7} {'ms a mesh':>10}")
    report["growth"] = growth()
    for row in report["growth"]:
        each = 1e3 * row["cpu_s"] / row["legal_meshes"]
        print(f"{row['cores']:8,} {row['legal_meshes']:13,} {row['considered']:11,} {row['cpu_s']:7.2f} {each:10.1f}")
    if "--write" in sys.argv[1:]:
        KEPT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
