"""What the conformance tests run in their processes: the same weights and data through NxD and through torch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoshard.layout.plan import Plan
from autoshard.runtime.nxd_backend.library import set_process_variables
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend.optimizer import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker import Reporter
from tests.nxd.cases import CASES, plan_of

STEPS = 3
LEARNING_RATE = 1e-3
SEED = 3


def connect(reporter: Reporter) -> None:
    torch.set_num_threads(1)
    set_process_variables(reporter.rank, reporter.local_rank, reporter.world_size, reporter.world_size)
    dist.init_process_group(
        "gloo",
        init_method=reporter.init_method,
        rank=reporter.rank,
        world_size=reporter.world_size,
        timeout=timedelta(seconds=120),
    )


def batch(plan: Plan, step: int) -> tuple[Any, Any]:
    """Token ids and labels, some of which are not learned."""
    training = plan.training
    generator = np.random.default_rng(step)
    shape = (training.global_batch_size, training.sequence_length + 1)
    tokens = generator.integers(0, plan.model.vocab_size, shape)
    labels = tokens[:, 1:].copy()
    labels[:, -3:] = -1
    return tokens[:, :-1], labels


def trained(session: Any, plan: Plan, steps: int = STEPS) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step."""
    found = []
    for step in range(steps):
        inputs, labels = batch(plan, step)
        outcome = session.step(inputs, labels, LEARNING_RATE, keep_gradients=True)
        found.append((outcome.loss, outcome.gradient_norm))
    return found


def alone(plan: Plan) -> list[tuple[float, float]]:
    """The torch backend, in one process."""
    single = one_process(plan)
    settings = optimizer_settings(single.training.precision, LEARNING_RATE, single.strategy.zero1, SEED)
    return trained(Session(single, 0, torch.device("cpu"), settings, SEED), single)


def conformance(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Cases of one world size, one after another; rank 0 returns what both backends found."""
    connect(reporter)
    return {name: compared(plan_of(**CASES[reporter.world_size][name]), reporter, name) for name in arguments["names"]}


def compared(plan: Plan, reporter: Reporter, name: str) -> dict[str, Any]:
    """Three steps and an evaluation by NxD; on rank 0 the torch backend's steps too. What fails is told."""
    from autoshard.runtime.nxd_backend.session import NxdSession

    reporter.last_action = name
    settings = optimizer_settings(plan.training.precision, LEARNING_RATE, plan.strategy.zero1, SEED)
    session = NxdSession(plan, reporter.rank, torch.device("cpu"), settings, SEED)
    result: dict[str, Any] = {"nxd": trained(session, plan), "evaluated": session.evaluate(*batch(plan, 9))}
    if reporter.rank == 0:
        result["torch"] = alone(plan)
    dist.barrier()
    return result
