"""Read a text file that may hold anything: a regular file in UTF-8, bounded in size.

JSON, YAML and TOML files share it.
"""

import stat
from pathlib import Path

from autoshard.errors import AutoshardError
from autoshard.units import format_bytes

MAX_DEPTH = 100
"""Levels of lists and objects in each other, in every format."""
MAX_DIGITS = 300
"""Most digits of a whole number: 10^300 still fits a float, and Python's own limit (4,300 digits) is never met."""


def given_twice(shown_key: str) -> str:
    """The objection to a key that one object has twice, in every format."""
    return f"{shown_key} is given twice in one object; keep one"


def read_bytes(path: str | Path, where: str, max_bytes: int, kind: str = "") -> bytes:
    """The bytes of a regular file; devices, pipes and larger files are refused before they are read.

    where: names the file and its role in errors. kind: of file that is wanted, such as "JSON".
    Raises AutoshardError, one line that starts with where.
    """
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            raise AutoshardError(f"{where} is a directory; name the {f'{kind} file'.strip()} in it")
        if not stat.S_ISREG(status.st_mode):
            raise AutoshardError(f"{where} is not a regular file")
        if status.st_size > max_bytes:
            raise AutoshardError(
                f"{where} has {format_bytes(status.st_size)}, more than the {format_bytes(max_bytes)} that are read; "
                "is it the right file?"
            )
        with Path(path).open("rb") as file:
            data = file.read(status.st_size + 1)
    except FileNotFoundError:
        raise AutoshardError(f"{where} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AutoshardError(f"{where} cannot be read: {reason}") from None
    if len(data) > status.st_size:
        raise AutoshardError(f"{where} has more bytes than the {status.st_size:,} that it said; is it being written?")
    return data


def read_text(path: str | Path, where: str, max_bytes: int, kind: str = "") -> str:
    """The text of a UTF-8 file, without a byte order mark.

    where: names the file and its role in errors. max_bytes: a larger file is refused before it is read.
    kind: of file that is wanted, such as "YAML". Raises AutoshardError as `read_bytes` and `decode`.
    """
    return decode(read_bytes(path, where, max_bytes, kind), where)


def decode(data: bytes, where: str) -> str:
    """The text of UTF-8 bytes, without a byte order mark. where: what errors call the bytes.

    Raises AutoshardError with the line of the first wrong byte.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AutoshardError(
            f"{where}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; save it as UTF-8"
        ) from None


def is_too_deep(value: object) -> bool:
    """Whether dicts and lists are nested in more than MAX_DEPTH levels."""
    containers = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        children = (child for item in containers for child in (item.values() if isinstance(item, dict) else item))
        containers = [child for child in children if isinstance(child, (dict, list))]
    return bool(containers)


def printable(path: str | Path) -> str:
    """The path as text for one line of an error: escaped if it has unprintable characters."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
