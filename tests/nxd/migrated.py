"""NxD Training's published examples made small, and what their migration does in its processes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoshard.checkpoint.directory import LocalStore
from autoshard.checkpoint.manifest import QUANTITIES, read_manifest
from autoshard.plans.plan import Plan
from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.shard_files import host_copy, read_rank
from autoshard.runtime.worker import Reporter
from tests.nxd.cases import plan_of
from tests.nxd.checkpoint_workers import saved
from tests.nxd.workers import LEARNING_RATE, batch, connect, make_session

STEPS = 20
TIMEOUT_S = 120.0
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hf_llama_7B": ({"tp": 4, "kernel": "plain", "recompute": "core_attention"}, {"tp": 4, "zero": 1}),
    "hf_llama3_8B": (
        {"model": "one kv head", "tp": 2, "dp": 2, "recompute": "core_attention"},
        {"model": "one kv head", "dp": 4, "zero": 3},
    ),
    "hf_llama3_70B": (
        {"model": "one kv head", "tp": 2, "pp": 2, "recompute": "core_attention+mlp"},
        {"model": "one kv head", "tp": 2, "dp": 2, "zero": 3, "recompute": "full"},
    ),
    "hf_llama3.1_70B": (
        {"model": "rope scaling", "tp": 2, "pp": 2, "recompute": "core_attention+mlp"},
        {"model": "rope scaling", "tp": 2, "dp": 2, "zero": 3},
    ),
    "hf_llama3_70B_CP": (
        {"tp": 2, "cp": 2, "attention": "ring", "recompute": "core_attention+mlp"},
        {"dp": 2, "cp": 2, "zero": 3},
    ),
    "hf_mixtral_8x7b": (
        {"model": "mixtral", "tp": 2, "pp": 2, "recompute": "full"},
        {"model": "mixtral", "dp": 4, "ep": 4},
    ),
    "megatron_gpt": ({"model": "gpt2", "tp": 4, "kernel": "plain"}, {"model": "gpt2", "dp": 4, "kernel": "plain"}),
    "megatron_mistral": ({"model": "mistral", "tp": 4}, {"model": "mistral", "tp": 2, "dp": 2, "zero": 3}),
    "megatron_mixtral": (
        {"model": "mixtral", "tp": 2, "dp": 2, "recompute": "full"},
        {"model": "mixtral", "tp": 2, "dp": 2, "ep": 2},
    ),
}
"""Name in examples/conf of NxD Training -> (its layout, the one that it is migrated to), on 4 processes in FP32."""


def leave(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """20 steps under NxD, saved as "left", and 20 more, saved as "stayed".

    Returns the losses of the later ones, as "nxd", and by quantity what rounding alone changes, as "rounding": the
    difference after the later steps where the weights began up to half a unit in the last place away, as a share of its
    norm.
    """
    connect(reporter)
    session = make_session(_there(arguments), reporter.rank)
    _steps(session, 0, reporter)
    _save(arguments, "left", STEPS, session, reporter)
    losses = _steps(session, STEPS, reporter)
    _save(arguments, "stayed", 2 * STEPS, session, reporter)
    stayed = host_copy(session.optimizer.state())
    _load(session, _folder(arguments, "left"), moved_by=torch.finfo(torch.float32).eps / 2)
    _steps(session, STEPS, reporter)
    return {"nxd": losses, "rounding": _differences(stayed, session.optimizer.state())}


def go_on(arguments: dict[str, Any], reporter: Reporter) -> dict[str, list[float]]:
    """20 steps under torch on a Neuron device from what NxD left, saved as "moved", and 20 more.

    Returns the losses of both, as "torch" and "torch, on".
    """
    plan = plan_of(**EXAMPLES[arguments["name"]][1])
    device = devices.device_of(plan, "neuron", False, reporter.local_rank)
    devices.connect(device, timedelta(seconds=TIMEOUT_S), reporter)
    session = make_session(plan, reporter.rank, Session, device)
    _load(session, _folder(arguments, "left"))
    losses = _steps(session, STEPS, reporter)
    _save(arguments, "moved", 2 * STEPS, session, reporter)
    return {"torch": losses, "torch, on": _steps(session, 2 * STEPS, reporter)}


def come_back(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """20 steps under NxD from what torch saved.

    Returns their losses, as "back", and by quantity the difference of what was moved to what stayed, as a share of its
    norm.
    """
    connect(reporter)
    session = make_session(_there(arguments), reporter.rank)
    stayed, moved = (_read(session, _folder(arguments, name)) for name in ("stayed", "moved"))
    _load(session, _folder(arguments, "moved"))
    return {"back": _steps(session, 2 * STEPS, reporter), "differences": _differences(stayed, moved)}


def _there(arguments: dict[str, Any]) -> Plan:
    return plan_of(**EXAMPLES[arguments["name"]][0])


def _steps(session: Any, first: int, reporter: Reporter) -> list[float]:
    """The loss of each of 20 steps."""
    losses = []
    for step in range(first, first + STEPS):
        reporter.last_action = f"step {step}"
        losses.append(session.step(*batch(session.plan, step), LEARNING_RATE).loss)
    return losses


def _store(arguments: dict[str, Any], name: str) -> LocalStore:
    return LocalStore(Path(arguments["folder"]) / name)


def _folder(arguments: dict[str, Any], name: str) -> Any:
    (folder,) = _store(arguments, name).folders()
    return folder


def _save(arguments: dict[str, Any], name: str, step: int, session: Any, reporter: Reporter) -> None:
    everyone: list[Any] = [None] * reporter.world_size
    dist.all_gather_object(everyone, (session.shards(), host_copy(session.optimizer.state())))
    if reporter.rank == 0:
        saved(_store(arguments, name), step, session.plan, everyone)
    dist.barrier()


def _read(session: Any, folder: Any) -> Any:
    return read_rank(folder, read_manifest(folder), session.shards()).state


def _load(session: Any, folder: Any, moved_by: float = 0.0) -> None:
    """Loads a checkpoint, each weight moved by a random share of it of at most moved_by."""
    state = _read(session, folder)
    generator = torch.Generator().manual_seed(0)
    for weights, *_ in state:
        weights.mul_(1 + moved_by * (2 * torch.rand(weights.shape, generator=generator) - 1))
    session.optimizer.load_state(state, read_manifest(folder).step)


def _differences(one: Any, other: Any) -> dict[str, float]:
    """By quantity, the difference of two states of a rank's shards."""
    return {
        quantity: _difference([shard[index] for shard in one], [shard[index].cpu() for shard in other])
        for index, quantity in enumerate(QUANTITIES)
    }


def _difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The norm of the difference as a share of the norm, over all of a rank's shards."""
    pairs = list(zip(one, other, strict=True))
    apart = sum(float((a.double() - b.double()).norm() ** 2) for a, b in pairs)
    whole = sum(float(a.double().norm() ** 2) for a, _ in pairs)
    return (apart / whole) ** 0.5
