"""Which NxD layer computes which operator, and what NxD cannot express. Pure Python: nothing here needs the library."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autoshard.backends.nxd import MODEL_TYPES, blocks_run_on_torch
from autoshard.backends.problem import Draft, Problem
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.layout.template import template_of
from autoshard.models.registry import builtin_models, load_model
from autoshard.planner.operators.options import operator_options
from autoshard.planner.search import search
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.prices import priced
from autoshard.plans.search_result import Pins
from autoshard.runtime.nxd_backend.library import INSTALL, check_variables
from autoshard.runtime.nxd_backend.lowering import lower
from autoshard.runtime.rehearse import local_cluster
from autoshard.spec.cluster import load_cluster
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import PRECISIONS, Precision, TrainingSpec
from tests.cases import some
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import strategy
from tests.unit.plan_examples import by_hand


def plan_of(model: str | ModelSpec = "llama", precision: Precision = PRECISIONS["fp32"], **layout: Any) -> Plan:
    spec, chosen = MODELS[model] if isinstance(model, str) else model, strategy(**layout)
    cluster, training = local_cluster(chosen.world_size), TrainingSpec(32, 8, precision, 2.0)
    return make_plan(spec, training, cluster, "nxd", chosen, by_hand(spec, training, cluster, chosen))


def layers(plan: Plan, **part: bool) -> list[tuple[str, tuple[str, ...], bool]]:
    """(layer, last parts of its operators' names, whether it is sequence parallel) of a block, local ones left out."""
    return [
        (one.layer, tuple(step.operator.name.split(".")[-1] for step in one.steps), one.sequence_parallel)
        for one in lower(plan.program(range(1), part.get("embedding", False), part.get("head", False)))
        if one.layer not in ("local", "mapping")
    ]


@pytest.mark.parametrize("sp", [True, False])
def test_a_llama_block_is_four_layers_of_nxd(sp: bool) -> None:
    assert layers(plan_of(tp=2, sp=sp), embedding=True, head=True) == [
        ("ParallelEmbedding", ("embed_tokens",), sp),
        ("GQAQKVColumnParallelLinear", ("q_proj", "k_proj", "v_proj"), sp),
        ("RowParallelLinear", ("o_proj",), sp),
        ("ColumnParallelLinear", ("gate_proj", "up_proj"), sp),
        ("RowParallelLinear", ("down_proj",), sp),
        ("ColumnParallelLinear", ("lm_head",), sp),
        ("parallel_cross_entropy", ("loss",), False),
    ]


NOT_LOWERED = ("is_recurrent", "gates_attention", "global_attention", "block_indexer")
LOWERED = [
    name
    for name, one in MODELS.items()
    if not any(getattr(one, field, None) or getattr(one.family, field, None) for field in NOT_LOWERED)
]
"""NxD runs no recurrences, has no layer for a gate beside queries and keys that ranks share, nor for other heads in
some blocks, nor for a choice of blocks of keys that ranks share."""
LAYOUTS: list[dict[str, Any]] = [{}, {"tp": 2}, {"tp": 2, "sp": False}, {"tp": 4}, {"dp": 2}]


@pytest.mark.parametrize(("model", "layout"), some(product(LOWERED, LAYOUTS), step=3))
def test_every_family_has_a_lowering_that_writes_each_view_once(model: str, layout: dict[str, Any]) -> None:
    """Whatever a step reads was written before it, and the stage's output is written."""
    plan = plan_of(model, **layout)
    for program in plan.sample_programs:
        known = {tensor.name for tensor in program.graph.inputs()}
        written: list[str] = []
        for one in lower(program):
            assert set(one.inputs) <= known, one
            known |= set(one.outputs)
            written += one.outputs
        assert len(set(written)) == len(written)
        assert set(program.outputs) <= set(written)


def test_replicated_heads_are_a_multiplier() -> None:
    (qkv,) = (one for one in lower(plan_of("one kv head", tp=4).sample_programs[0]) if "QKV" in one.layer)
    assert qkv.kv_size_multiplier == 4
    (qkv,) = (one for one in lower(plan_of("few kv heads", tp=4).sample_programs[0]) if "QKV" in one.layer)
    assert qkv.kv_size_multiplier == 2


@pytest.mark.parametrize(("sp", "tp"), [(True, 2), (False, 2), (False, 1)])
def test_a_layer_of_nxd_is_learned_whole_or_not_at_all(sp: bool, tp: int) -> None:
    """Beside v_proj alone an adapter's first product reads what q_proj and k_proj read, right behind them."""
    adapted = replace(MODELS["llama"], lora=Lora(4, 8.0, ("v_proj",)))
    program = plan_of(adapted, tp=tp, sp=sp).program(range(1), False, False)
    names = [[step.operator.name.rpartition("self_attn.")[2] for step in one.steps] for one in lower(program)]
    for one in lower(program):
        weights = [step.operator.inputs[1] for step in one.steps if len(step.operator.inputs) > 1]
        learned = {program.graph.tensors[name].differentiable for name in weights}
        assert len(learned) < 2, one
    assert ["v_proj.lora_A"] in names
    assert ["v_proj.lora_B"] in names


def test_an_adapter_of_keys_that_ranks_share_is_local() -> None:
    adapted = MODELS["qwen2 moe, adapters"]
    for heads, layer in ((4, "ColumnParallelLinear"), (2, "local"), (1, "local")):
        program = plan_of(replace(adapted, num_key_value_heads=heads), tp=4).sample_programs[0]
        found = {step.operator.name: one.layer for one in lower(program) for step in one.steps}
        assert found["model.layers.0.self_attn.k_proj.matmul.lora_B"] == layer
        assert found["model.layers.0.self_attn.o_proj.lora_A"] == "RowParallelLinear"


def test_experts_travel_over_the_expert_axis() -> None:
    moved = [one.transitions for one in lower(plan_of("mixtral", tp=2, dp=2, ep=2).sample_programs[0])]
    kinds = [(transition.forward, transition.axes) for transitions in moved for transition in transitions]
    assert kinds.count(("all_to_all", ("ep",))) == 2


@pytest.mark.parametrize(
    ("operator", "choice", "text"),
    [
        (
            "model.layers.*.self_attn.o_proj",
            {"tp": "embed"},
            "o_proj with tp: embed (gathers its input's kvhead over tp); the nearest that it has is tp: kvhead",
        ),
        (
            "model.layers.*.mlp.gate_proj",
            {"tp": "embed"},
            "gate_proj with tp: embed (needs all_to_all over tp); the nearest that it has is tp: ffn",
        ),
        (
            "loss",
            {"tp": "seq"},
            "loss with tp: seq (needs all_to_all over tp); the nearest that it has is tp: vocab",
        ),
    ],
)
def test_what_nxd_has_no_layer_for(operator: str, choice: dict[str, str], text: str) -> None:
    plan = plan_of(tp=2)
    other = replace(plan, operators={**plan.operators, operator: {**plan.operators[operator], **choice}})
    with pytest.raises(AutoshardError) as error:
        lower(other.program(range(1), True, True))
    name = operator.replace("*", "0").rpartition(".")[0]
    assert str(error.value) == f"NxD has no layer for {name + '.' if name else ''}{text}"


def test_validate_says_whether_nxd_can_execute_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "plan.json")
    write_plan(priced(plan_of(tp=2)), path)
    assert main(["validate", path]) == 0
    first, second, *repairs = capsys.readouterr().out.splitlines()
    assert first == f"{path} is valid: tiny-llama on 1 x cpu, tp=2 pp=1 dp=1 mbs=1 recompute=none"
    assert second == "NxD has a layer for each of its operators"
    assert repairs[0].startswith("  repaired: tp=2: fuse_qkv is off, because ")
    wide = Precision("wide sums", "bfloat16", "bfloat16", "float32", "float32", "float64", "float32")
    write_plan(priced(plan_of(precision=wide, tp=2)), path)
    assert main(["validate", path]) == 2
    assert capsys.readouterr().err == (
        f"autoshard: error: {path}: strategy: precision wide sums: NxD sums and sends gradients in one dtype, bfloat16 "
        "or float32, not in float64 and float32; use backend torch\n"
    )


