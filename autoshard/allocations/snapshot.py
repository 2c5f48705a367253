"""Writes blocks as a snapshot for PyTorch's memory visualiser (https://pytorch.org/memory_viz), in the form that
torch.cuda.memory._snapshot documents: segments with blocks, and a trace of allocations and releases."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from autoshard.allocations.blocks import Block, RankMemory

ROUNDED_TO = 512
"""Bytes to which CUDA's caching allocator rounds a request."""
FIRST_ADDRESS = 1 << 40
Frame = dict[str, Any]


class Held(NamedTuple):
    """An allocation of a snapshot: held after the events birth <= e < death (None: to its end), made at frames."""

    size_bytes: int
    birth: int
    death: int | None
    frames: list[Frame]


def rounded(size_bytes: int) -> int:
    """The bytes that the allocator gives for a request."""
    return -(-size_bytes // ROUNDED_TO) * ROUNDED_TO


def snapshot(allocations: Sequence[Held], times_us: Sequence[int], out_of_memory: Frame | None = None) -> Frame:
    """The snapshot as plain values. times_us: of each event. out_of_memory: the size that was asked for last, in vain,
    and the bytes that were free (size, device_free); None where the program came to its end."""
    changes = sorted(
        [(one.birth, 1, number) for number, one in enumerate(allocations)]
        + [(one.death, 0, number) for number, one in enumerate(allocations) if one.death is not None]
    )
    free: dict[int, list[int]] = defaultdict(list)
    address_of: dict[int, int] = {}
    places: dict[int, int] = {}
    trace: list[Frame] = []
    end = FIRST_ADDRESS
    for event, is_birth, number in changes:
        one, at_us = allocations[number], times_us[event]
        size = max(rounded(one.size_bytes), ROUNDED_TO)
        if is_birth:
            if free[size]:
                address = free[size].pop()
            else:
                address, end = end, end + size
                places[address] = size
            address_of[number] = address
            trace.append(_entry("alloc", address, one, at_us))
        else:
            address = address_of.pop(number)
            free[size].append(address)
            trace += [_entry(action, address, one, at_us) for action in ("free_requested", "free_completed")]
    if out_of_memory is not None:
        trace.append({"action": "oom", **out_of_memory, "stream": 0, "time_us": times_us[-1], "frames": []})
    at = {address: allocations[number] for number, address in address_of.items()}
    return {"segments": [_segment(places, at)], "device_traces": [trace], "allocator_settings": {}}


def rank_snapshot(memory: RankMemory, times_s: Sequence[float]) -> Frame:
    """The snapshot of a planned step. times_s: of each event."""
    blocks = [Held(one.size_bytes, one.birth, one.death, _frames(one, memory)) for one in memory.blocks]
    return snapshot(blocks, [round(at * 1e6) for at in times_s])


def to_bytes(values: Frame) -> bytes:
    """The file's content: a pickle of dicts, lists, texts and numbers alone."""
    return pickle.dumps(values, protocol=4)


def _segment(places: dict[int, int], at: dict[int, Held]) -> Frame:
    blocks = []
    for address, size in sorted(places.items()):
        held = at.get(address)
        blocks.append(
            {
                "address": address,
                "size": size,
                "requested_size": 0 if held is None else held.size_bytes,
                "state": "inactive" if held is None else "active_allocated",
                "frames": [] if held is None else held.frames,
            }
        )
    total, used = sum(places.values()), sum(places[address] for address in at)
    return {
        "device": 0,
        "address": FIRST_ADDRESS,
        "total_size": total,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(one.size_bytes for one in at.values()),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _entry(action: str, address: int, one: Held, at_us: int) -> Frame:
    return {
        "action": action,
        "addr": address,
        "size": one.size_bytes,
        "stream": 0,
        "time_us": at_us,
        "frames": one.frames if action == "alloc" else [],
    }


def _frames(one: Block, memory: RankMemory) -> list[Frame]:
    """The frames that the visualiser shows of a block: its tensor, its operator, and where in the step it was made."""
    where = memory.action_at(one.birth) if one.birth else "before the step"
    if one.microbatch is not None:
        where = f"{where}: {one.phase}, stage {one.stage}, microbatch {one.microbatch}"
    names = (("tensor", one.label), ("operator", one.operator or one.kind), ("action", where))
    return [{"filename": name, "line": 0, "name": text} for name, text in names]
