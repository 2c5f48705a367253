"""One command as a whole process, with what it took and printed: benchmarks of commands share it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from autoshard.units import KIB

_TIMED_OUT = 124
"""Exit status of timeout(1)."""


class Finished(NamedTuple):
    """A process that has ended. cpu_s, memory_mib: its own and that of those that it waited for; the memory of the
    largest. output, errors: the last line of each, empty without any."""

    status: int
    wall_s: float
    cpu_s: float
    memory_mib: float
    output: str
    errors: str

    @property
    def in_time(self) -> bool:
        return self.status != _TIMED_OUT


def finished(
    command: Sequence[str], stop_s: int, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Finished:
    """Runs a command to its end, or for stop_s seconds. folder: to run it in. environment: else this one's."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            ["timeout", str(stop_s), *command], cwd=folder, env=environment, stdout=output, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        last = []
        for file in (output, errors):
            file.seek(0)
            last.append((file.read().decode(errors="replace").strip().splitlines() or [""])[-1])
        cpu_s, memory_mib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / KIB
        return Finished(process.returncode, wall_s, cpu_s, memory_mib, *last)
