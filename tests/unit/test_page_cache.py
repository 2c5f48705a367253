"""Reading and writing past the page cache changes no byte, with and without a system that can."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from autoshard.conversion import page_cache
from autoshard.conversion.page_cache import WrittenOnce, pass_on_all, read_once

BYTES = bytes(range(251)) * 150_000


def written(path: Path, starts: Sequence[int]) -> None:
    """Every part from one start to the next one, in the order that is given."""
    passing = WrittenOnce()
    stops = dict(zip(sorted(starts), [*sorted(starts)[1:], len(BYTES)], strict=True))
    with path.open("wb") as file:
        for start in starts:
            count = os.pwrite(file.fileno(), BYTES[start : stops[start]], start)
            passing.wrote(file.fileno(), start, count)
        pass_on_all(file.fileno())


@pytest.mark.parametrize("step", [1_000_003, 5_000_000])
@pytest.mark.parametrize("in_order", [True, False])
def test_what_was_written_is_read(step: int, in_order: bool, tmp_path: Path) -> None:
    starts = list(range(0, len(BYTES), step))
    written(tmp_path / "file", starts if in_order else starts[::-1])
    assert (tmp_path / "file").read_bytes() == BYTES


def read(path: Path) -> bytes:
    found = bytearray(len(BYTES))
    with path.open("rb") as file:
        at = 0
        while count := read_once(file.fileno(), memoryview(found)[at : at + 3_000_001], at):
            at += count
    return bytes(found)


def test_large_parts_are_asked_for_once_and_the_rest_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(BYTES)
    asked = []
    plain = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        asked.append((len(buffers[0]), flags))
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(page_cache, "_flags", 0x80)
    assert read(tmp_path / "file") == BYTES
    assert {flags for size, flags in asked if size >= 1 << 20} == {0x80}
    assert {flags for size, flags in asked if size < 1 << 20} == {0}


def test_a_system_that_cannot_is_asked_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(BYTES)
    refused = []
    plain = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            refused.append(offset)
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(page_cache, "_flags", 0x80)
    assert read(tmp_path / "file") == BYTES
    assert refused == [0]


def test_other_errors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(BYTES)

    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(page_cache, "_flags", 0x80)
    with pytest.raises(OSError, match="Input/output error"):
        read(tmp_path / "file")
