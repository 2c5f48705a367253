"""The device of a rank, and its way to the other ranks: CPU over gloo, CUDA over NCCL, native Neuron over neuron."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.worker import Reporter, peak_memory_bytes

COLLECTIVES = {"cpu": "gloo", "cuda": "nccl", "neuron": "neuron", "xla": "xla"}
"""Type of device -> torch.distributed's backend for it."""
_GROUP_TIMEOUT_S = 30 * 60.0


def device_of(plan: Plan, asked: str, is_rehearsal: bool, local_rank: int) -> torch.device:
    """auto is a rank's own GPU where it has one; else the native Neuron device for a plan for Trainium, the CPU for
    others. A rehearsal, whose ranks share a machine, takes the CPU.

    Raises AutoshardError where this machine, or the plan, has nothing for the device that was asked for.
    """
    name = asked
    if name == "auto":
        name = "cpu" if is_rehearsal else _device_of_plan(plan, local_rank)
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


def connect(device: torch.device, timeout: timedelta, reporter: Reporter) -> None:
    """Meet the other ranks; a rank alone has nobody to meet. timeout: how long collectives wait for them."""
    if reporter.world_size > 1:
        join(device, timeout, reporter)


def join(device: torch.device, timeout: timedelta, reporter: Reporter) -> None:
    """Make the process group of all ranks, of a rank alone too."""
    torch.set_num_threads(1)
    dist.init_process_group(
        backend=COLLECTIVES[device.type],
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=timeout,
    )


def group_timeout(timeout_s: float | None) -> timedelta:
    """How long collectives wait for other ranks; None: half an hour."""
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
