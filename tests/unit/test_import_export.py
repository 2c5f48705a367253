"""Plans in the words of NxD Training, torchtitan and Megatron-LM, there and back; the shapes of the public files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.cli import main
from autoshard.commands.import_ import plan_of
from autoshard.errors import AutoshardError
from autoshard.interop.export import FORMS, export
from autoshard.interop.megatron import layout_layers
from autoshard.interop.nxdt import auto_partition
from autoshard.interop.written_layout import read_written_layout
from autoshard.interop.written_model import models_with
from autoshard.models.huggingface_config import to_config
from autoshard.models.registry import builtin_models, load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.written import read_written
from autoshard.plans.plan import Plan, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.prices import priced
from autoshard.plans.validate import read_plan
from tests.unit.plan_examples import by_hand, plan_70b, plan_interleaved, plan_mixtral
from tests.unit.published_plans import published_plans
from tests.unit.test_nxd_configuration import changed

KEYS = set((Path(__file__).parents[1] / "golden" / "nxdt_yaml_keys.txt").read_text().splitlines())  # fmt: skip
SUFFIX = {"nxdt": "yaml", "torchtitan": "toml", "megatron": "sh"}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def public(
    nodes: int, degrees: dict[str, int], model: dict[str, Any], name: str = "hf_llama", batch: int = 1024
) -> dict[str, Any]:
    """The keys of the configurations that AWS publishes (examples/conf of NxD Training), paths among them."""
    return {
        "name": name,
        "model_source": "hf",
        "seed": 1234,
        "trainer": {"devices": 32, "num_nodes": nodes, "max_steps": 30000, "gradient_clip_val": 1.0},
        "exp_manager": {
            "resume_if_exists": True,
            "checkpoint_callback_params": {
                "model_parallel_size": "${multiply:${distributed_strategy.tensor_model_parallel_size}, 8}"
            },
        },
        "distributed_strategy": {
            "virtual_pipeline_model_parallel_size": 1,
            "zero1": True,
            "sequence_parallel": True,
            **degrees,
        },
        "data": {"micro_batch_size": 1, "global_batch_size": batch, "train_dir": "/data/wikicorpus"},
        "model": {"model_config": "/data/config.json", "optim": {"name": "adamw", "lr": 1.5e-5}, **model},
        "precision": {"type": "mixed_precision", "master_weights": False, "xla_downcast_bf16": "0"},
        "compiler_flags": "--model-type transformer",
    }


def sizes(layers: int, hidden: int, length: int, positions: object, theta: float | None, **more: Any) -> dict[str, Any]:
    rope = {} if theta is None else {"rope_theta": theta}
    return {
        "encoder_seq_length": length,
        "max_position_embeddings": positions,
        "num_layers": layers,
        "hidden_size": hidden,
        **rope,
        **more,
    }


def recompute(granularity: str, modules: list[str] | None, flash: bool, **more: bool) -> dict[str, Any]:
    return {
        "activations_checkpoint_granularity": granularity,
        "activations_checkpoint_recompute": modules,
        "fusions": {"softmax": True, "flash_attention": flash, **more},
    }


def tp_pp(tp: int, pp: int, **more: int) -> dict[str, int]:
    return {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, **more}


BOTH, FOLLOWS = ["CoreAttention", "LlamaMLP"], "${.encoder_seq_length}"
PUBLIC: dict[str, dict[str, Any]] = {
    "hf_llama3_70B": public(
        16,
        tp_pp(32, 8, kv_replicator=4),
        {**sizes(80, 8192, 8192, 8192, 5e5, qkv_linear=True, fuse_qkv=True), **recompute("selective", BOTH, True)},
    ),
    "hf_llama3.1_70B": public(
        32,
        tp_pp(32, 8, kv_replicator=4),
        {**sizes(80, 8192, 8192, 131072, 5e5, qkv_linear=True), **recompute("selective", BOTH, True)},
    ),
    "hf_llama3_8B": public(
        4,
        tp_pp(32, 1, kv_replicator=4),
        {**sizes(32, 4096, 8192, 8192, 5e5), **recompute("selective", ["CoreAttention"], True)},
    ),
    "hf_llama_7B": public(
        1,
        tp_pp(8, 1, kv_replicator=1),
        {**sizes(32, 4096, 4096, FOLLOWS, None), **recompute("selective", ["CoreAttention"], False)},
    ),
    "hf_mixtral_8x7b": public(
        8,
        tp_pp(32, 4, expert_model_parallel_size=1),
        {
            **sizes(32, 4096, 4096, FOLLOWS, 1e6),
            **recompute("full", None, False),
            "moe": {"num_experts": 8, "top_k": 2, "capacity_factor": 2.0, "router_aux_loss_coef": 0.02},
        },
        "hf_mixtral",
        128,
    ),
    "hf_llama3_70B_CP": public(
        16,
        tp_pp(32, 8, context_parallel_size=2, kv_replicator=4),
        {**sizes(80, 8192, 8192, 8192, 5e5), **recompute("selective", BOTH, False, ring_attention=True)},
    ),
}
"""The six published layouts as their files have them (the 7B with its 32 blocks: its file has 4)."""


def own_gpt(
    nodes: int, degrees: dict[str, int], batch: int, tokenizer: str, remembered: dict[str, Any], **model: Any
) -> dict[str, Any]:
    """The keys of those whose model_source is megatron, which name no config.json; remembered: recompute's."""
    sizes = {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": FOLLOWS,
        "layernorm_epsilon": "1e-5",  # what YAML makes of it
        "kv_channels": None,
        "apply_query_key_layer_scaling": True,
        "make_vocab_size_divisible_by": 8,
        "transformer_block_type": "pre_ln",
        "rotary_percentage": 1,
    }
    data = public(nodes, degrees, {**sizes, **remembered, **model}, "megatron_gpt", batch)
    del data["model"]["model_config"]
    data["data"] |= {"seq_length": "${model.encoder_seq_length}", "tokenizer": {"type": tokenizer}}
    return {**data, "model_source": "megatron"}


