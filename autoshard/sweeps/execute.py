"""Executes the plan of one point in a process of its own, and reads what it measured.

The point's folder gets plan.json, asked.json (options of the run), run.log, a folder of the run as `autoshard run`
writes it, and done.json when the run has ended. A sweep that was killed between that and its table reads done.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from autoshard.errors import AutoshardError, say_error
from autoshard.files.atomic_file import write_text
from autoshard.files.json_file import read_json
from autoshard.plans.measured_run import read_measured_run
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json, text_digest
from autoshard.runtime.processes import python_command
from autoshard.sweeps.outcome import DIFFERS, EXECUTED, FAILED, REHEARSED, Outcome, asked_of, outcome_of

_CHILD = "from autoshard.sweeps.execute import main; main(sys.argv[2], int(sys.argv[3]))"
_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID")
"""Variables that would make a run one rank of the job that started this process, such as a Dask worker under srun."""
ENDING_S = 10.0
"""How long a run that is no longer wanted gets: twice what it gives its ranks, the rest to remove temporary files."""
_MOST_BYTES = 10_000_000
"""The largest done.json that is read, bytes: many times the usual."""


def executed(
    plan: Plan, folder: Path, options: Mapping[str, Any], project: str | None = None, group: str | None = None
) -> Outcome:
    """The plan's outcome with what its run measured. A run that fails is an outcome, too.

    folder: of this point. options: fields of RunOptions; output is the folder. project, group: of Weights & Biases;
    without a project nothing is logged there.
    """
    asked = asked_of(options)
    text = plan_to_json(plan)
    whole = {"options": asked["run_options"], "files": asked["run_files"], "plan_sha256": text_digest(plan)}
    done = folder / "done.json"
    planned = replace(outcome_of(plan), **asked)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return replace(planned, run=FAILED, run_reason=f"folder {folder} cannot be made: {error.strerror}")
    earlier = _read(done)
    if earlier is not None and all(earlier.get(name, "") == value for name, value in {**whole, "exit_code": 0}.items()):
        found = _ended(planned, folder, earlier)
        if found.run != FAILED:
            return found
    done.unlink(missing_ok=True)
    write_text(folder / "plan.json", text, "plan")
    write_text(folder / "asked.json", json.dumps({**whole, "wandb_project": project}), "options of the run")
    _run(folder, group if project is not None else None)
    return _ended(planned, folder, _read(done))


def _read(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none."""
    try:
        values = read_json(path, "run", _MOST_BYTES)
    except AutoshardError:
        return None
    return values if isinstance(values, dict) else None


def _run(folder: Path, group: str | None) -> None:
    """Runs the plan in folder, whose last words are in run.log; ends it when this process is interrupted."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}
    if group is not None:
        environment["WANDB_RUN_GROUP"] = group
    with (folder / "run.log").open("wb") as log:
        child = subprocess.Popen(
            python_command(_CHILD, str(folder), str(os.getpid())),
            stdin=subprocess.PIPE,  # its lifeline
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            child.wait()
        except BaseException:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(ENDING_S)
            child.kill()
            child.wait()
            raise
        finally:
            assert child.stdin is not None
            child.stdin.close()


def _ended(planned: Outcome, folder: Path, done: dict[str, Any] | None) -> Outcome:
    """The outcome of a run that has ended. done: of done.json; None: there is none."""
    try:
        return _with_measured(planned, folder, done)
    except (AttributeError, KeyError, TypeError, ValueError):
        return replace(planned, run=FAILED, run_reason=f"{folder} holds files that no run wrote; remove it")


def _with_measured(planned: Outcome, folder: Path, done: dict[str, Any] | None) -> Outcome:
    log = f"see {folder / 'run.log'}"
    if done is None:
        return replace(planned, run=FAILED, run_reason=f"its process was killed; {log}")
    run = folder / Path(str(done["folder"] or "")).name  # the sweep's folder may have been moved since
    try:
        measured = read_measured_run(run / "run.json")
    except AutoshardError:
        return replace(planned, run=FAILED, run_reason=str(done.get("message") or f"it failed; {log}"))
    rehearsed = (run / "result.json").is_file()
    word = (DIFFERS if done["exit_code"] else REHEARSED) if rehearsed else FAILED if done["exit_code"] else EXECUTED
    return replace(
        planned,
        run=word,
        run_reason=log if done["exit_code"] else "",
        run_folder=str(run),
        run_predicted_step_time_s=done.get("predicted_step_time_s") or planned.step_time_s,
        measured_step_time_s=measured.step_time_s.median,
        measured_tokens_per_s=measured.tokens_per_s,
        measured_memory_bytes=max(one.peak_memory_bytes for one in measured.ranks),
        last_loss=measured.last_loss,
    )


def leave_by_exception() -> None:
    """Have the first SIGTERM raise SystemExit in this process, so that it leaves no temporary files."""

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def main(folder_name: str, supervisor_pid: int) -> None:
    """Runs the plan in a point's folder, in this process, and writes done.json beside it."""
    from autoshard.plans.validate import read_plan
    from autoshard.runtime.options import options_from
    from autoshard.runtime.run import run_plan
    from autoshard.runtime.worker import end_with_supervisor

    end_with_supervisor(supervisor_pid, threading.Event())
    leave_by_exception()
    folder, folders = Path(folder_name), list[Path]()
    asked = _read(folder / "asked.json")
    assert asked is not None, f"{folder} has no asked.json"
    message = ""
    try:
        given = {**json.loads(asked["options"]), "output": str(folder)}
        if asked["wandb_project"] is not None:
            given |= {"wandb": True, "wandb_project": asked["wandb_project"]}
        options = options_from(given)
        code = run_plan(read_plan(folder / "plan.json"), options, folders.append)
    except AutoshardError as error:
        code, message = 2, str(error)
        say_error(error)
    shrunk = folders[0] / "rehearsal_plan.json" if folders else None
    predicted = read_plan(shrunk).estimate.step_time_s if shrunk is not None and shrunk.is_file() else None
    where = str(folders[0]) if folders else None
    done = {**asked, "exit_code": code, "folder": where, "message": message, "predicted_step_time_s": predicted}
    write_text(folder / "done.json", json.dumps(done), "end of the run")
