"""Layouts of LLaMA-Factory's YAML, which names a repository and no machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.errors import AutoshardError
from autoshard.planner.written import Written, read_written
from tests.unit.written_files import GRADIENTS_IN_BF16

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

FULL: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B-Instruct",
    "trust_remote_code": True,
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "deepspeed": "examples/deepspeed/ds_z3_config.json",
    "dataset": "identity,alpaca_en_demo",
    "template": "llama3",
    "cutoff_len": 4096,
    "packing": True,
    "output_dir": "saves/llama3-8b/full/sft",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-5,
    "bf16": True,
}
ALONE = {key: value for key, value in FULL.items() if key != "deepspeed"}
ZERO = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_batch_size": "auto"}
LATER: dict[str, Any] = {
    "model": "Qwen/Qwen3-0.6B",
    "model_class": "llm",
    "kernel_config": {"name": "auto"},
    "dist_config": {"name": "fsdp2", "dcp_path": None},
    "train_dataset": "data/v1_sft_demo.yaml",
    "output_dir": "outputs/test_fsdp2",
    "micro_batch_size": 2,
    "cutoff_len": 1024,
    "sample_backend": "hf",
}
"""The keys of the version 1 examples."""
WORDS = {**ALONE, "fsdp": ["full_shard", "auto_wrap"]}


def read(data: dict[str, Any], zero: dict[str, Any] = ZERO, **given: Any) -> Written:
    """zero: the configuration of DeepSpeed that a file names."""
    for folder in ("examples/deepspeed", "examples/train_full"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    Path("examples/deepspeed/ds_z3_config.json").write_text(json.dumps(zero))
    Path("examples/train_full/sft.yaml").write_text(yaml.safe_dump(data))
    return read_written("examples/train_full/sft.yaml", {"instance": "h100-80gb", **given})


def test_deepspeed() -> None:
    found = read(FULL)
    strategy, training = found.strategy, found.problem.training
    assert (strategy.dp, strategy.zero, strategy.microbatch_size, {*strategy.recompute}) == (8, 3, 1, {"full"})
    assert (training.global_batch_size, training.sequence_length, training.precision.name) == (
        16,
        4096,
        GRADIENTS_IN_BF16,
    )
    assert (found.problem.model.name, found.form) == ("llama3-8b", "LLaMA-Factory configuration")
    assert (found.warnings, found.not_priced) == ((), ())
    batch = "global batch of 2 x dp=8: without one in the file LLaMA-Factory takes 2 microbatches of each replica"
    assert batch in found.notes


@pytest.mark.parametrize(
    ("zero", "half", "name"),
    [
        (ZERO, {"bf16": False}, "fp32"),
        ({"zero_optimization": {"stage": 3}}, {}, GRADIENTS_IN_BF16),
        ({"zero_optimization": {"stage": 3}}, {"bf16": False}, "fp32"),
        ({**ZERO, "bf16": {"enabled": False}}, {}, "fp32"),
    ],
)
def test_the_precision_that_deepspeed_is_told(zero: dict[str, Any], half: dict[str, Any], name: str) -> None:
    assert read({**FULL, **half}, zero).problem.training.precision.name == name


def test_deepspeed_that_splits_matrices() -> None:
    strategy = read(FULL, {**ZERO, "tensor_parallel": {"autotp_size": 2}}).strategy
    assert (strategy.tp, strategy.dp) == (2, 4)


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (ALONE, {"zero": 0}),
        (WORDS, {"zero": 3}),
        ({**ALONE, "fsdp": "shard_grad_op"}, {"zero": 2}),
        ({**ALONE, "fsdp_config": {"reshard_after_forward": False}}, {"zero": 2}),
        ({**ALONE, "disable_gradient_checkpointing": True}, {"recompute": ("none",)}),
        ({**ALONE, "disable_gradient_checkpointing": False}, {"recompute": ("full",)}),
        ({**ALONE, "flash_attn": "disabled"}, {"attention_kernel": "plain"}),
        ({**ALONE, "flash_attn": "fa2"}, {"attention_kernel": "flash"}),
        ({**ALONE, "per_device_train_batch_size": None}, {"microbatch_size": 8}),
    ],
)
def test_layouts(data: dict[str, Any], fields: dict[str, Any]) -> None:
    strategy = read(data).strategy
    assert {name: getattr(strategy, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("changes", "name", "note"),
    [
        ({}, "mixed_precision", "neither deepspeed nor fsdp: priced as DDP; a configuration of Accelerate that starts"),
        ({"bf16": False}, "fp32", ""),
        ({"bf16": None, "fp16": True}, "mixed_precision", "fp16 is priced as bf16"),
        ({"pure_bf16": True}, "bf16_sr", "pure_bf16=True: priced as bf16_sr, which rounds at random"),
        ({"packing": None}, "mixed_precision", "no packing: rows may be shorter than cutoff_len, which is priced"),
    ],
)
def test_precisions_and_notes(changes: dict[str, Any], name: str, note: str) -> None:
    found = read({**ALONE, **changes})
    assert found.problem.training.precision.name == name
    assert any(one.startswith(note) for one in found.notes)


def test_the_stage_of_pre_training_packs() -> None:
    found = read({**ALONE, "packing": None, "stage": "pt", "cutoff_len": None})
    assert not any(note.startswith("no packing") for note in found.notes)
    assert found.problem.training.sequence_length == 2048


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"finetuning_type": "freeze"}, "finetuning_type=freeze: priced as training of all weights"),
        ({"quantization_bit": 4}, "quantization_bit=4: priced with weights in half precision"),
        ({"stage": "dpo"}, "stage=dpo: priced as plain training on per_device_train_batch_size sequences; DPO runs"),
        ({"stage": "rm"}, "stage=rm: priced as plain training on per_device_train_batch_size sequences"),
        ({"use_galore": True}, "use_galore=True is priced as AdamW, with two moments"),
        (
            {"optim": "adamw_8bit"},
            "optim='adamw_8bit': moments of the embedding are in float32 there; priced in int8, as all others",
        ),
        ({"fsdp": "full_shard offload"}, "fsdp=offload: priced with parameters on the devices"),
        ({"fp8": True}, "fp8=True: priced in bf16; products of matrices take less time in fp8"),
    ],
)
def test_what_the_price_leaves_out(changes: dict[str, Any], told: str) -> None:
    (warning,) = read({**ALONE, **changes}).warnings
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {**FULL, "model_name_or_path": "models/own"},
            "model_name_or_path='models/own', which no built-in model is known",
        ),
        ({**FULL, "deepspeed": "ds.json"}, "deepspeed='ds.json' is not here: put it beside the file"),
        ({**FULL, "do_train": None}, "do_train is not True: the file trains nothing"),
        (
            {**FULL, "tensor_model_parallel_size": 1},
            "tensor_model_parallel_size: LLaMA-Factory trains such files with ",
        ),
        ({**FULL, "cutoff_len": -1}, "cutoff_len is '-1'; it must be a whole number of at least 1"),
    ],
)
def test_refusals(data: dict[str, Any], said: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_fields_that_nothing_reads() -> None:
    assert read({**ALONE, "enable_liger_kernel": True, "use_kt": False}).not_priced == ("enable_liger_kernel",)


def test_version_1() -> None:
    found = read(LATER)
    strategy, training = found.strategy, found.problem.training
    assert (strategy.dp, strategy.zero, strategy.microbatch_size, {*strategy.recompute}) == (8, 3, 2, {"full"})
    assert (training.global_batch_size, training.sequence_length) == (16, 1024)
    assert (found.problem.model.name, training.precision.name) == ("qwen3-0.6b", "mixed_precision")
    assert (found.warnings, found.not_priced) == ((), ("kernel_config.name",))


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"dist_config": {"name": "fsdp2", "reshard_after_forward": False}}, {"zero": 2}),
        ({"dist_config": {"name": "deepspeed", "config_file": FULL["deepspeed"]}}, {"zero": 3}),
        ({"dist_config": None}, {"zero": 0}),
        ({"mp_replicate_size": 2}, {"dp": 8, "dp_replicate": 2}),
        ({"mp_shard_size": 2}, {"dp": 8, "dp_replicate": 4}),
        ({"cp_size": 2, "mp_replicate_size": 2}, {"cp": 2, "dp": 4, "context_parallel": "ulysses", "dp_replicate": 2}),
        ({"dp_size": 8, "global_batch_size": 64}, {"dp": 8}),
        ({"enable_activation_checkpointing": False}, {"recompute": ("none",)}),
        ({"flash_attn": "eager"}, {"attention_kernel": "plain"}),
    ],
)
def test_layouts_of_version_1(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    found = read({**LATER, **changes})
    assert {name: getattr(found.strategy, name) for name in fields} == fields
    assert found.problem.training.global_batch_size == changes.get("global_batch_size", 2 * found.strategy.dp)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"bf16": False}, "fp32"),
        ({"dist_config": None}, "fp32"),
        ({"dist_config": {"name": "deepspeed", "config_file": FULL["deepspeed"]}}, GRADIENTS_IN_BF16),
    ],
)
def test_precisions_of_version_1(changes: dict[str, Any], name: str) -> None:
    assert read({**LATER, **changes}).problem.training.precision.name == name


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft_config": {"name": "freeze"}}, "peft_config.name='freeze': priced as training of all weights"),
        ({"quant_config": {"name": "bnb"}}, "quant_config.name='bnb': priced with weights in half precision"),
        ({"optim_config": {"name": "lion"}}, "optim_config.name='lion' is priced as AdamW, with two moments"),
        ({"model_class": "cls"}, "model_class='cls': priced with the head and the loss of a language model"),
        (
            {"dist_config": {"name": "fsdp2", "offload_params": True}},
            "dist_config.offload_params=True: priced with par",
        ),
    ],
)
def test_what_the_price_of_version_1_leaves_out(changes: dict[str, Any], told: str) -> None:
    (warning,) = read({**LATER, **changes}).warnings
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dist_config": {"name": "fsdpturbo"}}, "dist_config.name is 'fsdpturbo'; fsdp2 and deepspeed are read"),
        ({"dist_config": None, "cp_size": 2}, "cp_size=2 needs dist_config.name=fsdp2; 1 works without it"),
        ({"cp_size": 2, "cp_mode": "ring"}, "cp_mode is 'ring'; it must be ulysses"),
        ({"dist_config": {"name": "deepspeed"}}, "dist_config.config_file is None, which is no configuration of DeepS"),
    ],
)
def test_refusals_of_version_1(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read({**LATER, **changes})
    assert said in str(error.value) and "\n" not in str(error.value)
