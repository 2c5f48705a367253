"""Write a file whole or not at all: readers see the old text or the new one, never half of it."""

import os
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.files.fields import show


def write_text(path: str | Path, text: str, what: str) -> None:
    """Replace the file at `path` in one step: whatever goes wrong, it holds its old text or the new one.

    what: names the file's role in errors, such as "plan". A link is followed; what is not a regular file (/dev/null, a
    pipe) is written to directly.
    Bytes of a path that are no text stand in it as on the terminal, by their numbers.
    Raises AutoshardError, naming the path, for what is no path, a directory, a missing or unwritable folder and a full
    disk.
    """
    write_bytes(path, text.encode(errors="backslashreplace"), what)


def write_bytes(path: str | Path, data: bytes, what: str) -> None:
    """`write_text` for a file that is not text."""
    if not isinstance(path, (str, os.PathLike)):
        raise AutoshardError(f"{what} {show(path)} cannot be written: it is no path")
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
        elif target.is_dir():
            raise AutoshardError(f"{what} {path} is a directory; name a file in it")
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise AutoshardError(f"{what} {path} cannot be written: {reason}") from None


def sync_folder(folder: Path) -> None:
    """Wait until everything created or renamed in the folder would survive a loss of power. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(target: Path, data: bytes) -> None:
    """Write `data` to a temporary file and rename it to `target`.

    The temporary file lies in the same folder, so that the rename cannot cross file systems. Its name is its own: a
    process that was killed may have left one, and had the same number in its container.
    """
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
