"""Arguments of the processes of a run: the one that starts them writes JSON, they check it field by field."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

from autoshard.errors import AutoshardError
from autoshard.files.fields import show


@dataclass(frozen=True)
class CheckpointOptions:
    """How a run saves its state: where, when, and from which state it starts.

    location: a folder or s3://bucket/prefix. every: save after so many steps, None: never. keep: the newest so many
    stay, and those of every keep_every-th step. resume: "auto", "never" or a location. synchronous: training waits for
    the disk.
    """

    location: str
    every: int | None
    keep: int
    keep_every: int | None
    resume: str
    synchronous: bool

    def __post_init__(self) -> None:
        check_types(self, "checkpoints")


@dataclass(frozen=True)
class TrainArguments:
    """Arguments of every rank of a run beside its rank; options that are not explained here are those of RunOptions.

    plan, data, eval_data: paths of plan.json and of prepared tokens. weights, adapter: folders or None.
    tensors: folder for what the ranks hold at the end, to be compared with one process; None: nothing is left.
    rehearsal: the ranks share this machine. backend: a name, never "auto".
    gather: each rank was started by itself: all compare what they were given, and rank 0 returns what all ranks return.
    collective_timeout_s: how long collectives wait for other ranks; None: the usual half hour.
    """

    plan: str
    data: str
    steps: int
    learning_rate: float
    warmup_steps: int
    lr_schedule: str
    seed: int
    device: str
    backend: str
    tensors: str | None = None
    weights: str | None = None
    adapter: str | None = None
    eval_data: str | None = None
    eval_fraction: float | None = None
    eval_every: int | None = None
    eval_batches: int = 8
    debug_nan: bool = False
    compile: bool | None = None
    document_mask: bool = False
    profile: bool = False
    rehearsal: bool = False
    gather: bool = False
    collective_timeout_s: float | None = None
    checkpoints: CheckpointOptions | None = None

    def __post_init__(self) -> None:
        check_types(self, "arguments")


def check_types(options: Any, path: str) -> None:
    """Raises AutoshardError for a value whose type is not its field's; a whole number is a float too."""
    hints = get_type_hints(type(options))
    for one in fields(options):
        value = getattr(options, one.name)
        known = get_args(hints[one.name]) or (hints[one.name],)
        if type(value) in known or (float in known and type(value) is int):
            continue
        names = " or ".join("null" if kind is NoneType else kind.__name__ for kind in known)
        raise AutoshardError(f"{path}.{one.name} is {show(value)}; it must be {names}")
