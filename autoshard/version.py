"""Names this very program: its version and its sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import autoshard


@cache
def program_version() -> str:
    """'0.1.0+5f2c9a31': what was computed under another name may differ, also in a checkout that was edited."""
    digest, package = hashlib.sha256(), Path(autoshard.__file__).parent
    for folder in (package, *(package / name for name in ("models", "recipes"))):  # links in a checkout
        for part in sources(folder):
            digest.update(part)
    return f"{autoshard.__version__}+{digest.hexdigest()[:8]}"


def sources(folder: Path) -> Iterator[bytes]:
    """The names and contents of the Python and JSON files in a folder, in order."""
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".py", ".json") and file.is_file():
            yield f"{file.relative_to(folder)}\n".encode() + file.read_bytes()
