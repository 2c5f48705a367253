"""What importing costs, by package, in whole processes: `python -m benchmarks.import_costs`.

Seconds are of the processor, which other work on the machine changes less, medians of five processes. A package's are
those of its own modules, without what they import; what is left of the process is the interpreter and the work itself.
`--results FOLDER` writes import_costs.json and import_costs.md there. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from compileall import compile_dir
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import autoshard
from autoshard.backends.torch import TORCH

PROCESSES = 5
_CLOCK = """
import atexit, importlib._bootstrap as bootstrap, json, os, sys, time
inside, own, load = [0.0], {}, bootstrap._find_and_load_unlocked
def timed(name, import_):
    start = time.process_time()
    inside.append(0.0)
    try:
        return load(name, import_)
    finally:
        whole = time.process_time() - start
        package = name.partition(".")[0]
        package = "the standard library" if package in sys.stdlib_module_names else package
        own[package] = own.get(package, 0.0) + whole - inside.pop()
        inside[-1] += whole
bootstrap._find_and_load_unlocked = timed
def tell():
    file = open(os.environ["IMPORT_COSTS"], "w")
    json.dump({"process": time.process_time(), "modules": len(sys.modules), "packages": own}, file)
    file.close()
atexit.register(tell)
"""
_COMMAND = "sys.argv = ['autoshard', *{!r}]; from autoshard.cli import main; sys.exit(main())"
_IMPORT = "[__import__(name) for name in {!r}]"
_RANK = f"from autoshard.runtime.worker import importing\nwith importing(): {_IMPORT}"


def cases() -> dict[str, str]:
    """Name of a process -> statements that it runs."""
    problem = ("plan", "--model", "llama3-70b", "--nodes", "16", "-o", "plan.json")
    worker = "autoshard.runtime.trainer.worker"
    return {
        "import autoshard": "import autoshard",
        "autoshard --version": _COMMAND.format(["--version"]),
        "autoshard plan, backend nxd": _COMMAND.format([*problem]),
        "autoshard plan, backend torch": _COMMAND.format([*problem, "--backend", "torch"]),
        "autoshard run, before ranks start": _IMPORT.format(["autoshard.commands.run", "autoshard.runtime.run"]),
        "a rank": _RANK.format([worker, *TORCH.early_imports]),
    }


def measured(statements: str) -> dict[str, Any]:
    """{"process": CPU seconds, "modules": how many, "packages": name -> CPU seconds}, medians over processes."""
    with TemporaryDirectory() as folder:
        found = []
        for _ in range(PROCESSES):
            environment = os.environ | {"IMPORT_COSTS": f"{folder}/found", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", f"{_CLOCK}\n{statements}"]
            subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
            found.append(json.loads(Path(folder, "found").read_text(encoding="utf-8")))
    packages: dict[str, list[float]] = defaultdict(list)
    for one in found:
        for name, seconds in one["packages"].items():
            packages[name].append(seconds)
    by_cost = sorted(((median(seconds), name) for name, seconds in packages.items()), reverse=True)
    return {
        "process": round(median(one["process"] for one in found), 3),
        "modules": found[0]["modules"],
        "packages": {name: round(seconds, 3) for seconds, name in by_cost if seconds >= 0.002},
    }


def page(results: dict[str, dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| process | CPU s | of which importing | modules | by package, ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, one in results.items():
        packages = ", ".join(f"{package} {1000 * seconds:.0f}" for package, seconds in one["packages"].items())
        importing = sum(one["packages"].values())
        lines.append(f"| {name} | {one['process']:.2f} | {importing:.2f} | {one['modules']:,} | {packages} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="folder to write to")
    folder = parser.parse_args().results
    compile_dir(Path(autoshard.__file__).parent, quiet=2)  # or every process does, where it may not keep bytecode
    results = {name: measured(statements) for name, statements in cases().items()}
    if folder is not None:
        text = json.dumps(results, indent=1) + "\n"
        Path(folder, "import_costs.json").write_text(text, encoding="utf-8")
        Path(folder, "import_costs.md").write_text(page(results), encoding="utf-8")
    print(page(results))
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
