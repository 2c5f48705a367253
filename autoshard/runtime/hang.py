"""Tells which of several silent ranks hangs and which only wait for it, from their stack traces."""

from __future__ import annotations

import re

_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+ in (?P<function>.*)$')
_NEAREST_FRAMES = 3
_WAITING_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/_ops.py",
    "torch_backend/collectives.py",
    "torch_backend/shared_memory.py",
    "torch_backend/sums.py",
    "torch_backend/transfers.py",
)
"""Files whose frames mean waiting for another rank: collectives are operators of torch, other waits are methods of
groups, and sums are read from a device, which may wait in a collective."""


def is_waiting(stacks: str) -> bool:
    """Whether a process waits for other ranks. stacks: what faulthandler wrote of its threads, innermost frames first.

    An empty text, which a stopped process leaves, is not waiting.
    """
    return any(_waits(thread) for thread in re.split(r"^(?:Current t|T)hread 0x.*$", stacks, flags=re.MULTILINE)[1:])


def _waits(thread: str) -> bool:
    frames = [match for match in map(_FRAME.match, thread.splitlines()) if match][:_NEAREST_FRAMES]
    return any(
        frame["file"].endswith(_WAITING_FILES) or ("/torch/" in frame["file"] and frame["function"] == "wait")
        for frame in frames
    )
