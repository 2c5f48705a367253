"""NxD Training's published examples made small, and what their migration does in its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autoshard.checkpoint.directory import LocalStore
from autoshard.checkpoint.manifest import QUANTITIES, read_manifest
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.shard_files import host_copy, read_rank
from autoshard.runtime.worker import Reporter
from tests.nxd.cases import plan_of
from tests.nxd.checkpoint_workers import saved
from tests.nxd.workers import LEARNING_RATE, batch, connect, make_session

STEPS = 20
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


def migrate(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """20 steps under NxD, then 20 more under NxD and under torch from NxD's checkpoint; then 20 more under torch, and
    under NxD from torch's.

    Returns the losses of each, and by quantity the difference of what they hold after 40 steps, as a share of its
    norm.
    """
    connect(reporter)
    there, here = (plan_of(**layout) for layout in EXAMPLES[arguments["name"]])
    store = LocalStore(Path(arguments["folder"]))
    theirs = make_session(there, reporter.rank)
    _steps(theirs, 0, reporter)
    first = _saved(store, STEPS, there, theirs, reporter)
    losses = {"nxd": _steps(theirs, STEPS, reporter)}
    ours = make_session(here, reporter.rank, Session)
    _load(ours, first)
    losses["torch"] = _steps(ours, STEPS, reporter)
    second = _saved(store, 2 * STEPS, here, ours, reporter)
    held, read = host_copy(theirs.optimizer.state()), _read(theirs, second)
    differences = {
        quantity: _difference([one[index] for one in held], [one[index] for one in read])
        for index, quantity in enumerate(QUANTITIES)
    }
    again = make_session(there, reporter.rank)
    _load(again, second)
    losses["back"] = _steps(again, 2 * STEPS, reporter)
    losses["torch, on"] = _steps(ours, 2 * STEPS, reporter)
    return {"losses": losses, "differences": differences}


def _steps(session: Any, first: int, reporter: Reporter) -> list[float]:
    """The loss of each of 20 steps."""
    losses = []
    for step in range(first, first + STEPS):
        reporter.last_action = f"step {step}"
        losses.append(session.step(*batch(session.plan, step), LEARNING_RATE).loss)
    return losses


def _saved(store: LocalStore, step: int, plan: Any, session: Any, reporter: Reporter) -> Any:
    everyone: list[Any] = [None] * reporter.world_size
    dist.all_gather_object(everyone, (session.shards(), host_copy(session.optimizer.state())))
    if reporter.rank == 0:
        saved(store, step, plan, everyone)
    dist.barrier()
    return store.folders()[0]  # the newest


def _read(session: Any, folder: Any) -> Any:
    return read_rank(folder, read_manifest(folder), session.shards()).state


def _load(session: Any, folder: Any) -> None:
    session.optimizer.load_state(_read(session, folder), read_manifest(folder).step)


def _difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The norm of the difference as a share of the norm, over all of a rank's shards."""
    pairs = list(zip(one, other, strict=True))
    apart = sum(float((a.double() - b.double()).norm() ** 2) for a, b in pairs)
    whole = sum(float(a.double().norm() ** 2) for a, _ in pairs)
    return (apart / whole) ** 0.5
