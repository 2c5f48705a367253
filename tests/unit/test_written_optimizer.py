"""Muon in the files of other frameworks: what each calls it, and what is said where it works otherwise than here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoshard import import_plan
from autoshard.errors import AutoshardError
from autoshard.interop.export import export
from autoshard.interop.read_layout import read_written_layout
from autoshard.planner.written import Written, read_written
from autoshard.plans.plan import Plan
from autoshard.spec.training import PRECISIONS
from tests.unit.megatron_flags import DROPS_NOTHING
from tests.unit.plan_examples import plan_70b, plan_mixtral
from tests.unit.written_files import imported

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

GIVEN: dict[str, Any] = {"model": "llama3-8b", "instance": "h100-80gb", "nodes": 1}
TP = "--tensor-model-parallel-size 4 --bf16"
ALONE = "--tensor-model-parallel-size 1 --bf16"
ON_ONE = "priced with each matrix whole on one rank"
NO_MODE = "no --muon-tp-mode (duplicated today, blockwise before)"
JOINTLY = (
    "--muon-tp-mode distributed: ranks of tp=4 orthogonalise each matrix together there, with a sum in each iteration; "
    f"{ON_ONE}"
)
NO_MASTERS = (
    "muon is priced as AdamW, with two moments: its own price has master weights, which precision bf16_sr lacks and "
    "--precision mixed_precision has"
)


def of_megatron(flags: str, **given: Any) -> Written:
    Path("train.sh").write_text(f"{flags} --micro-batch-size 1 --global-batch-size 8 {DROPS_NOTHING}")
    return read_written("train.sh", {**GIVEN, **given})


@pytest.mark.parametrize(
    ("flags", "warnings"),
    [
        (f"{ALONE} --optimizer muon", []),
        (f"{ALONE} --optimizer muon --muon-tp-mode blockwise", []),
        (f"{TP} --optimizer muon --muon-tp-mode distributed --muon-momentum 0.95 --muon-num-ns-steps 5", [JOINTLY]),
        (f"{TP} --optimizer muon", [f"{NO_MODE}: each rank of tp=4 orthogonalises all matrices there; {ON_ONE}"]),
        (
            f"{TP} --optimizer muon --muon-tp-mode duplicated",
            [f"--muon-tp-mode duplicated: each rank of tp=4 orthogonalises all matrices there; {ON_ONE}"],
        ),
        (
            f"{TP} --optimizer muon --muon-tp-mode blockwise",
            [f"--muon-tp-mode blockwise: each rank of tp=4 orthogonalises its own parts of matrices there; {ON_ONE}"],
        ),
        (f"{TP} --optimizer muon --muon-tp-mode auto", [f"--muon-tp-mode auto: {ON_ONE}"]),
        (
            f"{ALONE} --optimizer muon --muon-num-ns-steps 7",
            ["--muon-num-ns-steps 7: Muon is priced with 5 Newton-Schulz steps"],
        ),
        (
            f"{ALONE} --optimizer muon --muon-scalar-optimizer lion",
            ["--muon-scalar-optimizer lion, of all but matrices of blocks, is priced as AdamW, with two moments"],
        ),
    ],
)
def test_megatrons_muon(flags: str, warnings: list[str]) -> None:
    found = of_megatron(flags)
    assert (found.problem.training.optimizer, found.problem.backend) == ("muon", "torch")
    assert list(found.warnings) == warnings
    assert found.not_priced == ()


def test_megatrons_flags_of_muon_say_nothing_of_another_optimizer() -> None:
    found = of_megatron(f"{TP} --optimizer adam --muon-tp-mode blockwise --muon-num-ns-steps 7")
    assert (found.problem.training.optimizer, found.warnings) == ("adamw", ())
    found = of_megatron(f"{TP} --optimizer adaptive_muon")  # which has a second moment
    assert found.problem.training.optimizer == "adamw"
    assert found.warnings == ("--optimizer adaptive_muon is priced as AdamW, with two moments",)


@pytest.mark.parametrize(
    ("optimizer", "zero"), [("muon", 0), ("muon --use-distributed-optimizer", 1), ("dist_muon", 1)]
)
def test_ranks_that_share_state_of_megatrons_muon(optimizer: str, zero: int) -> None:
    found = of_megatron(f"{ALONE} --optimizer {optimizer}")
    assert (found.problem.training.optimizer, found.strategy.zero) == ("muon", zero)


def test_a_file_says_muon_as_an_option_does() -> None:
    of_megatron(f"{TP} --optimizer muon --muon-tp-mode distributed")
    assert read_written_layout("train.sh").options["optimizer"] == "muon"
    assert "--optimizer" not in read_written_layout("train.sh").left_out
    plan = import_plan("train.sh", **GIVEN).plan
    assert (plan.training.optimizer, plan.backend) == ("muon", "torch")


def test_an_option_overrules_the_optimizer_of_a_file() -> None:
    assert of_megatron(f"{ALONE} --optimizer muon", optimizer="adamw").problem.training.optimizer == "adamw"
    assert of_megatron(f"{ALONE} --optimizer adam", optimizer="muon").problem.training.optimizer == "muon"


def test_muon_without_master_weights() -> None:
    """A file's is priced as AdamW; an option that asks for both is refused."""
    found = of_megatron(f"{ALONE} --optimizer muon", precision="bf16_sr")
    assert (found.problem.training.optimizer, found.warnings) == ("adamw", (NO_MASTERS,))
    with pytest.raises(AutoshardError, match="its updates need master weights, which precision bf16_sr lacks"):
        of_megatron(ALONE, precision="bf16_sr", optimizer="muon")


