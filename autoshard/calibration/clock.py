"""Times work on a device in several rounds, after it has warmed up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from autoshard.calibration.devices import DeviceUnderTest

ROUNDS = 4
MOST_REPEATS = 50


@dataclass(frozen=True)
class Clock:
    """A clock for one device. rounds: how many count, after one that warms up.

    Work shorter than the device's least round is repeated within a round, until the clock's own cost is small
    against it.
    """

    under_test: DeviceUnderTest
    rounds: int = ROUNDS

    @property
    def device(self) -> torch.device:
        return self.under_test.device

    def typical_s(self, work: Callable[..., Any], make: Callable[[], Any] | None = None) -> float:
        """Seconds of one call of `work`, including what it launches on the device: the fastest round's or the median,
        as the device says.

        make: gives what a call of `work` takes; made anew for each call, outside of the clock.
        """
        one_round_s = self.under_test.one_round_s if make is None else partial(self._fresh_round_s, make)
        one_round_s(work, 1)  # loads and chooses kernels: its time says nothing of the next ones
        first_s = one_round_s(work, 1)
        repeats = max(1, min(MOST_REPEATS, int(2 * self.under_test.least_round_s / max(first_s, 1e-7))))
        return self.under_test.typical_s([one_round_s(work, repeats) for _ in range(self.rounds)]) / repeats

    def _fresh_round_s(self, make: Callable[[], Any], work: Callable[[Any], Any], repeats: int) -> float:
        made = [make() for _ in range(repeats)]
        given = iter(made)
        return self.under_test.one_round_s(lambda: work(next(given)), repeats)

    def once_s(self, work: Callable[[], Any]) -> float:
        """Seconds of one call that every rank of a group makes: wall time, because ranks wait for each other."""
        self.under_test.wait()
        start = time.perf_counter()
        work()
        self.under_test.wait()
        return time.perf_counter() - start