LLAMAS = {
    "normalization": "rmsnorm",
    "position_embedding_type": "rope",
    "activation": "swiglu",
    "has_bias": False,
    "share_embeddings_and_output_weights": False,
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "ffn_dropout": 0,
    "encoder_seq_length": 4096,
    "ffn_hidden_size": 14336,
}
GPTS = {
    "normalization": "layernorm",
    "position_embedding_type": "learned_absolute",
    "activation": "gelu",
    "has_bias": True,
    "share_embeddings_and_output_weights": True,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "ffn_dropout": 0.1,
    "encoder_seq_length": 2048,
    "ffn_hidden_size": 16384,
    "num_kv_heads": 32,
}
MOE = {"num_experts": 8, "frequency": 1, "dropout": 0.0, "routing_algorithm": "top_k", "top_k": 2}
SELECTIVE, FULL = recompute("selective", ["CoreAttention"], False), recompute("full", None, False)
TOKENIZER = "/home/ubuntu/llama_tokenizer"
FOUR_BLOCKS = {**PUBLIC["hf_llama_7B"], "model": {**PUBLIC["hf_llama_7B"]["model"], "num_layers": 4}}
DROPLESS = {**MOE, "dropless": True, "capacity_factor": 0.0}
UNNAMED: dict[str, dict[str, Any]] = {
    "hf_llama_7B": FOUR_BLOCKS,
    "megatron_gpt": own_gpt(1, tp_pp(8, 1), 1024, "GPT2BPETokenizer", SELECTIVE, **GPTS),
    "megatron_mistral": own_gpt(
        1, tp_pp(8, 1), 1024, TOKENIZER, SELECTIVE, **LLAMAS, num_kv_heads=8, sliding_window_size=4096
    ),
    "megatron_mixtral": own_gpt(
        16,
        tp_pp(32, 4, expert_model_parallel_size=1),
        128,
        TOKENIZER,
        FULL,
        **LLAMAS,
        num_kv_heads=32,
        moe={**MOE, "dropless": False, "capacity_factor": 2.0},
    ),
    "megatron_mixtral_dropless": own_gpt(
        16, tp_pp(32, 4), 128, TOKENIZER, FULL, **LLAMAS, num_kv_heads=32, moe=DROPLESS
    ),
}
"""Those of examples/conf at 9169aa0 (September 2025) that are no built-in model's by layers and hidden size."""


