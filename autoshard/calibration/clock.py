"""Seconds of work on a device: the fastest of several rounds, since other work on the machine only makes one longer.

On a CPU it is the processor's time of this process, which does not count what others took meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROUNDS = 4
SHORT_S = 1e-4
"""Work that takes less is repeated within a round, until the clock's own cost is small against it."""


@dataclass(frozen=True)
class Clock:
    """rounds: that count, after one that warms up."""

    device: torch.device
    rounds: int = ROUNDS

    def fastest_s(self, work: Callable[[], Any]) -> float:
        """Of one call, the device's own work included."""
        clock = time.process_time if self.device.type == "cpu" else time.perf_counter
        first_s = self._round_s(work, 1, clock)
        repeats = max(1, min(50, int(2 * SHORT_S / max(first_s, 1e-7))))
        return min(self._round_s(work, repeats, clock) for _ in range(self.rounds)) / repeats

    def once_s(self, work: Callable[[], Any]) -> float:
        """Of one call, which every rank of a group makes; on the wall, since ranks wait for each other."""
        return self._round_s(work, 1, time.perf_counter)

    def _round_s(self, work: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
        self._wait()
        start = clock()
        for _ in range(repeats):
            work()
        self._wait()
        return clock() - start

    def _wait(self) -> None:
        """For what was launched on the device."""
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize()
