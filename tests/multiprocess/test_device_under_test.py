"""The interface to a measured device: the CPU stands in for a GPU, whose answers are given; no GPU is here."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoshard.calibration.clock import ROUNDS, Clock
from autoshard.calibration.curves import curves
from autoshard.calibration.devices import (
    CudaDevice,
    HostDevice,
    State,
    check_free,
    count,
    open_device,
    parse_smi,
    smi_state,
)
from autoshard.calibration.values import FP8, LAUNCH, MemoryTime, OperatorTime
from autoshard.calibration.worker import unsteady
from autoshard.errors import AutoshardError

CALM = State(1980.0, 1980.0, 0, 40.0, 200.0, 0.0)


class StandIn(HostDevice):
    """A host that answers as a GPU would: rounds of given seconds, FP8, free memory."""

    least_round_s = 2e-3

    def __init__(self, rounds: list[float] | None = None) -> None:
        super().__init__()
        self.rounds, self.repeats = rounds, list[int]()

    @property
    def name(self) -> str:
        return "stand-in"

    @property
    def memory_bytes(self) -> float:
        return 80 * 2.0**30

    def free_bytes(self) -> float:
        return 3 * 2.0**30

    def one_round_s(self, work: Callable[[], Any], repeats: int) -> float:
        self.repeats.append(repeats)
        return super().one_round_s(work, repeats) if self.rounds is None else self.rounds.pop(0) * repeats

    def typical_s(self, rounds: list[float]) -> float:
        return sorted(rounds)[len(rounds) // 2]


def test_a_clock_warms_up_repeats_short_work_and_takes_the_typical_round() -> None:
    """Two rounds do not count; 1 ms is repeated until a round takes 4 ms."""
    device = StandIn([9.0, 1e-3, 2e-3, 3e-3, 9e-3, 4e-3])
    assert Clock(device).typical_s(lambda: None) == pytest.approx(4e-3)
    assert device.repeats == [1, 1] + [4] * ROUNDS


def test_a_host_takes_the_fastest_round_and_a_gpu_the_one_in_the_middle() -> None:
    rounds = [3.0, 1.0, 9.0]
    assert HostDevice().typical_s(rounds) == 1.0
    assert CudaDevice.typical_s(SimpleNamespace(), rounds) == 3.0  # type: ignore[arg-type]


def test_curves_over_sizes() -> None:
    """Every kind of point, with times; FP8 only where the device has it, and a CPU has not."""
    left_out: list[str] = []
    found = list(curves("float32", Clock(HostDevice(), rounds=1), left_out))
    assert left_out == []
    products = [one for one in found if isinstance(one, OperatorTime)]
    copies = [one for one in found if isinstance(one, MemoryTime)]
    assert {one.needs.kind for one in products} == {"matmul", "flash"} and FP8 not in {one.dtype for one in products}
    assert {one.needs.k for one in products if one.needs.m == 256} == {32, 128, 512, 2048}
    assert all(one.backward_s for one in products if one.needs.kind == "flash")
    assert [one.name for one in copies] == ["copy 0.0625 MiB", "copy 1 MiB", "copy 16 MiB", LAUNCH]
    assert all(one.forward_s > 0 for one in products) and 1e-8 < copies[-1].seconds < 1e-2


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def unknown(*arguments: Any) -> Any:
        raise RuntimeError("no such kernel\nsee the log")

    monkeypatch.setattr("autoshard.calibration.curves._attention", full)
    monkeypatch.setattr("autoshard.calibration.curves._fp8_product", unknown)
    monkeypatch.setattr(HostDevice, "has_fp8", lambda self: True)
    left_out: list[str] = []
    found = list(curves("float32", Clock(HostDevice(), rounds=1), left_out))
    assert {one.needs.kind for one in found if isinstance(one, OperatorTime)} == {"matmul"}
    assert left_out[0] == "the FP8 product (256, 256, 32) is left out: no such kernel"
    assert left_out[-1] == "attention (1, 512, 64) is left out: it does not fit into the memory"


def test_a_device_without_room() -> None:
    with pytest.raises(AutoshardError) as caught:
        check_free(StandIn(), 16 * 2.0**30)
    assert str(caught.value) == (
        "device=cpu: 3.0 GiB of the 80.0 GiB of stand-in are free, measuring needs 16.0 GiB: end what holds the rest"
    )


def test_a_busy_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One calm moment is enough; without any the error says how busy the least busy one was."""
    monkeypatch.setattr("autoshard.calibration.devices.time.sleep", lambda seconds: None)
    busy = State(1980.0, 1980.0, 0, 60.0, 600.0, 97.0)
    states = iter([busy, CALM])
    check_free(StandIn(), 1.0, lambda: next(states))
    with pytest.raises(AutoshardError, match=r"^device=cpu: stand-in is busy, 97 % of the time with other work: times"):
        check_free(StandIn(), 1.0, lambda: busy)
    check_free(StandIn(), 1.0, lambda: None)