def imported(data: object, name: str = "conf.yaml", **given: Any) -> Plan:
    text = data if isinstance(data, str) else yaml.safe_dump(data)
    Path(name).write_text(text)
    return plan_of(name, read_written(name, given))


def inputs(plan: Plan) -> tuple[object, ...]:
    return plan.model, plan.cluster, plan.strategy, replace(plan.training, expert_capacity_factor=1.0)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_are_the_published_layouts(name: str) -> None:
    given = {"model": "llama2-7b"} if name == "hf_llama_7B" else {}
    plan = imported(PUBLIC[name], **given)
    assert inputs(plan) == inputs(published_plans()[name])
    assert plan.backend == "nxd"
    write_plan(plan, "plan.json")
    assert inputs(read_plan("plan.json")) == inputs(plan)


def test_what_the_public_file_says_beyond_a_layout_is_listed() -> None:
    Path("conf.yaml").write_text(yaml.safe_dump(PUBLIC["hf_mixtral_8x7b"], sort_keys=False))
    written = read_written_layout("conf.yaml")
    assert written.training_fields == {"expert_capacity_factor": 2.0}
    assert written.left_out[:4] == (
        "seed",
        "trainer.max_steps",
        "trainer.gradient_clip_val",
        "exp_manager.resume_if_exists",
    )
    assert {"data.train_dir", "model.optim.lr", "model.moe.router_aux_loss_coef", "compiler_flags"} < {
        *written.left_out
    }
    layout = ("distributed_strategy.", "data.global", "model.num_layers", "model.fusions.flash")
    assert not [key for key in written.left_out if key.startswith(layout)]


