"""Reads the dump of a real run: a file of torch.cuda.memory._dump_snapshot, or one in its form.

It is data from outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from autoshard.allocations.data_pickle import MAX_BYTES, read_data
from autoshard.errors import AutoshardError
from autoshard.files.text_file import printable

MAX_FRAMES = 64
"""Frames of a stack that are looked at, the innermost first."""
_ACTIVE = ("active_allocated", "active_awaiting_free")


@dataclass(frozen=True)
class DumpedBlock:
    """An allocation of a run, held after the entries birth <= e < death of its trace. where: the line of
    code that asked for it; '' where the dump does not say."""

    size_bytes: int
    birth: int
    death: int | None
    where: str


@dataclass(frozen=True)
class Dump:
    """The memory of one device of a run. events: entries of its trace; 0 where there was none.

    asked_bytes, free_bytes: of the allocation that failed last; None where none did. failed: its place in the trace.
    failed_where: the line of code that asked for it. reserved_bytes: that the allocator had from the device.
    """

    blocks: tuple[DumpedBlock, ...]
    events: int
    reserved_bytes: int
    asked_bytes: int | None = None
    free_bytes: int | None = None
    failed: int | None = None
    failed_where: str = ""


def read_dump(path: Path) -> Dump:
    """The dump in a file. Raises AutoshardError for a file that is none."""
    name = f"snapshot {printable(path)}"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise AutoshardError(f"{name} cannot be read: {reason}") from None
    try:
        return _dump(read_data(data, name))
    except (KeyError, TypeError, ValueError):
        raise AutoshardError(
            f"{name} is no snapshot of memory: torch.cuda.memory._dump_snapshot writes one, with segments and "
            "device_traces"
        ) from None


def _dump(values: Any) -> Dump:
    _expect(values, dict)
    segments, traces = _expect(values["segments"], list), _expect(values.get("device_traces", []), list)
    devices = {_whole(_expect(one, dict).get("device", 0)): 0 for one in segments} or {0: 0}
    for one in segments:
        devices[one.get("device", 0)] += _whole(one["total_size"])
    device = max(devices, key=lambda number: devices[number])
    trace = _expect(traces[device], list) if device < len(traces) else []
    return _device(trace, [one for one in segments if one.get("device", 0) == device])


def _device(trace: list[Any], segments: list[Any]) -> Dump:
    open_at: dict[int, tuple[int, int, str]] = {}
    blocks: list[DumpedBlock] = []
    asked = free = failed = None
    failed_where = ""
    for event, entry in enumerate(trace, start=1):
        action = _expect(entry, dict)["action"]
        if action == "oom":
            asked, free, failed = _whole(entry["size"]), _whole(entry["device_free"]), event
            failed_where = _where(entry.get("frames", []))
        elif action == "alloc":
            open_at[_whole(entry["addr"])] = (_whole(entry["size"]), event, _where(entry.get("frames", [])))
        elif action in ("free_requested", "free_completed"):
            known = open_at.pop(_whole(entry["addr"]), None)
            if known is not None:
                blocks.append(DumpedBlock(known[0], known[1], event, known[2]))
            elif action == "free_requested":  # it was there before the trace begins
                blocks.append(DumpedBlock(_whole(entry["size"]), 0, event, ""))
    blocks += [DumpedBlock(size, birth, None, where) for size, birth, where in open_at.values()]
    blocks += [one for address, one in _active(segments) if address not in open_at]
    reserved = sum(_whole(one["total_size"]) for one in segments)
    return Dump(tuple(blocks), len(trace), reserved, asked, free, failed, failed_where)


def _active(segments: list[Any]) -> Iterator[tuple[int, DumpedBlock]]:
    """(address, block) of what the allocator had given out when the dump was made."""
    for segment in segments:
        address = _whole(segment["address"])
        for block in _expect(segment["blocks"], list):
            size = _whole(_expect(block, dict)["size"])
            if block["state"] in _ACTIVE:
                asked = _whole(block.get("requested_size", size)) or size
                where = _where(block.get("frames", []))
                yield _whole(block.get("address", address)), DumpedBlock(asked, 0, None, where)
            address += size


def _where(frames: Any) -> str:
    """The innermost line of Python outside of torch, if there is one."""
    frames = [_expect(one, dict) for one in islice(_expect(frames, list), MAX_FRAMES)]
    python = [one for one in frames if _text(one.get("filename")).endswith(".py")]
    outside = [one for one in python if "/torch/" not in one["filename"]]
    return _line((outside or python)[0]) if python else ""


def _line(frame: dict[str, Any]) -> str:
    line = frame.get("line")
    shown = f":{line}" if type(line) is int and 0 <= line < 1 << 32 else ""
    return printable(f"{frame['filename'].rpartition('/')[2]}{shown}:{_text(frame.get('name'))}"[:200])


def _text(value: Any) -> str:
    """A text; '' for anything else, which may be too deep to be written."""
    return value if type(value) is str else ""


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError("a whole number expected")
    return value
