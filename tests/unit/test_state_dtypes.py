"""Dtypes of gradients and moments: how they are asked for, and what they are worth in memory and time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from autoshard.backends.products import unrunnable
from autoshard.backends.registry import BACKENDS
from autoshard.cost.after import update_s_per_parameter
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.inputs import inputs_of
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import plan_to_dict
from autoshard.plans.step_collectives import step_collectives
from autoshard.plans.validate import plan_from_dict
from autoshard.spec.cluster import load_cluster
from autoshard.spec.state_dtypes import with_state_dtypes
from autoshard.spec.training import TrainingSpec, load_precision
from tests.unit.plan_examples import TOY, strategy

WIDE = load_precision("mixed_precision")
NARROW = "gradient_accumulation=bfloat16,gradient_reduce=bfloat16,moments=bfloat16"
MODEL = replace(load_model("llama3-8b"), name="toy", **TOY)
ONE_NODE = load_cluster("h100-80gb", 1)
LAYOUT = strategy(tp=1, pp=1, dp=8, sequence_parallel=False, stage_layers=(8,))


def test_names_say_what_differs() -> None:
    found = with_state_dtypes(WIDE, "moments=bfloat16, gradient_reduce=bfloat16")
    assert found.name == "mixed_precision with gradient_reduce=bfloat16,moments=bfloat16"
    assert (found.gradient_accumulation_dtype, found.gradient_reduce_dtype) == ("float32", "bfloat16")
    assert (found.master_dtype, found.optimizer_dtype) == ("float32", "bfloat16")
    assert with_state_dtypes(WIDE, "moments=float32") == with_state_dtypes(WIDE, None) == WIDE
    assert with_state_dtypes(load_precision("fp8"), "moments=bfloat16").products is not None


FORM = (
    "must be some of gradient_accumulation=bfloat16, gradient_reduce=bfloat16, moments=bfloat16 joined by commas; the "
    "dtypes are float32 and bfloat16"
)


@pytest.mark.parametrize(
    ("precision", "text", "error"),
    [
        ("mixed_precision", "moments", f"state_dtypes='moments' {FORM}"),
        ("mixed_precision", "moments=fp8", f"state_dtypes='moments=fp8' {FORM}"),
        ("mixed_precision", "masters=bfloat16", f"state_dtypes='masters=bfloat16' {FORM}"),
        (
            "mixed_precision",
            "moments=bfloat16,moments=float32",
            f"state_dtypes='moments=bfloat16,moments=float32' {FORM}",
        ),
        (
            "bf16_sr",
            "moments=float32",
            (
                "state_dtypes=moments=float32: precision bf16_sr keeps all in bfloat16; mixed_precision, fp8, "
                "fp8_block, mxfp8, nvfp4, cfp8 take others"
            ),
        ),
    ],
)
def test_what_is_refused(precision: str, text: str, error: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        with_state_dtypes(load_precision(precision), text)
    assert str(raised.value) == error


def plan(state_dtypes: str | None, zero: int = 1) -> Plan:
    training = TrainingSpec(256, 64, with_state_dtypes(WIDE, state_dtypes))
    chosen = replace(LAYOUT, zero=zero)
    return make_plan(MODEL, training, ONE_NODE, "torch", chosen, estimate(MODEL, training, ONE_NODE, chosen))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_memory_by_hand(zero: int) -> None:
    """Moments are 8 bytes of a parameter, or 4; a sum of gradients 4, or 2. Shards have an eighth; gradients of norms
    stay whole."""
    wide, narrow = (
        {term.name: term.value for term in plan(dtypes, zero=zero).estimate.memory[0].terms}
        for dtypes in (None, NARROW)
    )
    count, norms = parameter_count(MODEL), (2 * MODEL.num_hidden_layers + 1) * MODEL.hidden_size
    assert wide["optimizer state"] - narrow["optimizer state"] == (count / 8 if zero else count) * 4
    assert wide["gradients"] - narrow["gradients"] == 2 * (norms + (count - norms) / 8 if zero >= 2 else count)


def test_gradients_travel_in_their_dtype() -> None:
    """Half the bytes of the reduce-scatter, and as many of all else."""
    wide, narrow = (step_collectives(plan(dtypes), 0) for dtypes in (None, "gradient_reduce=bfloat16"))
    sent = wide - narrow
    assert {one.kind for one in sent} == {"reduce_scatter"}
    assert sum(one.bytes for one in sent.elements()) == 4 * parameter_count(MODEL)
    assert narrow - wide == Counter({replace(one, bytes=one.bytes // 2): count for one, count in sent.items()})


def test_an_update_reads_and_writes_fewer_bytes() -> None:
    """Gradient twice, master and moments read and written, the parameter written: 8 + 8 + 16 + 2 bytes, or 4 + 8 + 8 +
    2."""
    wide, narrow = (
        update_s_per_parameter(with_state_dtypes(WIDE, dtypes), ONE_NODE.device) for dtypes in (None, NARROW)
    )
    assert narrow / wide == pytest.approx(22 / 34, rel=1e-12)


def test_a_plan_holds_them() -> None:
    request = PlanRequest("llama3-8b", "h100-80gb", nodes=2, precision="mixed_precision,fp8", state_dtypes=NARROW)
    found = plan_for(replace(request, precision="mixed_precision"))
    assert found.training.precision.name == f"mixed_precision with {NARROW}"
    assert plan_from_dict(json.loads(json.dumps(plan_to_dict(found)))) == found
    assert unrunnable(BACKENDS["torch"], found.training.precision) is None
    wide = plan_for(replace(request, precision="mixed_precision", state_dtypes=None))
    assert found.estimate.step_time_s <= wide.estimate.step_time_s
    _, training, *_ = inputs_of(replace(request, precision="fp8"))
    assert training.precision.name == f"fp8 with {NARROW}"
