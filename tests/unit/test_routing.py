"""Experts that get uneven numbers of tokens: what the busiest rank has, what it costs, what is said and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import local_shape
from autoshard.cost.stage_program import stage_work
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.files.codec import from_json, to_json
from autoshard.files.option_values import WrongValueError
from autoshard.interop.export_megatron import megatron_arguments
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.inputs import inputs_of
from autoshard.planner.options import OPTIONS
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.written import read_written
from autoshard.plans.plan_json import plan_to_dict, plan_to_json
from autoshard.plans.validate import plan_from_dict
from autoshard.runtime.rehearse import one_process, rehearse
from autoshard.spec.cluster import load_cluster
from autoshard.spec.routing import check_routing, with_imbalance
from autoshard.spec.training import TrainingSpec, load_precision
from tests.unit.plan_examples import plan_mixtral

MIXTRAL = load_model("mixtral-8x7b")
TRAINING = TrainingSpec(4096, 64, load_precision("mixed_precision"))
H100 = load_cluster("h100-80gb", 2)
TOKENS = (1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0)
PINS = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "full"}
REQUEST = PlanRequest("mixtral-8x7b", "h100-80gb", 4, seq_len=4096, global_batch=64, top=0, pins={**PINS, "ep": 8})


def layout(ep: int) -> Strategy:
    layers = even_stage_layers(MIXTRAL.num_hidden_layers, 1)
    return Strategy(1, 1, 16, 1, ep, 1, 1, "1f1b", ("none",), False, 1, "flash", layers)


def cost(training: TrainingSpec, ep: int = 8) -> tuple[float, float, float]:
    """(step, exchanges with experts, memory) of one layout."""
    found = estimate(MIXTRAL, training, H100, layout(ep))
    exchanges = next(term.value for term in found.time_terms if "expert" in term.name)
    return found.step_time_s, exchanges, found.fullest.total_bytes


def test_counts_give_the_busiest_rank_of_every_degree() -> None:
    """Eight experts, neighbours share a rank: the fullest of 8 has 2 of 8 tokens, of 4 and of 2 ranks none is fuller
    than the mean but one that holds 2 of 2."""
    training = replace(TRAINING, expert_tokens=TOKENS)
    assert [training.imbalance(ep) for ep in (1, 2, 4, 8)] == [1.0, 1.0, 1.0, 2.0]
    training = replace(TRAINING, expert_tokens=(3.0, 3.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0))
    assert [training.imbalance(ep) for ep in (1, 2, 4, 8)] == [1.0, 2.0, 3.0, 3.0]


def test_a_number_holds_up_to_all_tokens_of_the_ranks() -> None:
    training = replace(TRAINING, expert_imbalance=3.0)
    assert [training.imbalance(ep) for ep in (1, 2, 4, 8)] == [1.0, 2.0, 3.0, 3.0]


@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8).filter(any))
def test_the_busiest_rank_has_between_its_share_and_everything(counts: list[int]) -> None:
    training = replace(TRAINING, expert_tokens=tuple(map(float, counts)))
    each = [training.imbalance(ep) for ep in (1, 2, 4, 8)]
    assert each[0] == 1.0
    assert all(1 - 1e-12 <= times <= ep for times, ep in zip(each, (1, 2, 4, 8), strict=True))
    assert each == sorted(each), "ranks that are merged are no more uneven"


def test_slots_are_those_of_the_capacity_factor_or_of_the_busiest_rank() -> None:
    training = replace(TRAINING, expert_capacity_factor=1.5)
    assert replace(training, expert_imbalance=1.2).expert_slots(8) == 1.5
    assert replace(training, expert_imbalance=1.8).expert_slots(8) == 1.8
    assert replace(training, expert_imbalance=1.8).expert_slots(1) == 1.5


def test_an_imbalance_costs_what_as_many_slots_cost() -> None:
    slots, uneven = replace(TRAINING, expert_capacity_factor=1.25), replace(TRAINING, expert_imbalance=1.25)
    assert cost(uneven) == cost(slots)
    assert all(more > even for more, even in zip(cost(uneven), cost(TRAINING), strict=True))
    assert cost(uneven, 1) == cost(TRAINING, 1), "each rank has all experts"
    assert cost(replace(TRAINING, expert_tokens=TOKENS), 4) == cost(TRAINING, 4)


def test_exchanges_of_the_busiest_rank_carry_so_many_times_the_bytes() -> None:
    def sent(training: TrainingSpec) -> int:
        work = stage_work(
            MIXTRAL, 4096, training.expert_slots(8), "bfloat16", local_shape(layout(8)), True, (0,), False, False
        )
        return sum(size for step in work.forward for kind, axes, size in step if kind == "all_to_all")

    assert sent(replace(TRAINING, expert_imbalance=1.25)) == pytest.approx(1.25 * sent(TRAINING))


def test_a_plan_keeps_it_and_one_without_keeps_its_bytes() -> None:
    assert "expert_imbalance" not in plan_to_json(plan_mixtral())
    plan = plan_for(replace(REQUEST, expert_imbalance=1.25))
    data = plan_to_dict(plan)
    assert data["inputs"]["training"]["expert_imbalance"] == 1.25
    assert "expert_tokens" not in data["inputs"]["training"]
    again = plan_from_dict(json.loads(plan_to_json(plan)))
    assert (again.training, again.expert_slots) == (plan.training, 1.25)
    assert plan.estimate.step_time_s > plan_for(REQUEST).estimate.step_time_s
    assert "--moe-expert-capacity-factor 1.25" in megatron_arguments(plan).text


def test_a_training_with_counts_goes_there_and_back() -> None:
    training = replace(TRAINING, expert_tokens=TOKENS)
    assert from_json(TrainingSpec, json.loads(json.dumps(to_json(training))), "training") == training


def test_pages_say_what_a_plan_assumes() -> None:
    def said(request: PlanRequest) -> str:
        return dict(describe(plan_for(request)).facts)["experts"]

    assert said(REQUEST) == (
        "slots for 1 times an even share of each sequence's tokens, the capacity factor; what is over it is dropped; "
        "priced as routed evenly"
    )
    assert said(replace(REQUEST, expert_imbalance=1.25)) == (
        "slots for 1.25 times an even share of each sequence's tokens and time for them, as dropless routing needs: "
        "the experts of the busiest of 8 ranks get 1.25 times the mean (imbalance 1.25)"
    )
    assert said(replace(REQUEST, expert_imbalance=1.25, pins={**PINS, "ep": 1, "zero": 3})) == (
        "slots for 1 times an even share of each sequence's tokens, the capacity factor; imbalance 1.25 makes no rank "
        "busier: each has all experts (ep=1)"
    )
    dense = replace(REQUEST, model="llama3-8b", pins={})
    assert "experts" not in dict(describe(plan_for(dense)).facts)


def test_an_expert_gets_every_token_later_where_others_hand_tokens_back() -> None:
    """A token goes to 12 of 512 experts and 256 without matrices: 64 times an even share is all tokens."""
    model = load_model("longcat-flash")
    check_routing(model, replace(TRAINING, expert_imbalance=64.0))
    with pytest.raises(AutoshardError) as raised:
        check_routing(model, replace(TRAINING, expert_imbalance=65.0))
    assert str(raised.value) == (
        "expert_imbalance=65 of the training must be at most 64: with num_experts_per_tok=12 of num_local_experts=512 "
        "and zero_expert_num=256 in longcat-flash an expert then gets every token"
    )


def test_a_rehearsal_and_its_one_process_have_the_slots_of_the_plan() -> None:
    plan = plan_for(replace(REQUEST, expert_imbalance=1.25))
    small = rehearse(plan, 8, 64).plan
    assert small.expert_slots == one_process(small).expert_slots == plan.expert_slots == 1.25


def test_a_file_of_counts_is_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps([1, 1, 2, 0, 1, 1, 1, 1]))
    training = inputs_of(replace(REQUEST, expert_imbalance=str(file)))[1]
    assert training.expert_tokens == TOKENS
    most = "it must be a list of at most 4,096 entries"
    every = (
        "expert_tokens[0], 4.5 times the mean, of the training must be at most 4: with num_experts_per_tok=2 of "
        "num_local_experts=8 in mixtral-8x7b an expert then gets every token"
    )
    for text, wrong in (
        ("{}", f"expert_imbalance: tokens.json is an object of 0; {most}"),
        ("[1, -1]", "expert_imbalance: tokens.json[1] is -1; it must be a finite number of at least 0"),
        ("[1, 1]", "expert_tokens of 2 experts of the training: mixtral-8x7b has num_local_experts=8"),
        ("[0, 0]", "expert_tokens of the training add up to 0; some are needed"),
        ("[9, 1, 1, 1, 1, 1, 1, 1]", every),
        (f"[{','.join(['1'] * 5000)}]", f"expert_imbalance: tokens.json is a list of 5000; {most}"),
    ):
        file.write_text(text)
        out = tmp_path / "plan.json"
        command = ["plan", "--model", "mixtral-8x7b", "--nodes", "2", "--expert-imbalance", str(file), "-o", str(out)]
        assert main(command) == 2
        assert capsys.readouterr().err == f"autoshard: error: {wrong}\n"
        assert not out.exists()


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ([1, 3], "[1, 3] must be a number, or a JSON file with such a list"),
        ("0.5", "0.5 must be at least 1, the mean, or a JSON file"),
        ("-1", "-1 must be a number above 0"),
        ("nan", "nan must be a number above 0"),
        ("", " must be a number above 0"),
    ],
)
def test_a_number_that_is_none_is_refused(value: object, wrong: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        OPTIONS["expert_imbalance"].parse(value)
    assert str(caught.value) == wrong
    assert OPTIONS["expert_imbalance"].parse("1.25") == 1.25
    assert OPTIONS["expert_imbalance"].parse("tokens.json") == "tokens.json"


def test_what_cannot_be_is_refused() -> None:
    dense = load_model("llama3-8b")
    with pytest.raises(AutoshardError) as caught:
        inputs_of(replace(REQUEST, model="llama3-8b", expert_imbalance=1.2))
    said = "expert_imbalance=1.2 of the training: llama3-8b is dense, it has no experts to be uneven"
    assert str(caught.value) == said
    check_routing(dense, TRAINING)
    with pytest.raises(
        AutoshardError, match=r"^expert_imbalance=5 of the training must be at most 4: with num_experts_"
    ):
        check_routing(MIXTRAL, with_imbalance(TRAINING, 5.0))
    with pytest.raises(
        AutoshardError, match=r"^expert_imbalance=0\.5 of the training must be a finite number of at least 1$"
    ):
        replace(TRAINING, expert_imbalance=0.5)
    with pytest.raises(
        AutoshardError, match=r"^expert_imbalance=2\.0 of the training follows from its expert_tokens; "
    ):
        replace(TRAINING, expert_imbalance=2.0, expert_tokens=TOKENS)
    with pytest.raises(AutoshardError, match=r"^expert_tokens\[1\]='x' of the training must be a finite number of at "):
        from_json(TrainingSpec, {**to_json(TRAINING), "expert_tokens": [1, "x"]}, "training")
    data = json.loads(plan_to_json(plan_for(replace(REQUEST, model="llama3-8b", pins={}))))
    data["inputs"]["training"]["expert_imbalance"] = 1.2
    with pytest.raises(AutoshardError) as caught:
        plan_from_dict(data)
    assert str(caught.value) == said


def test_dropless_files_are_priced_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pretrain.sh"
    file.write_text(
        "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 "
        "--seq-length 4096 --max-position-embeddings 32768 --num-experts 8 --moe-router-topk 2 "
        "--expert-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 64 --swiglu --normalization RMSNorm "
        "--untie-embeddings-and-output-weights --disable-bias-linear --bf16\n"
    )
    given = {"model": "mixtral-8x7b", "instance": "h100-80gb", "nodes": 2, "expert_imbalance": 1.25}
    found = read_written(str(file), given)
    assert found.problem.training.expert_slots(8) == 1.25
    assert (
        "experts without a capacity factor (dropless): priced as if each got what the busiest rank's get by "
        "--expert-imbalance; a plan drops what is over it"
    ) in found.warnings
