"""Which model a layout of NxD Training, torchtitan or Megatron-LM is for: by its sizes, its name or its own words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.errors import AutoshardError
from autoshard.interop.export import export, unwritten
from autoshard.interop.read_layout import read_written_layout
from autoshard.interop.written_model import models_with
from autoshard.models.huggingface import to_config
from autoshard.models.registry import builtin_models, load_model
from autoshard.models.stage import parameter_count
from autoshard.planner.written import Written, read_written
from autoshard.plans.plan_json import write_plan
from autoshard.plans.validate import read_plan
from tests.cases import some
from tests.unit.megatron_flags import DROPS_NOTHING
from tests.unit.plan_examples import plan_70b
from tests.unit.written_files import FOUR_BLOCKS, MOE, PUBLIC, UNNAMED, imported, in_model, inputs

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.mark.parametrize("given", [{}, {"model": "llama2-7b"}])
def test_the_files_own_number_of_blocks_stands(given: dict[str, str]) -> None:
    """The public 7B file trains four blocks, whether --model names the model or its sizes do."""
    plan = imported(FOUR_BLOCKS, **given)
    assert plan.model.name == "llama2-7b"
    assert (plan.model.num_hidden_layers, plan.strategy.stage_layers) == (4, (4,))
    assert "4 blocks, as the file says, where llama2-7b has 32" in plan.notes


NOT_IN_FLAGS = (
    *("mistral-7b", "gpt-neox-20b", "phi3-mini-4k", "phi3-medium-4k", "phi4-mini", "afm-4.5b"),
    *("starcoder2-3b", "starcoder2-7b", "starcoder2-15b", "internlm3-8b"),
)
"""Megatron has neither a sliding window in one flag nor GPT-NeoX's parallel residual, nor any scaling of positions but
Llama 3.1's."""
WRITTEN = [name for name in builtin_models() if unwritten(load_model(name)) is None]


@pytest.mark.parametrize("name", some((name for name in WRITTEN if name not in NOT_IN_FLAGS), step=3))
def test_megatrons_arguments_say_which_model_it_is(name: str) -> None:
    strategy = replace(plan_70b().strategy, tp=1, sequence_parallel=False)
    plan = replace(plan_70b(), model=load_model(name), strategy=strategy, operators={})
    Path("train.sh").write_text(export(plan, "megatron").text)
    (found,) = models_with(read_written_layout("train.sh").model)
    assert replace(found, name=name) == load_model(name)  # Qwen2.5 7B has the sizes of Qwen2 7B


def test_megatrons_arguments_say_the_activation_of_arcee() -> None:
    plan = replace(plan_70b(), model=load_model("afm-4.5b"), operators={})
    plan = replace(plan, strategy=replace(plan.strategy, tp=1, sequence_parallel=False))
    exported = export(plan, "megatron")
    assert "--squared-relu --normalization RMSNorm" in exported.text
    assert any(sentence.startswith("rope_scaling yarn: ") for sentence in exported.left_out)
    Path("train.sh").write_text(exported.text)
    assert read_written_layout("train.sh").model.wanted["activation"] == "squared_relu"


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


def test_of_many_models_that_a_file_may_be_for_some_are_named() -> None:
    Path("train.sh").write_text(
        "pretrain_gpt.py --tensor-model-parallel-size 8 --position-embedding-type rope --micro-batch-size 1 "
        "--max-position-embeddings 8192"
    )
    alike = len(models_with(read_written_layout("train.sh").model))
    assert alike > 10
    with pytest.raises(AutoshardError) as error:
        autoshard.import_plan("train.sh")
    assert str(error.value).endswith(f" or {alike - 6} others; --model says which")
    assert str(error.value).count(" or ") == 6


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
        (
            "--group-query-attention --num-query-groups 8",
            "train.sh has --num-query-groups=8, but llama2-7b has 32: another model",
        ),
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
        imported(f"--hidden-size 4096 --tensor-model-parallel-size 1 {flags}", "train.sh", model="llama2-7b")
    assert str(error.value) == text


def test_megatron_groups_no_queries_unless_it_is_told_to() -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 8 --vocab-size 99 --max-position-embeddings 64"
    alone = imported(f"{sizes} --num-query-groups 2", "train.sh")
    assert alone.model.num_key_value_heads == 8
    told = "--num-query-groups 2 without --group-query-attention: Megatron gives each query head a key of its own"
    assert f"warning: {told}" in alone.notes
    llama = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    grouped = imported(f"{sizes} {llama} --group-query-attention --num-query-groups 2", "train.sh")
    assert grouped.model.num_key_value_heads == 2
    assert told not in str(grouped.notes)