@pytest.mark.parametrize("given", [{}, {"model": "llama2-7b"}])
def test_the_files_own_number_of_blocks_stands(given: dict[str, str]) -> None:
    """The public 7B file trains four blocks, whether --model names the model or its sizes do."""
    plan = imported(FOUR_BLOCKS, **given)
    assert plan.model.name == "llama2-7b"
    assert (plan.model.num_hidden_layers, plan.strategy.stage_layers) == (4, (4,))
    assert "4 blocks, as the file says, where llama2-7b has 32" in plan.notes


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("form", FORMS)
def test_round_trip_of_the_published_layouts(name: str, form: str) -> None:
    plan = published_plans()[name]
    given = {"model": plan.model.name, "instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given)
    expected: dict[str, Any] = {
        "attention_kernel": plan.strategy.attention_kernel,
        "recompute": (plan.strategy.recompute_name,),
    }
    if form == "torchtitan":  # it says neither the kernel nor which part of a block selective mode recomputes
        expected["attention_kernel"] = "flash"
        if expected["recompute"] == ("core_attention",):
            expected["recompute"] = ("core_attention+mlp",)
    ring: dict[str, Any] = {"context_parallel": "zigzag_ring"} if plan.strategy.cp > 1 and form != "nxdt" else {}
    assert found.strategy == replace(plan.strategy, **expected, **ring)
    assert (found.model, found.cluster) == (plan.model, plan.cluster)
    assert (found.training.sequence_length, found.training.global_batch_size) == (
        plan.training.sequence_length,
        plan.training.global_batch_size,
    )


def mixture_plan(name: str) -> Plan:
    mixture, model = plan_mixtral(), load_model(name)
    layers = model.num_hidden_layers
    chosen = replace(mixture.strategy, tp=2, pp=4, dp=32, ep=8, stage_layers=(layers // 4,) * 4)
    cost = by_hand(model, mixture.training, mixture.cluster, chosen)
    return make_plan(model, mixture.training, mixture.cluster, "torch", chosen, cost)


def test_orders_of_axes_in_other_words() -> None:
    """Megatron has two of them, --use-tp-pp-dp-mapping the one with dp outermost; torchtitan and NxD Training one."""
    plan = mixture_plan("mixtral-8x22b")
    outside = replace(plan.strategy, ep=1, axis_order=("dp", "pp", "cp", "tp"))
    text = export(replace(plan, strategy=outside), "megatron").text
    assert "--use-tp-pp-dp-mapping" in text and "--use-tp-pp-dp-mapping" not in export(plan, "megatron").text
    given = {"instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    assert imported(text, "train.sh", **given).strategy.axis_order == ("dp", "pp", "cp", "tp")
    assert imported(export(plan, "megatron").text, "train.sh", **given).strategy.axis_order == ("pp", "dp", "cp", "tp")
    inside = replace(plan, strategy=replace(outside, axis_order=("cp", "pp", "dp", "tp")))
    told = {form: export(inside, form).left_out for form in ("megatron", "torchtitan", "nxdt")}
    assert "axis_order=cp-pp-dp-tp: Megatron's is pp-dp-cp-tp or dp-pp-cp-tp" in told["megatron"]
    assert "axis_order=cp-pp-dp-tp: torchtitan's is pp-dp-cp-tp" in told["torchtitan"]
    assert any("NxD builds its groups in the order pp-dp-cp-tp alone" in one for one in told["nxdt"])


@pytest.mark.parametrize("name", ["mixtral-8x22b", "qwen2-57b-a14b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("form", ["megatron", "torchtitan"])
def test_round_trip_of_mixtures(name: str, form: str) -> None:
    """Experts' width, their number, a shared expert: Megatron's arguments alone say which model it is."""
    plan = mixture_plan(name)
    given = {"instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    if form == "torchtitan":
        given["model"] = name
    found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given)
    assert found.model == plan.model
    assert (found.strategy.ep, found.strategy.stage_layers) == (8, plan.strategy.stage_layers)


@pytest.mark.parametrize("name", [name for name in builtin_models() if name not in ("mistral-7b", "gpt-neox-20b")])
def test_megatrons_arguments_say_which_model_it_is(name: str) -> None:
    """Megatron has neither Mistral's window in one flag nor GPT-NeoX's parallel residual."""
    strategy = replace(plan_70b().strategy, tp=1, sequence_parallel=False)
    plan = replace(plan_70b(), model=load_model(name), strategy=strategy, operators={})
    Path("train.sh").write_text(export(plan, "megatron").text)
    assert [model.name for model in models_with(read_written_layout("train.sh").model)] == [name]


def test_mixtures_in_megatrons_words() -> None:
    def text(name: str) -> str:
        return export(mixture_plan(name), "megatron").text

    qwen2 = text("qwen2-57b-a14b")
    assert "--moe-shared-expert-intermediate-size 20480 --moe-shared-expert-gate" in qwen2
    assert "--moe-ffn-hidden-size 2560 " in qwen2
    assert "--moe-router-pre-softmax" in qwen2, "its weights of the top k are not normalized again"
    mixtral = text("mixtral-8x7b")
    assert "--num-experts 8 --moe-router-topk 2" in mixtral
    assert "shared" not in mixtral
    assert "pre-softmax" not in mixtral


@pytest.mark.parametrize("form", FORMS)
def test_round_trip_of_uneven_and_interleaved_stages(form: str) -> None:
    uneven = changed(plan_70b(), stage_layers=(8, 10, 10, 11, 11, 11, 10, 9))
    interleaved = changed(plan_70b(), schedule="interleaved", num_virtual_stages=2, stage_layers=(5,) * 16)
    for plan in (uneven, interleaved):
        given = {"model": "llama3-70b", "instance": "trn1.32xlarge", "nodes": 16}
        found = imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given).strategy
        assert (found.stage_layers, found.num_virtual_stages, found.schedule) == (
            plan.strategy.stage_layers,
            plan.strategy.num_virtual_stages,
            plan.strategy.schedule,
        )


def test_lnc_and_trn2_round_trip() -> None:
    plan = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    found = imported(export(plan, "nxdt").text, model="llama3-70b")
    assert inputs(found) == inputs(plan)


def paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_key_that_is_written_is_one_of_nxdts() -> None:
    for plan in (*published_plans().values(), changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)):
        values = yaml.safe_load(export(plan, "nxdt").text)
        assert {*paths(values)} <= KEYS


def test_every_key_that_a_layout_determines_is_written() -> None:
    both = ("hf_llama3_70B_CP", "hf_mixtral_8x7b")
    written = {key for name in both for key in paths(yaml.safe_load(export(published_plans()[name], "nxdt").text))}
    strategy = {key for key in KEYS if key.startswith("distributed_strategy.")}
    assert strategy - written == {"distributed_strategy.token_shuffle_group_size"}
    assert {key for key in KEYS if "checkpoint_" in key and key.startswith("model.activations")} <= written
    assert {"trainer.devices", "trainer.num_nodes", "model.pipeline_cuts", "precision.type"} <= written


def test_what_cannot_be_carried_over_is_listed() -> None:
    assert export(published_plans()["hf_llama3_70B_CP"], "nxdt").left_out == (
        "model.model_config=config.json: NxD Training reads the model's other sizes from the file named there",
        "cp=2: NxD's optimizer checkpoints overwrite each other; a resumed run continues wrongly",
        "kv_replicator=4: NxD's gradient norm counts key-value weights that often, so gradient_clip_val sets in early",
    )
    plain = changed(plan_70b(), tp=8, dp=8, attention_kernel="plain", recompute="none", schedule="gpipe")
    found = " ".join(export(plain, "nxdt").left_out)
    assert "recompute=none: without flash attention NxD Training recomputes core attention all the same" in found
    assert "schedule=gpipe: NxD runs 1f1b instead" in found
    assert any("expert_capacity_factor=1" in one for one in export(plan_mixtral(), "torchtitan").left_out)
    assert "instance=trn1.32xlarge: Megatron-LM runs on GPUs" in export(plan_mixtral(), "megatron").left_out
    assert export(plan_interleaved(), "nxdt").left_out[-1] == "instance=cpu: NxD Training runs on Trainium"


def test_megatrons_notation_of_stages() -> None:
    assert layout_layers("Et*3|(t|)*2t*4L") == (3, 1, 1, 4)
    assert layout_layers("E,t*2|tt|tL") == (2, 2, 1)
    for wrong in ("x", "", "t" * 600):
        with pytest.raises(AutoshardError, match="one reads"):
            layout_layers(wrong)


def test_nxds_even_cut_gives_the_remainder_to_the_last() -> None:
    assert auto_partition(126, 32) == (3, 3, *[4] * 30)


@pytest.mark.parametrize(
    ("change", "given", "text"),
    [
        (
            {"hidden_size": 4000},
            {},
            (
                "no built-in model has model.hidden_size=4000, model.max_position_embeddings=8192, "
                "model.rope_theta=500000.0, as conf.yaml says; --model names the one it is for"
            ),
        ),
        (
            {"max_position_embeddings": 9},
            {},
            "conf.yaml may be for llama3-8b or llama3.1-8b; --model says which",
        ),
        (
            {},
            {"model": "llama3-70b"},
            "conf.yaml has model.hidden_size=4096, but llama3-70b has 8192: another model",
        ),
        ({}, {"backend": "nxd", "nodes": 3}, "dp=3 x microbatch_size=1 must divide global_batch_size=1024"),
    ],
)
def test_errors(change: dict[str, Any], given: dict[str, Any], text: str) -> None:
    data = {**PUBLIC["hf_llama3_8B"], "model": {**PUBLIC["hf_llama3_8B"]["model"], **change}}
    with pytest.raises(AutoshardError) as error:
        imported(data, **given)
    assert str(error.value) == text


def test_models_that_nxdt_has_not() -> None:
    plan = plan_70b()
    with pytest.raises(AutoshardError, match=r"^model_type=qwen3 of q has no NxD Training model that a plan can be"):
        export(replace(plan, model=replace(plan.model, model_type="qwen3", name="q")), "nxdt")
    own = replace(plan.training, precision=replace(plan.training.precision, name="mine"))
    with pytest.raises(
        AutoshardError, match=r"^precision mine is unknown to NxD Training; mixed_precision, bf16_sr, fp"
    ):
        export(replace(plan, training=own), "nxdt")


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(priced(published_plans()["hf_llama3_8B"]), "plan.json")
    assert main(["export", "plan.json", "--to", "nxdt", "--out", "conf.yaml"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "wrote conf.yaml\n"
    assert shown.err.startswith("not carried over: model.model_config=config.json: ")
    assert main(["import", "conf.yaml", "--out", "again.json"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        "wrote again.json: llama3-8b on 4 x trn1.32xlarge, tp=32 pp=1 dp=4 mbs=1 recompute=core_attention\n"
        "next: autoshard explain again.json\n"
    )
    assert "not in a plan: model: model_config\n" in shown.err
    assert "note: imported: NxDT configuration\n" in shown.err
    assert read_plan("again.json").strategy == read_plan("plan.json").strategy
    assert main(["export", "plan.json", "--to", "megatron"]) == 0
    assert capsys.readouterr().out.startswith("# llama3-8b on 4 x trn1.32xlarge, tp=32 pp=1")
    Path("recipe.yaml").write_text("model: llama3-8b\n")
    assert main(["import", "recipe.yaml"]) == 2
    assert capsys.readouterr().err == (
        "autoshard: error: recipe.yaml is a recipe: autoshard plan --config recipe.yaml reads it\n"
    )


@pytest.mark.parametrize(("form", "zero"), [("megatron", 2), ("megatron", 3), ("torchtitan", 3), ("torchtitan", 0)])
def test_stages_of_zero_there_and_back(form: str, zero: int) -> None:
    plan = mixture_plan("mixtral-8x7b")
    plan = replace(plan, strategy=replace(plan.strategy, zero=zero))
    given = {"model": "mixtral-8x7b", "instance": "trn1.32xlarge", "nodes": plan.cluster.nodes, "backend": "torch"}
    assert imported(export(plan, form).text, f"conf.{SUFFIX[form]}", **given).strategy.zero == zero


def gpt_parameters(ffn: int, kv_heads: int, experts: int = 0) -> int:
    """Of 32 blocks of 4096 with heads of 128, as a Llama with 32,000 tokens; one more matrix a block routes."""
    attention = 2 * 4096 * 4096 + 2 * 4096 * kv_heads * 128
    mlp = 3 * 4096 * ffn * max(1, experts) + 4096 * experts
    return 2 * 32_000 * 4096 + 32 * (attention + mlp + 2 * 4096) + 4096


@pytest.mark.parametrize(
    ("name", "model", "model_type", "parameters"),
    [
        (
            "hf_llama_7B",
            "llama2-7b",
            "llama",
            gpt_parameters(11008, 32) * 4 // 32 + 28 * (2 * 32_000 * 4096 + 4096) // 32,
        ),
        # embedding and positions, 12 h^2 + 13 h a block, the last norm
        ("megatron_gpt", "conf", "gpt2", (50_257 + 2048) * 4096 + 32 * (12 * 4096**2 + 13 * 4096) + 2 * 4096),
        ("megatron_mistral", "mistral-7b", "mistral", gpt_parameters(14336, 8)),
        ("megatron_mixtral", "conf", "mixtral", gpt_parameters(14336, 32, 8)),
        ("megatron_mixtral_dropless", "conf", "mixtral", gpt_parameters(14336, 32, 8)),
    ],
)
def test_files_without_a_models_name_say_which_it_is(name: str, model: str, model_type: str, parameters: int) -> None:
    plan = imported(UNNAMED[name])
    assert (plan.model.name, plan.model.model_type) == (model, model_type)
    assert parameter_count(plan.model) == parameters
    assert plan.training.sequence_length == (2048 if name == "megatron_gpt" else 4096)
    write_plan(plan, "plan.json")
    assert inputs(read_plan("plan.json")) == inputs(plan)


def test_a_model_made_of_a_file_has_all_that_it_says() -> None:
    model = imported(UNNAMED["megatron_mixtral"]).model
    assert (model.num_key_value_heads, model.num_local_experts, model.num_experts_per_tok) == (32, 8, 2)
    assert (model.rope_theta, model.norm_eps, model.sliding_window) == (10_000.0, 1e-5, None)
    changes = {"rotary_percentage": 0.25, "position_embedding_type": "rope", "position_freq_base": 5000}
    neox = imported(in_model("megatron_gpt", **changes)).model
    assert (neox.model_type, neox.partial_rotary_factor, neox.rope_theta) == ("gpt_neox", 0.25, 5000.0)
    assert (neox.use_parallel_residual, neox.tie_word_embeddings, neox.mlp_bias) == (False, True, True)
    assert imported(in_model("megatron_mixtral", position_abf_factor=2)).model.rope_theta == 20_000.0
    own = imported(in_model("megatron_mistral", vocab_size=50_000, layernorm_epsilon=1e-6)).model
    assert (own.model_type, own.vocab_size, own.norm_eps) == ("mistral", 50_000, 1e-6)


def test_heads_that_a_file_is_silent_about_have_keys_of_their_own() -> None:
    """Mistral's other sizes do not make it Mistral, which shares eight keys."""
    own = imported(in_model("megatron_mistral", num_kv_heads=None)).model
    assert (own.name, own.num_key_value_heads, own.head_dim) == ("conf", 32, 128)


def in_model(name: str, **changes: Any) -> dict[str, Any]:
    return {**UNNAMED[name], "model": {**UNNAMED[name]["model"], **changes}}


@pytest.mark.parametrize(
    ("key", "value", "own"),
    [
        ("hidden_size", 2048, 4096),
        ("ffn_hidden_size", 11008, 14336),
        ("num_attention_heads", 16, 32),
        ("num_kv_heads", 32, 8),
        ("num_kv_heads", 7, 8),
        ("kv_channels", 64, 128),
        ("vocab_size", 50_000, 32_000),
        ("sliding_window_size", 2048, 4096),
        ("layernorm_epsilon", 1e-6, 1e-5),
        ("position_freq_base", 5000.0, 10_000.0),
        ("rotary_percentage", 0.5, 1.0),
        ("normalization", "layernorm", "rmsnorm"),
        ("activation", "gelu", "swiglu"),
        ("position_embedding_type", "learned_absolute", "rope"),
        ("transformer_block_type", "gpt_j", "pre_ln"),
        ("share_embeddings_and_output_weights", True, False),
        ("has_bias", True, "none"),
        ("moe", {"num_experts": 4}, 0),
    ],
)
def test_a_size_that_the_named_model_has_otherwise_is_refused(key: str, value: object, own: object) -> None:
    data = in_model("megatron_mistral", **{key: value})
    with pytest.raises(AutoshardError) as error:
        imported(data, model="mistral-7b")
    said = {"has_bias": "all", "moe": 4}.get(key, value)
    name = "moe.num_experts" if key == "moe" else key
    assert str(error.value) == f"conf.yaml has model.{name}={said}, but mistral-7b has {own}: another model"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--num-query-groups 8", "train.sh has --num-query-groups=8, but llama2-7b has 32: another model"),
        ("--ffn-hidden-size 14336", "train.sh has --ffn-hidden-size=14336, but llama2-7b has 11008: another model"),
        ("--vocab-size 32001", "train.sh has --vocab-size=32001, but llama2-7b has 32000: another model"),
        ("--num-experts 8", "train.sh has --num-experts=8, but llama2-7b has 0: another model"),
        ("--qk-layernorm", "train.sh has --qk-layernorm=True, but llama2-7b has False: another model"),
        ("--rotary-base 500000", "train.sh has --rotary-base=500000.0, but llama2-7b has 10000.0: another model"),
        ("--rotary-base x", "train.sh: --rotary-base is 'x'; it must be a number"),
    ],
)
def test_megatrons_sizes_are_compared_too(flags: str, text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        imported(f"--hidden-size 4096 {flags}", "train.sh", model="llama2-7b")
    assert str(error.value) == text


def test_torchtitans_flavor_is_compared_too() -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n'
    assert imported(text, "train.toml", model="llama3.1-8b").model.name == "llama3.1-8b"
    with pytest.raises(AutoshardError) as error:
        imported(text, "train.toml", model="llama2-7b")
    assert str(error.value) == (
        "train.toml has model.flavor='8B' with intermediate_size=14336, but llama2-7b has 11008: another model"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_kv_heads": 7}, "model.num_kv_heads=7 must divide model.num_attention_heads=32"),
        ({"num_attention_heads": 24}, "model.num_attention_heads=24 must divide model.hidden_size=4096"),
        (
            {"has_bias": False},
            "no family of models here has its graph; the nearest, gpt2, has bias=all, not bias=none",
        ),
        (
            {"num_kv_heads": 8},
            "no family of models here has its graph; the nearest, gpt2, has a key for each query, not grouped queries",
        ),
        (
            {"transformer_block_type": "post_ln"},
            "no family of models here has its graph; the nearest, gpt2, has block=pre_ln, not block=post_ln",
        ),
        (
            {"activation": "two\nlines"},
            "no family of models here has its graph; the nearest, gpt2, has gelu, not 'two\\nlines'",
        ),
        ({"ffn_hidden_size": None}, "it does not say its model's intermediate_size; --model CONFIG.json does"),
        ({"has_bias": "no"}, "model.has_bias is 'no'; it must be True or False"),
        ({"layernorm_epsilon": "small"}, "model.layernorm_epsilon is 'small'; it must be a number"),
        ({"moe": {**MOE, "frequency": 2}}, "model.moe.frequency=2: every layer must have experts here; 1 works"),
        (
            {"moe": {**MOE, "capacity_factor": 0}},
            "model.moe.capacity_factor=0 without model.moe.dropless drops every token; one above 0 works",
        ),
    ],
)
def test_models_that_no_family_has(change: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        imported(in_model("megatron_gpt", **change))
    assert str(error.value) == f"conf.yaml: {text}"


def test_a_vocabulary_that_nobody_knows_is_asked_for() -> None:
    data = in_model("megatron_mistral", num_kv_heads=32)
    guess = (
        "vocabulary of 32,000 tokens, guessed from data.tokenizer.type='/home/ubuntu/llama_tokenizer': the file does"
    )
    assert f"{guess} not say it" in imported(data).notes
    data["data"] = {**data["data"], "tokenizer": {"type": "mine"}}
    with pytest.raises(AutoshardError) as error:
        imported(data)
    assert str(error.value) == "conf.yaml: it does not say its model's vocab_size; --model CONFIG.json does"


def test_the_config_that_a_file_names_is_read_if_it_is_here() -> None:
    data = json.loads(json.dumps(PUBLIC["hf_llama3_8B"]))
    data["model"]["model_config"] = "config.json"
    missing = "'config.json' is not here: llama3-8b is the built-in model with model.hidden_size=4096, "
    assert any(note.startswith(missing) for note in imported(data).notes)
    Path("config.json").write_text(json.dumps({**to_config(load_model("llama3-8b")), "vocab_size": 50_000}))
    plan = imported(data)
    assert plan.model.vocab_size == 50_000 and "model from 'config.json', which conf.yaml names" in plan.notes
    Path("config.json").write_text(json.dumps(to_config(load_model("llama2-13b"))))
    with pytest.raises(AutoshardError, match=r"^conf.yaml has model.hidden_size=4096, but .* has 5120: another model$"):
        imported(data)
