"""One small interface to the device that is measured: its clock, its memory, and whether it is at its usual speed.

`open_device` gives it by name. Everything that only CUDA has is in here; the CPU stands in for it in tests.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from autoshard.doctor.machine import num_cores
from autoshard.errors import AutoshardError
from autoshard.runtime.worker import peak_memory_bytes
from autoshard.units import GIB

BUSY_PERCENT = 20
"""A device that others use more than this is busy (a guess: drawing a desktop takes less)."""
BUSY_SAMPLES = 5
SLOWED = {0x8: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
"""Bits of NVML's reasons for a lower clock that say something is wrong. The power cap (0x4) is usual under load."""
POWER_CAP = 0x4


@dataclass(frozen=True)
class State:
    """State of a device at one moment. clock_mhz, most_mhz: of its processors now and at most. reasons: NVML's bits for
    a lower clock. used_percent: of the last second, by anybody."""

    clock_mhz: float
    most_mhz: float
    reasons: int
    temperature_c: float
    power_w: float
    used_percent: float

    @property
    def slowed_by(self) -> tuple[str, ...]:
        """Names of what holds the clock down and should not."""
        return tuple(name for bit, name in SLOWED.items() if self.reasons & bit)


class DeviceUnderTest(Protocol):
    """The device as measurements see it.

    least_round_s: a shorter round is too short for its clock. one_round_s: seconds of so many calls, with all that they
    launch. typical_s: of several rounds. peak_bytes: the most that tensors took since forget_peak; reserved_bytes: what
    the allocator took for them.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def name(self) -> str: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def least_round_s(self) -> float: ...
    def wait(self) -> None: ...
    def one_round_s(self, work: Callable[[], Any], repeats: int) -> float: ...
    def typical_s(self, rounds: list[float]) -> float: ...
    def free_bytes(self) -> float: ...
    def forget_peak(self) -> None: ...
    def peak_bytes(self) -> float: ...
    def reserved_bytes(self) -> float: ...
    def state(self) -> State | None: ...
    def has_fp8(self) -> bool: ...


class HostDevice:
    """A CPU: the processor time of this process, which leaves out what other processes took meanwhile. The fastest of
    several rounds counts, since other work on the machine only makes a round longer."""

    least_round_s = 1e-4

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    @property
    def name(self) -> str:
        file = Path("/proc/cpuinfo")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return models[0] if models else platform.processor() or platform.machine()

    @property
    def memory_bytes(self) -> float:
        """A process's share of the machine's memory."""
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / num_cores()

    def wait(self) -> None:
        pass

    def one_round_s(self, work: Callable[[], Any], repeats: int) -> float:
        return _host_s(work, repeats, self.wait, time.process_time)

    def typical_s(self, rounds: list[float]) -> float:
        return min(rounds)

    def free_bytes(self) -> float:
        file = Path("/proc/meminfo")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        free = [float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        return free[0] if free else self.memory_bytes

    def forget_peak(self) -> None:
        """The kernel keeps the high-water mark of a process; writing 5 to clear_refs begins it anew."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def peak_bytes(self) -> float:
        return float(peak_memory_bytes())

    def reserved_bytes(self) -> float:
        return self.peak_bytes()

    def state(self) -> State | None:
        return None

    def has_fp8(self) -> bool:
        return False


class _Accelerator:
    """A device of torch that works beside the host: one of several rounds in the middle counts, for its own clock goes
    both ways."""

    least_round_s = 2e-3

    def __init__(self, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)
        self._module = getattr(torch, kind)

    @property
    def name(self) -> str:
        return self.device.type

    @property
    def memory_bytes(self) -> float:
        return float(self._module.get_device_properties(self.device).total_memory)

    def wait(self) -> None:
        self._module.synchronize()

    def one_round_s(self, work: Callable[[], Any], repeats: int) -> float:
        return _host_s(work, repeats, self.wait, time.perf_counter)

    def typical_s(self, rounds: list[float]) -> float:
        return median(rounds)

    def free_bytes(self) -> float:
        return self.memory_bytes

    def forget_peak(self) -> None:
        pass

    def peak_bytes(self) -> float:
        return 0.0

    def reserved_bytes(self) -> float:
        return 0.0

    def state(self) -> State | None:
        return None

    def has_fp8(self) -> bool:
        return False


