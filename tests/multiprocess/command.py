"""Runs a command of autoshard: in this process, which has imported what it needs, or in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from autoshard.cli import main


def autoshard(folder: Path, *arguments: str) -> CompletedProcess[str]:
    """What `autoshard ARGUMENTS...` says in the folder, and its exit code."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
            code = main(arguments)
    finally:
        os.chdir(before)
    return CompletedProcess(["autoshard", *arguments], code, stdout.getvalue(), stderr.getvalue())


def in_a_process(folder: Path, *arguments: str, seconds: float = 120) -> CompletedProcess[str]:
    """The same in a process of its own, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "autoshard", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=offline(folder),
    )


def offline(folder: Path) -> dict[str, str]:
    """The environment, in which W&B stays in the folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return {**environment, "HOME": str(folder), "WANDB_MODE": "offline"}
