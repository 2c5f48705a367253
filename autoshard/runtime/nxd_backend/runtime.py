"""Backend nxd as the trainer calls it: the functions of `autoshard.runtime.session.Runtime`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from autoshard.backends.nxd import NXD
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.library import (
    check_variables,
    is_cpu_mode,
    require_library,
    set_process_variables,
)
from autoshard.runtime.session import Profiler
from autoshard.runtime.torch_backend.devices import join
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import TrainArguments

if TYPE_CHECKING:
    from autoshard.runtime.nxd_backend.session import NxdSession


def device_of(plan: Plan, asked: str, is_rehearsal: bool, local_rank: int) -> torch.device:
    """The Neuron device that torch_xla finds, or the CPU with NXD_CPU_MODE=1. Raises AutoshardError without either."""
    require_library()
    check_variables()
    if is_cpu_mode():
        return torch.device("cpu")
    import torch_xla.core.xla_model as xm

    found: torch.device = xm.xla_device()
    if found.type != "xla":
        raise AutoshardError(
            f"backend=nxd: torch_xla finds no Neuron device on this machine, but {found}; NXD_CPU_MODE=1 runs NxD on "
            "CPU processes"
        )
    return found


def import_early(compiles: bool) -> None:
    """Nothing: NxD is imported when the session is opened."""


def connect(device: torch.device, timeout: timedelta, reporter: Reporter) -> None:
    """Meet the other ranks. NxD makes its groups of a process group even where a rank is alone."""
    set_process_variables(reporter.rank, reporter.local_rank, reporter.world_size, reporter.world_size)
    join(device, timeout, reporter)


def open_session(
    plan: Plan,
    rank: int,
    device: torch.device,
    settings: OptimizerSettings,
    arguments: TrainArguments,
    timeout: timedelta,
    on_action: Callable[[str], None],
) -> NxdSession:
    """The session of the rank."""
    from autoshard.runtime.nxd_backend.session import NxdSession  # brings neuronx-distributed

    return NxdSession(plan, rank, device, settings, arguments.seed, on_action, arguments.debug_nan, timeout)


def profiler(session: NxdSession, zero_s: float) -> Profiler:
    """Raises AutoshardError: NxD does not tell when its actions are."""
    raise AutoshardError(NXD.refuses["profile"])
