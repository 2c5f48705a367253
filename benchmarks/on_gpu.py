"""A first hour with a GPU in one command: calibration, parity, step times and memory beside the predictions.

  python -m benchmarks.on_gpu --quick      # eight minutes at most
  python -m benchmarks.on_gpu              # more sizes

It writes results/on_gpu.json, results/on_gpu.md and results/on_gpu_hardware.json after every part. A part that fails,
or takes too long, is a line of the page, and the others go on. Started again, it goes on with what is missing; --again
begins anew. `--device cpu` runs the same code with the CPU in place of the GPU, small. It needs torch, numpy and
einops, and no installed autoshard: run it in the repository.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this folder is no package

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from benchmarks.on_gpu_page import page
from benchmarks.one_error import one_error

REPOSITORY = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
QUICK_S, PART_S, HOPELESS_S = 460.0, 300.0, 10.0
"""Seconds: what --quick may take, what one part may take, and what is too little to begin a part with."""


@dataclass(frozen=True)
class Part:
    """One part. name: on the page and in the file. what, arguments: the function of on_gpu_parts. limit_s: seconds
    after which it is ended."""

    name: str
    what: str
    arguments: tuple[str, ...] = ()
    limit_s: float = PART_S


ENVIRONMENT = Part("environment", "environment", limit_s=120)
SAME = ("name", "devices", "torch", "autoshard")
"""Fields of the environment that an earlier run must share, to be gone on with."""


def parts(device: str, quick: bool, devices: int) -> Iterator[Part]:
    """Yields what is measured after the environment, the most telling first. devices: of this machine."""
    from benchmarks.on_gpu_parts import CUTS, MODES, QUICK, SHARDED, SIZES

    yield Part("parity", "parity", ("eager",), 120)
    yield Part("parity, families", "families", ("eager",), 180)
    yield Part("calibration", "calibration", limit_s=180 if quick else 600)
    for size in QUICK[device] if quick else SIZES[device]:
        for mode in MODES[device]:
            yield Part(f"step, {size}, {mode}", "step", (size, mode), 120 if quick else PART_S)
    if device != "cpu":  # inductor takes half a minute a program there
        yield Part("parity, compiled", "parity", ("compiled",), 120 if quick else PART_S)
        if not quick:
            yield Part("parity, families compiled", "families", ("compiled",), 1200)
    for world, layouts in SHARDED.items():
        if world <= (devices if device == "cuda" else min(devices, 2)):
            for layout in tuple(layouts)[: 1 if quick else None]:
                yield Part(f"sharded, {layout}", "sharded", (layout,), 120 if quick else PART_S)
    if device == "cuda":
        yield Part("attention", "attention", limit_s=120)
    for name in CUTS[device]:
        for mode in ("planned",) if quick or device == "cpu" else ("planned", "planned compiled"):
            yield Part(f"step, {name}, {mode}", "step", (name, mode), 60 if quick else PART_S)


class Run:
    """One run: its file, what is known, and how much time is left."""

    def __init__(self, options: dict[str, Any], file: Path, limit_s: float | None, again: bool):
        self._options, self._file, self._again = options, file, again
        self._end_s = None if limit_s is None else monotonic() + limit_s
        self.found: dict[str, Any] = {"options": options, "parts": {}}
        if not again and file.exists():
            self.found = _known(file, options)

    def left_s(self) -> float:
        return float("inf") if self._end_s is None else self._end_s - monotonic()

    def begin(self) -> dict[str, Any]:
        """What the machine is. What was found on another one is forgotten.

        Raises AutoshardError where it has no such device; then the files of earlier runs stay as they are.
        """
        known = self._run(ENVIRONMENT)
        if "result" not in known:
            raise AutoshardError(known["error"])
        here: dict[str, Any] = known["result"]
        parts = self.found["parts"]
        earlier = parts.pop(ENVIRONMENT.name, {}).get("result")
        is_another = earlier is not None and any(earlier[name] != here[name] for name in SAME)
        if is_another or self._again:
            Path(self._options["hardware"]).unlink(missing_ok=True)
        self.found["parts"] = ({} if is_another else parts) | {ENVIRONMENT.name: known}
        self.write()
        print(f"{ENVIRONMENT.name}: done", flush=True)
        return here

    def do(self, part: Part) -> dict[str, Any] | None:
        """Runs a part that is not done yet, writes what it found, and returns its result; None where it failed."""
        known = self.found["parts"].get(part.name)
        if known is None or "result" not in known:
            known = self._run(part)
            self.found["parts"][part.name] = known
            self.write()
        print(f"{part.name}: {known.get('error', 'done')}", flush=True)
        result: dict[str, Any] | None = known.get("result")
        return result

    def _run(self, part: Part) -> dict[str, Any]:
        limit_s = min(part.limit_s, self.left_s())
        if limit_s < HOPELESS_S:
            return {"error": "left out: the time was over", "seconds": 0.0}
        start = monotonic()
        asked = {"options": self._options, "part": part.what, "arguments": part.arguments}
        answer = in_a_process([sys.executable, "-m", "benchmarks.on_gpu_parts", json.dumps(asked)], limit_s)
        return {**answer, "seconds": round(monotonic() - start, 1)}

    def write(self) -> None:
        write_text(self._file, json.dumps(self.found, indent=1) + "\n", "results")
        write_text(self._file.with_suffix(".md"), page(self.found), "page")


def _known(file: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run with the same options found; nothing of a run with others."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return {"options": options, "parts": {}}
    same = isinstance(found, dict) and found.get("options") == options and isinstance(found.get("parts"), dict)
    return found if same else {"options": options, "parts": {}}


def in_a_process(command: Sequence[str], limit_s: float) -> dict[str, Any]:
    """The last line that the command prints, as JSON; {"error": one line} where it ends otherwise. After limit_s
    seconds it is ended; nothing that it started outlives it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:  # files: a child that stays would hold a pipe open
        process = subprocess.Popen(
            command, stdout=out, stderr=errors, cwd=REPOSITORY, env=environment, start_new_session=True
        )
        ended = True
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            ended = False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines, log = (_lines(file) for file in (out, errors))
    if not ended:
        return {"error": f"took more than {limit_s:.0f} s and was ended", "log": log[-12:]}
    found = _answer(lines)
    if found is None:
        last = log[-1] if log else "it said nothing"
        found = {"error": f"ended with {process.returncode}: {last}"[:400]}
    return {**found, "log": log[-12:]} if "error" in found and log else found


def _lines(file: IO[str]) -> list[str]:
    file.seek(0)
    return file.read().strip().splitlines()


def _answer(lines: list[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("result" in found or "error" in found) else None


@one_error
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="eight minutes at most")
    parser.add_argument("--again", action="store_true", help="begin anew, instead of going on with what is missing")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the files go")
    parser.add_argument("--instance", help="packaged hardware file, where the GPU's name does not say it")
    given = parser.parse_args(arguments)
    file = given.folder / "on_gpu.json"
    hardware = given.folder / "on_gpu_hardware.json"
    options = {
        "device": given.device,
        "quick": given.quick,
        "hardware": str(hardware.resolve()),
        "instance": given.instance,
    }
    run = Run(options, file, QUICK_S if given.quick else None, given.again)
    here = run.begin()
    for part in parts(given.device, given.quick, here["devices"]):
        run.do(part)
    failed = [name for name, part in run.found["parts"].items() if "error" in part]
    print(f"{file.with_suffix('.md')}: {len(run.found['parts'])} parts, {len(failed)} without a result")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
