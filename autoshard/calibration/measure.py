"""Starts the processes that measure a machine and collects what they found. Imports no torch itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard.calibration.arguments import CalibrationArguments
from autoshard.calibration.values import Measurements
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.files.fields import check_choice
from autoshard.runtime.fork_server import fork_server
from autoshard.runtime.launch import Message, run_processes
from autoshard.runtime.processes import Start, start_interpreter
from autoshard.spec.cluster import load_cluster

_WORKER = "autoshard.calibration.worker"
DEVICES = ("cpu", "cuda", "neuron")
Progress = Callable[[str], None]
SIGNALLED = 128
"""A shell's exit code of a command that a signal ended is this and the signal's number."""
INTERRUPTED = SIGNALLED + signal.SIGINT


def measure(
    device: str, processes: int | None, shapes: int, progress: Progress, instance: str | None = None
) -> tuple[Measurements, dict[str, Any]]:
    """Measures this machine: (measurements, {"rates": FLOP/s by dtype, "dtype": the one that was timed}).

    processes: ranks of the collectives; None takes every device, at most 8. shapes: how many programs are timed.
    instance: the one that the user names, whose datasheet numbers hold. Raises AutoshardError where torch, the device,
    enough devices or a hardware file are missing, for an instance of other devices, and for a device of no known kind.
    """
    check_choice("calibrate", "device", device, DEVICES)
    if find_spec("torch") is None:
        raise AutoshardError("autoshard calibrate needs torch: pip install 'autoshard[torch]'")
    if instance is not None:
        _check_instance(device, instance)
    with TemporaryDirectory(prefix="autoshard-calibrate-") as folder, _starter(device) as start:
        run = partial(_run, start=start, logs=Path(folder), progress=progress)
        (present,) = run("present", CalibrationArguments(device), 1)
        devices = present["devices"]
        if devices == 0:
            raise AutoshardError(f"device={device} is not on this machine: {present['why']}")
        if instance is None:
            default_instance(device, present["name"])  # before minutes are spent
        ranks = min(devices, 8) if processes is None else processes
        if ranks > devices:
            raise AutoshardError(f"processes={ranks} is more than the {devices} {_units(device)} of this machine")
        (one,) = run("one_device", CalibrationArguments(device, shapes), 1)
        together = run("collectives", CalibrationArguments(device), ranks)[0] if ranks > 1 else {}
    found = {**one, **together, "device": device, "devices": devices}
    found.setdefault("collectives", [])
    rates = {name: found.pop(name) for name in ("rates", "dtype")}
    return from_json(Measurements, found, "measurements"), rates


def _check_instance(device: str, instance: str) -> None:
    platform = load_cluster(instance, 1).platform
    own = "neuron" if platform.is_trainium else "cuda" if platform.is_cuda else "cpu"
    if own != device:
        raise AutoshardError(
            f"instance={instance} has {_units(own)}, which device={device} does not measure; device={own} does"
        )


def _units(device: str) -> str:
    return {"cpu": "cores", "cuda": "GPUs", "neuron": "NeuronCores"}[device]


def _starter(device: str) -> AbstractContextManager[Start]:
    """How processes start: on the CPU as forks of one that imports torch once for all of them."""
    return fork_server([_WORKER]) if device == "cpu" else nullcontext(start_interpreter)


def _run(
    what: str, arguments: CalibrationArguments, processes: int, *, start: Start, logs: Path, progress: Progress
) -> list[dict[str, Any]]:
    def show(message: Message) -> None:
        values = message.values
        of = f"/{values['of']}" if values["of"] else ""
        progress(f"{values['done']}{of} {values['what']}")

    logs = logs / what
    logs.mkdir()
    outcome = run_processes(
        f"{_WORKER}:{what}", to_json(arguments), processes, on_message=show, log_directory=logs, start=start
    )
    reason = outcome.message.splitlines()[0] if outcome.message else "stopped"
    if outcome.exit_code > SIGNALLED:
        progress(reason)
        raise KeyboardInterrupt if outcome.exit_code == INTERRUPTED else SystemExit(outcome.exit_code)
    if outcome.exit_code:
        raise AutoshardError(f"the measurement ended: {reason}")
    return [result for result in outcome.results if result is not None]


GPUS = (
    ("GB300", "gb300-288gb"),
    ("GB200", "gb200-186gb"),
    ("B300", "b300-288gb"),
    ("B200", "b200-180gb"),
    ("H800", "h800-80gb"),
    ("H200", "h200-141gb"),
    ("H100", "h100-80gb"),
)
"""(part of a processor's name, hardware file); the first that matches counts."""


def default_instance(device: str, name: str) -> str:
    """The packaged hardware file for a device. name: of the processor. Raises AutoshardError where only the user can
    know."""
    if device == "cpu":
        return "cpu"
    a100 = "a100-40gb" if "40GB" in name else "a100-80gb"
    found = [file for part, file in (*GPUS, ("A100", a100)) if part in name]
    if device == "cuda" and found:
        return found[0]
    raise AutoshardError(f"instance is missing: which packaged hardware file has the datasheet numbers of {name}?")


def overwrites(out: Path, name: str = "out") -> None:
    """Checks that the file can be written, before minutes are spent on measuring. name: of the option that gives it.
    Raises AutoshardError where it cannot."""
    folder = out.parent
    if out.is_dir():
        raise AutoshardError(f"{name}={out} is a folder: name a file")
    if not folder.is_dir():
        raise AutoshardError(f"{name}={out}: {folder} does not exist")
    if not os.access(out if out.exists() else folder, os.W_OK):
        raise AutoshardError(f"{name}={out} cannot be written")
