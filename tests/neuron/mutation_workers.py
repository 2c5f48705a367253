"""What test_mutations.py runs in its processes: autoshard without one of its guards, and what the twin says to that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from autoshard.plans.plan import Plan
from autoshard.runtime.session import Session
from autoshard.runtime.torch_backend import collectives, devices, profile, rounded_adamw, session, sums
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.fused_adamw import FusedAdamW
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.halves import Halves
from autoshard.runtime.trainer.checkpoint import Checkpoints
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import CheckpointOptions
from tests.multiprocess.compared import connect, train
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import BF16, FP32, case, plan_of, strategy
from tests.neuron.parity_workers import in_precision


class Wide64:
    """The module `devices` as a mutated module sees it: every device computes 64 bits."""

    @staticmethod
    def has_64_bits(device: torch.device) -> bool:
        return True


def _named(name: str) -> Plan:
    return in_precision(case(2, name), FP32)


MUTATIONS: dict[str, tuple[Plan, tuple[tuple[Any, str, Any], ...]]] = {
    "sums on the host": (_named("dp"), ((sums, "devices", Wide64),)),
    "dropout's keys in halves": (
        _named("dropout, gpt2 tp, recompute all"),
        ((session, "on_device", lambda keys, device: keys),),
    ),
    "dropout's rows in halves": (
        _named("dropout, gpt2 tp, recompute all"),
        ((Halves, "paired", staticmethod(lambda pairs: pairs[..., 0].long() << 32)),),
    ),
    "places of rounding in halves": (
        plan_of(MODELS["llama"], strategy(dp=2), 2, BF16[1]),
        ((rounded_adamw, "devices", Wide64),),
    ),
    "a ring by send and receive": (_named("ring"), ((Group, "is_neuron", False),)),
    "an all-to-all of two, gathered": (
        _named("ulysses"),
        ((collectives, "takes_all_to_all", bool),),
    ),
    "experts of two ranks, gathered": (
        _named("mixtral ep"),
        ((collectives, "takes_all_to_all", bool),),
    ),
}
"""Guard -> a plan that needs it, and what is patched to be without."""


def trained(_: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Guard -> the error without it, "" where there was none."""
    device = devices.device_of(_named("dp"), "neuron", False, reporter.local_rank)
    connect(reporter, device)
    found = {}
    for guard, (plan, patches) in MUTATIONS.items():
        reporter.last_action = guard
        with _patched(patches):
            found[guard] = _said(partial(train, plan, reporter.rank, 1, device=device))
    found["timing by synchronize"] = _times(device, reporter.rank)
    found["contiguous tensors"] = _said(lambda: _strided(device, reporter.rank))
    found["control over gloo"] = _said(lambda: _resume(device, reporter.rank))
    found["static shapes"] = _said(lambda: _dynamic(device, reporter.rank))
    with _patched(((FusedAdamW, "__init__", _fused_everywhere),)):
        train(_named("dp"), reporter.rank, 1, device=device)
    found["plain AdamW"] = ", ".join(torch.get_device_module(device).get_fallback_ops())
    return found


def _times(device: torch.device, rank: int) -> str:
    """How often a profiled step waits for the device without the guard, and with it."""
    twin = import_module("torch_neuronx").twin
    opened, _, _ = train(_named("dp"), rank, 1, device=device)
    profiler, counts = profile.StepProfiler(opened, 0.0), []
    tokens = np.zeros((opened.plan.training.global_batch_size, opened.plan.training.sequence_length), dtype=np.int64)
    for patches in (((profile, "synchronize", lambda device: None),), ()):
        before = twin.synchronized()
        with _patched(patches), profiler.step():
            opened.step(tokens, tokens, 1e-4)
        counts.append(twin.synchronized() - before)
    return f"{counts[0]}, and {'more' if counts[1] > len(profiler.spans) / 2 else 'too few'} with it"


def _strided(device: torch.device, rank: int) -> None:
    both = Group.of(dist.new_group([0, 1]), [0, 1], rank)
    with _patched(((torch.Tensor, "contiguous", lambda x: x),)):
        collectives.pass_on(torch.ones(2, 3, device=device).t(), both)


def _resume(device: torch.device, rank: int) -> None:
    """Looks for a checkpoint, and tells it on the default group."""
    opened, _, _ = train(_named("dp"), rank, 1, device=device)
    with _patched(((session.Session, "control", (torch.device("cpu"), None)),)):
        options = CheckpointOptions("nowhere", None, 1, None, "auto", True)
        Checkpoints(_as_session(opened), options, 0, print).resume()


def _as_session(opened: Any) -> Session:
    found: Session = opened
    return found


def _dynamic(device: torch.device, rank: int) -> None:
    known = torch.compile

    def dynamic(*given: Any, **named: Any) -> Any:
        return known(*given, **{**named, "dynamic": True, "options": None})

    with _patched(((torch, "compile", dynamic),)):
        train(_named("dp"), rank, 1, device=device, compiler=Compiler(backend="neuron"))


_initialized = FusedAdamW.__init__


def _fused_everywhere(self: FusedAdamW, weights: torch.Tensor, compiler: Compiler | None = None) -> None:
    _initialized(self, weights, compiler)
    self._is_fused = True


def started(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Meets the others, and trains, without one of the guards of `device_of` and `join`."""
    plan, device, without = _named("dp"), torch.device("neuron"), arguments["without"]
    if without == "LOCAL_RANK":
        del os.environ["LOCAL_RANK"]
    else:
        devices.device_of(plan, "neuron", False, reporter.local_rank)
    if without == "touching nothing":
        torch.ones(1, device=device)
    if without == "a core of its own":
        os.environ["NEURON_RT_VISIBLE_CORES"] = "0"
    if without == "MASTER_ADDR":
        with _patched(((devices, "os", SimpleNamespace(environ={})),)):  # what is set there comes to nobody
            connect(reporter, device)
    else:
        connect(reporter, device)
    if without == "a bare name":
        device = torch.device("neuron", 1 - reporter.local_rank)
    train(plan, reporter.rank, 1, device=device)
    return {}


def sent(_: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """What a version without send and receive says to a pipeline and to a ring, and a ring with its guard."""
    device = devices.device_of(_named("dp"), "neuron", False, reporter.local_rank)
    connect(reporter, device)
    found = {"gathered": _said(lambda: train(_named("ring"), reporter.rank, 1, device=device))}
    with _patched(((collectives, "has_point_to_point", lambda version: True),)):
        found["ring"] = _said(lambda: train(_named("ring"), reporter.rank, 1, device=device))
    found["pipeline"] = _said(lambda: train(_named("pp"), reporter.rank, 1, device=device))
    return found


@contextmanager
def _patched(patches: tuple[tuple[Any, str, Any], ...]) -> Iterator[None]:
    if not patches:
        yield
        return
    (owner, name, stand_in), *others = patches
    with patch.object(owner, name, stand_in), _patched(tuple(others)):
        yield


def _said(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