MIXTURE = "--moe-expert-capacity-factor 1"
LATENT = (
    "--multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 128 --qk-layernorm"
)
SIGMOID = f"{MIXTURE} --moe-router-pre-softmax --moe-router-score-function sigmoid"
PUBLISHED = {
    "deepseek-v3": f"{LATENT} --kv-channels 128 {SIGMOID} --moe-layer-freq ([0]*3+[1]*58) "
    "--moe-shared-expert-intermediate-size 2048",
    "kimi-k2": f"{LATENT} --kv-channels 64 {SIGMOID} --moe-layer-freq [0]*1+[1]*60",
    "deepseek-v2-lite": f"--multi-latent-attention --kv-lora-rank 512 --kv-channels 16 {MIXTURE}",
    "glm-4.5": f"{SIGMOID} --moe-layer-freq [0]*3+[1]*89 --qk-layernorm",
    "glm-4.5-air": f"{SIGMOID} --moe-layer-freq [0]*1+[1]*45",
    "gpt-oss-20b": f"{MIXTURE} --quick-geglu --window-size 128,0",
    "llama4-scout": f"{MIXTURE} --qk-layernorm --moe-layer-freq 1",
    "mistral-7b": "--window-size (4095,0)",
    "llama2-7b": "--window-size -1,-1",
}
"""Built-in model -> what Megatron's arguments for it say in words of their own."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_arguments_are_their_models(name: str) -> None:
    Path("train.sh").write_text(f"--hidden-size {load_model(name).hidden_size} {DROPS_NOTHING} '{PUBLISHED[name]}'")
    found = read_written("train.sh", {"model": name})
    assert (found.problem.model.name, found.warnings) == (name, ())


@pytest.mark.parametrize(
    ("name", "flags", "text"),
    [
        ("llama2-7b", "--multi-latent-attention", "--multi-latent-attention=True, but llama2-7b has False"),
        (
            "mixtral-8x7b",
            "--moe-layer-freq 2",
            "--moe-layer-freq 2 (blocks without experts), but mixtral-8x7b has experts in each block",
        ),
        (
            "glm-4.5",
            "--moe-layer-freq ([1]*92)",
            "--moe-layer-freq ([1]*92) (experts in each block), but glm-4.5 has blocks without experts",
        ),
        ("llama2-7b", "--window-size (127,0)", "--window-size (127,0) (windows), but llama2-7b has no windows"),
        ("deepseek-v3", "--kv-lora-rank 256", "--kv-lora-rank=256, but deepseek-v3 has 512"),
        ("deepseek-v3", "--qk-head-dim 192", "--qk-head-dim=192, but deepseek-v3 has 128"),
        ("deepseek-v2", "--qk-layernorm", "--qk-layernorm=True, but deepseek-v2 has False"),
        ("llama4-maverick", "--qk-layernorm", "--qk-layernorm=True, but llama4-maverick has False"),
    ],
)
def test_other_models_graphs_are_refused(name: str, flags: str, text: str) -> None:
    Path("train.sh").write_text(f"--micro-batch-size 1 '{flags}'")
    with pytest.raises(AutoshardError) as error:
        read_written("train.sh", {"model": name})
    assert str(error.value) == f"train.sh has {text}: another model"


def test_norms_with_weights_around_zero_are_nemotrons() -> None:
    """Other models take the same time and memory with them."""
    Path("train.sh").write_text(f"--apply-layernorm-1p --micro-batch-size 1 {DROPS_NOTHING} --bf16")
    said = (
        "--apply-layernorm-1p (norms with weights around zero); the plan has gpt3-175b's norms with weights around "
        "one: both take the same time"
    )
    for name, expected in {"minitron-4b": False, "gpt3-175b": True}.items():
        found = read_written("train.sh", {"model": name})
        assert (said in found.notes, found.warnings) == (expected, ())


def test_megatron_deepspeeds_experts_are_read() -> None:
    """--topk is 1 there without the flag, and --expert-interval 2: blocks with experts alternate with others."""
    sizes = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 8 --vocab-size 99 --max-position-embeddings 64 --swiglu "
        "--normalization RMSNorm --use-rotary-position-embeddings --disable-bias-linear --num-experts 4 "
        "--untie-embeddings-and-output-weights --tensor-model-parallel-size 2 --moe-expert-parallel-size 4"
    )
    for topk, active in (("", 1), ("--topk 2", 2)):
        plan = imported(f"{sizes} {DROPS_NOTHING} --expert-interval 1 {topk}", "train.sh", instance="h100-80gb")
        assert (plan.model.num_experts_per_tok, plan.strategy.ep) == (active, 4)
        assert any("keeps experts whole on each rank of tp; priced with tp=2, as the rest" in one for one in plan.notes)
        assert not any("not in the price" in one for one in plan.notes)
    with pytest.raises(AutoshardError) as error:
        imported(sizes, "train.sh")
    assert str(error.value) == (
        "train.sh has no --expert-interval, which Megatron-DeepSpeed takes for 2, and no model is made of sizes with "
        "it; --model names the one it is for"
    )
    with pytest.raises(AutoshardError) as error:
        imported("--num-experts 8 --topk 2 --expert-interval 2 --zero-stage 1", "train.sh", model="mixtral-8x7b")
    assert str(error.value) == (
        "train.sh has --expert-interval 2 (blocks without experts), but mixtral-8x7b has experts in each block: "
        "another model"
    )


def test_unlike_numbers_of_experts_of_megatron_deepspeed() -> None:
    counts = "64 64 128"
    for text in (f"--num-experts {counts}", f"EP_SIZE='{counts}'\n--num-experts ${{EP_SIZE}}"):
        with pytest.raises(AutoshardError) as error:
            imported(f"{text} --zero-stage 1", "train.sh", model="mixtral-8x7b")
        assert str(error.value) == (
            f"train.sh: --num-experts {counts}: blocks with unlike numbers of experts, which no model here has"
        )
    plan = imported(
        "--num-experts 8 8 --topk 2 --expert-interval 1 --zero-stage 1", "train.sh", model="mixtral-8x7b", nodes=4
    )
    assert (plan.model.num_local_experts, plan.strategy.ep) == (8, 1)
    dense = "--num-experts 1 --moe-expert-parallel-size 1 --mlp-type standard --zero-stage 1"
    assert imported(f"{dense} --topk 1", "train.sh", model="llama3-8b", nodes=4).model.num_local_experts == 0
    with pytest.raises(AutoshardError) as error:
        imported(
            f"--num-layers 2 --hidden-size 64 --num-attention-heads 8 {dense[16:]} --num-experts 4 "
            "--expert-interval 1 --mlp-type residual",
            "train.sh",
        )
    assert str(error.value).startswith("train.sh has --mlp-type residual, and no model is made of sizes with it;")


def of_capacity(said: str) -> Written:
    """Experts of Megatron-LM with a capacity factor."""
    flags = f"--num-experts 8 --moe-router-topk 2 --moe-expert-capacity-factor {said}"
    Path("train.sh").write_text(f"{flags} {DROPS_NOTHING}")
    return read_written("train.sh", {"model": "mixtral-8x7b", "instance": "h100-80gb", "nodes": 1})


@pytest.mark.parametrize(("said", "factor"), [("1.5", 1.5), ("-1", None), ("-1.0", None)])
def test_a_capacity_below_0_is_none(said: str, factor: float | None) -> None:
    found = of_capacity(said)
    assert found.problem.training.expert_capacity_factor == (factor or 1.0)
    assert [warning.split(":")[0] for warning in found.warnings] == (
        [] if factor else ["experts without a capacity factor (dropless)"]
    )


def test_a_capacity_of_0_drops_every_token() -> None:
    with pytest.raises(AutoshardError, match="sh: --moe-expert-capacity-factor 0 drops every token; one above 0 work"):
        of_capacity("0")


@pytest.mark.parametrize(
    ("flags", "factor"), [("", 1.0), ("--moe-train-capacity-factor 1.5", 1.5), ("--disable-moe-token-dropping", None)]
)
def test_the_capacity_of_megatron_deepspeeds_experts(flags: str, factor: float | None) -> None:
    """It is 1 without a flag."""
    eval_only = "--moe-eval-capacity-factor 2.0 --moe-min-capacity 4 --moe-loss-coeff 0.1"
    Path("train.sh").write_text(f"--num-experts 8 --topk 2 --expert-interval 1 {eval_only} {flags} {DROPS_NOTHING}")
    found = read_written("train.sh", {"model": "mixtral-8x7b", "instance": "h100-80gb", "nodes": 1})
    assert found.problem.training.expert_capacity_factor == (factor or 1.0)
    assert [warning.split(":")[0] for warning in found.warnings] == (
        [] if factor else ["experts without a capacity factor (dropless)"]
    )
    assert found.not_priced == ()


def test_a_graph_that_no_model_is_made_of_needs_the_name_of_its_model() -> None:
    sizes = (
        "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 --vocab-size 129280 "
        "--max-position-embeddings 4096 --swiglu --normalization RMSNorm --num-experts 256"
    )
    for flags, text in {
        f"{LATENT} --moe-ffn-hidden-size 2048": "--model deepseek-v3 takes a built-in one with all that the file says",
        f"{LATENT} --moe-ffn-hidden-size 1024": "--model names the one it is for",
    }.items():
        with pytest.raises(AutoshardError) as error:
            imported(f"{sizes} {flags}", "train.sh")
        assert str(error.value) == (
            f"train.sh has --multi-latent-attention, and no model is made of sizes with it; {text}"
        )


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [
        ("qwen3", "0.6B", "qwen3-0.6b"),
        ("qwen3", "14B", "qwen3-14b"),
        ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("deepseek_v3", "671B", "deepseek-v3"),
    ],
)
def test_torchtitans_flavors(name: str, flavor: str, model: str) -> None:
    Path("train.toml").write_text(f'[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nlocal_batch_size = 1\n')
    found = read_written("train.toml", {"instance": "h100-80gb", "nodes": 1})
    assert found.problem.model.name == model


def test_a_flavor_that_is_not_known_is_named() -> None:
    Path("train.toml").write_text('[model]\nname = "llama4"\nflavor = "17bx16e"\n')
    with pytest.raises(AutoshardError) as error:
        read_written("train.toml", {"instance": "h100-80gb"})
    assert str(error.value) == (
        "train.toml has model.name='llama4', model.flavor='17bx16e', which no built-in model is known by; --model "
        "names one"
    )


def test_what_torchtitan_does_not_enable_is_no_matter() -> None:
    keys = "enable_async_tensor_parallel = {}\n"
    for is_on in (True, False):
        text = f"[parallelism]\n{keys.format(str(is_on).lower())}"
        Path("train.toml").write_text(text)
        found = read_written("train.toml", {"model": "llama3-8b", "instance": "h100-80gb"})
        assert found.left_out == ("parallelism.enable_async_tensor_parallel",)
        assert found.not_priced == (found.left_out if is_on else ())


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
        (
            {"fusions": {"flash_attention": "False"}},
            "model.fusions.flash_attention is 'False'; it must be True or False",
        ),
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


def test_a_reference_to_nothing_is_no_value_that_is_left_out() -> None:
    """SLURM_NNODES is a variable of the shell: the plan was for one node."""
    data = {**in_model("megatron_gpt"), "trainer": {"num_nodes": "${SLURM_NNODES}"}}
    with pytest.raises(AutoshardError) as error:
        imported(data)
    assert str(error.value) == (
        "conf.yaml does not say nodes: ${SLURM_NNODES} has no value there, or several; --nodes does"
    )
    assert imported(data, nodes=2).cluster.nodes == 2
    assert imported({**data, "SLURM_NNODES": 4}).cluster.nodes == 4
    assert imported({**data, "SLURM_NNODES": None}).cluster.nodes == 1


def test_a_class_to_run_again_is_in_a_list() -> None:
    data = in_model("megatron_gpt", activations_checkpoint_granularity="selective")
    data["model"]["activations_checkpoint_recompute"] = "CoreAttention"
    with pytest.raises(AutoshardError) as error:
        imported(data)
    key = "model.activations_checkpoint_recompute"
    assert str(error.value) == (
        f"conf.yaml: {key} is 'CoreAttention'; it must be a list of classes, such as [CoreAttention]"
    )


@pytest.mark.parametrize("name", ["zero1", "sequence_parallel"])
def test_a_text_is_neither_true_nor_false(name: str) -> None:
    """Python takes 'False' for true; 0 and 1 say what they say."""
    data = in_model("megatron_gpt")
    with pytest.raises(AutoshardError) as error:
        imported({**data, "distributed_strategy": {name: "False"}})
    assert str(error.value) == f"conf.yaml: distributed_strategy.{name} is 'False'; it must be True or False"
    assert imported({**data, "distributed_strategy": {"zero1": 0}}).strategy.zero == 0


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


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("mistral-7b", "mistral-7b without its window of 4,096 tokens, as NxD Training's hf_llama trains it"),
        ("mistral-nemo-12b", "heads of 160 values, as NxD Training's hf_llama has, not mistral-nemo-12b's 128"),
        ("mistral-7b-v0.3", None),
        ("qwen3-8b", "own: priced as qwen3; NxD Training's hf_llama runs any as llama"),
    ],
)
def test_nxd_trainings_hf_llama_is_plain(name: str, note: str | None) -> None:
    """Whatever config.json says of windows and heads; where it is not here, the built-in model's."""
    built_in = load_model(name)
    sizes = {"num_layers": built_in.num_hidden_layers, "hidden_size": built_in.hidden_size}
    data = json.loads(json.dumps(PUBLIC["hf_llama3_8B"]))
    del data["model"]["rope_theta"], data["model"]["max_position_embeddings"]
    data["model"] |= {**sizes, "model_config": "own.json"}
    Path("own.json").write_text(json.dumps(to_config(built_in)))
    plan = imported(data)
    said = [one for one in plan.notes if "hf_llama" in one]
    assert said == ([] if note is None else [note.replace(name, "own")])
    if built_in.model_type == "mistral":
        assert plan.model.sliding_window is None
        assert plan.model.head_dim == plan.model.hidden_size // plan.model.num_attention_heads
        Path("own.json").unlink()
        assert [one for one in imported(data, model=name).notes if "hf_llama" in one] == (
            [] if note is None else [note]
        )
