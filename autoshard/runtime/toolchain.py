"""Checks before anything starts that the machine has what torch.compile needs beside torch."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from autoshard.errors import AutoshardError


def require_cpp_compiler() -> None:
    """Checks that there is a C++ compiler, which torch uses on a CPU. Raises AutoshardError where the compiler that
    torch takes, or Python's header, is missing."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name) is None:
        raise AutoshardError(
            f"compile: torch compiles C++ on a CPU, and {name} is not on PATH: install it, name another compiler in "
            "CXX, or leave --compile out"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise AutoshardError(
            f"compile: torch compiles C++ against {header}, which does not exist: install Python's headers "
            "(python3-dev), or leave --compile out"
        )
