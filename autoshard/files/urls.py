"""Paths of this machine, told from URLs: where a path is meant, a URL would become a folder of its scheme's name."""

from __future__ import annotations

import re
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.reached import reached

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def is_url(location: str | Path) -> bool:
    """Whether it starts with a scheme, as gs://b/x does, and gs:/b/x, which a Path makes of that."""
    return _SCHEME.match(str(location)) is not None


def check_local(name: str, location: str | Path, wanted: str = "file or folder") -> None:
    """Check that a path is no URL. name: of the option, in the AutoshardError raised. wanted: what it takes."""
    if is_url(location):
        raise AutoshardError(f"{name}={location} is a URL: name a {wanted} of this machine")


def check_folder(name: str, location: str | Path) -> None:
    """Check that a path is a folder or may become one: no URL and no file. name: of the option, in the AutoshardError
    raised."""
    check_local(name, location, "folder")
    with reached(f"{name}={location}"):
        if Path(location).exists() and not Path(location).is_dir():
            raise AutoshardError(f"{name}={location} is a file: name a folder")
