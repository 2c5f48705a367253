"""A matrix that is not learned costs its bytes in the dtype of the weights alone: in plan, audit, runtime and state."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from autoshard.audits.roles import roles
from autoshard.audits.run import audit_role, held_orders
from autoshard.cost.memory import MEMORY_TERMS
from autoshard.graph.ir import GraphBuilder
from autoshard.layout.strategy import Strategy
from autoshard.plans.plan import Plan
from autoshard.plans.step_collectives import step_collectives
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.spec.training import Precision
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import BF16, plan_of, strategy

MODEL = replace(MODELS["llama"], name="fixed queries", intermediate_size=88)
"""A size of its own: graphs of a model are kept, and here they are others than a Llama's."""
LEARNED = replace(MODEL, intermediate_size=96)
ELEMENTS = MODEL.hidden_size * MODEL.num_attention_heads * MODEL.head_dim
MIXED = BF16[0]
FIXED = "self_attn.q_proj.weight"


@pytest.fixture(autouse=True)
def queries_are_not_learned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the matrix of the queries of MODEL one that is not learned."""
    made = GraphBuilder.parameter

    def parameter(b: GraphBuilder, name: str, dims: str, learned: bool = True, matrix: bool | None = None) -> str:
        fixed = name.endswith(FIXED) and b.size("ffn") == MODEL.intermediate_size
        return made(b, name, dims, learned and not fixed, matrix)

    monkeypatch.setattr(GraphBuilder, "parameter", parameter)
    return iter(())


def planned(one: Strategy, precision: Precision = MIXED, model: Any = MODEL) -> Plan:
    return plan_of(model, one, 2, precision)


def state_terms(plan: Plan, rank: int = 0) -> list[float]:
    terms = {term.name: term.value for term in plan.estimate.memory[rank].terms}
    return [terms[name] for name in MEMORY_TERMS[:3]]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_is_the_bytes_of_the_matrix_alone(zero: int) -> None:
    model = replace(LEARNED, num_hidden_layers=MODEL.num_hidden_layers)
    fixed, learned = (state_terms(planned(strategy(dp=2, zero=zero), model=one)) for one in (MODEL, model))
    layers, other = MODEL.num_hidden_layers, 3 * 8 * MODEL.hidden_size  # of an MLP, which LEARNED has more of
    weights, sums, state = (2 if zero >= stage else 1 for stage in (3, 2, 1))
    expected = (-2 * other / weights, -4 * (ELEMENTS + other) / sums)
    found = [one - all_learned for one, all_learned in zip(fixed, learned, strict=True)]
    per_layer = [*expected, -12 * (ELEMENTS + other) / state]  # a plan's numbers have six digits
    assert found == pytest.approx([layers * size for size in per_layer], rel=1e-3)


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("precision", [MIXED, BF16[2]], ids=lambda one: str(one.name))
def test_an_audit_agrees(precision: Precision, zero: int) -> None:
    plan = planned(strategy(tp=2, dp=2, zero=zero), precision)
    every, held = roles(plan), held_orders(plan)
    assert [audit_role(plan, role, held).differences for role in every] == [()] * len(every)


def test_nothing_of_it_is_sent() -> None:
    sent = [
        sum(one.bytes * count for one, count in step_collectives(planned(strategy(dp=2), model=model), 0).items())
        for model in (MODEL, LEARNED)
    ]
    more = MODEL.num_hidden_layers * (ELEMENTS + 3 * 8 * MODEL.hidden_size)
    assert sent[1] - sent[0] == (4 + 2) * more  # gradients in FP32, new weights in bf16


@pytest.mark.parametrize("precision", BF16, ids=lambda one: str(one.name))
def test_the_runtime_holds_it_once_and_keeps_it(precision: Precision) -> None:
    plan = planned(strategy(), precision)
    session = Session(plan, 0, torch.device("cpu"), optimizer_settings(precision, 1e-2, 1, seed=0), seed=0)
    (stage,) = session.modules.values()
    name = next(one.name for one in stage.program.graph.parameters() if one.name.endswith(FIXED))
    before = stage.parameter(name).detach().clone()
    ids = np.random.default_rng(0).integers(0, MODEL.vocab_size, (2, plan.training.sequence_length + 1))
    session.step(ids[:, :-1].copy(), ids[:, 1:].copy(), 1e-2, keep_gradients=True)
    assert torch.equal(stage.parameter(name), before) and before.dtype == torch.bfloat16
    assert name not in session.optimizer.gradients()
    assert session.optimizer.masters()[name].data_ptr() == stage.parameter(name).data_ptr()
    state = {part: one.numel() for part, one in session.probe().named_state.items() if name in part}
    assert [numel for part, numel in state.items() if part.startswith(("gradients", "first", "second"))] == [0]
