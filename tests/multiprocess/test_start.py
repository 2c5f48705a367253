"""What happens before the first step of a run, and what need not."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

from autoshard.audits.measure import fake_world
from autoshard.backends.torch import TORCH
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.runtime import starting
from autoshard.runtime.options import RunOptions
from autoshard.runtime.processes import start_interpreter
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import importing
from autoshard.schedules import SCHEDULES
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.multiprocess.started import start

UNUSED = ("sympy", "torch._dynamo", "torch._inductor", "torch.distributed.pipelining", "autoshard.conversion")
"""Packages that take long to import and that a rank has no use for."""


def test_a_rank_imports_what_it_uses() -> None:
    modules = [starting.TRAINER, *TORCH.early_imports]
    statements = f"import sys; [__import__(name) for name in {modules!r}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", statements], capture_output=True, text=True, check=True)
    assert not set(UNUSED) & set(done.stdout.split())


def test_the_first_step_of_a_pipeline_imports_no_more_of_torch() -> None:
    outcome = start("start_workers:one_step", 2, {}, hang_timeout_s=60)
    assert outcome.exit_code == 0, outcome.message
    for found in outcome.results:
        assert found is not None and found["collects"]
        assert not {"torch", "sympy"} & {name.partition(".")[0] for name in found["imported"]}


def test_the_processes_begin_before_the_plan_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = list[Any]()

    @contextmanager
    def server(modules: list[str]) -> Iterator[Any]:
        happened.append(modules)
        yield start_interpreter
        happened.append("gone")

    def read(file: str) -> None:
        happened.append(file)
        raise AutoshardError("no plan")

    monkeypatch.setattr(starting, "fork_server", server)
    monkeypatch.setattr("autoshard.commands.run.load_plan", read)
    assert main(["run", "plan.json"]) == 2
    assert happened == [[starting.TRAINER, *TORCH.early_imports], "plan.json"]


@pytest.mark.parametrize("options", [RunOptions(device="cuda"), RunOptions(backend="nxd")])
def test_devices_are_never_forked(options: RunOptions) -> None:
    with starting.starter(options) as begin:
        assert begin is start_interpreter


def test_an_import_that_fails_leaves_collection_on() -> None:
    with suppress(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    gc.unfreeze()
    assert gc.isenabled()


def test_a_schedule_that_cannot_run_is_refused_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(MODELS["llama"], strategy(pp=2), 4, FP32)
    settings = optimizer_settings(FP32, 1e-3, zero=1, seed=0)
    apart, together = SCHEDULES["zero_bubble"].orders(2, 4, 1), SCHEDULES["1f1b"].orders(2, 4, 1)
    for orders, sentence in (
        ((together[0][:-1], together[1]), "the schedule has F3.0 of microbatch 3 in chunk 0 of rank 0"),
        (together[::-1], "the schedule deadlocks: rank 0 before B0.0"),
        (apart, "schedule=1f1b has actions I and W: it must say weights_apart=True"),
    ):
        monkeypatch.setattr("autoshard.runtime.torch_backend.pipeline.actions", lambda *sizes, found=orders: found)
        with fake_world(0, 2), pytest.raises(AutoshardError) as error:
            Session(plan, 0, torch.device("cpu"), settings, seed=0)
        assert str(error.value).startswith(sentence)
