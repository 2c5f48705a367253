"""The processes of test_start.py."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch

from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from tests.multiprocess.compared import connect
from tests.multiprocess.masked_workers import batch
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy


def one_step(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """What the first steps of schedules, and of models with operators of their own, imported, and whether garbage
    is collected."""
    connect(reporter)
    before, collects = set(sys.modules), gc.isenabled()
    for model, schedule, recompute in (
        ("llama", "1f1b", "none"),
        ("llama", "1f1b", "full"),
        ("llama", "zero_bubble", "core_attention+mlp"),
        ("gemma2", "1f1b", "none"),
        ("qwen3 next", "1f1b", "none"),
        ("granite hybrid", "1f1b", "none"),
    ):
        plan = plan_of(MODELS[model], strategy(pp=2, schedule=schedule, recompute=recompute), 4, FP32)
        settings = optimizer_settings(FP32, 1e-3, zero=1, seed=0)
        Session(plan, reporter.rank, torch.device("cpu"), settings, seed=0).step(*batch(plan, 0), 1e-3)
    return {"imported": sorted(set(sys.modules) - before), "collects": collects}
