"""Measures how long answers take, as whole processes: plans, explanations, sweeps, audits, second questions.

    python -m benchmarks.planner_speed                      half an hour; the last line is JSON
    python -m benchmarks.planner_speed --before FOLDER      also another copy of the project, in the same run
    python -m benchmarks.planner_speed --such explain       those with this text in their names
    python -m benchmarks.planner_speed --write              keeps it in results/planner_speed.{json,md}, with --such
                                                            beside what is kept of the others

Copies take turns, and the table has medians. A question whose runs take long is asked less often, once at least. Times
depend on the machine and on what else it does: only those of one run can be compared. benchmarks.planner_problems
measures plans of a generated set, benchmarks.planner_growth how they grow.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from autoshard.backends.rules import Problem
from autoshard.models.registry import load_model
from autoshard.planner.collector import uncollected
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.whole_process import finished

PROJECT = Path(__file__).parent.parent
KEPT = PROJECT / "benchmarks" / "results" / "planner_speed.json"
REPEATS, ENOUGH_S, STOP_S = 7, 60.0, 300
"""How often a question is asked; seconds after which it is not asked again; seconds after which it is stopped."""
HEADER = ("question", "asked s", "before s", "now s", "CPU s", "MiB", "runs", "before is", "now is")
LLAMA_70B = ("--model", "llama3-70b", "--nodes", "16", "--global-batch", "1024")
MIXTRAL = ("--model", "mixtral-8x7b", "--nodes", "16", "--global-batch", "1024", "--backend", "torch")
LONG_CONTEXT = ("--model", "llama3-70b", "--instance", "trn2.48xlarge", "--nodes", "4", "--cp", "4")
MANY_CORES = ("--model", "llama3-70b", "--instance", "trn2.48xlarge", "--nodes", "65536")
MILLION = ("--global-batch", "1048576", "--seq-len", "1048576")
TORCH = ("--backend", "torch")
SECOND_QUESTION = """
import time, autoshard
plan = autoshard.plan({model!r}, "trn1.32xlarge", nodes=16, global_batch=1024, backend={backend!r})
begin = time.perf_counter()
{question}
print(time.perf_counter() - begin)
"""
"""A program, whose last line is the seconds that its second question took."""
SWEEP = """
model: llama3-70b
instance: trn1.32xlarge
backend: {backend}
grid:
  nodes: [8, 12, 16, 20, 24, 32, 40, 48, 56, 64]
  seq_len: [1024, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384, 32768]
  global_batch: [256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 4096]
