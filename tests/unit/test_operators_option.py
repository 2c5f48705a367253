"""`--operators solver`: a plan with the solver's choices is written, read, validated and rehearsed like any other."""

from __future__ import annotations

import json
import sys
from functools import cache

import pytest

from autoshard.commands.plan_options import PlanRequest
from autoshard.commands.planning import plan_for
from autoshard.errors import AutoshardError
from autoshard.layout.plan import Plan, operator_choices
from autoshard.layout.plan_json import plan_to_json
from autoshard.layout.validate import plan_from_dict
from autoshard.runtime.rehearse import rehearse


@cache
def plan(operators: str, backend: str = "torch") -> Plan:
    """tp=32 with 8 key-value heads, where Megatron's rule is far from the best."""
    return plan_for(
        PlanRequest("llama3-8b", nodes=4, backend=backend, operators=operators, pins={"tp": 32, "recompute": "none"})
    )


def test_it_is_faster_and_says_by_how_much() -> None:
    solved, megatron = plan("solver"), plan("megatron")
    assert solved.estimate.step_time_s < 0.95 * megatron.estimate.step_time_s
    assert solved.estimate.fits
    (note,) = (note for note in solved.notes if note.startswith("operators"))
    assert note.startswith("operators by the solver: ") and " a step; Megatron's would take " in note
    assert not any(note.startswith("operators") for note in megatron.notes)
    assert solved.operators != operator_choices(solved.model, solved.cluster, solved.strategy)
    assert megatron.operators == operator_choices(megatron.model, megatron.cluster, megatron.strategy)


def test_nobody_says_that_it_is_optimal() -> None:
    solved, megatron = plan("solver").search, plan("megatron").search
    assert solved is not None and megatron is not None
    assert solved.optimality == "not proven to be optimal: operators were solved in the 6 best layouts only"
    assert megatron.optimality.startswith("optimal within this model: ")


def test_the_file_says_the_same() -> None:
    text = plan_to_json(plan("solver"))
    assert plan_to_json(plan_from_dict(json.loads(text))) == text


def test_the_same_question_has_the_same_answer() -> None:
    text = plan_to_json(plan("solver"))
    plan.cache_clear()
    assert plan_to_json(plan("solver")) == text


def test_a_rehearsal_has_the_same_choices() -> None:
    small = rehearse(plan("solver"), 8, 256).plan
    assert small.operators["model.layers.*.mlp.up_proj"]["tp1"] == "seq"
    assert small.sample_programs


def test_nxd_has_layers_for_megatron_only() -> None:
    solved = plan("solver", "nxd")
    assert solved.operators == operator_choices(solved.model, solved.cluster, solved.strategy)
    (note,) = (note for note in solved.notes if note.startswith("operators"))
    assert note == (
        "operators: in the 6 best layouts the solver has none that make the step 0.1% faster than "
        "Megatron's, which stay"
    )


def test_without_highs_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    plan.cache_clear()
    with pytest.raises(AutoshardError, match=r"^operators=solver needs HiGHS: pip install 'autoshard\[solver\]'$"):
        plan("solver")