class CudaDevice(_Accelerator):
    """An NVIDIA GPU: times are between two events on its own stream, memory is what torch's allocator counts, and its
    clock is what nvidia-smi says."""

    def __init__(self, index: int) -> None:
        super().__init__("cuda", index)
        try:
            torch.cuda.set_device(index)
            torch.zeros(1, device=self.device)
        except RuntimeError as error:
            raise AutoshardError(f"device=cuda: {first_line(error)}") from None

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def one_round_s(self, work: Callable[[], Any], repeats: int) -> float:
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        self.wait()
        start.record()
        for _ in range(repeats):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def free_bytes(self) -> float:
        return float(torch.cuda.mem_get_info(self.device)[0])

    def forget_peak(self) -> None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> float:
        return float(torch.cuda.max_memory_allocated(self.device))

    def reserved_bytes(self) -> float:
        return float(torch.cuda.max_memory_reserved(self.device))

    def state(self) -> State | None:
        """None where nvidia-smi is missing or says nothing."""
        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return None if uuid is None else smi_state(str(uuid))

    def has_fp8(self) -> bool:
        return hasattr(torch, "_scaled_mm") and torch.cuda.get_device_capability(self.device) >= (8, 9)


def open_device(kind: str, index: int = 0) -> DeviceUnderTest:
    """This process's own device. kind: cpu, cuda or neuron. Raises AutoshardError where it cannot be used."""
    if kind == "cpu":
        return HostDevice()
    return CudaDevice(index) if kind == "cuda" else _Accelerator(kind, index)


def check_free(device: DeviceUnderTest, needed_bytes: float, states: Callable[[], State | None] | None = None) -> None:
    """Raises AutoshardError where others use the device, or hold more of its memory than is left over.

    states: gives the state of the device, asked until one sample is not busy; None: the device's own.
    """
    kind, free = device.device.type, device.free_bytes()
    if free < needed_bytes:
        raise AutoshardError(
            f"device={kind}: {free / GIB:.1f} GiB of the {device.memory_bytes / GIB:.1f} GiB of {device.name} are "
            f"free, measuring needs {needed_bytes / GIB:.1f} GiB: end what holds the rest"
        )
    least = 100.0
    for sample in range(BUSY_SAMPLES):
        state = (states or device.state)()
        if state is None:
            return
        least = min(least, state.used_percent)
        if least <= BUSY_PERCENT:
            return
        if sample < BUSY_SAMPLES - 1:
            time.sleep(0.5)
    raise AutoshardError(
        f"device={kind}: {device.name} is busy, {least:.0f} % of the time with other work: times would be wrong"
    )


_SMI_FIELDS = ("clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw", "utilization.gpu")


def smi_state(uuid: str) -> State | None:
    """State of the GPU with this UUID (with or without "GPU-"), from nvidia-smi; None where that says nothing."""
    identity = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):  # the newer name, and the older
        query = ",".join((*_SMI_FIELDS, reasons))
        command = ["nvidia-smi", "-i", identity, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if answer.returncode == 0:
            return parse_smi(answer.stdout)
    return None


def parse_smi(answer: str) -> State | None:
    """One line of nvidia-smi's CSV, in the order of _SMI_FIELDS and then the reasons; None where it is no such line.
    Numbers that the GPU does not tell ("[N/A]") are 0."""
    fields = [field.strip() for field in answer.strip().splitlines()[0].split(",")] if answer.strip() else []
    if len(fields) != len(_SMI_FIELDS) + 1:
        return None
    clock, most, temperature, power, used = (_number(field) for field in fields[:-1])
    try:
        reasons = int(fields[-1], 16)
    except ValueError:
        reasons = 0
    return State(clock, most, reasons, temperature, power, used)


def _number(field: str) -> float:
    try:
        return float(field)
    except ValueError:
        return 0.0


def _host_s(work: Callable[[], Any], repeats: int, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    wait()
    start = clock()
    for _ in range(repeats):
        work()
    wait()
    return clock() - start


def count(kind: str) -> tuple[int, str]:
    """(how many devices of the kind this machine has, why there are none; '' where there are)."""
    if kind == "cpu":
        return num_cores(), ""
    if kind == "cuda":
        if torch.version.cuda is None:
            return 0, f"torch {torch.__version__} is built without CUDA; {_how_to_get_cuda()}"
        found = torch.cuda.device_count()
        return found, "" if found else _no_gpu()
    backend = getattr(torch, "neuron", None)
    if backend is None:
        return 0, f"torch {torch.__version__} has no device of that name"
    found = backend.device_count()
    return found, "" if found else "torch sees no NeuronCore"


def _how_to_get_cuda() -> str:
    return "install torch as pytorch.org says for this machine's driver" if sys.platform == "linux" else "Linux has it"


def _no_gpu() -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "torch sees no GPU" + (f" with CUDA_VISIBLE_DEVICES={hidden}" if hidden is not None else "")


def first_line(error: BaseException) -> str:
    """The first line of an error's text; torch's errors go on for pages."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
