"""Layouts of axolotl's YAML, which names a repository and no machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.errors import AutoshardError
from autoshard.planner.written import Written, read_written
from tests.unit.written_files import GRADIENTS_IN_BF16, SENT_IN_BF16

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

GIVEN = {"instance": "h100-80gb", "nodes": 2}
FSDP: dict[str, Any] = {
    "base_model": "meta-llama/Llama-3.1-8B",
    "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
    "output_dir": "./outputs/out",
    "sequence_len": 2048,
    "sample_packing": True,
    "attn_implementation": "flash_attention_2",
    "gradient_accumulation_steps": 4,
    "micro_batch_size": 2,
    "optimizer": "adamw_torch_fused",
    "learning_rate": 2e-5,
    "bf16": True,
    "tf32": True,
    "gradient_checkpointing": True,
    "fsdp_version": 2,
    "fsdp_config": {
        "offload_params": False,
        "state_dict_type": "FULL_STATE_DICT",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
        "reshard_after_forward": True,
    },
}
ALONE = {key: value for key, value in FSDP.items() if not key.startswith("fsdp")}
MIXTURE = {**FSDP, "base_model": "Qwen/Qwen3-30B-A3B"}
ZERO = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}


def read(data: dict[str, Any], **given: Any) -> Written:
    Path("conf").mkdir(exist_ok=True)
    Path("conf/train.yml").write_text(yaml.safe_dump(data))
    return read_written("conf/train.yml", {**GIVEN, **given})


def told(data: dict[str, Any]) -> str:
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_fsdp() -> None:
    found = read(FSDP)
    strategy, training = found.strategy, found.problem.training
    assert (strategy.dp, strategy.zero, strategy.microbatch_size, {*strategy.recompute}) == (16, 3, 2, {"full"})
    assert (training.global_batch_size, training.sequence_length) == (2 * 4 * 16, 2048)
    assert (found.problem.model.name, found.form) == ("llama3.1-8b", "axolotl configuration")
    assert (found.warnings, found.not_priced) == ((), ())
    batch = "global batch of 8 x dp=16: without one in the file axolotl takes 4 microbatches of each replica"
    assert batch in found.notes


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        ({**FSDP, "fsdp_config": {"reshard_after_forward": False}}, {"zero": 2}),
        ({**FSDP, "fsdp_config": {"fsdp_reshard_after_forward": False}}, {"zero": 2}),
        ({**ALONE, "fsdp": ["full_shard", "auto_wrap"]}, {"zero": 3}),
        ({**ALONE, "fsdp": "shard_grad_op auto_wrap"}, {"zero": 2}),
        ({**ALONE, "fsdp": "hybrid_shard_zero2"}, {"zero": 2, "dp_replicate": 2}),
        (
            {**ALONE, "fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": False},
            {"recompute": ("full",)},
        ),
        ({**ALONE, "gradient_checkpointing": "offload"}, {"recompute": ("full",), "zero": 0}),
        ({**ALONE, "gradient_checkpointing": None}, {"recompute": ("none",)}),
        ({**FSDP, "dp_replicate_size": 2}, {"dp": 16, "dp_replicate": 2}),
        ({**FSDP, "dp_shard_size": 4}, {"dp": 16, "dp_replicate": 4}),
        ({**FSDP, "dp_shard_size": 1}, {"dp": 16, "dp_replicate": 1, "zero": 3}),
        (
            {**FSDP, "dp_shard_size": 4, "dp_replicate_size": 2, "tensor_parallel_size": 2},
            {"tp": 2, "dp": 8, "dp_replicate": 2},
        ),
        ({**FSDP, "dp_shard_size": 2, "context_parallel_size": 2}, {"cp": 2, "dp": 8, "dp_replicate": 4}),
        ({**FSDP, "context_parallel_size": 2}, {"context_parallel": "all_gather", "dp_replicate": 1}),
        ({**FSDP, "context_parallel_size": 2, "ring_attn_func": "batch_ring"}, {"context_parallel": "ring"}),
        ({**FSDP, "sequence_parallel_degree": 2, "sample_packing": False}, {"cp": 2, "context_parallel": "ring"}),
        ({**FSDP, "attn_implementation": "eager"}, {"attention_kernel": "plain"}),
    ],
)
def test_layouts(data: dict[str, Any], fields: dict[str, Any]) -> None:
    strategy = read(data).strategy
    assert {name: getattr(strategy, name) for name in fields} == fields


def test_experts_over_ranks() -> None:
    """axolotl shards all but experts over dp_shard_size ranks alone."""
    data = {**MIXTURE, "expert_parallel_size": 4, "dp_shard_size": 4}
    found = read(data)
    assert (found.strategy.ep, found.strategy.dp, found.strategy.zero) == (4, 16, 3)
    assert any(warning.startswith("expert_parallel_size=4: all but experts is sharded ") for warning in found.warnings)
    assert read({**MIXTURE, "expert_parallel_size": 4}).strategy.ep == 4
    said = "expert_parallel_size=4 with tensor_parallel_size=2: axolotl takes one of them; 1 works"
    assert said in told({**data, "tensor_parallel_size": 2})


@pytest.mark.parametrize("place", [".", "conf"])
def test_deepspeeds_configuration_that_it_names(place: str) -> None:
    Path("conf").mkdir()
    Path(place, "deepspeed_configs").mkdir()
    Path(place, "deepspeed_configs/zero2.json").write_text(json.dumps(ZERO))
    found = read({**ALONE, "deepspeed": "deepspeed_configs/zero2.json"})
    assert (found.strategy.zero, found.problem.training.precision.name) == (2, GRADIENTS_IN_BF16)
    assert found.not_priced == ()


def test_deepspeeds_configuration_in_the_file() -> None:
    offloaded = {**ZERO, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}
    found = read({**ALONE, "bf16": False, "deepspeed": offloaded})
    assert (found.strategy.zero, found.problem.training.precision.name) == (3, "fp32")
    assert found.warnings[0].startswith("zero_optimization.offload_param.device='cpu': priced with parameters on the")
    assert "deepspeed='zero2.json' is not here: put it beside the file" in told({**ALONE, "deepspeed": "zero2.json"})
    assert "deepspeed is 5, which is no configuration of DeepSpeed" in told({**ALONE, "deepspeed": 5})
    for name in ("zero" * 1000, "zero\0.json"):  # of which the file system says that there can be none
        assert " is not here: put it beside the file" in told({**ALONE, "deepspeed": name})


@pytest.mark.parametrize(
    ("changes", "name", "note"),
    [
        ({}, "bf16_sr", "neither fsdp_config nor deepspeed: weights and moments are kept in bf16; priced as bf16_sr"),
        ({"bf16": "auto"}, "bf16_sr", ""),
        ({"bf16": None}, "fp32", ""),
        ({"bf16": "auto", "fp16": True}, "bf16_sr", "fp16 is priced as bf16"),
        (
            {"bf16": False, "fp16": True, "fsdp_config": {"use_orig_params": True}},
            SENT_IN_BF16,
            "fp16 is priced as",
        ),
        (
            {"fsdp_version": 2, "fsdp_config": {"use_orig_params": True}},
            "bf16_sr",
            "fsdp_version=2: weights and moments are kept in bf16; priced as bf16_sr, which rounds at random",
        ),
        (
            {"fsdp_config": {"fsdp_version": 2}},
            "bf16_sr",
            "fsdp_config.fsdp_version=2: weights and moments are kept in",
        ),
        ({"fsdp_config": {"version": 1}}, SENT_IN_BF16, ""),
        ({"fsdp": ["full_shard"]}, SENT_IN_BF16, ""),
        ({"sample_packing": False}, "bf16_sr", "neither sample_packing nor pad_to_sequence_len: rows may be shorter"),
    ],
)
def test_precisions_and_notes(changes: dict[str, Any], name: str, note: str) -> None:
    found = read({**ALONE, **changes})
    assert found.problem.training.precision.name == name
    assert any(one.startswith(note) for one in found.notes)


def test_defaults() -> None:
    found = read({"base_model": "meta-llama/Llama-3.1-8B", "datasets": []})
    assert (found.strategy.microbatch_size, found.problem.training.global_batch_size) == (1, 16)
    assert (found.problem.training.sequence_length, {*found.strategy.recompute}) == (512, {"none"})
    batch = {"gradient_accumulation_steps": None, "batch_size": 8}
    assert read({**ALONE, **batch}).problem.training.global_batch_size == 8 * 16


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"adapter": "qlora"}, "adapter='qlora': priced as training of all weights; LoRA freezes most of them"),
        ({"load_in_4bit": True}, "load_in_4bit=True: priced with weights in half precision"),
        ({"unfrozen_parameters": ["lm_head"]}, "unfrozen_parameters: priced as training of all weights"),
        ({"rl": "dpo"}, "rl='dpo': priced as plain training on micro_batch_size sequences; DPO runs a chosen"),
        ({"rl": "kto"}, "rl='kto': priced as plain training on micro_batch_size sequences"),
        ({"reward_model": True}, "reward_model=True: priced with the head and the loss of a language model"),
        ({"optimizer": "muon"}, "muon is priced as AdamW, with two moments: its own price has master weights, which p"),
        ({"optimizer": "dion"}, "optimizer='dion' is priced as AdamW, with two moments"),
        (
            {"optimizer": "adamw_bnb_8bit"},
            "optimizer='adamw_bnb_8bit': moments of the embedding are in float32 there; p",
        ),
        ({"optimizer": "ao_adamw_4bit"}, "optimizer='ao_adamw_4bit': moments of 4bit are priced as wide as they are"),
        ({"optimizer": "paged_adamw_32bit"}, "optimizer='paged_adamw_32bit': priced with optimizer state on the dev"),
        ({"activation_offloading": True}, "activation_offloading=True: priced with activations on the devices"),
        ({"fsdp": ["full_shard", "offload"]}, "fsdp=offload: priced with parameters on the devices"),
        (
            {"fsdp_config": {"fsdp_offload_params": True}},
            "fsdp_config.fsdp_offload_params=True: priced with parameters",
        ),
        ({"selective_checkpointing": True}, "selective_checkpointing: priced as if attention ran again too"),
        ({"fp8": True}, "fp8=True: priced in bf16; products of matrices take less time in fp8"),
    ],
)
def test_what_the_price_leaves_out(changes: dict[str, Any], told: str) -> None:
    (warning,) = read({**FSDP, **changes}).warnings
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"base_model": "NousResearch/Llama-2-7b-hf"},
            "base_model='NousResearch/Llama-2-7b-hf', which no built-in model",
        ),
        ({"base_model": 5}, "base_model is 5; it must name a model"),
        ({"sequence_len": "long"}, "sequence_len is 'long'; it must be a whole number of at least 1"),
        ({"gradient_checkpointing": "often"}, "gradient_checkpointing is 'often'; it must be True or False"),
        ({"bf16": "full"}, "bf16 is 'full'; it must be True or False"),
        ({"fsdp_config": ["full_shard"]}, "fsdp_config is \"['full_shard']\"; it must hold named fields"),
        ({"dp_shard_size": 3}, "shards over 3 ranks, which must divide dp=16"),
        ({"fsdp_config": None, "dp_shard_size": 4}, "dp_shard_size=4 needs fsdp_config; 1 works without it"),
        (
            {"context_parallel_size": 2, "ring_attn_func": "batch_zigzag"},
            "ring_attn_func is 'batch_zigzag'; it must be varlen_llama3 or batch_ring",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], said: str) -> None:
    assert said in told({**FSDP, **changes})


def test_a_model_that_is_named_or_is_here() -> None:
    other = {**FSDP, "base_model": "someone/else"}
    assert read(other, model="llama3-8b").problem.model.name == "llama3-8b"
    from autoshard.models.registry import FOLDER

    (config,) = FOLDER.glob("*/configs/smollm2-135m.json")
    Path("own").mkdir()
    Path("own/config.json").write_text(config.read_text())
    assert read({**FSDP, "base_model": "./own"}).problem.model.hidden_size == 576


@pytest.mark.parametrize(
    ("repository", "hint"),
    [
        ("NousResearch/Meta-Llama-3.1-8B", "; --model names one; llama3.1-8b has a name like it"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "; --model names one; qwen3-30b-a3b has a name like it"),
        ("someone/Qwen3-30B-A3Bx", "; --model names one"),
        ("./saved", "; --model names one"),
    ],
)
def test_a_model_with_a_name_like_it_is_told(repository: str, hint: str) -> None:
    assert told({**FSDP, "base_model": repository}).endswith(hint)


def test_fields_that_nothing_reads() -> None:
    found = read({**FSDP, "liger_rope": True, "context_parapllel_size": 2, "torch_compile": False})
    assert {*found.not_priced} == {"liger_rope", "context_parapllel_size"}
