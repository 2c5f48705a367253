"""50 short runs in a row, each of 2 pipeline stages x 2 replicas in 4 processes: all must end with code 0 and say so.

gloo is known to abort at exit now and then ("terminate called without an active exception"); one such run of 50 fails
this. Looked for: an exit code that is not 0, a rank without a result, a word of an abort in a log, a process left over.

    python -m benchmarks.clean_exits               # minutes on 2 idle cores; the last line is JSON
    python -m benchmarks.clean_exits --runs 10 --results benchmarks/results/clean_exits.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import psutil

from benchmarks.long_run import train

ABORTS = ("terminate called", "Aborted", "Fatal Python error", "Segmentation fault", "core dumped")


def clean_exit(number: int, folder: Path) -> str:
    """A sentence on what went wrong in one run; '' where it ended cleanly."""
    directory = folder / str(number)
    directory.mkdir()
    try:
        train("pp=2 dp=2", 2, directory)
    except AssertionError as error:
        return str(error).splitlines()[0]
    words = [word for log in directory.rglob("*.log") for word in ABORTS if word in log.read_text()]
    left = [child.pid for child in psutil.Process().children(recursive=True)]
    return ", ".join([*words, *(f"process {pid} left over" for pid in left)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--results", type=Path, help="a JSON file: these runs are added to what it counts")
    arguments = parser.parse_args()
    runs = arguments.runs
    start = perf_counter()
    with TemporaryDirectory(prefix="autoshard-exits-") as folder:
        wrong = {number: why for number in range(runs) if (why := clean_exit(number, Path(folder)))}
    print(f"{runs - len(wrong)} of {runs} runs ended cleanly")
    found: dict[str, Any] = {
        "runs": runs,
        "clean": runs - len(wrong),
        "wrong": sorted(wrong.values()),
        "seconds": round(perf_counter() - start, 1),
    }
    if arguments.results is not None:
        before = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
        found = {name: before[name] + value if before else value for name, value in found.items()}
        arguments.results.write_text(json.dumps(found) + "\n")
    print(json.dumps(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
