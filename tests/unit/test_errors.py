"""How a mistake is said."""

from __future__ import annotations

import io
import sys

import pytest

from autoshard.errors import AutoshardError, say_error


class _Pipe(io.RawIOBase):
    """What ranks share: keeps each write that the system would see."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.writes.append(bytes(data))
        return len(data)


@pytest.mark.parametrize("before", ["", "Thread 1:\n  in work\n"])
def test_an_error_is_one_write_of_an_unbuffered_stream(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    """Else the lines of two ranks that end at once fall into each other, as those of print() do."""
    pipe = _Pipe()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(pipe, write_through=True))  # type: ignore[type-var]
    say_error(AutoshardError("nodes=0 is below 1"), before)
    assert pipe.writes == [f"{before}autoshard: error: nodes=0 is below 1\n".encode()]
