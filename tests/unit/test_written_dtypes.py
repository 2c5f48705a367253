"""Gradients and moments in half precision: in files of other frameworks, and in plans that are written for these."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard.interop.export_megatron import megatron_arguments
from autoshard.interop.export_nxdt import nxdt_yaml
from autoshard.interop.export_torchtitan import torchtitan_toml
from autoshard.interop.megatron import megatron_layout
from autoshard.planner.imported import plan_of
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.written import read_written
from tests.unit.written_files import GRADIENTS_IN_BF16, SENT_IN_BF16

GRADIENTS = "gradient_accumulation=bfloat16,gradient_reduce=bfloat16"
AWARE = "--bf16 --use-precision-aware-optimizer"


@pytest.mark.parametrize(
    ("flags", "dtypes", "warnings"),
    [
        ("--bf16", None, []),
        ("--bf16 --grad-reduce-in-bf16", GRADIENTS, []),
        ("--grad-reduce-in-bf16", None, []),
        ("--fp16", GRADIENTS, []),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", None, []),
        ("--bf16 --use-megatron-fsdp", GRADIENTS, []),
        ("--bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32", None, []),
        (
            "--bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype bf16",
            "gradient_reduce=bfloat16",
            [],
        ),
        ("--bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", None, []),
        (f"{AWARE} --main-grads-dtype bf16", GRADIENTS, []),
        (f"{AWARE} --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", "moments=bfloat16", []),
        (
            f"{AWARE} --exp-avg-dtype bf16",
            None,
            ["--exp-avg-dtype bf16: priced with both moments in float32"],
        ),
        (
            f"{AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype bf16 --main-params-dtype fp16",
            "moments=bfloat16",
            [
                "--main-params-dtype fp16: priced with float32 master weights",
                "--exp-avg-dtype fp8 --exp-avg-sq-dtype bf16: priced with both moments in bfloat16",
            ],
        ),
        (f"{AWARE} --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8", "moments=float8_e4m3", []),
        ("--bf16 --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8", None, []),
        (
            f"{AWARE} --grad-reduce-in-bf16 --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8",
            f"{GRADIENTS},moments=float8_e4m3",
            [],
        ),
        (
            f"{AWARE} --exp-avg-dtype fp8",
            None,
            ["--exp-avg-dtype fp8: priced with both moments in float32"],
        ),
    ],
)
def test_megatron(flags: str, dtypes: str | None, warnings: list[str]) -> None:
    found = megatron_layout(f"torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 2 {flags}")
    assert found.options.get("state_dtypes") == dtypes
    assert [one for one in found.warnings if "priced with" in one and "gate" not in one] == warnings


ZERO = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("changes", "name", "warned"),
    [
        ({}, GRADIENTS_IN_BF16, []),
        ({"communication_data_type": "fp32"}, "mixed_precision with gradient_accumulation=bfloat16", []),
        ({"data_types": {"grad_accum_dtype": "fp32"}}, SENT_IN_BF16, []),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            f"{GRADIENTS_IN_BF16},moments=bfloat16",
            ["bf16.bf16_master_weights_and_grads=True: priced with float32 master weights"],
        ),
        ({"bf16": {"enabled": False}}, "fp32", []),
    ],
)
def test_deepspeed(
    changes: dict[str, Any], name: str, warned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zero.json").write_text(json.dumps({**ZERO, **changes}))
    given = {"model": "llama3-8b", "instance": "h100-80gb"}
    found = read_written("zero.json", given)
    assert found.problem.training.precision.name == name
    assert [one for one in found.warnings if one.startswith("bf16")] == warned
    assert read_written("zero.json", {**given, "precision": "fp32"}).problem.training.precision.name == "fp32"


def test_an_option_overrules_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zero.json").write_text(json.dumps(ZERO))
    given = {"model": "llama3-8b", "instance": "h100-80gb", "state_dtypes": "moments=bfloat16"}
    found = read_written("zero.json", given).problem.training.precision
    assert found.name == "mixed_precision with moments=bfloat16"


def test_nxd_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan becomes a configuration whose fields say it, and this the same plan."""
    monkeypatch.chdir(tmp_path)
    plan = plan_for(PlanRequest("llama3-8b", nodes=2, state_dtypes=GRADIENTS))
    assert plan.backend == "nxd"
    written = nxdt_yaml(plan)
    section = yaml.safe_load(written.text)["precision"]
    assert (section["type"], section["master_weights"], section["fp32_grad_acc"]) == ("manual", True, False)
    Path("conf.yaml").write_text(written.text)
    again = plan_of("conf.yaml", read_written("conf.yaml", {"model": "llama3-8b", "seq_len": 8192}))
    assert again.training.precision == plan.training.precision