"""
RATES = (
    ("llama3-70b", "trn1.32xlarge", 16, 1024, "nxd"),
    ("llama3-70b", "trn1.32xlarge", 16, 1024, "torch"),
    ("llama3.1-405b", "trn2.48xlarge", 1024, 4096, "torch"),
)
"""(model, instance, nodes, sequences a step, backend) of problems for which every legal layout is priced."""


class Question(NamedTuple):
    """One question. words: of `autoshard`; asked_s: wall seconds that the answer may take. plan: options of a plan that
    is written to plan.json before. program: instead of words, Python whose last line is its seconds. sweep: the text of
    sweep.yaml."""

    name: str
    asked_s: float
    words: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    program: str = ""
    sweep: str = ""


def questions() -> Iterator[Question]:
    """All of them."""

    def plan(name: str, asked_s: float, *options: str) -> Question:
        return Question(f"plan, {name}", asked_s, ("plan", *options, "--out", "plan.json"))

    yield plan("70B on 16 trn1 nodes, nxd", 1.0, *LLAMA_70B)
    yield plan("70B on 16 trn1 nodes", 1.0, *LLAMA_70B, *TORCH)
    yield plan("70B on 16 H100 nodes", 1.0, *LLAMA_70B, "--instance", "h100-80gb", *TORCH)
    yield plan("Mixtral 8x7B on 16 trn1 nodes", 1.0, *MIXTRAL)
    yield plan(
        "Qwen3 30B-A3B on 32 B200 nodes",
        1.0,
        *("--model", "qwen3-30b-a3b", "--instance", "b200-180gb", "--nodes", "32", "--global-batch", "1024", *TORCH),
    )
    yield plan("70B on 65,536 trn2 nodes, a million sequences of a million tokens", 2.0, *MANY_CORES, *MILLION, *TORCH)
    yield plan("70B on 16 trn1 nodes, operators by the solver", 4.0, *LLAMA_70B, *TORCH, "--operators", "solver")
    for backend in ("nxd", "torch"):
        yield Question(
            f"explain in full, 70B on 16 trn1 nodes, {backend}",
            2.0,
            ("explain", "plan.json"),
            (*LLAMA_70B, "--backend", backend),
        )
    for name, model in (("70B", "llama3-70b"), ("Mixtral 8x7B", "mixtral-8x7b")):
        for what, question in (
            ("why not tp=4", "autoshard.why_not(plan, 'tp=4')"),
            (
                "another tp",
                f"autoshard.plan({model!r}, 'trn1.32xlarge', nodes=16, global_batch=1024, backend='torch', tp=8)",
            ),
        ):
            program = SECOND_QUESTION.format(model=model, backend="torch", question=question)
            yield Question(f"second question, {name}: {what}", 0.2, program=program)
    for backend in ("nxd", "torch"):
        yield Question(
            f"sweep of 1,000 points, {backend}",
            60.0,
            ("sweep", "sweep.yaml", "--out", "sweep"),
            sweep=SWEEP.format(backend=backend),
        )
    audit = ("audit", "plan.json")
    yield Question("audit, 70B on 16 trn1 nodes", 15.0, audit, LLAMA_70B)
    large = ("--model", "llama3.1-405b", "--instance", "trn2.48xlarge", "--nodes", "32")
    yield Question("audit, 405B on 32 trn2 nodes", 40.0, audit, large)
    yield Question("audit, 70B on 4 trn2 nodes, cp=4", 60.0, audit, LONG_CONTEXT)
    yield Question("rehearsal, 70B on 16 trn1 nodes", 10.0, ("run", "plan.json", "--out", "run"), LLAMA_70B)


class Answer(NamedTuple):
    """What one run took. wall_s: None where it failed or was stopped, as words says."""

    wall_s: float | None
    cpu_s: float
    memory_mib: float
    words: str = ""


def asked(question: Question, project: Path) -> Answer:
    """A run of a copy of the project."""
    autoshard = [sys.executable, "-m", "autoshard"]
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(project), "XDG_CACHE_HOME": folder}  # no audit is known
        if question.plan:
            first = [*autoshard, "plan", *question.plan, "--out", "plan.json"]
            planned = finished(first, STOP_S, Path(folder), environment)
            if planned.status:
                return Answer(None, 0.0, 0.0, planned.errors)
        Path(folder, "sweep.yaml").write_text(question.sweep, encoding="utf-8")
        command = [sys.executable, "-c", question.program] if question.program else [*autoshard, *question.words]
        done = finished(command, STOP_S, Path(folder), environment)
    wall_s = (float(done.output) if question.program else done.wall_s) if done.status == 0 else None
    words = done.errors if done.in_time else f"stopped after {STOP_S} s"
    return Answer(wall_s, done.cpu_s, done.memory_mib, words)


def measured(question: Question, copies: dict[str, Path], repeats: int) -> dict[str, Any]:
    """Medians of every copy, in turn."""
    runs: dict[str, list[Answer]] = {name: [] for name in copies}
    taken_s = dict.fromkeys(copies, 0.0)
    for _ in range(repeats):
        for name, project in copies.items():
            if taken_s[name] < ENOUGH_S:
                begin = time.perf_counter()
                answer = asked(question, project)
                runs[name].append(answer)
                taken_s[name] += inf if answer.wall_s is None else time.perf_counter() - begin
    return {"question": question.name, "asked_s": question.asked_s} | {
        name: _summed_up(answers) for name, answers in runs.items()
    }


def _summed_up(answers: Sequence[Answer]) -> dict[str, Any]:
    done = [one for one in answers if one.wall_s is not None]
    if len(done) < len(answers):
        return {"failed": answers[-1].words}
    return {
        "wall_s": median(one.wall_s for one in done if one.wall_s is not None),
        "cpu_s": median(one.cpu_s for one in done),
        "memory_mib": max(one.memory_mib for one in done),
        "runs": len(done),
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


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    questions = [f"| {' | '.join(HEADER)} |", f"|---{'|---:' * (len(HEADER) - 1)}|", *map(_row, report["questions"])]
    rates = ["| problem | layouts | a CPU second | with their parts |", "|---|---:|---:|---:|"]
    for one in report["layouts"]:
        numbers = [f"{one[name]:,.0f}" for name in ("layouts", "per_cpu_s", "with_parts_per_cpu_s")]
        rates.append(f"| {' | '.join((one['problem'], *numbers))} |")
    about = (
        f"Wall seconds of whole processes on {report['cores']} cores, medians; CPU seconds and memory are of now.",
        "Before and now are commits, asked in turn: rows may be of several days.",
        f"A question is asked up to {REPEATS} times, less often where that takes over {ENOUGH_S:.0f} s, and is stopped",
        f"after {STOP_S} s; - is no answer by then, none at all, or not asked. A second question is in the process of",
        "the first, whose seconds only CPU time counts.",
        "The backend is torch where none is said. `benchmarks/planner_speed.py` makes this page.",
    )
    blocks = ("# How long answers take", "\n".join(about), "\n".join(questions), "Every legal layout priced:")
    return "\n\n".join((*blocks, "\n".join(rates))) + "\n"


def _row(row: dict[str, Any]) -> str:
    before, now = (row.get(name, {}) for name in ("before", "now"))
    wall = [f"{one['wall_s']:.2f}" if "wall_s" in one else "-" for one in (before, now)]
    rest = [f"{now['cpu_s']:.2f}", f"{now['memory_mib']:.0f}", f"{now['runs']}"] if "wall_s" in now else ["-"] * 3
    commits = [row["commits"].get(name, "-") for name in ("before", "now")]
    return f"| {' | '.join((row['question'], format(row['asked_s'], 'g'), *wall, *rest, *commits))} |"


def _commit_of(project: Path) -> str:
    command = ["git", "-C", str(project), "log", "-1", "--format=%h, %cd", "--date=short"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="FOLDER")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--such", default="")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    copies = {"now": PROJECT} if given.before is None else {"before": given.before.resolve(), "now": PROJECT}
    for project in copies.values():  # or every process compiles, where it may not keep bytecode
        compile_dir(project / "autoshard", quiet=2)
    commits = {name: _commit_of(project) for name, project in copies.items()}
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if given.such else {"questions": [], "layouts": []}
    rows = {row["question"]: row for row in kept["questions"]}
    for question in questions():
        if given.such in question.name:
            rows[question.name] = measured(question, copies, given.repeats) | {"commits": commits}
            print(json.dumps(rows[question.name]), flush=True)
    several = [rows[question.name] for question in questions() if question.name in rows]
    layouts = kept["layouts"] or [layouts_per_cpu_s(*problem) for problem in RATES]
    report = {"cores": os.cpu_count(), "questions": several, "layouts": layouts}
    if given.write:
        KEPT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        KEPT.with_suffix(".md").write_text(page(report), encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
