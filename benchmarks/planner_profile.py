"""Where the CPU seconds of `autoshard plan` go, by file: the first problems of the generated set of
`benchmarks.planner_problems`, each a whole process.

    python -m benchmarks.planner_profile                 60 problems, two minutes; the last line is JSON
    python -m benchmarks.planner_profile --problems 200
    python -m benchmarks.planner_profile --write         keeps the table in results/planner_profile.md

Every two milliseconds of CPU time it is asked which line runs. A sample belongs to the innermost file of autoshard on
the stack, with what that calls of numpy and the standard library; importing is apart, whatever is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from compileall import compile_dir
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.planner_problems import Question, questions

PROJECT = Path(__file__).parent.parent
KEPT = PROJECT / "benchmarks" / "results" / "planner_profile.md"
PROBLEMS, FILES, LONG_CPU_S = 60, 25, 1.0
"""Problems by default; files in the table; seconds from which on a problem is in the second column."""
IMPORTING, ELSEWHERE = "importing", "the rest of the process"
SAMPLED = """
import atexit, json, os, signal, sys, time
from collections import Counter
found, folder = Counter(), os.sep + "autoshard" + os.sep

def sample(number, frame):
    place = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            place = {importing!r}
            break
        if place is None and folder in name:
            place = name.rpartition(folder)[2]
        frame = frame.f_back
    found[place or {elsewhere!r}] += 1

def tell():
    signal.setitimer(signal.ITIMER_PROF, 0)
    with open(os.environ["PLANNER_PROFILE"], "w") as file:
        json.dump({{"cpu_s": time.process_time(), "samples": found}}, file)

signal.signal(signal.SIGPROF, sample)
signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
atexit.register(tell)
sys.argv = ["autoshard", *{words!r}]
from autoshard.cli import main
sys.exit(main())
"""


def profiled(question: Question) -> tuple[float, Counter[str]]:
    """(CPU seconds of the process, how they are split over files, in seconds)."""
    with TemporaryDirectory() as folder:
        words = ["plan", *question.options, "--out", str(Path(folder, "plan.json"))]
        program = SAMPLED.format(words=words, importing=IMPORTING, elsewhere=ELSEWHERE)
        told = Path(folder, "told.json")
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "PLANNER_PROFILE": str(told)}
        subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, check=False)
        found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    samples = Counter(found["samples"])
    cpu_s = found["cpu_s"]
    return cpu_s, Counter({file: cpu_s * count / samples.total() for file, count in samples.items()})


def page(found: Sequence[tuple[float, Counter[str]]]) -> str:
    """The table as Markdown."""
    short, long = _summed(found, 0.0, LONG_CPU_S), _summed(found, LONG_CPU_S, inf)
    ranked = sorted({*short, *long}, key=lambda file: -_share(short, file) - _share(long, file))
    lines = [
        "# Where the time of a plan goes",
        "",
        f"Per cent of the CPU time of {len(found)} problems of `planner_problems.py`, by file of autoshard, with what",
        "it calls of numpy. `benchmarks/planner_profile.py` makes this table.",
        "",
        f"| file | plans under {LONG_CPU_S:g} s | longer ones |",
        "|---|---:|---:|",
        f"| all, CPU seconds | {short.total():.1f} | {long.total():.1f} |",
    ]
    shown = [(file, [file]) for file in ranked[:FILES]]
    for name, files in (*shown, (f"{len(ranked) - FILES} other files", ranked[FILES:])):
        shares = (f"{100 * sum(_share(column, file) for file in files):.1f}" for column in (short, long))
        lines.append(f"| {' | '.join((name, *shares))} |")
    return "\n".join(lines) + "\n"


def _summed(found: Sequence[tuple[float, Counter[str]]], from_s: float, below_s: float) -> Counter[str]:
    """Seconds by file of all problems that took so long."""
    return sum((by_file for cpu_s, by_file in found if from_s <= cpu_s < below_s), Counter[str]())


def _share(seconds: Counter[str], file: str) -> float:
    return seconds[file] / seconds.total() if seconds else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=PROBLEMS)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    compile_dir(PROJECT / "autoshard", quiet=2)
    found = [profiled(question) for question in questions(given.problems)]
    text = page(found)
    if given.write:
        KEPT.write_text(text, encoding="utf-8")
    print(text)
    print(
        json.dumps(
            {"cpu_s": sum(cpu_s for cpu_s, _ in found), "by_file": sum((one for _, one in found), Counter[str]())}
        )
    )


if __name__ == "__main__":
    main()
