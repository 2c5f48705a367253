"""--precision with products in fewer bits: what is said, what is refused, what a file of such a plan is good for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import autoshard
from autoshard.backends.products import check_runs
from autoshard.backends.registry import BACKENDS
from autoshard.commands import audit, validate
from autoshard.errors import AutoshardError, NoneFound
from autoshard.explanation.describe import describe
from autoshard.files.option_values import WrongValueError
from autoshard.interop.export_megatron import megatron_arguments
from autoshard.planner.answer import Answer, answer
from autoshard.planner.inputs import inputs_of, precision_names
from autoshard.planner.options import OPTIONS
from autoshard.planner.planning import plan_for
from autoshard.planner.precisions import best_precision
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan_json import plan_to_dict, write_plan
from autoshard.plans.validate import plan_from_dict, read_plan_and_notes
from autoshard.runtime.options import RunOptions
from autoshard.runtime.run import run_plan
from autoshard.spec.training import PRECISIONS, load_precision
from autoshard.units import format_seconds, percent

H100 = PlanRequest("llama3-8b", "h100-80gb", 1, global_batch=64, seq_len=4096, top=0, precision="fp8", pins={"zero": 1})
REFUSED = (
    "precision fp8: backend torch cannot multiply in float8_e4m3, the plan is a price; "
    "mixed_precision, bf16_sr, fp32 run"
)


def test_a_plan_in_fp8_says_what_bf16_would_give() -> None:
    plan = plan_for(H100)
    wide = answer(replace(H100, precision="mixed_precision")).result.best.estimate.step_time_s
    assert plan.training.precision == PRECISIONS["fp8"]
    assert plan.estimate.step_time_s < wide
    assert REFUSED in plan.notes
    said = [note for note in plan.notes if note.startswith("precision fp8: ") and note != REFUSED]
    step = f"{format_seconds(plan.estimate.step_time_s)} a step"
    assert said == [f"precision fp8: {step}; with mixed_precision the fastest layout takes {format_seconds(wide)}"]


def test_fp8_that_is_no_faster_is_not_worth_it() -> None:
    """trn1's FP8 is as fast as its bf16, and casts come on top."""
    found = best_precision(replace(H100, instance="trn1.32xlarge", nodes=4, precision="cfp8"))
    assert any(note.startswith("precision cfp8 is not worth it here: ") for note in found.notes)
    auto = best_precision(replace(H100, instance="trn1.32xlarge", nodes=4, precision="auto"))
    assert auto.problem.training.precision.name == "mixed_precision"


def test_the_best_of_two_precisions_is_brute_force() -> None:
    both = best_precision(replace(H100, precision="mixed_precision,fp8"))
    each = [answer(replace(H100, precision=name)) for name in ("mixed_precision", "fp8")]
    fastest = min(each, key=lambda one: one.result.best.estimate.step_time_s)
    assert both.result.best == fastest.result.best
    assert both.problem == fastest.problem
    wide, fp8 = (one.result.best.estimate.step_time_s for one in each)
    assert both.notes[-1] == f"precision fp8: {format_seconds(fp8)} a step; mixed_precision {format_seconds(wide)}"


def test_a_note_says_why_a_precision_is_taken_that_is_not_the_fastest() -> None:
    """Both multiply in bf16; stochastic rounding saves a little of the update alone."""
    request = PlanRequest("llama3.2-1b", "trn1.32xlarge", nodes=4, seq_len=32_768, top=0, pins={"tp": 2, "cp": 1})
    found = [best_precision(replace(request, precision=one)) for one in ("mixed_precision,bf16_sr", "bf16_sr")]
    (chosen, fastest) = (one.result.best.estimate.step_time_s for one in found)
    assert found[0].problem.training.precision.name == "mixed_precision" and fastest < chosen < 1.01 * fastest
    assert found[0].notes[-1] == (
        f"precision mixed_precision: {format_seconds(chosen)} a step; bf16_sr {format_seconds(fastest)}; within 1% the "
        "one named first is taken"
    )


