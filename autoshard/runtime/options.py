"""What `autoshard run` may be told beside the plan. No torch here: the command line reads it before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from autoshard.errors import AutoshardError

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class RunOptions:
    """How long, on what, and where results go; never what the plan decides.

    steps: optimizer steps. warmup_steps: steps over which the learning rate rises to learning_rate.
    processes: at most so many in a rehearsal. data: files of text, JSONL, Parquet or Arrow; None takes English text
    that is on this machine. text_field: the column that holds the text; None is "text", or what the rows are plainly
    made of. packing: several conversations share a row. tokenizer: a tokenizer.json; None takes bytes. output: folder
    that gets one folder for each run. device: where ranks compute; "auto" is cuda where there are enough GPUs, else
    cpu. timeout_s: None waits for ever.
    """

    steps: int = 30
    learning_rate: float = 5e-4
    warmup_steps: int = 5
    seed: int = 0
    processes: int = 8
    data: Path | None = None
    tokenizer: Path | None = None
    text_field: str | None = None
    packing: bool = True
    output: Path = Path("runs")
    wandb: bool = False
    wandb_project: str = "autoshard"
    device: str = "auto"
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("warmup_steps", 0), ("seed", 0), ("processes", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise AutoshardError(f"{name}={value!r} must be a whole number of at least {least}")
        for name in ("learning_rate", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise AutoshardError(f"{name}={value!r} must be a finite number above 0")
        if self.device not in DEVICES:
            raise AutoshardError(f"device={self.device!r} is not one of: {', '.join(DEVICES)}")
        for name in ("data", "tokenizer"):
            path = getattr(self, name)
            if path is not None and not path.exists():
                raise AutoshardError(f"{name}={path} does not exist")
