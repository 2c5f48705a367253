"""Runs a command of autoshard in this process, which needs no new interpreter and no new torch."""

from __future__ import annotations

import io
import os
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