def test_a_precision_that_fits_less_surely_is_passed_over() -> None:
    pins = {"tp": 2, "cp": 1, "pp": 1, "recompute": "mlp", "micro_batch": 1, "zero": 1}
    request = PlanRequest("llama3.2-1b", nodes=4, seq_len=32_768, top=0, pins=pins, fit_probability=0.99)
    wide = best_precision(replace(request, precision="mixed_precision")).result.best.estimate
    assert wide.fits_probability < 0.99
    found = best_precision(replace(request, precision="mixed_precision,bf16_sr"))
    assert found.problem.training.precision.name == "bf16_sr"
    said = f"mixed_precision {format_seconds(wide.step_time_s)}, which fits less surely"
    assert found.notes[-1].endswith(f"; {said}, with {percent(wide.fits_probability)} probability")


def test_what_a_searcher_did_not_find_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow_alone(request: PlanRequest) -> Answer:
        if request.precision == "mixed_precision":
            raise NoneFound("search=random found no layout")
        return answer(request)

    monkeypatch.setattr("autoshard.planner.precisions.answer", narrow_alone)
    alone = best_precision(replace(H100, precision="fp8"))
    assert alone.notes[-1].endswith(" a step; with mixed_precision none that fits was found")
    both = best_precision(replace(H100, precision="mixed_precision,fp8"))
    assert both.notes[-1].endswith(" a step; mixed_precision was not found to fit")


def test_auto_is_what_the_device_has() -> None:
    def names(instance: str) -> tuple[str, ...]:
        return precision_names(replace(H100, instance=instance, precision="auto"))

    assert names("a100-80gb") == ("mixed_precision",)
    assert names("h100-80gb") == ("mixed_precision", "fp8", "fp8_block")
    assert names("b200-180gb") == ("mixed_precision", "fp8", "fp8_block", "mxfp8", "nvfp4")
    assert names("trn2.48xlarge") == ("mixed_precision", "cfp8")
    said = "auto: the fastest of mixed_precision and these formats, never bf16_sr or fp32"
    assert said in OPTIONS["precision"].help


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("auto,fp8", "auto,fp8: auto goes alone"),
        (["fp8", "fp32"], "['fp8', 'fp32'] must be a text, several names joined by commas"),
        (
            "fp4",
            "fp4 must be one of: auto, mixed_precision, bf16_sr, fp32, fp8, fp8_block, mxfp8, nvfp4, cfp8",
        ),
    ],
)
def test_values_of_the_option(value: object, said: str) -> None:
    with pytest.raises(WrongValueError) as raised:
        OPTIONS["precision"].parse(value)
    assert str(raised.value) == said
    assert OPTIONS["precision"].parse("fp8,mixed_precision,fp8") == "fp8,mixed_precision"


def test_refusals_name_what_there_is() -> None:
    with pytest.raises(AutoshardError) as raised:
        inputs_of(replace(H100, instance="a100-80gb"))
    assert str(raised.value) == (
        "precision fp8: a100-80gb lnc 1 has no products in float8; precisions that it has: mixed_precision, "
        "bf16_sr, fp32"
    )
    with pytest.raises(AutoshardError) as raised:
        inputs_of(replace(H100, keep_bf16="lm_head"))
    assert str(raised.value) == (
        "keep_bf16=lm_head: no layer of a block of llama3-8b that fp8 quantises; known: attention, mlp, "
        "self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj, mlp.gate_proj, mlp.up_proj, "
        "mlp.down_proj, first=N and last=N blocks"
    )
    with pytest.raises(AutoshardError, match=r"^keep_bf16=mlp.shared_expert_gate: no layer of a block of "):
        inputs_of(replace(H100, model="qwen2-57b-a14b", keep_bf16="mlp.shared_expert_gate"))
    training = inputs_of(replace(H100, keep_bf16="mlp.up_proj+attention+first=1"))[1]
    assert training.kept_wide == "attention+mlp.up_proj+first=1"
    assert (training.unquantized, training.unquantized_first) == (("attention", "mlp.up_proj"), 1)
    nothing_left = "leaves nothing of llama3-8b that fp8 quantises; keep less, or use precision=mixed_precision"
    for asked, said in (
        (replace(H100, keep_bf16="first=20+last=20"), "keep_bf16=first=20+last=20: llama3-8b has 32 blocks"),
        (replace(H100, keep_bf16="attention+mlp"), f"keep_bf16=attention+mlp {nothing_left}"),
        (replace(H100, keep_bf16="first=30+last=2"), f"keep_bf16=first=30+last=2 {nothing_left}"),
        (
            replace(H100, keep_bf16="mlp", precision="fp32"),
            "keep_bf16=mlp with precision=fp32, which quantises nothing; fp8, fp8_block, mxfp8, nvfp4, cfp8 do",
        ),
    ):
        with pytest.raises(AutoshardError) as raised:
            inputs_of(asked)
        assert str(raised.value) == said
    with pytest.raises(WrongValueError) as wrong:
        OPTIONS["keep_bf16"].parse("first=0")
    assert str(wrong.value) == "first=0 must be modules or operators of a block, first=N or last=N, joined by +"


