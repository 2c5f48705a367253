"""A short calibration of this machine, and what is not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.calibration.clock import Clock
from autoshard.calibration.devices import HostDevice
from autoshard.calibration.operators import SMALL, times
from autoshard.calibration.values import OperatorTime
from autoshard.cli import main
from autoshard.spec.cluster import load_cluster


def test_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One program and two ranks: a file that plans are made with, and every family of measurements on the page."""
    file = tmp_path / "my.json"
    assert main(["calibrate", "--shapes", "1", "--processes", "2", "-o", str(file)]) == 0
    shown = capsys.readouterr()
    cluster = load_cluster(None, 1, hardware_file=file)
    assert 1e8 < cluster.device.peak_flops_per_s("float32") < 1e14
    assert 1e-6 < cluster.collective_launch_s < 1
    for family in ("matmul", "flash", "norm", "pass", "memory", "all_reduce", "send_recv"):
        assert f"  {family} " in shown.out
    assert "2/2 llama3-8b hidden 128" in shown.err
    plan = ["plan", "--model", "llama3-8b", "--hardware", str(file), "--seq-len", "128", "--global-batch", "1"]
    assert main([*plan, "--precision", "fp32", "--out", str(tmp_path / "plan.json")]) == 2
    assert "no layout fits llama3-8b on 1 x cpu" in capsys.readouterr().err


def test_plain_attention_is_timed() -> None:
    """Its backward writes over what its forward kept, so that each one needs a forward of its own."""
    shape = next(one for one in SMALL if one.kernel == "plain" and one.base == "gpt3-175b")
    found = list(times(shape, "float32", Clock(HostDevice(), rounds=1)))
    core = next(one for one in found if isinstance(one, OperatorTime) and "core_attention" in one.name)
    assert core.backward_s is not None and core.forward_s > 0 and core.backward_s > 0
    assert [one.name for one in found[-2:]] == [f"forward of {shape.name}", f"backward of {shape.name}"]


@pytest.mark.parametrize("device", ["neuron", "cuda"])
def test_a_device_that_is_not_there(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["calibrate", "--device", device, "-o", str(tmp_path / "my.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"autoshard: error: device={device} is not on this machine: torch ")
    assert error.count("\n") == 1 and not (tmp_path / "my.json").exists()