@pytest.mark.parametrize("model", ["llama", "few kv heads", "gpt2", "qwen2 moe"])
@pytest.mark.parametrize("layout", [{"tp": 4}, {"tp": 4, "sp": False}])
def test_what_the_solver_may_choose_for_nxd_is_expressible(model: str, layout: dict[str, Any]) -> None:
    """Each operator alone, beside the others' rule."""
    plan = plan_of(model, **layout)
    graph, axes = plan.graph(range(1), True, True), plan.mesh.stage_axes
    for op in graph.operators:
        template = template_of(op.name)
        for choice in operator_options(graph, op, axes, "nxd", plan.strategy.sequence_parallel):
            other = replace(plan, operators={**plan.operators, template: choice})
            assert lower(other.program(range(1), True, True))


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in builtin_models()
        if load_model(name).model_type in MODEL_TYPES and len(load_model(name).kinds) == 1
    ],
)
def test_plans_for_nxd_are_expressible(name: str) -> None:
    """What the planner answers for each built-in model, on a cluster that holds it."""
    model = load_model(name)
    nodes, layers = (64, 16) if model.hidden_size >= 12_288 else (16, 8)
    # a block is like another, and fewer are searched sooner; tied embeddings leave NxD no pipeline
    model = replace(model, num_hidden_layers=layers, tie_word_embeddings=False)
    training = TrainingSpec(min(4096, model.max_position_embeddings), 1024, PRECISIONS["mixed_precision"])
    cluster = load_cluster("trn1.32xlarge", nodes)
    fits = model.num_key_value_heads % 8 == 0 or 8 % model.num_key_value_heads == 0
    tp = 8 if fits and model.num_attention_heads % 8 == 0 and not model.normalizes_all_heads else 1
    pins = Pins(tp=tp, microbatch_size=1, recompute="full")
    best = search(model, training, cluster, pins, "nxd", top=1).best
    plan = make_plan(model, training, cluster, "nxd", best.strategy, best.estimate)
    assert all(lower(program) for program in plan.sample_programs)