def test_the_solver_is_refused_where_some_blocks_stay_in_bf16() -> None:
    with pytest.raises(AutoshardError) as raised:
        plan_for(replace(H100, keep_bf16="last=1", operators="solver", pins={"pp": 1, "zero": 2}))
    assert str(raised.value) == (
        "operators=solver: the integer program shards blocks that are alike; llama3-8b with keep_bf16=last=1 has 2 "
        "kinds of blocks; use operators=megatron"
    )


def test_a_file_of_such_a_plan_is_read_and_priced_alike_but_not_run(tmp_path: Path) -> None:
    plan = plan_for(replace(H100, keep_bf16="attention", pins={"zero": 3}))
    file = tmp_path / "plan.json"
    write_plan(plan, file)
    again, notes = read_plan_and_notes(file)
    assert again == plan
    assert not notes  # the same prices from the file's numbers
    written = json.loads(file.read_text())
    assert written["precision"]["products"]["forward_dtype"] == "float8_e4m3"
    assert written["inputs"]["training"]["unquantized"] == ["attention"]
    for refused in (
        lambda: validate.run({"plan": str(file)}),
        lambda: audit.run({"plan": str(file), "stages": None, "no_cache": True, "format": "text"}),
        lambda: autoshard.launch(str(file), "slurm"),
        lambda: run_plan(plan, RunOptions(output=tmp_path)),
        lambda: check_runs(BACKENDS["torch"], plan.training.precision),
    ):
        with pytest.raises(AutoshardError) as raised:
            refused()
        assert str(raised.value) == REFUSED
    lines = megatron_arguments(plan)
    assert "    --fp8-format hybrid --fp8-recipe delayed --fp8-param-gather\n" in lines.text
    assert "keep_bf16=attention: Megatron keeps whole blocks in bf16 alone" in lines.left_out


def test_a_mixture_of_ones_own_that_no_backend_runs_is_a_price() -> None:
    """Ranks would train in other dtypes than those that were planned, and hold more than was priced."""
    own = replace(load_precision("mixed_precision"), name="mine", compute_dtype="float32")
    for backend in BACKENDS.values():
        with pytest.raises(AutoshardError) as raised:
            check_runs(backend, own)
        assert str(raised.value) == (
            f"precision mine: backend {backend.name} cannot compute in float32 with parameters in bfloat16, the plan "
            "is a price; mixed_precision, bf16_sr, fp32 run"
        )


def test_plans_without_the_field_are_read() -> None:
    plan = plan_for(replace(H100, precision="mixed_precision"))
    written = plan_to_dict(plan)
    assert "products" not in written["precision"]
    assert "products" not in written["inputs"]["training"]["precision"]
    assert plan_from_dict(json.loads(json.dumps(written))) == plan


def test_a_page_names_the_peak_and_what_stays_in_bf16() -> None:
    found = describe(plan_for(replace(H100, keep_bf16="attention+last=1")))
    assert found.precision == "fp8 (attention+last=1 in bfloat16)"
    assert (found.peak_dtype, found.peak_flops_per_s) == ("float8", 1979e12)
