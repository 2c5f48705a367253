"""Dtypes of gradients and moments: how they are asked for, and what they are worth in memory and time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from autoshard.backends.products import check_runs, unrunnable
from autoshard.backends.registry import BACKENDS
from autoshard.cost.after import update_s_per_parameter
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.models.registry import load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.inputs import inputs_of
from autoshard.planner.options import OPTIONS
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
    "dtypes are float32 and bfloat16, of moments int8 and float8_e4m3 too"
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
            "mixed_precision",
            "gradient_reduce=int8,moments=int8",
            f"state_dtypes='gradient_reduce=int8,moments=int8' {FORM}",
        ),
        (
            "bf16_sr",
            "moments=float32",
            (
                "state_dtypes=moments=float32: precision bf16_sr keeps all in bfloat16; mixed_precision, fp8, "
                "fp8_block, mxfp8, nvfp4, cfp8 take others, and all take moments=int8 or moments=float8_e4m3"
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


@pytest.mark.parametrize(("dtype", "each"), [("int8", 1 + 4 / 256), ("float8_e4m3", 1)])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_moments_of_eight_bits_by_hand(dtype: str, each: float, zero: int) -> None:
    """Two bytes of a parameter in place of 8, and of int8 two FP32 scales for 256 elements; 4 of the masters stay.
    Prices are in whole bytes."""
    wide, narrow = (
        {term.name: term.value for term in plan(dtypes, zero=zero).estimate.memory[0].terms}
        for dtypes in (None, f"moments={dtype}")
    )
    count = parameter_count(MODEL) / (8 if zero else 1)
    assert (wide["optimizer state"], narrow["optimizer state"]) == (count * 12, round(count * (4 + 2 * each)))
    assert {name: value for name, value in narrow.items() if name not in ("optimizer state", "total")} == {
        name: value for name, value in wide.items() if name not in ("optimizer state", "total")
    }


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("pins", [{"zero": 0}, {"zero": 3}, {"pp": 2}])
def test_narrower_moments_never_take_more(optimizer: str, pins: dict[str, int]) -> None:
    """Of the same layout; a search finds one that is as fast at least."""
    request = PlanRequest("llama3.2-1b", "h100-80gb", nodes=1, optimizer=optimizer, pins=pins)
    wide = plan_for(replace(request, state_dtypes="moments=bfloat16"))
    taken = [wide.estimate.fullest.total_bytes]
    for dtype in ("int8", "float8_e4m3"):
        asked = replace(request, state_dtypes=f"moments={dtype}")
        assert plan_for(asked).estimate.step_time_s <= wide.estimate.step_time_s
        training = replace(wide.training, precision=with_state_dtypes(WIDE, f"moments={dtype}"))
        taken.append(estimate(wide.model, training, wide.cluster, wide.strategy).fullest.total_bytes)
    assert taken[0] > taken[1] > taken[2]


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


def test_an_update_of_moments_in_eight_bits() -> None:
    """8 + 8 + 2 bytes of all else; both moments with their scales read and written."""
    wide, int8, float8 = (
        update_s_per_parameter(with_state_dtypes(WIDE, dtypes), ONE_NODE.device)
        for dtypes in (None, "moments=int8", "moments=float8_e4m3")
    )
    assert int8 / wide == pytest.approx((18 + 4 * (1 + 4 / 256)) / 34, rel=1e-12)
    assert float8 / wide == pytest.approx(22 / 34, rel=1e-12)


@pytest.mark.parametrize("name", ["mixed_precision", "bf16_sr", "fp32"])
def test_moments_of_eight_bits_are_a_price(name: str) -> None:
    request = PlanRequest("llama3.2-1b", "h100-80gb", nodes=1, precision=name, state_dtypes="moments=int8")
    found = plan_for(request)
    refused = (
        f"precision {name} with moments=int8: backend torch cannot keep moments in int8, the plan is a price; "
        "mixed_precision, bf16_sr, fp32 run"
    )
    assert refused in found.notes
    assert plan_from_dict(json.loads(json.dumps(plan_to_dict(found)))) == found
    with pytest.raises(AutoshardError) as raised:
        check_runs(BACKENDS["torch"], found.training.precision)
    assert str(raised.value) == refused


def test_a_checkpoint_counts_its_moments() -> None:
    """4 bytes of a master, or 2 of a weight without one, and two moments of 260 bytes for 256 elements."""
    assert with_state_dtypes(WIDE, "moments=int8").state_bytes(2) == 4 + 2 * 260 / 256
    assert with_state_dtypes(load_precision("bf16_sr"), "moments=int8").state_bytes(2) == 2 + 2 * 260 / 256


def test_a_mapping_is_as_good_as_its_text() -> None:
    parse = OPTIONS["state_dtypes"].parse
    asked = {"gradient_reduce": "bfloat16", "moments": "bfloat16"}
    assert parse(asked) == "gradient_reduce=bfloat16,moments=bfloat16"
    with pytest.raises(AutoshardError, match="state_dtypes='momentum=bfloat16' must be some of"):
        parse({"momentum": "bfloat16"})


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
