"""What an audit counts on fake tensors is what torch's allocator hands out to the same rank when it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from autoshard.audits.measure import fake_world, recorded
from autoshard.audits.roles import roles
from autoshard.audits.values import Role
from autoshard.cost.estimate import estimate
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.plans.plan import Plan, make_plan
from autoshard.runtime.rehearse import local_cluster
from autoshard.runtime.torch_backend import optimizer, session
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.spec.training import TrainingSpec, load_precision

NUM_MICROBATCHES = 4
SCALARS = 256
"""Bytes of single numbers, such as those that a loss hands on, that are there for a moment."""


def small_plan(model: str, dp: int, pp: int, zero: int, vocab_size: int) -> Plan:
    """A plan of a narrow model whose table is of this size."""
    spec = replace(
        load_model(model),
        hidden_size=128,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        vocab_size=vocab_size,
    )
    chunks = 64 if pp == 1 else 1  # the tables are then what is largest
    training = TrainingSpec(256, dp * NUM_MICROBATCHES, load_precision("mixed_precision"), loss_chunks=chunks)
    strategy = Strategy(
        tp=1,
        pp=pp,
        dp=dp,
        cp=1,
        ep=1,
        num_virtual_stages=1,
        microbatch_size=1,
        schedule="1f1b",
        recompute=("none",) * pp,
        sequence_parallel=False,
        zero=zero,
        attention_kernel="flash",
        stage_layers=even_stage_layers(4, pp),
    )
    cluster = local_cluster(strategy.world_size)
    return make_plan(spec, training, cluster, "torch", strategy, estimate(spec, training, cluster, strategy))


def audited_bytes(plan: Plan, role: Role) -> int:
    """Bytes that a step takes beside what was there before, at its fullest moment, as an audit counts them."""
    with recorded(plan, role, NUM_MICROBATCHES) as one:
        levels = one.recorder.memory.levels(1, one.recorder.memory.events + 1)
        before = [held for event, held in levels if event <= one.ready][-1]
        return max(held for event, held in levels if event > one.ready) - before


def allocated_bytes(plan: Plan, role: Role, monkeypatch: pytest.MonkeyPatch) -> int:
    """The same, as torch's allocator tells. Transfers bring nothing, so that numbers are not finite."""
    for module in (optimizer, session):
        monkeypatch.setattr(module, "check_finite", lambda what, value: None)
    settings = optimizer_settings(plan.training.precision, 1e-3, plan.strategy.zero, seed=0)
    tokens = np.zeros((plan.training.global_batch_size, plan.training.sequence_length), dtype=np.int64)
    with fake_world(role.rank, plan.mesh.world_size):
        ran = session.Session(plan, role.rank, torch.device("cpu"), settings, seed=0)
        ran.optimizer.step(0.0)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            ran.step(tokens, tokens, 1e-3)
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    events.sort(key=lambda one: one.start_ns())
    return int(np.cumsum([one.nbytes() for one in events]).max())


@pytest.mark.parametrize(
    ("model", "dp", "pp", "zero", "vocab_size"),
    [
        ("llama3-8b", 1, 4, 1, 512),
        ("command-r", 1, 4, 1, 512),
        ("llama3.2-1b", 8, 1, 3, 65536),  # two gradients of one table: the second is added to the first in place
    ],
)
def test_an_audit_counts_what_the_allocator_hands_out(
    model: str, dp: int, pp: int, zero: int, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small_plan(model, dp, pp, zero, vocab_size)
    role = roles(plan)[pp // 2]
    assert audited_bytes(plan, role) == pytest.approx(allocated_bytes(plan, role, monkeypatch), abs=SCALARS)
