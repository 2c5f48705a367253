"""Compares what the ranks of a cluster were started with: each reads its own plan, options and copy of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed as dist

from autoshard.errors import AutoshardError
from autoshard.runtime.data import TokenStream
from autoshard.runtime.trainer.batches import Data
from autoshard.runtime.worker_arguments import TrainArguments

_OPTIONS = (
    "seed",
    "steps",
    "learning_rate",
    "warmup_steps",
    "lr_schedule",
    "document_mask",
    "eval_fraction",
    "eval_every",
    "eval_batches",
    "profile",
    "debug_nan",
    "compile",
)
_CHECKPOINT_OPTIONS = {
    "checkpoint_every": "every",
    "keep": "keep",
    "keep_every": "keep_every",
    "resume": "resume",
    "checkpoint_sync": "synchronous",
}
"""Option of a run -> its field of CheckpointOptions. Their place may have another path on each node."""
_DIGITS = 12
"""Of a SHA-256, for people."""


def check_alike(arguments: TrainArguments, data: Data, group: dist.ProcessGroup | None) -> None:
    """Raises AutoshardError, on every rank, where ranks were started with unlike plans, options or data. Collective.

    group: all ranks, for what is not on the device.
    """
    everyone: list[dict[str, str]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, started_with(arguments, data), group=group)
    difference = unlike(everyone)
    if difference:
        raise AutoshardError(f"{difference}: start every rank with the same plan, options and data")


def started_with(arguments: TrainArguments, data: Data) -> dict[str, str]:
    """By name, in words, all that ranks must have alike; the data by their content, wherever their files are."""
    plan = hashlib.sha256(Path(arguments.plan).read_bytes()).hexdigest()
    return {
        "plan": f"SHA-256 {plan[:_DIGITS]}",
        **{name: str(getattr(arguments, name)) for name in _OPTIONS},
        **{name: str(getattr(arguments.checkpoints, field, None)) for name, field in _CHECKPOINT_OPTIONS.items()},
        "weights": "none" if arguments.weights is None else "some",
        "adapter": "none" if arguments.adapter is None else "some",
        "data": _content(data.learned),
        "data held out": "none" if data.held_out is None else _content(data.held_out),
    }


def unlike(everyone: Sequence[Mapping[str, str]]) -> str:
    """The first thing that ranks do not have alike, and two ranks that differ in it; '' where all are alike.

    everyone: of each rank, in order, what `started_with` gave.
    """
    for rank, other in enumerate(everyone):
        for name, here in everyone[0].items():
            if other[name] != here:
                return f"ranks differ in {name}: rank 0 has {here}, rank {rank} has {other[name]}"
    return ""


def _content(stream: TokenStream) -> str:
    return f"{len(stream.tokens):,} tokens of SHA-256 {stream.digest[:_DIGITS]}"
