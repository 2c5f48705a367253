"""Keeps tokens on disk: one flat file that every rank maps into memory, with a JSON description beside it.

Files in the folder are named by what they were made of, so ranks and later runs find tokens that exist already.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from autoshard.checkpoint.tensor_file import checksum
from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text

FORMAT = 4
PART = ".part"
ABANDONED_AFTER_S = 86_400.0
"""Unfinished files of another machine, whose locks may not be seen here, count as abandoned if untouched for so long,
seconds."""


@dataclass(frozen=True)
class TokenFile:
    """A description of prepared tokens; the tokens are in a file beside it.

    path: the description, a JSON file. num_tokens: how many int32 the file has. digest: SHA-256 of all tokens, of which
    ones are learned or begin a document, and of row_length. Two files with one digest train alike, wherever their text
    came from; any other token gives another digest. row_length: tokens of a row that must stay whole; 0 for one run of
    text. masked: whether a second file says which tokens are learned. apart: whether one says where documents begin, so
    that each is kept by itself. vocab_size: every id is below it. made_of: one line for people.
    """

    path: Path
    digest: str
    num_tokens: int
    row_length: int
    masked: bool
    apart: bool
    vocab_size: int
    made_of: str

    def tokens(self) -> NDArray[np.int32]:
        """The tokens, int32 [num_tokens], read from disk as they are used."""
        return np.memmap(self.path.with_suffix(".tokens"), dtype="<i4", mode="r", shape=(self.num_tokens,))

    def learned(self) -> NDArray[np.uint8] | None:
        """Marks [num_tokens], 1 where a model is to learn to write the token; None where all tokens are learned."""
        return self._marks(".learned") if self.masked else None

    def begins(self) -> NDArray[np.uint8] | None:
        """Marks [num_tokens], 1 where a document begins; None where each row is read as one document."""
        return self._marks(".begins") if self.apart else None

    def _marks(self, suffix: str) -> NDArray[np.uint8]:
        return np.memmap(self.path.with_suffix(suffix), dtype=np.uint8, mode="r", shape=(self.num_tokens,))


def read_token_file(path: Path) -> TokenFile | None:
    """The token file that `path` describes; None where there is none, it is incomplete, or it is of another version."""
    found = _read(path)
    return None if found is None else found[0]


def read_unchanged(path: Path) -> TokenFile | None:
    """`read_token_file`, None also where the tokens are no longer those that were written.

    Their digest is computed only where a file has another time than when it was written or last looked at so: reading
    terabytes at each start would take hours.
    """
    read = _read(path)
    if read is None:
        return None
    found, times_ns = read
    try:
        now_ns = _times_ns(found)
        if now_ns != times_ns:
            sha256 = {suffix: checksum(path.with_suffix(suffix)) for suffix in now_ns}
            if _digest(found.row_length, sha256) != found.digest:
                return None
            _describe(found, now_ns)
    except OSError:
        return None
    return found


def _read(path: Path) -> tuple[TokenFile, object] | None:
    """The description, and the times of its files when they were written, where they have the right sizes."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("format_version") != FORMAT:
            return None
        times_ns = values.pop("times_ns", None)  # None: an older autoshard wrote it
        found = TokenFile(path, **values)
        whole = all(path.with_suffix(suffix).stat().st_size == size for suffix, size in _sizes(found).items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (found, times_ns) if whole else None


def _sizes(file: TokenFile) -> dict[str, int]:
    """Suffix -> bytes of each file of tokens or marks."""
    marks = ((".learned", file.masked), (".begins", file.apart))
    return {".tokens": 4 * file.num_tokens} | {suffix: file.num_tokens for suffix, has in marks if has}


def _times_ns(file: TokenFile) -> dict[str, int]:
    """Suffix -> time of the last change of each file of tokens or marks, nanoseconds. Raises OSError."""
    return {suffix: file.path.with_suffix(suffix).stat().st_mtime_ns for suffix in _sizes(file)}


def _digest(row_length: int, sha256: Mapping[str, str]) -> str:
    """The digest of a TokenFile. sha256: suffix -> that of the whole file, in hexadecimal."""
    return hashlib.sha256(json.dumps([row_length, dict(sorted(sha256.items()))]).encode()).hexdigest()


def _describe(file: TokenFile, times_ns: Mapping[str, int]) -> None:
    values = {"format_version": FORMAT, **asdict(file), "times_ns": times_ns}
    del values["path"]
    write_text(file.path, json.dumps(values) + "\n", "token file")


class TokenWriter:
    """Appends tokens and their marks to temporary files, which get their names at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, IO[bytes]] = {}
        self._hashes: dict[str, hashlib._Hash] = {}
        self.num_tokens = 0
        self.largest_id = -1

    def append(
        self,
        tokens: NDArray[np.int32],
        learned: NDArray[np.uint8] | None = None,
        begins: NDArray[np.uint8] | None = None,
    ) -> None:
        """Appends tokens [n] with marks [n]. learned: 1 where a token is learned. begins: 1 where a document begins.
        Each kind of mark is given in every call or in none."""
        if not len(tokens):
            return
        self.num_tokens += len(tokens)
        self.largest_id = max(self.largest_id, int(tokens.max()))
        self._append(".tokens", np.ascontiguousarray(tokens, dtype="<i4"))
        for suffix, marks in ((".learned", learned), (".begins", begins)):
            if marks is not None:
                self._append(suffix, np.ascontiguousarray(marks, dtype=np.uint8))

    def finish(self, row_length: int, vocab_size: int, made_of: str) -> TokenFile:
        """Renames the files, the description last: where it exists, everything does. made_of: one line for people."""
        digest = _digest(row_length, {suffix: one.hexdigest() for suffix, one in self._hashes.items()})
        masked, apart = ".learned" in self._parts, ".begins" in self._parts
        found = TokenFile(self._path, digest, self.num_tokens, row_length, masked, apart, vocab_size, made_of)
        for suffix, part in self._parts.items():
            part.flush()
            os.fsync(part.fileno())  # a loss of power leaves no description of tokens that are not on the disk
            Path(part.name).replace(self._path.with_suffix(suffix))
        _describe(found, _times_ns(found))
        return found

    def discard(self) -> None:
        """Removes the temporary files and closes everything."""
        for part in self._parts.values():
            Path(part.name).unlink(missing_ok=True)
            with suppress(OSError):  # a full disk, which was told before
                part.close()

    def _append(self, suffix: str, values: NDArray[np.int32] | NDArray[np.uint8]) -> None:
        if suffix not in self._parts:
            self._parts[suffix] = _new_part(self._path.with_suffix(f"{suffix}.{os.getpid()}{_of_this_machine()}"))
            self._hashes[suffix] = hashlib.sha256()
        self._hashes[suffix].update(values.data)
        self._parts[suffix].write(values.data)


def _of_this_machine() -> str:
    """The ending of the names of this machine's temporary files."""
    return f"@{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12]}{PART}"


def _new_part(path: Path) -> IO[bytes]:
    """A new file that stays locked as long as this process has it open; so others know that it is being written."""
    while True:
        file = path.open("wb")
        _wait_for_lock(file)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # it was removed before it was locked


def _wait_for_lock(file: IO[bytes] | IO[str]) -> None:
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX)


def remove_abandoned_parts(folder: Path) -> None:
    """Removes temporary files whose processes are gone; files that are being written stay."""
    for part in folder.glob(f"*{PART}"):
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if part.name.endswith(_of_this_machine()) or time.time() - part.stat().st_mtime > ABANDONED_AFTER_S:
                part.unlink()


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """A lock among the processes of this machine: the second one waits, and then finds what the first one made. On a
    file system without locks each makes it."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise AutoshardError(f"cannot write {lock}: {error.strerror or error}") from error
    with file:
        _wait_for_lock(file)
        yield