def test_a_plan_for_megatron_and_torchtitan() -> None:
    request = PlanRequest("llama3-8b", "h100-80gb", nodes=1, state_dtypes=f"{GRADIENTS},moments=bfloat16")
    plan = plan_for(replace(request, pins={"zero": 1}))
    flags = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
    written = megatron_arguments(plan)
    assert "--grad-reduce-in-bf16" in written.text and flags in written.text
    assert not [one for one in written.left_out if one.startswith("state_dtypes")]
    wide = "in float32 by this file, which takes more memory or sends more"
    assert f"state_dtypes={GRADIENTS},moments=bfloat16: {wide}" in torchtitan_toml(plan).left_out
    request = replace(request, state_dtypes="gradient_reduce=bfloat16")
    sent = megatron_arguments(plan_for(replace(request, pins={"zero": 1})))
    assert f"state_dtypes=gradient_reduce=bfloat16: {wide}" in sent.left_out
    assert "--grad-reduce-in-bf16" not in sent.text
    sharded = megatron_arguments(plan_for(replace(request, pins={"zero": 3})))
    assert "--megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype bf16\n" in sharded.text
    assert not [one for one in sharded.left_out if one.startswith("state_dtypes")]


def test_moments_of_eight_bits_for_megatron() -> None:
    """Megatron has a flag for FP8 with a scale a tensor, and none for blocks."""
    request = PlanRequest("llama3-8b", "h100-80gb", nodes=1, pins={"zero": 1})
    float8, int8 = (
        megatron_arguments(plan_for(replace(request, state_dtypes=f"moments={dtype}")))
        for dtype in ("float8_e4m3", "int8")
    )
    flags = "--use-precision-aware-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp8"
    assert flags in float8.text
    assert not [one for one in float8.left_out if one.startswith("state_dtypes")]
    assert megatron_layout(float8.text).options["state_dtypes"] == "moments=float8_e4m3"
    assert "exp-avg" not in int8.text
    assert "state_dtypes=moments=int8: in float32 by this file, which takes more memory or sends more" in int8.left_out


def test_moments_of_eight_bits_without_master_weights_for_others() -> None:
    """Both frameworks keep FP32 weights, and their moments are as wide as these."""
    request = PlanRequest("llama3-8b", "h100-80gb", nodes=1, precision="bf16_sr", state_dtypes="moments=int8")
    plan, told = plan_for(request), "state_dtypes=moments=int8: as wide as its weights by this file, which takes more "
    for written, kept in (
        (megatron_arguments(plan), "written as --bf16, which keeps FP32 master weights and rounds to nearest"),
        (torchtitan_toml(plan), "torchtitan keeps FP32 parameters and has no stochastic rounding"),
    ):
        assert f"{told}memory or sends more" in written.left_out
        assert f"precision=bf16_sr: {kept}" in written.left_out


AXOLOTL = {
    "base_model": "meta-llama/Meta-Llama-3-8B",
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "sequence_len": 4096,
    "bf16": True,
    "flash_attention": True,
}
FSDP_1 = {"fsdp_version": 1, "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}}
LLAMA_FACTORY = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "stage": "pt",
    "do_train": True,
    "finetuning_type": "full",
    "cutoff_len": 4096,
    "per_device_train_batch_size": 1,
    "bf16": True,
}
OF_EMBEDDING = "moments of the embedding are in float32 there; priced in int8, as all others"
ON_THE_HOST = "priced with optimizer state on the devices, and no copies to and from the host"


@pytest.mark.parametrize(
    ("data", "name", "warned"),
    [
        (
            {**AXOLOTL, "optimizer": "adamw_8bit"},
            "bf16_sr with moments=int8",
            [f"optimizer='adamw_8bit': {OF_EMBEDDING}"],
        ),
        (
            {**AXOLOTL, **FSDP_1, "optimizer": "adamw_torch_8bit"},
            "mixed_precision with gradient_reduce=bfloat16,moments=int8",
            [],
        ),
        ({**AXOLOTL, "optimizer": "ao_adamw_fp8"}, "bf16_sr with moments=int8", []),
        (
            {
                **AXOLOTL,
                "optimizer": "paged_adamw_8bit",
                "adapter": "lora",
                "lora_r": 8,
                "lora_alpha": 16,
                "lora_target_linear": True,
            },
            "bf16_sr with moments=int8",
            [f"optimizer='paged_adamw_8bit': {ON_THE_HOST}"],
        ),
        ({**AXOLOTL, "optimizer": "adamw_torch_fused"}, "bf16_sr", []),
        (
            {**LLAMA_FACTORY, "optim": "lion_8bit"},
            "mixed_precision with moments=int8",
            ["optim='lion_8bit' is priced as AdamW, with two moments", f"optim='lion_8bit': {OF_EMBEDDING}"],
        ),
        (
            {**LLAMA_FACTORY, "optim": "paged_adamw_8bit"},
            "mixed_precision with moments=int8",
            [f"optim='paged_adamw_8bit': {OF_EMBEDDING}", f"optim='paged_adamw_8bit': {ON_THE_HOST}"],
        ),
    ],
)
def test_optimizers_of_eight_bits(
    data: dict[str, Any], name: str, warned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(yaml.safe_dump(data))
    given = {"model": "llama3-8b", "instance": "h100-80gb", "nodes": 1}
    found = read_written("train.yaml", given)
    assert found.problem.training.precision.name == name
    assert [one for one in found.warnings if one.startswith("optim")] == warned
    other = read_written("train.yaml", {**given, "precision": "fp32"}).problem.training.precision
    assert other.name == ("fp32 with moments=int8" if "int8" in name else "fp32")
    told = [one for one in found.notes if "kept in bf16" in one]
    assert all(("weights and moments" in one) == ("int8" not in name) for one in told)
