"""What test_profile.py runs in its processes: training that is watched from its first step on."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import torch

from autoshard.runtime.measured import measured
from autoshard.runtime.torch_backend.profile import StepProfiler
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.batches import Data
from autoshard.runtime.trainer.loop import train_steps
from autoshard.runtime.worker import Reporter
from autoshard.runtime.worker_arguments import TrainArguments
from tests.multiprocess.compared import at_rank_0, connect, leave_groups
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy

LATE_S = 3.0
LAYOUTS = {
    "ZeRO-1": ("llama", strategy(dp=2)),
    "ZeRO-2": ("llama", strategy(dp=2, zero=2)),
    "ZeRO-3": ("llama", strategy(dp=2, zero=3)),
    "tied": ("tied", strategy(pp=2)),
}
"""Name -> model and layout. None has collectives of tensors, sequences or experts."""


class SlowProfiler(StepProfiler):
    """Takes late_s seconds to prepare, and counts the modules that the first operator of a watched step imports."""

    late_s = 0.0
    imported = 0

    def __init__(self, session: Session, zero_s: float) -> None:
        super().__init__(session, zero_s)
        time.sleep(self.late_s)

    @contextmanager
    def step(self) -> Iterator[None]:
        before = len(sys.modules)
        with super().step():
            torch.zeros(1)
            SlowProfiler.imported += len(sys.modules) - before
            yield


def profiles(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """By layout, the profile of run.json and spans of rank 0; imported: modules that a watched operator brought to each
    rank."""
    connect(reporter)
    found: dict[str, Any] = {}
    with mock.patch("autoshard.runtime.torch_backend.runtime.StepProfiler", SlowProfiler):
        for name, (model, chosen) in LAYOUTS.items():
            leave_groups()
            SlowProfiler.late_s = LATE_S if name == "tied" and reporter.rank == 1 else 0.0
            plan = plan_of(MODELS[model], chosen, 2, FP32)
            shape = (plan.training.global_batch_size, plan.training.sequence_length)
            tokens = np.zeros(shape, dtype=np.int64)
            learned = SimpleNamespace(batch=lambda number, tokens=tokens: (tokens, tokens), documents=lambda _: None)
            data = cast(Data, SimpleNamespace(learned=learned, held_out=None))
            options = TrainArguments("", "", 2, 1e-3, 0, "constant", 0, "cpu", "torch", profile=True)
            _, trained = train_steps(plan, options, data, torch.device("cpu"), reporter, keep=False)
            result = {"trained": trained, "stages": [0], "peak_memory_bytes": 1}
            if results := at_rank_0(result, reporter):
                found[name] = asdict(measured(plan, results))["profile"]
                found[name]["spans"] = trained["profile"]["spans"]
    found["imported"] = at_rank_0(SlowProfiler.imported, reporter)
    return found
