"""Layouts of Hugging Face Accelerate's YAML and DeepSpeed's JSON, which name no model, length or recompute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import autoshard
from autoshard.cli import main
from autoshard.errors import AutoshardError
from autoshard.interop.deepspeed import NO_LENGTH, NO_RECOMPUTE
from autoshard.planner.written import Written, read_written
from tests.unit.written_files import GRADIENTS_IN_BF16, SENT_IN_BF16

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

GIVEN = {"model": "llama3-8b", "instance": "h100-80gb", "seq_len": 2048, "micro_batch": 2}
FSDP: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "fsdp_config": {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": False,
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_use_orig_params": True,
    },
    "mixed_precision": "bf16",
    "num_machines": 2,
    "num_processes": 16,
    "rdzv_backend": "static",
}
ZERO: dict[str, Any] = {
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"},
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 2,
}


def read(data: dict[str, Any], **given: Any) -> Written:
    """A configuration of Accelerate, or of DeepSpeed where there is no distributed_type."""
    is_yaml = "distributed_type" in data
    name = "conf.yaml" if is_yaml else "conf.json"
    Path(name).write_text(yaml.safe_dump(data) if is_yaml else json.dumps(data))
    return read_written(name, {**GIVEN, **given})


def with_fsdp(**changes: Any) -> dict[str, Any]:
    return {**FSDP, "fsdp_config": {**FSDP["fsdp_config"], **changes}}


def parallel(**sizes: int) -> dict[str, Any]:
    return {f"parallelism_config_{name}": size for name, size in sizes.items()}


def test_fsdp() -> None:
    found = read(FSDP)
    strategy, training = found.strategy, found.problem.training
    assert (strategy.dp, strategy.zero, strategy.microbatch_size, found.problem.cluster.nodes) == (16, 3, 2, 2)
    assert (training.global_batch_size, training.precision.name) == (32, SENT_IN_BF16)
    assert (found.warnings, found.not_priced) == ((), ())
    assert {NO_LENGTH, NO_RECOMPUTE} < {*found.notes}
    told = "global batch of 2 x dp=16: without one in the file torch takes one microbatch of each replica"
    assert told in found.notes
    again = read(with_fsdp(fsdp_activation_checkpointing=True))
    assert {*again.strategy.recompute} == {"full"} and NO_RECOMPUTE not in again.notes


def test_hybrid_shards_follow_the_nodes_that_are_given() -> None:
    hybrid = {key: value for key, value in with_fsdp(fsdp_sharding_strategy=4).items() if not key.startswith("num_")}
    assert read(hybrid, nodes=4).strategy.dp_replicate == 4


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (with_fsdp(fsdp_sharding_strategy=2), {"zero": 2}),
        (with_fsdp(fsdp_sharding_strategy="NO_SHARD"), {"zero": 0}),
        (with_fsdp(fsdp_sharding_strategy="HYBRID_SHARD"), {"zero": 3, "dp_replicate": 2}),
        (with_fsdp(fsdp_sharding_strategy=None, fsdp_reshard_after_forward="SHARD_GRAD_OP"), {"zero": 2}),
        (with_fsdp(fsdp_version=2), {"zero": 3}),
        (with_fsdp(fsdp_version=2, fsdp_reshard_after_forward=False), {"zero": 2}),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": False}, {"zero": 0}),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}, {"zero": 3}),
        ({"distributed_type": "DEEPSPEED"}, {"zero": 2}),
        (
            {**FSDP, "parallelism_config": parallel(tp_size=2, dp_replicate_size=2, dp_shard_size=4)},
            {"tp": 2, "dp": 8, "dp_replicate": 2, "zero": 3},
        ),
        (
            {**FSDP, "parallelism_config": parallel(cp_size=8, dp_shard_size=2)},
            {"cp": 8, "dp": 2, "context_parallel": "all_gather"},
        ),
        (
            {**FSDP, "parallelism_config": parallel(sp_size=8, dp_shard_size=2)},
            {"cp": 8, "context_parallel": "ulysses"},
        ),
        (ZERO, {"zero": 2, "dp": 8, "recompute": ("none",)}),
        ({**ZERO, "zero_optimization": {"stage": 3}}, {"zero": 3}),
        ({**ZERO, "zero_optimization": True}, {"zero": 1}),
        ({**ZERO, "zero_optimization": {}}, {"zero": 0}),
        ({**ZERO, "tensor_parallel": {"autotp_size": 2}}, {"tp": 2, "dp": 4}),
        ({**ZERO, "sequence_parallel_size": 4}, {"cp": 4, "context_parallel": "ulysses"}),
    ],
)
def test_layouts(data: dict[str, Any], fields: dict[str, Any]) -> None:
    strategy = read(data).strategy
    assert {name: getattr(strategy, name) for name in fields} == fields


def test_score_takes_a_json_file_for_deepspeeds_or_a_plan() -> None:
    Path("zero.json").write_text(json.dumps(ZERO))
    found = autoshard.score("zero.json", "smollm2-135m", "h100-80gb", nodes=1)
    assert (found.written.form, found.written.strategy.dp) == ("DeepSpeed configuration", 8)
    Path("zero.json").write_text(json.dumps({**ZERO, "strategy": 3}))
    with pytest.raises(AutoshardError, match=r"^zero.json: this is not a plan: it lacks strategy$"):
        autoshard.score("zero.json")


def test_a_batch_by_its_microbatches() -> None:
    found = read(ZERO)
    assert found.problem.training.global_batch_size == 2 * 4 * 8
    told = "global batch of 8 x dp=8: without one in the file DeepSpeed takes 4 microbatches of each replica"
    assert told in found.notes
    assert read({**ZERO, "train_batch_size": 32}, nodes=None).problem.training.global_batch_size == 32
    config = {"gradient_accumulation_steps": 8, "zero_stage": 1}
    found = read({"distributed_type": "DEEPSPEED", "deepspeed_config": config})
    assert found.problem.training.global_batch_size == 2 * 8 * 8


@pytest.mark.parametrize(
    ("data", "name", "told"),
    [
        (
            {**ZERO, "bf16": {"enabled": "auto"}},
            GRADIENTS_IN_BF16,
            "bf16.enabled=auto: priced as bf16 where --precision",
        ),
        ({**ZERO, "bf16": None, "fp16": {"enabled": True}}, GRADIENTS_IN_BF16, "fp16.enabled is priced as bf16"),
        ({**ZERO, "bf16": {"enabled": False}}, "fp32", "neither bf16.enabled nor fp16.enabled: DeepSpeed computes in "),
        ({**ZERO, "bf16": None, "bfloat16": {"enabled": True}}, GRADIENTS_IN_BF16, ""),
        ({**ZERO, "bf16": {"enabled": False}, "bfloat16": {"enabled": True}}, "fp32", "neither bf16.enabled nor fp16."),
        ({**FSDP, "mixed_precision": "no"}, "fp32", ""),
        ({**FSDP, "mixed_precision": "fp16"}, SENT_IN_BF16, "mixed_precision=fp16 is priced as bf16"),
        ({**FSDP, "mixed_precision": "FP16"}, SENT_IN_BF16, "mixed_precision=fp16 is priced as bf16"),
    ],
)
def test_precisions(data: dict[str, Any], name: str, told: str) -> None:
    found = read(data)
    assert found.problem.training.precision.name == name
    assert any(note.startswith(told) for note in found.notes)


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        (
            with_fsdp(fsdp_offload_params=True),
            (
                "fsdp_config.fsdp_offload_params=True: priced with parameters on the devices, and no copies to and "
                "from the host"
            ),
        ),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"offload_optimizer_device": "cpu"}},
            (
                "deepspeed_config.offload_optimizer_device='cpu': priced with optimizer state on the devices, and no "
                "copies to and from the host"
            ),
        ),
        (
            {**ZERO, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            (
                "zero_optimization.offload_param.device='nvme': priced with parameters on the devices, and no copies "
                "to and from the host"
            ),
        ),
        ({**ZERO, "optimizer": {"type": "Lamb"}}, "optimizer.type='Lamb' is priced as AdamW, with two moments"),
        (
            {**FSDP, "mixed_precision": "FP8"},
            (
                "mixed_precision=fp8: priced in bf16; products of matrices take less time in fp8, which --precision "
                "fp8 prices"
            ),
        ),
    ],
)
def test_what_changes_a_step_is_warned_of(data: dict[str, Any], warning: str) -> None:
    assert read(data).warnings == (warning,)


def test_what_may_matter_is_listed() -> None:
    assert read({**ZERO, "activation_checkpointing": {"cpu_checkpointing": True, "profile": False}}).not_priced == (
        "activation_checkpointing.cpu_checkpointing",
    )
    assert read({**FSDP, "own": 3}).not_priced == ("own",)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({**FSDP, "distributed_type": "XLA"}, "yaml: distributed_type is 'XLA'; FSDP, DEEPSPEED, NO, MULTI_GPU, "),
        ({**FSDP, "mixed_precision": "int8"}, "yaml: mixed_precision is 'int8'; it must be one of no, bf16, fp16, fp8"),
        ({**FSDP, "num_processes": 15}, "yaml: num_processes=15 must be a multiple of num_machines=2"),
        ({**FSDP, "num_processes": "many"}, "yaml: num_processes is 'many'; it must be a whole number of at least 1"),
        (with_fsdp(fsdp_sharding_strategy=6), "yaml: fsdp_config.fsdp_sharding_strategy is 6; it must be one of "),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": True}},
            "yaml: deepspeed_config.zero_stage is True; it must be one of 0, 1, 2, 3",
        ),
        (
            {
                **FSDP,
                "parallelism_config": {**parallel(cp_size=2), "parallelism_config_cp_comm_strategy": "p2p"},
            },
            "yaml: parallelism_config.parallelism_config_cp_comm_strategy is 'p2p'; it must be allgather or alltoall",
        ),
        ({**FSDP, "fsdp_config": 3}, "yaml: fsdp_config is '3'; it must hold named fields, such as fsdp_reshard_"),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "zero3.json"}},
            "yaml: deepspeed_config.deepspeed_config_file='zero3.json' has the rest: import that file",
        ),
        (
            {**FSDP, "parallelism_config": parallel(cp_size=2, sp_size=2)},
            "yaml: parallelism_config.parallelism_config_cp_size=2 and parallelism_config.parallelism_config_sp_size=",
        ),
        (
            {**ZERO, "zero_optimization": {"stage": 4}},
            "json: zero_optimization.stage is 4; it must be one of 0, 1, 2, 3",
        ),
        ({**ZERO, "zero_optimization": {"stage": True}}, "json: zero_optimization.stage is True; it must be one of "),
        ({**ZERO, "fp16": {"enabled": True}}, "json: bf16.enabled and fp16.enabled: DeepSpeed takes one of them"),
        (
            {**ZERO, "train_batch_size": 20},
            "json: train_micro_batch_size_per_gpu=2 x gradient_accumulation_steps=4 must divide train_batch_size=20",
        ),
        (
            {**ZERO, "gradient_accumulation_steps": 10**90},
            f"json: gradient_accumulation_steps is '1{'0' * 39}'; it must",
        ),
    ],
)
def test_errors(data: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(data)
    assert str(error.value).startswith(f"conf.{text}")


def test_what_the_files_do_not_say_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("conf.json").write_text(json.dumps({**ZERO, "train_micro_batch_size_per_gpu": "auto"}))
    assert main(["import", "conf.json", "--model", "llama3-8b"]) == 2
    assert capsys.readouterr().err == "autoshard: error: conf.json does not say micro_batch; --micro-batch does\n"
    assert main(["import", "conf.json", "--micro-batch", "1"]) == 2
    asked = "conf.json does not say which model of those built in it is for; --model does"
    assert capsys.readouterr().err == f"autoshard: error: {asked}\n"
    given = ("--model", "llama3-8b", "--micro-batch", "1", "--instance", "h100-80gb")
    assert main(["import", "conf.json", *given]) == 0
    assert "wrote plan.json: llama3-8b on 1 x h100-80gb, tp=1 pp=1 dp=8 mbs=1" in capsys.readouterr().out
