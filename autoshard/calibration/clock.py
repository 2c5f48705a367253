"""Times work on a device: the fastest of several rounds, since other work on the machine only makes a round longer.

On a CPU it is the processor time of this process, which leaves out what other processes took meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROUNDS = 4
SHORT_S = 1e-4
"""Work shorter than this is repeated within a round, until the clock's own cost is small against it."""


@dataclass(frozen=True)
class Clock:
    """A clock for one device. rounds: how many count, after one that warms up."""

    device: torch.device
    rounds: int = ROUNDS

    def fastest_s(self, work: Callable[[], Any]) -> float:
        """Seconds of the fastest call of `work`, including what it launches on the device."""
        clock = time.process_time if self.device.type == "cpu" else time.perf_counter
        first_s = self._round_s(work, 1, clock)
        repeats = max(1, min(50, int(2 * SHORT_S / max(first_s, 1e-7))))
        return min(self._round_s(work, repeats, clock) for _ in range(self.rounds)) / repeats

    def once_s(self, work: Callable[[], Any]) -> float:
        """Seconds of one call that every rank of a group makes: wall time, because ranks wait for each other."""
        return self._round_s(work, 1, time.perf_counter)

    def _round_s(self, work: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
        self._wait()
        start = clock()
        for _ in range(repeats):
            work()
        self._wait()
        return clock() - start

    def _wait(self) -> None:
        """Waits for what was launched on the device."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()
