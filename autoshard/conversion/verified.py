"""Compute SHA-256 of files while their weights are read: every byte is hashed once, from front to back, in a thread."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from autoshard.errors import AutoshardError

_BLOCK_BYTES = 1 << 22
_AHEAD = 4
"""Blocks that wait to be hashed, at most."""


class VerifiedFiles:
    """Files whose SHA-256 is compared while they are read. expected: SHA-256 by file."""

    def __init__(self, expected: Mapping[Path, str]):
        self._expected = expected
        self._files = {path: _Hashed(path) for path in expected}
        self._thread = ThreadPoolExecutor(1, "verify")
        self._waiting: deque[Future[None]] = deque()

    def saw(self, path: Path, start: int, data: memoryview) -> None:
        """Hand over bytes of a file from offset `start` on; they must not be changed afterwards."""
        if path in self._files:
            self._waiting.append(self._thread.submit(self._files[path].saw, start, data))
            while len(self._waiting) > _AHEAD:
                self._waiting.popleft().result()

    def finish(self) -> None:
        """Hash what is left. Raises AutoshardError naming a file whose SHA-256 is not the expected one."""
        for path, sha256 in self._thread.map(lambda one: (one.path, one.finish()), self._files.values()):
            if sha256 != self._expected[path]:
                raise AutoshardError(f"{path} was changed: its SHA-256 is another")

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


class _Hashed:
    def __init__(self, path: Path):
        self.path = path
        self._digest, self._next = hashlib.sha256(), 0

    def saw(self, start: int, data: memoryview) -> None:
        if start + len(data) > self._next:
            self._read_to(start)
            self._digest.update(data[self._next - start :])
            self._next = start + len(data)

    def finish(self) -> str:
        self._read_to(None)
        return self._digest.hexdigest()

    def _read_to(self, stop: int | None) -> None:
        """Hash the file's bytes up to `stop`; None: all of them."""
        if stop is not None and stop <= self._next:
            return
        try:
            with self.path.open("rb", buffering=0) as file:
                os.lseek(file.fileno(), self._next, os.SEEK_SET)
                while block := file.read(_BLOCK_BYTES if stop is None else min(_BLOCK_BYTES, stop - self._next)):
                    self._digest.update(block)
                    self._next += len(block)
        except OSError as error:
            raise AutoshardError(f"{self.path} cannot be read: {error.strerror or error}") from None