def test_norms_over_the_heads_of_several_ranks_are_refused() -> None:
    model = load_model("olmo2-7b")
    training = TrainingSpec(4096, 1024, PRECISIONS["mixed_precision"])
    with pytest.raises(AutoshardError) as raised:
        search(model, training, load_cluster("trn1.32xlarge", 16), Pins(tp=8), "nxd", top=1)
    assert str(raised.value).endswith(
        "tp=8: NxD has no norm over the heads of several ranks, which olmo2-7b needs; use tp=1 or backend torch"
    )


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("qwen3-next-80b-a3b", "linear_attention"),
        ("granite-4.0-h-tiny", "mamba"),
        ("minimax-text-01", "lightning_attention"),
    ],
)
def test_recurrences_are_refused(name: str, blocks: str) -> None:
    training, cluster = TrainingSpec(4096, 1024, PRECISIONS["mixed_precision"]), load_cluster("trn1.32xlarge", 16)
    wrong = blocks_run_on_torch(Problem(load_model(name), training, cluster, "nxd"), Draft(1, 1, 512, 1, 1))
    assert wrong == f"backend=nxd has no layers for the {blocks} blocks of {name}; use backend torch"


def test_without_the_library_one_line_says_how_to_install_it(tmp_path: Path) -> None:
    write_plan(priced(plan_of(tp=2)), tmp_path / "plan.json")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-m", "autoshard", "run", "plan.json", "--backend", "nxd"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (2, f"autoshard: error: {INSTALL}\n")


def test_variables_that_would_round_what_the_plan_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_USE_BF16", "0")
    check_variables()
    monkeypatch.setenv("XLA_DOWNCAST_BF16", "1")
    with pytest.raises(AutoshardError, match=r"^XLA_DOWNCAST_BF16=1 makes FP32 masters and sums bf16 on the device; "):
        check_variables()
