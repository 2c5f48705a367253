"""A program that does not see all of its local shape is the one of every shape that it sees alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.cost import stage_program
from autoshard.cost.local_shape import LocalShape
from autoshard.cost.program import ProgramWork
from autoshard.cost.stage_program import UNITS, Unit, block_unit, seen_by_operators, stage_work
from autoshard.layout.context_parallel import CONTEXT_PARALLEL, UNUSED
from autoshard.layout.strategy import ATTENTION_KERNELS
from autoshard.models.registry import builtin_models, load_model
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.model import ModelSpec

MODELS = {name: load_model(name) for name in ("mixtral-8x7b", "deepseek-v3", "llama4-scout", "gpt3-175b", "gemma3-4b")}


def one_of_each_family() -> list[str]:
    """A built-in model of each model_type."""
    return list({load_model(name).model_type: name for name in builtin_models()}.values())


@st.composite
def units(draw: st.DrawFn) -> tuple[ModelSpec, LocalShape, Unit]:
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    tp, cp = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 4)))
    experts = [ep for ep in (cp, 2 * cp, 4 * cp) if model.num_local_experts % ep == 0] if model.is_moe else [1]
    shape = LocalShape(
        tp,
        cp,
        draw(st.sampled_from(experts)),
        draw(st.sampled_from((1, 2))),
        tp > 1 and draw(st.booleans()),
        draw(st.sampled_from(ATTENTION_KERNELS)),
        draw(st.sampled_from(CONTEXT_PARALLEL)) if cp > 1 else UNUSED,
    )
    names = [name for name in UNITS if name != "tied" or model.shares_embedding]
    known = [UNITS[name] for name in names] + [block_unit(kind) for kind in model.kinds]
    return model, shape, draw(st.sampled_from(known))


def numbers(work: ProgramWork) -> Any:
    """All that prices follow from."""
    program = work.program
    return (
        [getattr(step, "choice", None) for step in program.steps],
        program.local_bytes,
        program.gradient_sync,
        work.operators,
        work.forward,
        work.backward,
        (work.parameters, work.matrices, work.num_tensors, work.moments, work.quantized),
        (work.working_bytes, work.at_steps.waiting_bytes),
        [work.recompute(name) for name in ("none", "attention_core", "mlp", "full")],
    )


@settings(max_examples=60)
@given(units())
def test_what_is_not_seen_changes_no_number(case: tuple[ModelSpec, LocalShape, Unit]) -> None:
    model, shape, unit = case
    found = stage_work(model, 4096, 1.5, "bfloat16", shape, True, *unit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_program, "seen_by_operators", lambda model, shape, layers, last: shape)
        apart = stage_work(model, 4096, 1.5, "bfloat16", shape, True, *unit)
    assert numbers(found) == numbers(apart)


def test_ends_and_dense_blocks_do_not_see_how_experts_are_spread() -> None:
    model = MODELS["deepseek-v3"]
    dense, experts = map(block_unit, model.kinds)
    many, few = (LocalShape(4, 1, ep, 1, True, "plain") for ep in (64, 8))

    def is_shared(unit: Unit) -> bool:
        one, other = (stage_work(model, 4096, 1.0, "bfloat16", shape, True, *unit) for shape in (many, few))
        return one is other

    assert is_shared(dense) and is_shared(UNITS["embedding"]) and is_shared(UNITS["head"])
    assert not is_shared(experts)
    assert seen_by_operators(model, many, experts[0], False) is many


@pytest.mark.parametrize("name", one_of_each_family())
def test_tensors_and_operators_are_those_of_any_batch_and_capacity(name: str) -> None:
    """So that a graph is built once for all of them, and its sizes alone are replaced."""
    model = load_model(name)
    for tp in (1, 4):
        one, other = (
            stage_graph(model, dim_sizes(model, batch, 4096, tp, capacity), model.kinds, True, True)
            for batch, capacity in ((1, 1.0), (48, 1.75))
        )
        assert one.sizes != other.sizes
        assert (one.tensors, one.operators) == (other.tensors, other.operators)