def test_what_nvidia_smi_says() -> None:
    """A line of an H100's and one of a driver that does not tell everything."""
    found = parse_smi("1755, 1980, 83, 612.44, 99, 0x0000000000000044\n")
    assert found == State(1755.0, 1980.0, 0x44, 83.0, 612.44, 99.0) and found.slowed_by == ("hardware thermal",)
    vague = parse_smi("345, 1980, 31, [N/A], [Not Supported], [N/A]")
    assert vague == State(345.0, 1980.0, 0, 31.0, 0.0, 0.0)
    assert parse_smi("") is None and parse_smi("No devices were found") is None


def test_nvidia_smi_of_older_drivers_and_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(command: list[str], **options: Any) -> Any:
        asked.append(command)
        old = "clocks_event_reasons.active" in command[3]
        return SimpleNamespace(returncode=2 if old else 0, stdout="" if old else "1980, 1980, 40, 200, 0, 0x0")

    monkeypatch.setattr(subprocess, "run", run)
    assert smi_state("8a1b") == CALM
    assert [one[2] for one in asked] == ["GPU-8a1b"] * 2
    monkeypatch.setattr(subprocess, "run", _missing)
    assert smi_state("8a1b") is None


def _missing(*arguments: Any, **options: Any) -> Any:
    raise FileNotFoundError("nvidia-smi")


def test_a_device_that_slows_down_is_noticed() -> None:
    assert unsteady([1.0, 1.02, 1.04], [CALM]) == []
    hot = State(1200.0, 1980.0, 0x20, 88.0, 500.0, 99.0)
    assert unsteady([1.0, 1.0, 1.3, 1.1], [CALM, hot]) == [
        "the device slowed down: one product took 30% longer than at its fastest",
        "the clock was held down (software thermal): 1200 to 1980 MHz of 1980, up to 88 degrees Celsius",
    ]
    assert unsteady([1.1, 1.0, 1.0], [State(1500.0, 1980.0, 0x4, 60.0, 700.0, 99.0)]) == [
        "the power cap held the clock down at times, as is usual for a GPU under full load"
    ]


def test_no_gpu_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert count("cuda") == (
        0,
        f"torch {torch.__version__} is built without CUDA; install torch as pytorch.org says for this machine's driver",
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert count("cuda") == (0, "torch sees no GPU with CUDA_VISIBLE_DEVICES=7")
    assert count("cpu")[0] >= 1


def test_a_gpu_that_another_process_keeps_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> None:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCompile with ...")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    with pytest.raises(AutoshardError, match=r"^device=cuda: CUDA error: CUDA-capable device\(s\) is/are busy .*$"):
        open_device("cuda")


class Recorded:
    """Stands in for torch.cuda: says what was called, in order."""

    def __init__(self) -> None:
        self.calls = list[str]()
        self.device_count = lambda: 1

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802  # torch's name
        number = self.calls.count("event")
        self.calls.append("event")
        return SimpleNamespace(
            record=lambda: self.calls.append(f"record {number}"),
            synchronize=lambda: self.calls.append(f"wait for {number}"),
            elapsed_time=lambda end: 4.0,
        )

    def get_device_properties(self, device: torch.device) -> Any:
        return SimpleNamespace(total_memory=80 * 2**30, uuid="8a1b")

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 70 * 2**30, 80 * 2**30

    def get_device_capability(self, device: torch.device) -> tuple[int, int]:
        return 9, 0

    def get_device_name(self, device: torch.device) -> str:
        return "NVIDIA H100"

    def max_memory_allocated(self, device: torch.device) -> int:
        return 5

    def max_memory_reserved(self, device: torch.device) -> int:
        return 7

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append(name)


def test_what_is_asked_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round lies between two events of which the second is waited for; memory is the allocator's own count."""
    cuda = Recorded()
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: cuda.calls.append(f"zeros on {device}"))
    monkeypatch.setattr("autoshard.calibration.devices.smi_state", lambda uuid: CALM if uuid == "8a1b" else None)
    device = open_device("cuda", 0)
    assert cuda.calls == ["set_device", "zeros on cuda:0"]
    cuda.calls.clear()
    assert device.one_round_s(lambda: cuda.calls.append("work"), 2) == 4e-3
    assert cuda.calls == ["event", "event", "synchronize", "record 0", "work", "work", "record 1", "wait for 1"]
    cuda.calls.clear()
    device.forget_peak()
    assert cuda.calls == ["empty_cache", "reset_peak_memory_stats"]
    assert (device.name, device.memory_bytes, device.free_bytes()) == ("NVIDIA H100", 80 * 2**30, 70 * 2**30)
    assert (device.peak_bytes(), device.reserved_bytes(), device.state()) == (5, 7, CALM)
    assert device.has_fp8()
    monkeypatch.setattr(cuda, "get_device_capability", lambda device: (8, 0))
    assert not device.has_fp8(), "an A100 has none"
    check_free(device, 16 * 2.0**30)


def test_memory_of_a_host_is_counted() -> None:
    device = open_device("cpu")
    device.forget_peak()
    before = device.peak_bytes()
    held = torch.ones(1 << 24)
    assert device.peak_bytes() - before > 0.9 * held.nbytes
    assert device.state() is None and not device.has_fp8() and device.free_bytes() > 0
