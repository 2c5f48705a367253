"""What test_masked_labels.py runs in its processes."""

from typing import Any

import numpy as np
import torch

from autoshard.plans.plan import Plan
from autoshard.runtime.data import NOT_LEARNED
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from tests.multiprocess.compared import connect
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

LAYOUTS = {
    "tp": ("llama", strategy(tp=2)),
    "pp": ("llama", strategy(pp=2)),
    "dp": ("llama", strategy(dp=2)),
    "cp": ("llama", strategy(cp=2)),
    "pp, interleaved": ("llama", strategy(pp=2, vpp=2)),
    "one choice for two stages": ("glm 5.2", strategy(pp=2, layers=(1, 3))),
    "one choice for two chunks": ("glm 5.2", strategy(pp=2, vpp=2)),
}
STEPS = 3


def masked(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """By layout: [loss, gradient norm, loss on other data] of each step, sharded and (rank 0) in one process."""
    connect(reporter)
    found = {}
    for name, (model, chosen) in LAYOUTS.items():
        plan = plan_of(MODELS[model], chosen, 4)
        found[name] = {
            "sharded": train(plan, reporter.rank),
            "alone": train(one_process(plan), 0) if reporter.rank == 0 else [],
        }
    return found


def train(plan: Plan, rank: int) -> list[list[float]]:
    settings = OptimizerSettings(1e-2, master_dtype=torch.float64, gradient_dtype=torch.float64)
    session = Session(plan, rank, torch.device("cpu"), settings, seed=0)
    outcomes = []
    for step in range(STEPS):
        one = session.step(*batch(plan, step), 1e-2)
        outcomes.append([one.loss, one.gradient_norm, session.evaluate(*batch(plan, 100 + step))])
    return outcomes


def batch(plan: Plan, step: int) -> tuple[Any, Any]:
    """Row r learns its last r % 5 tokens: ranks and microbatches with many, few and none."""
    numbers = np.random.default_rng(step)
    rows, length = plan.training.global_batch_size, plan.training.sequence_length
    tokens = numbers.integers(0, plan.model.vocab_size, (rows, length + 1))
    labels = tokens[:, 1:].copy()
    unlearned = length - np.arange(rows) % 5
    labels[np.arange(length)[None, :] < unlearned[:, None]] = NOT_LEARNED
    return tokens[:, :-1].copy(), labels