ZERO: dict[str, Any] = {
    "bf16": {"enabled": True},
    "optimizer": {"type": "Muon", "params": {"muon_lr": 0.02, "momentum": 0.95}},
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": 1,
}
AXOLOTL: dict[str, Any] = {"base_model": "NousResearch/Meta-Llama-3-8B", "sequence_len": 2048, "sample_packing": True}
FSDP2 = {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}
FACTORY: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Meta-Llama-3-8B",
    "stage": "pt",
    "do_train": True,
    "finetuning_type": "full",
    "cutoff_len": 2048,
    "bf16": True,
}
VERSION_1 = {
    "model": "meta-llama/Meta-Llama-3-8B",
    "train_dataset": "data/v1_sft_demo.yaml",
    "dist_config": {"name": "fsdp2"},
    "optim_config": {"name": "muon", "momentum": 0.95},
}


def optimizer_and_warnings(name: str, text: str) -> tuple[str, tuple[str, ...]]:
    file = Path(name.partition(":")[0])
    file.write_text(text)
    found = read_written(name, {**GIVEN, "seq_len": 2048})
    return found.problem.training.optimizer, found.warnings


def of_yaml(data: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    return optimizer_and_warnings("train.yaml", yaml.safe_dump(data))


def test_deepspeeds_muon() -> None:
    assert optimizer_and_warnings("zero.json", json.dumps(ZERO)) == ("muon", ())
    in_parts = "optimizer.type='Muon': each rank of tp=2 orthogonalises its own parts of matrices there"
    cut = {**ZERO, "tensor_parallel": {"autotp_size": 2}}
    assert optimizer_and_warnings("zero.json", json.dumps(cut)) == ("muon", (f"{in_parts}; {ON_ONE}",))
    whole = "gradients and momentum go whole to all ranks there; priced with a share of each"
    third = {**ZERO, "zero_optimization": {"stage": 3, "reduce_scatter": False}}
    told = (f"optimizer.type='Muon' with ZeRO-3: {whole}",)
    assert optimizer_and_warnings("zero.json", json.dumps(third)) == ("muon", told)


def test_the_trainer_takes_deepspeeds_muon() -> None:
    Path("zero.json").write_text(json.dumps(ZERO))
    assert of_yaml({**AXOLOTL, "deepspeed": "zero.json", "bf16": True}) == ("muon", ())
    assert of_yaml({**FACTORY, "deepspeed": "zero.json"}) == ("muon", ())


def test_axolotls_muon() -> None:
    """It comes with FSDP2 alone, which keeps weights in the dtype that they are loaded in."""
    assert of_yaml({**AXOLOTL, **FSDP2, "optimizer": "muon", "bf16": True}) == ("adamw", (NO_MASTERS,))
    assert of_yaml({**AXOLOTL, **FSDP2, "optimizer": "muon", "bf16": False}) == ("muon", ())


def test_llama_factorys_muon() -> None:
    assert of_yaml({**FACTORY, "use_muon": True}) == ("muon", ())
    assert of_yaml({**FACTORY, "use_muon": False}) == ("adamw", ())
    assert of_yaml({**FACTORY, "optim": "muon"}) == ("muon", ())
    assert of_yaml({**FACTORY, "use_muon": True, "pure_bf16": True}) == ("adamw", (NO_MASTERS,))


def test_the_muon_of_llama_factorys_version_1() -> None:
    on_each = f"optim_config.name='muon': each rank orthogonalises all matrices there; {ON_ONE}"
    assert of_yaml(VERSION_1) == ("muon", (on_each,))
    assert of_yaml({**VERSION_1, "dist_config": None}) == ("muon", ())
    steps = "optim_config.ns_steps=6: Muon is priced with 5 Newton-Schulz steps"
    assert of_yaml({**VERSION_1, "optim_config": {"name": "muon", "ns_steps": 6}}) == ("muon", (on_each, steps))


def test_llama_factorys_version_1_trains_adapters_by_adamw() -> None:
    adapters = {"name": "lora", "r": 8, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0}
    assert of_yaml({**VERSION_1, "peft_config": adapters}) == ("adamw", ())


REGISTRY = """
GROUPS = [ParamGroupConfig(pattern=".*w1$", optimizer_name="DistMuon", optimizer_kwargs={"lr": 1e-3})]

def named() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B"), optimizer=OptimizersContainer.Config(param_groups=GROUPS))

def changed() -> Trainer.Config:
    config = Trainer.Config(model_spec=model_registry("8B"), optimizer=default_adamw(lr=8e-4))
    config.optimizer.param_groups = GROUPS
    return config

def made() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B"), optimizer=_dist_muon_optimizer(lr=8e-4))

def without() -> Trainer.Config:
    config = made()
    config.optimizer = default_adamw(lr=8e-4)
    return config
"""


@pytest.mark.parametrize(
    ("function", "optimizer"), [("named", "muon"), ("changed", "muon"), ("made", "muon"), ("without", "adamw")]
)
def test_torchtitans_muon(function: str, optimizer: str) -> None:
    assert optimizer_and_warnings(f"registry.py:{function}", REGISTRY) == (optimizer, ())


@pytest.mark.parametrize("name", ["Muon", "DistMuon"])
def test_the_muon_of_a_torchtitan_that_names_it(name: str) -> None:
    text = f'[optimizer]\nname = "{name}"\n[activation_checkpoint]\nmode = "none"\n[training]\n'
    assert optimizer_and_warnings("train.toml", text) == ("muon", ())
    optimizer, warnings = optimizer_and_warnings("train.toml", f'{text}dtype = "bfloat16"\n')
    assert (optimizer, warnings[0]) == ("adamw", NO_MASTERS)
    assert "optimizer.name" not in read_written_layout("train.toml").left_out


def with_muon(plan: Plan, **changes: Any) -> Plan:
    training = replace(plan.training, optimizer="muon")
    return replace(plan, training=training, strategy=replace(plan.strategy, **changes))


YOURS = "optimizer=muon: --muon-momentum and --muon-extra-scale-factor, as the learning rate, are yours to add"


WITH_ALL = "optimizer=muon: ranks of tp=8 orthogonalise each matrix together there, not one for all"


def test_muon_in_megatrons_words() -> None:
    plan = with_muon(plan_mixtral())
    written = export(plan, "megatron")
    assert "    --optimizer muon --muon-num-ns-steps 5 --muon-tp-mode distributed\n" in written.text
    assert [one for one in written.left_out if "uon" in one] == [YOURS, WITH_ALL]
    again = imported(written.text, "train.sh", instance="trn1.32xlarge", nodes=plan.cluster.nodes, backend="torch")
    assert (again.training.optimizer, again.strategy.zero) == ("muon", plan.strategy.zero)
    assert "--optimizer muon --muon-num-ns-steps 5\n" in export(with_muon(plan_mixtral(), tp=1), "megatron").text
    assert "--optimizer" not in export(plan_mixtral(), "megatron").text


def test_megatron_holds_no_weights_of_muon_in_fewer_bits() -> None:
    plan = plan_mixtral()
    plan = replace(plan, training=replace(plan.training, precision=PRECISIONS["fp8"]))
    assert "--fp8-recipe delayed --fp8-param-gather\n" in export(plan, "megatron").text
    written = export(with_muon(plan), "megatron")
    assert "--fp8-recipe delayed\n" in written.text
    assert "precision=fp8: Megatron gathers parameters in bf16 with Muon" in written.left_out


@pytest.mark.parametrize(("zero", "whole"), [(2, "gradients"), (3, "gradients and weights")])
def test_megatrons_muon_has_no_fsdp(zero: int, whole: str) -> None:
    """It stops at --use-megatron-fsdp, and at several groups of shards."""
    written = export(with_muon(plan_mixtral(), zero=zero, dp_replicate=2), "megatron")
    assert "--use-distributed-optimizer" in written.text
    assert not any(flag in written.text for flag in ("fsdp", "--num-distributed-optimizer-instances"))
    assert [one for one in written.left_out if "uon" in one] == [
        YOURS,
        WITH_ALL,
        f"zero={zero}: Megatron has no FSDP with Muon; ZeRO-1 is written, with whole {whole}",
        "dp_replicate=2: Megatron's Muon has one group of shards, over all of dp",
    ]


@pytest.mark.parametrize("form", ["nxdt", "torchtitan", "torchtitan-toml"])
def test_a_file_without_muon_says_so(form: str) -> None:
    told = "optimizer=muon: the file trains by AdamW, which has two moments and takes more memory"
    assert told in export(with_muon(plan_70b()), form).left_out
    assert told not in export(plan_70b(), form).left_out
