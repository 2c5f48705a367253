"""Backend torch as the trainer calls it: the functions of `autoshard.runtime.session.Runtime`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from importlib import import_module

import torch

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.session import Profiler
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.devices import connect as connect
from autoshard.runtime.torch_backend.devices import device_of as device_of
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.profile import StepProfiler
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker_arguments import TrainArguments


def import_early(compiles: bool) -> None:
    """Import what takes seconds and not every run needs."""
    if compiles:
        import_module("torch._inductor.compile_fx")


def open_session(
    plan: Plan,
    rank: int,
    device: torch.device,
    settings: OptimizerSettings,
    arguments: TrainArguments,
    timeout: timedelta,
    on_action: Callable[[str], None],
) -> Session:
    """The session of the rank, which compiles and keeps documents apart where that is asked for."""
    return Session(
        plan,
        rank,
        device,
        settings,
        arguments.seed,
        on_action,
        debug_nan=arguments.debug_nan,
        documents=arguments.document_mask,
        compiler=_compiler(plan, device, on_action, arguments) if arguments.compile else None,
        timeout=timeout,
    )


def _compiler(
    plan: Plan, device: torch.device, on_action: Callable[[str], None], arguments: TrainArguments
) -> Compiler:
    """Raises AutoshardError where a whole stage cannot be one graph for what the run is asked for."""
    backend = _compiler_of(device)
    whole = plan.cluster.compiles_stages and backend == "neuron"
    if whole and arguments.document_mask:
        raise AutoshardError(
            "document_mask: stack=neuron-stages compiles attention that masks the future alone; run with --no-compile, "
            "or plan with --stack neuron-compiled"
        )
    return Compiler(on_action, backend, whole)


def _compiler_of(device: torch.device) -> str:
    """Name of the backend of torch.compile."""
    return "neuron" if device.type == "neuron" else "inductor"


def profiler(session: Session, zero_s: float) -> Profiler:
    """Watches steps of the session; zero_s: the moment of the monotonic clock that counts as 0."""
    return StepProfiler(session, zero_s)
