"""What torch.compile needs of the machine beside torch, asked for before anything starts."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from autoshard.errors import AutoshardError


def require_cpp_compiler() -> None:
    """On a CPU torch compiles C++. Raises AutoshardError where the compiler that it takes, or Python's header, is not
    there."""
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
