"""From nothing to the first plan: an empty environment, `pip install` of the built wheel, `autoshard plan`.

    python -m benchmarks.first_plan        # needs the package index; the last line is JSON
    python -m benchmarks.first_plan --results benchmarks/results/first_plan.json

Seconds are of the clock, and of the processors, which other work on the machine changes less. The wheel is built before
the clock starts. Downloads are not taken from pip's cache.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[1]
PLAN = ("plan", "--model", "llama3-70b", "--nodes", "16")


def timed(command: list[str], folder: Path) -> dict[str, float]:
    """Seconds that a command takes, {"s": of the clock, "cpu_s": of the processors}. Raises CalledProcessError."""
    begin_s, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"s": round(perf_counter() - begin_s, 2), "cpu_s": round(cpu_s, 2)}


def measure(folder: Path) -> dict[str, Any]:
    """What each step takes, by its name, with the packages that were installed and their MB. folder: an empty one."""
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    python, autoshard = (str(folder / "env" / "bin" / name) for name in ("python", "autoshard"))
    steps = {
        "venv": timed([sys.executable, "-m", "venv", "env"], folder),
        "pip install": timed([python, "-m", "pip", "install", "-q", "--no-cache-dir", str(wheel)], folder),
        "first plan": timed([autoshard, *PLAN], folder),
        "second plan": timed([autoshard, *PLAN], folder),
    }
    assert (folder / "plan.json").is_file()
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    packages = [one["name"] for one in json.loads(listed.stdout) if one["name"] not in ("pip", "setuptools")]
    size = sum(file.stat().st_size for file in (folder / "env" / "lib").rglob("*") if file.is_file())
    return {
        "steps": steps,
        "packages": len(packages),
        "wheel_mb": _mb(wheel.stat().st_size),
        "environment_mb": _mb(size),
    }


def _mb(size: float) -> float:
    return round(size / 1e6, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="JSON file to write")
    results = parser.parse_args().results
    with TemporaryDirectory() as folder:
        found = {"python": sys.version.split()[0], **measure(Path(folder))}
    if results is not None:
        results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, one in found["steps"].items():
        print(f"{name:<12} {one['s']:7.2f} s, {one['cpu_s']:6.2f} CPU s")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
