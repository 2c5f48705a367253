"""Where a rank computes, and how it meets the others: CPU over gloo, CUDA over NCCL, native Neuron over neuron; NxD."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.worker import Reporter, peak_memory_bytes

COLLECTIVES = {"cpu": "gloo", "cuda": "nccl", "neuron": "neuron", "xla": "xla"}
"""Type of device -> torch.distributed's backend for it."""
_GROUP_TIMEOUT_S = 30 * 60.0


def device_of(plan: Plan, arguments: Mapping[str, Any], local_rank: int) -> torch.device:
    """auto is a rank's own GPU where it has one; else the native Neuron device for a plan for Trainium, the CPU for
    others. A rehearsal, whose ranks share a machine, takes the CPU.

    Raises AutoshardError where this machine, or the plan, has nothing for the device that was asked for.
    """
    name: str = arguments["device"]
    if arguments["backend"] == "nxd":
        return _nxd_device()
    if name == "auto":
        name = "cpu" if arguments["rehearsal"] else _device_of_plan(plan, local_rank)
    if name == "neuron":
        return _native_neuron(plan, local_rank)
    if name != "cuda":
        return torch.device(name)
    if torch.cuda.device_count() <= local_rank:
        raise AutoshardError(
            f"device=cuda: this machine has {torch.cuda.device_count()} GPUs, rank {local_rank} needs one"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _device_of_plan(plan: Plan, local_rank: int) -> str:
    if torch.cuda.device_count() > local_rank:
        return "cuda"
    return "neuron" if plan.cluster.platform.is_trainium else "cpu"


def connect(device: torch.device, arguments: Mapping[str, Any], reporter: Reporter) -> None:
    """Meet the other ranks. A rank alone has nobody to meet, but NxD makes its groups of a process group even then."""
    is_nxd = arguments["backend"] == "nxd"
    if reporter.world_size == 1 and not is_nxd:
        return
    torch.set_num_threads(1)
    if is_nxd:
        from autoshard.runtime.nxd_backend.library import set_process_variables

        set_process_variables(reporter.rank, reporter.local_rank, reporter.world_size, reporter.world_size)
    dist.init_process_group(
        backend=COLLECTIVES[device.type],
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=group_timeout(arguments),
    )


def group_timeout(arguments: Mapping[str, Any]) -> timedelta:
    """How long collectives wait for other ranks."""
    timeout_s: float | None = arguments["collective_timeout_s"]
    return timedelta(seconds=_GROUP_TIMEOUT_S if timeout_s is None else timeout_s)


def host_group(timeout: timedelta) -> dist.ProcessGroup | None:
    """All ranks, for what is not on the device: XLA would compile a graph for it. None: the group that exists."""
    return dist.new_group(timeout=timeout, backend="gloo") if dist.get_backend() == "xla" else None


def peak_memory(device: torch.device) -> int:
    """Device memory on a GPU; elsewhere the process's own high-water mark on the host, libraries included."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()


def _native_neuron(plan: Plan, local_rank: int) -> torch.device:
    if plan.strategy.pp > 1:
        raise AutoshardError(
            f"device=neuron: native PyTorch on Neuron has no pipeline parallelism yet, the plan has "
            f"pp={plan.strategy.pp}; plan with --backend torch --device neuron, or run with --backend nxd"
        )
    try:
        return torch.device("neuron", local_rank)
    except RuntimeError:
        raise AutoshardError(
            f"device=neuron: torch {torch.__version__} knows no such device; install native PyTorch for Neuron "
            "(TorchNeuron), or run with --backend nxd; --device cpu computes on the host"
        ) from None


def _nxd_device() -> torch.device:
    from autoshard.runtime.nxd_backend.library import check_variables, is_cpu_mode, require_library

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
