"""Reads text files in pieces of bounded size, and the English text that every Python installation has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from autoshard.errors import AutoshardError

WINDOW_BYTES = 4 * 1024 * 1024
"""Size of a piece. A guess: large enough that cuts are rare, small enough that every form of a piece fits any
memory."""


def python_manual() -> str:
    """Python's own manual (pydoc_data.topics), about 465 KB of English: it comes with every CPython.

    So the default needs no network and no download. Its words differ a little from one Python version to the next.
    """
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise AutoshardError(
            "this Python comes without its manual (pydoc_data): give a text by --data, a file or a folder"
        ) from error
    return "\n\n".join(topics[name] for name in sorted(topics))


def text_windows(file: Path, name: str, window_bytes: int = WINDOW_BYTES) -> Iterator[str]:
    """The file's text, piece by piece, cut at the start of a line where there is one.

    A tokenizer sees one piece at a time: tokens may differ from those of the whole text at a cut, never elsewhere.
    name: of the file, in errors.
    Raises AutoshardError for a file that cannot be read or is not text in UTF-8.
    """
    offset, rest = 0, b""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            while data := stream.read(window_bytes):
                if not offset and not rest:
                    data = data.removeprefix(b"\xef\xbb\xbf")
                    offset = min(size, stream.tell()) - len(data)
                data = rest + data
                cut = len(data) if stream.tell() >= size else _cut(data)
                yield _decoded(name, data[:cut], offset, size)
                offset, rest = offset + cut, data[cut:]
            if rest:
                yield _decoded(name, rest, offset, size)
    except OSError as error:
        raise AutoshardError(f"cannot read {name}: {error.strerror or error}") from error


def _cut(data: bytes) -> int:
    """The number of bytes to take: up to the last newline; without one, up to a last character that may be
    incomplete."""
    newline = data.rfind(b"\n") + 1
    if newline:
        return newline
    cut = len(data) - 1
    while cut > 0 and len(data) - cut < 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut or len(data)


def _decoded(name: str, data: bytes, offset: int, size: int) -> str:
    zero = data.find(0)
    if zero >= 0:
        raise AutoshardError(f"{name} is binary: it has a zero byte at {offset + zero:,} of {size:,}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AutoshardError(
            f"{name} is not text in UTF-8: byte {offset + error.start:,} of {size:,} is 0x{data[error.start]:02x}"
        ) from error
