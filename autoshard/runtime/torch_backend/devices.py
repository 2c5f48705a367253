"""The device of a rank, and its way to the other ranks: CPU over gloo, CUDA over NCCL, native Neuron over neuron."""

from __future__ import annotations

import os
from datetime import timedelta
from importlib import import_module
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from autoshard.backends.native_neuron import check_native, compiles_only, device_objection
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.runtime.worker import Reporter, peak_memory_bytes

COLLECTIVES = {"cpu": "gloo", "cuda": "nccl", "neuron": "neuron", "xla": "xla"}
"""Type of device -> torch.distributed's backend for it."""
_GROUP_TIMEOUT_S = 30 * 60.0


def device_of(plan: Plan, asked: str, is_rehearsal: bool, local_rank: int) -> torch.device:
    """auto is a rank's own GPU where every rank has one or the plan is for GPUs; else the native Neuron device for a
    plan for Trainium, the CPU for others. A rehearsal, whose ranks share a machine, takes the CPU.

    Raises AutoshardError where this machine, or the plan, has nothing for the device that was asked for.
    """
    name = asked
    if name == "auto":
        name = "cpu" if is_rehearsal else _device_of_plan(plan)
    if name == "neuron":
        return _native_neuron(plan, local_rank)
    if name != "cuda":
        return torch.device(name)
    if torch.cuda.device_count() <= local_rank:
        raise AutoshardError(
            f"device=cuda: torch sees {torch.cuda.device_count()} GPUs here, rank {local_rank} needs one; device=cpu "
            "computes on the host"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _device_of_plan(plan: Plan) -> str:
    if plan.cluster.platform.is_cuda or torch.cuda.device_count() >= _ranks_per_machine(plan):
        return "cuda"  # not silently the CPU of a node of GPUs whose torch does not see them
    return "neuron" if plan.cluster.platform.is_trainium else "cpu"


def _ranks_per_machine(plan: Plan) -> int:
    return min(plan.mesh.world_size, plan.cluster.devices_per_node)


def connect(device: torch.device, timeout: timedelta, reporter: Reporter) -> None:
    """Meet the other ranks; a rank alone has nobody to meet. timeout: how long collectives wait for them."""
    if reporter.world_size > 1:
        join(device, timeout, reporter)


def join(device: torch.device, timeout: timedelta, reporter: Reporter) -> None:
    """Make the process group of all ranks, of a rank alone too."""
    torch.set_num_threads(1)
    if device.type == "neuron":  # whose groups publish an address of their own beside ours
        os.environ.setdefault("MASTER_ADDR", urlsplit(reporter.init_method).hostname or "127.0.0.1")
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


def host_group(timeout: timedelta | None) -> dist.ProcessGroup | None:
    """All ranks, for what is not on the device: XLA would compile a graph for it, and Neuron's groups take nothing of
    the host. None: the group that exists (collective)."""
    return dist.new_group(timeout=timeout, backend="gloo") if dist.get_backend() in ("xla", "neuron") else None


def peak_memory(device: torch.device) -> int:
    """Device memory by the device's own counter; on a CPU the process's high-water mark, libraries included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "neuron":
        return int(import_module("torch_neuronx").max_memory_allocated())
    return peak_memory_bytes()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given. Neuron's events do not tell times; this and a clock do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "neuron":
        torch.get_device_module(device).synchronize()


def computes(device: torch.device) -> bool:
    """Whether the device computes: native Neuron may be asked to compile graphs for a cache alone, which then give
    anything."""
    return device.type != "neuron" or not compiles_only()


def has_64_bits(device: torch.device) -> bool:
    """Whether the device computes in FP64 and in 64-bit integers. Neuron takes 32 bits for them, without a word
    (backends/native_neuron.py: 3p 71301028270)."""
    return device.type != "neuron"


def _native_neuron(plan: Plan, local_rank: int) -> torch.device:
    """The device of native PyTorch, by its bare name: a process has one. Its groups read the variables set here."""
    try:
        device = torch.device("neuron")
    except RuntimeError:
        reason = device_objection(plan.cluster) or (
            f"torch {torch.__version__} knows no such device; install native PyTorch for Neuron (TorchNeuron), or run "
            "with --backend nxd"
        )
        raise AutoshardError(f"device=neuron: {reason}; --device cpu computes on the host") from None
    check_native(plan.training.precision, plan.strategy.pp, plan.cluster.has_p2p)
    for name, value in (("LOCAL_RANK", local_rank), ("LOCAL_WORLD_SIZE", _ranks_per_machine(plan))):
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("NEURON_RT_VISIBLE_CORES", os.environ["LOCAL_RANK"])  # else a rank alone takes all cores
    return device
