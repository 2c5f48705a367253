"""Records what every rank is doing, in memory that outlives the rank.

A message for each microbatch would cost a system call, and a rank killed by SIGKILL cannot send one. So each rank owns
a slot of one memory-mapped file: writing costs under a microsecond, and the supervisor reads it after the rank is gone.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SLOT_BYTES = 256
_HEADER = struct.Struct("<QH")  # how often the slot was written, length of the text


class LastActions:
    """The slots of all ranks in the file at `path`, which `create` makes."""

    def __init__(self, path: Path, num_processes: int) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SLOT_BYTES * num_processes)

    @staticmethod
    def create(path: Path, num_processes: int) -> LastActions:
        # Zeros are written rather than the size set: a sparse file on a full disk would end the rank by SIGBUS later.
        path.write_bytes(bytes(_SLOT_BYTES * num_processes))
        return LastActions(path, num_processes)

    def write(self, rank: int, action: str) -> None:
        """Writes what the rank is doing; texts over 246 bytes are cut."""
        start = rank * _SLOT_BYTES
        count, _ = _HEADER.unpack_from(self._memory, start)
        text = action.encode("utf-8", "replace")[: _SLOT_BYTES - _HEADER.size]
        self._memory[start + _HEADER.size : start + _HEADER.size + len(text)] = text
        _HEADER.pack_into(self._memory, start, count + 1, len(text))

    def read(self, rank: int) -> str:
        """The last text of the rank, "" when it wrote none."""
        start = rank * _SLOT_BYTES
        _, length = _HEADER.unpack_from(self._memory, start)
        return self._memory[start + _HEADER.size : start + _HEADER.size + length].decode("utf-8", "ignore")

    def count(self, rank: int) -> int:
        """How often the rank has written, which shows that it is alive."""
        return int(_HEADER.unpack_from(self._memory, rank * _SLOT_BYTES)[0])

    def close(self) -> None:
        self._memory.close()
