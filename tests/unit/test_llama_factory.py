"""Layouts of LLaMA-Factory's YAML, which names a repository and no machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.errors import AutoshardError
from autoshard.planner.written import Written, read_written

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
        "mixed_precision",
    )
    assert (found.problem.model.name, found.form) == ("llama3-8b", "LLaMA-Factory configuration")
    assert (found.warnings, found.not_priced) == ((), ())
    batch = "global batch of 2 x dp=8: without one in the file LLaMA-Factory takes 2 microbatches of each replica"
    assert batch in found.notes


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
        (
            {"finetuning_type": None},
            "finetuning_type=lora: priced as training of all weights; LoRA freezes most of them",
        ),
        ({"finetuning_type": "freeze"}, "finetuning_type=freeze: priced as training of all weights"),
        ({"quantization_bit": 4}, "quantization_bit=4: priced with weights in half precision"),
        ({"stage": "dpo"}, "stage=dpo: priced as plain training on per_device_train_batch_size sequences; DPO runs"),
        ({"stage": "rm"}, "stage=rm: priced as plain training on per_device_train_batch_size sequences"),
        ({"use_galore": True}, "use_galore=True is priced as AdamW, with two moments"),
        ({"optim": "adamw_8bit"}, "optim='adamw_8bit': moments of 8bit are priced as wide as they are without it"),
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
        ({"model": "Qwen/Qwen3-0.6B", "dist_config": {"name": "fsdp2"}}, "with dist_config: of LLaMA-Factory's files "),
    ],
)
def test_refusals(data: dict[str, Any], said: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_fields_that_nothing_reads() -> None:
    assert read({**ALONE, "enable_liger_kernel": True, "use_kt": False}).not_priced == ("enable_liger_kernel",)
