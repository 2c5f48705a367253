"""Where a rank computes and what it meets the others through; no chip is needed to see that."""

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autoshard.backends import native_neuron
from autoshard.backends.native_neuron import COMPILE_ONLY, check_native
from autoshard.errors import AutoshardError
from autoshard.runtime.options import RunOptions
from autoshard.runtime.processes import start_interpreter
from autoshard.runtime.run import run_plan
from autoshard.runtime.torch_backend.devices import computes, connect, device_of
from autoshard.spec.cluster import load_cluster
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, FP64, plan_of, strategy


def test_the_native_device_meets_the_others_through_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("torch.distributed.init_process_group", lambda **values: asked.update(values))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    reporter: Any = SimpleNamespace(rank=3, local_rank=3, world_size=8, init_method="env://")
    connect(SimpleNamespace(type="neuron"), timedelta(seconds=60), reporter)  # type: ignore[arg-type]
    assert (asked["backend"], asked["rank"], asked["world_size"]) == ("neuron", 3, 8)


def test_a_torch_that_has_the_device_gives_a_rank_its_own() -> None:
    """In a process of its own, as TorchNeuron registers it: once and for all."""
    code = """
import torch
torch.utils.rename_privateuse1_backend("neuron")
from autoshard.runtime.torch_backend.devices import device_of
from tests.multiprocess.test_devices import plan
print(device_of(plan(), "neuron", False, 5))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "neuron\n"


def test_a_torch_without_the_device() -> None:
    with pytest.raises(AutoshardError, match=r"^device=neuron: torch \S+ knows no such device; install native PyTorch"):
        device_of(plan(), "neuron", False, 0)


def test_the_native_device_takes_no_float64() -> None:
    finer = replace(plan(), training=replace(plan().training, precision=FP64))
    with pytest.raises(AutoshardError, match=r"^device=neuron: precision=fp64 has float64, which the device computes "):
        check_native(finer.training.precision, 1, has_p2p=True)


def test_no_operator_of_any_model_needs_float64_on_the_device() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.multiprocess.other_device", "neuron"], capture_output=True, text=True
    )
    lines = dict(line.split(": ", 1) for line in ran.stdout.strip().splitlines())
    assert "FP64, which the device has not" in lines.pop("wide"), ran.stderr
    assert len(lines) > 8 and set(lines.values()) == {"done"}, ran.stdout + ran.stderr


def test_a_pipeline_needs_a_version_that_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    precision = plan().training.precision
    monkeypatch.setattr(native_neuron, "installed_version", lambda: (2, 12, 3))
    check_native(precision, 1, has_p2p=True)
    with pytest.raises(AutoshardError, match=r"^device=neuron: pp=2 sends .* from 2.13.3 on; installed is 2.12.3: "):
        check_native(precision, 2, has_p2p=True)
    monkeypatch.setattr(native_neuron, "installed_version", lambda: (2, 13, 3, 0))
    check_native(precision, 2, has_p2p=True)


def test_auto_computes_a_plan_for_trainium_on_the_host_only_in_a_rehearsal() -> None:
    on_trainium = replace(plan(), cluster=load_cluster("trn1.32xlarge", 1))
    assert device_of(plan(), "auto", False, 0) == torch.device("cpu")
    assert device_of(on_trainium, "auto", True, 0) == torch.device("cpu")
    with pytest.raises(AutoshardError, match=r"^device=neuron: native PyTorch on Neuron runs on trn2 and .* host$"):
        device_of(on_trainium, "auto", False, 0)


def test_auto_computes_a_plan_for_gpus_on_the_host_only_in_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus = replace(plan(), cluster=load_cluster("h100-80gb", 1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert device_of(on_gpus, "auto", True, 0) == device_of(on_gpus, "cpu", False, 0) == torch.device("cpu")
    told = "device=cuda: torch sees 0 GPUs here, rank 0 needs one; device=cpu computes on the host"
    with pytest.raises(AutoshardError, match=f"^{told}$"):
        device_of(on_gpus, "auto", False, 0)


def test_auto_takes_gpus_where_every_rank_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = plan(dp=2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    assert device_of(pair, "auto", False, 0) == device_of(pair, "auto", False, 1) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(pair, "auto", False, rank) for rank in (0, 1)] == [torch.device("cuda", rank) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("gpus", "device", "run"),
    [(1, "auto", "here"), (1, "cuda", "here"), (1, "cpu", "rehearsed"), (0, "auto", "rehearsed")],
)
def test_a_plan_for_gpus_of_this_machine_runs_as_planned(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, run: str
) -> None:
    codes = {"here": 3, "rehearsed": 4}
    monkeypatch.setattr("autoshard.runtime.run.visible_gpus", lambda: gpus)
    monkeypatch.setattr("autoshard.runtime.run._run_here", lambda *values: codes["here"])
    monkeypatch.setattr("autoshard.runtime.run._rehearse", lambda *values: codes["rehearsed"])
    on_gpus = replace(plan(), cluster=load_cluster("h100-80gb", 1))
    assert run_plan(on_gpus, RunOptions(device=device), start=start_interpreter) == codes[run]


def plan(**layout: Any) -> Any:
    return plan_of(MODELS["llama"], strategy(**layout), 4, FP32)


def test_only_the_native_device_can_be_asked_to_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPILE_ONLY, "1")
    assert computes(torch.device("cpu"))
    assert not computes(SimpleNamespace(type="neuron"))  # type: ignore[arg-type]  # torch alone has no such one
    monkeypatch.setenv(COMPILE_ONLY, "0")
    assert computes(SimpleNamespace(type="neuron"))  # type: ignore[arg-type]
