"""What test_parity.py runs in its processes: every plan of one world size on the twin, against one process on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from autoshard.plans.plan import Plan
from autoshard.runtime.rehearse import one_process
from autoshard.runtime.torch_backend.devices import device_of
from autoshard.runtime.worker import Reporter
from autoshard.spec.training import Precision
from tests.multiprocess.compared import Outcomes, against_one_process, at_rank_0, connect, local_arrays, train
from tests.multiprocess.models import MODELS
from tests.multiprocess.parity_workers import BF16_LEARNING_RATE
from tests.multiprocess.plans import BF16, CASES, FP32, IN_BF16, PACKED, case

STEPS = 3
NAMES = {
    world_size: [name for name, (model, *_) in cases.items() if MODELS[model].ngram_embedding is None]
    for world_size, cases in CASES.items()
}
"""World size -> the cases that run: hashes of n-grams have 64 bits, so that a plan with them is refused there."""


def parity(arguments: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """Rank 0 returns, for each case, how far it is from one process: a step in FP32, and losses of three in bf16."""
    names = arguments.get("names", NAMES[reporter.world_size])
    plans = {name: in_precision(case(reporter.world_size, name), FP32) for name in names}
    device = device_of(next(iter(plans.values())), "neuron", False, reporter.local_rank)
    connect(reporter, device)
    found = {}
    for name, plan in plans.items():
        reporter.last_action = name
        found[name] = _compared(plan, name in PACKED, device, reporter)
        if name in IN_BF16:
            found[name]["bf16"] = [_loss(in_precision(plan, one), device, reporter.rank) for one in BF16]
    return found


def in_precision(plan: Plan, precision: Precision) -> Plan:
    return replace(plan, training=replace(plan.training, precision=precision))


def _compared(plan: Plan, packed: bool, device: torch.device, reporter: Reporter) -> dict[str, Any]:
    session, outcomes, _ = train(plan, reporter.rank, 1, documents=packed, device=device)
    ranks = at_rank_0(local_arrays(session), reporter)
    found = against_one_process(plan, outcomes, ranks, packed) if ranks else {}
    return {**found, "fallbacks": torch.get_device_module(device).get_fallback_ops()}


def _loss(plan: Plan, device: torch.device, rank: int) -> float:
    """Largest relative difference of three steps' losses to one process that rounds alike."""
    _, outcomes, _ = train(plan, rank, STEPS, learning_rate=BF16_LEARNING_RATE, device=device)
    expected: Outcomes = outcomes
    if rank == 0:
        _, expected, _ = train(one_process(plan), 0, STEPS, learning_rate=BF16_LEARNING_RATE)
    return max(abs(a[0] - b[0]) / b[0] for a, b in zip(outcomes, expected, strict=True))
