"""Layouts of SageMaker HyperPod's recipes and of the scripts that start them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import autoshard
from autoshard.errors import AutoshardError
from autoshard.planner.written import Written, read_written
from tests.unit.written_files import public, sizes

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

RECIPE: dict[str, Any] = {
    "run": {"name": "llama-8b", "results_dir": "${base_results_dir}/${.name}", "model_type": "hf"},
    "trainer": {"devices": 8, "num_nodes": 16, "accelerator": "gpu", "precision": "bf16", "max_steps": 50},
    "exp_manager": {"summary_writer_kwargs": {"save_dir": "${recipes.exp_manager.exp_dir}/tensorboard"}},
    "use_smp_model": True,
    "distributed_backend": "nccl",
    "model": {
        "model_type": "llama_v3",
        "train_batch_size": 2,
        "tensor_model_parallel_degree": 2,
        "expert_model_parallel_degree": 1,
        "context_parallel_degree": 1,
        "activation_checkpointing": False,
        "sharding_strategy": "hybrid_shard",
        "shard_degree": 64,
        "fp8": False,
        "max_context_width": 8192,
        "max_position_embeddings": "${.max_context_width}",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
        "layernorm_epsilon": 1e-5,
        "vocab_size": 128256,
        "num_key_value_heads": 8,
        "rope_theta": 500000.0,
        "hf_model_name_or_path": None,
        "peft": {"peft_type": None},
        "precision": "${recipes.trainer.precision}",
        "lr_decay_iters": "${recipes.trainer.max_steps}",
        "optim": {"name": "adamw"},
    },
}
"""The keys of hf_llama3_8b_seq8k_gpu_p5x16_pretrain.yaml that say something, and some that do not."""
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
TRAINIUM = {
    **public(
        4,
        {"tensor_model_parallel_size": 32, "pipeline_model_parallel_size": 1},
        sizes(32, 4096, 8192, 8192, 500_000.0),
    ),
    "run": {"name": "llama3-8b", "model_type": "neuron-hf", "compile": 0},
}
SCRIPT = """
LAUNCHER_DIR=${LAUNCHER_DIR:-"$(pwd)"}
TRAIN_DIR="${TRAIN_DIR}"
HYDRA_FULL_ERROR=1 python3 "${LAUNCHER_DIR}/main.py" \\
    recipes=training/llama/pretrain \\
    base_results_dir="${LAUNCHER_DIR}/results" \\
    cluster=k8s cluster.namespace=mine \\
    recipes.run.name="hf-llama3-8b" MORE
    recipes.data.train_dir="$TRAIN_DIR" \\
"""


def with_model(recipe: dict[str, Any] = RECIPE, **changes: Any) -> dict[str, Any]:
    return {**recipe, "model": {**recipe["model"], **changes}}


def read(recipe: dict[str, Any], **given: Any) -> Written:
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    return read_written("recipe.yaml", given)


def read_script(recipe: dict[str, Any], more: str = "", **given: Any) -> Written:
    """The layout of a script that starts a recipe, both where the launcher has them. more: overrides."""
    for folder in ("recipes_collection/recipes/training/llama", "launcher_scripts/llama"):
        Path(folder).mkdir(parents=True)
    Path("recipes_collection/recipes/training/llama/pretrain.yaml").write_text(yaml.safe_dump(recipe))
    Path("launcher_scripts/llama/run.sh").write_text(SCRIPT.replace("MORE", f"{more} \\"))
    return read_written("launcher_scripts/llama/run.sh", given)


def test_a_recipe_for_gpus() -> None:
    found = read(RECIPE)
    strategy, problem = found.strategy, found.problem
    assert (strategy.tp, strategy.dp, strategy.cp, strategy.zero, strategy.dp_replicate) == (2, 64, 1, 3, 1)
    assert (strategy.microbatch_size, {*strategy.recompute}, strategy.sequence_parallel) == (2, {"none"}, False)
    assert (problem.cluster.instance, problem.cluster.nodes) == ("h100-80gb", 16)
    assert (problem.training.global_batch_size, problem.training.sequence_length) == (128, 8192)
    assert (problem.model.name, problem.training.precision.name) == ("llama3-8b", "mixed_precision")
    assert (found.form, found.warnings, found.not_priced) == ("HyperPod recipe", (), ())
    told = "instance_type is said to the launcher: p5.48xlarge, as it has it, where --instance says nothing else"
    assert told in found.notes and "exp_manager.summary_writer_kwargs.save_dir" in found.left_out


def test_a_configuration_of_the_launcher_holds_one() -> None:
    found = read({"cluster_type": "slurm", "instance_type": "ml.p4d.24xlarge", "recipes": RECIPE})
    assert (found.problem.cluster.instance, found.strategy.dp) == ("p4d.24xlarge", 64)
    assert not any("instance_type" in note for note in found.notes)


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"shard_degree": 32}, {"zero": 3, "dp_replicate": 2}),
        ({"shard_degree": 32, "sharding_strategy": "full_shard"}, {"zero": 3, "dp_replicate": 2}),
        ({"shard_degree": 32, "sharding_strategy": "_hybrid_shard_zero2"}, {"zero": 2, "dp_replicate": 2}),
        ({"shard_degree": None}, {"zero": 3, "dp_replicate": 1}),
        ({"shard_degree": None, "tensor_model_parallel_degree": 1}, {"dp": 128, "dp_replicate": 16}),
        (
            {"shard_degree": None, "tensor_model_parallel_degree": 1, "sharding_strategy": "full_shard"},
            {"dp": 128, "zero": 3, "dp_replicate": 1},
        ),
        ({"shard_degree": 1}, {"zero": 0}),
        ({"sharding_strategy": "no_shard"}, {"zero": 0}),
        (
            {"context_parallel_degree": 2, "shard_degree": 32},
            {"cp": 2, "dp": 32, "context_parallel": "zigzag_ring", "dp_replicate": 2},
        ),
        ({"activation_checkpointing": True}, {"recompute": ("full",)}),
        ({"activation_checkpointing": None}, {"recompute": ("full",)}),
        ({"train_batch_size": None}, {"microbatch_size": 2}),
    ],
)
def test_layouts(changes: dict[str, Any], fields: dict[str, Any]) -> None:
    strategy = read(with_model(**changes)).strategy
    assert {name: getattr(strategy, name) for name in fields} == fields


def test_replicas_of_shards_follow_the_nodes_that_are_given() -> None:
    assert read(RECIPE, nodes=32).strategy.dp_replicate == 2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rope_scaling": LLAMA3}, "llama3.1-8b"),
        ({"rope_scaling": {"rope_type": None}}, "llama3-8b"),
        ({"hf_model_name_or_path": "meta-llama/Meta-Llama-3-8B"}, "llama3-8b"),
        ({"hf_model_name_or_path": "$HF_MODEL_NAME_OR_PATH"}, "llama3-8b"),
        ({"hidden_size": 2048, "intermediate_size": 1024}, "recipe"),
        ({"tie_word_embeddings": True}, "llama3-8b"),
    ],
)
def test_models(changes: dict[str, Any], name: str) -> None:
    found = read(with_model(**changes))
    assert found.problem.model.name == name
    untied = "model.tie_word_embeddings=True reaches no model there: the embedding and the head are two"
    assert (untied in found.notes) is ("tie_word_embeddings" in changes)


def test_families_have_what_transformers_gives_them() -> None:
    mistral = with_model(model_type="mistral", vocab_size=32000, rope_theta=1e6)
    assert read(mistral).problem.model.sliding_window == 4096
    qwen = read(with_model(model_type="deepseek_r1_qwen_v2", sliding_window=4096)).problem.model
    assert (qwen.model_type, qwen.sliding_window, qwen.attention_bias) == ("qwen2", None, True)
    experts: dict[str, Any] = {
        "moe": True,
        "moe_load_balancing": "sinkhorn",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    mixtral = read(with_model(model_type="mixtral", vocab_size=32000, rope_theta=1e6, **experts))
    assert mixtral.problem.model.name == "mixtral-8x7b"
    assert "model.moe_load_balancing=sinkhorn is priced as a top-k router" in mixtral.warnings
    again = {**experts, "model_type": "mixtral", "vocab_size": 32000, "rope_theta": 1e6, "fp8": True}
    told = "model.activation_checkpointing: attention and experts run again there, and whole blocks in the price"
    notes = [read(with_model(**again, activation_checkpointing=one)).notes for one in (True, False)]
    assert [told in one for one in notes] == [True, False]


def test_a_mixture_is_found_by_its_blocks_without_experts() -> None:
    blocks: dict[str, Any] = {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
    }
    more: dict[str, Any] = {
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "layernorm_epsilon": 1e-6,
        "rope_theta": 10000.0,
    }
    data = with_model(model_type="deepseek_r1", tensor_model_parallel_degree=1, **blocks, **more)
    with pytest.raises(AutoshardError, match=r"may be for deepseek-v3 or deepseek-v3\.2; --model says which"):
        read(data)
    assert read(data, model="deepseek-v3").problem.model.name == "deepseek-v3"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"peft": {"peft_type": "own"}}, "model.peft.peft_type='own': priced as training of all weights; LoRA "),
        ({"dpo": {"enabled": True}}, "model.dpo.enabled=True: priced as plain training on train_batch_size sequences"),
        ({"offload_activations": True}, "model.offload_activations=True: priced with activations on the devices"),
        ({"fp8": None}, "model.fp8=True: priced in bf16; products of matrices take less time in fp8"),
    ],
)
def test_what_the_price_leaves_out(changes: dict[str, Any], told: str) -> None:
    (warning,) = read(with_model(**changes)).warnings
    assert warning.startswith(told)


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (with_model(multi_modal=True), "model.multi_modal=True: a plan is for a decoder of text alone"),
        (with_model(expert_model_parallel_degree=2), "model.expert_model_parallel_degree=2: which ranks SMP gives"),
        ({**RECIPE, "use_smp_model": False}, "model.tensor_model_parallel_degree=2 needs use_smp_model=True"),
        (with_model(sharding_strategy="most"), "model.sharding_strategy is 'most'; it must be one of full_shard, "),
        (with_model(shard_degree=48), "recipe.yaml shards over 48 ranks, which must divide dp=64"),
        (with_model(shard_degree=3, context_parallel_degree=2), "model.shard_degree=3 must be a multiple of model.con"),
        (with_model(precision="fp8"), "model.precision is 'fp8'; it must be one of bf16, 16, 32"),
        (with_model(rope_scaling={"rope_type": "yarn"}), "model.rope_scaling.rope_type is 'yarn'; it must be llama3"),
        (with_model(model_type="falcon", hidden_size=1), "model.model_type='falcon', which no built-in model is known"),
        ({"run": {"model_type": "verl"}, "model": {"path": "x"}}, "run.model_type='verl': of HyperPod's recipes those"),
        ({"recipes": RECIPE, "instance_type": 5}, "instance_type is 5; it must be a name, such as p5.48xlarge"),
    ],
)
def test_refusals(recipe: dict[str, Any], told: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read(recipe)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_nemo_framework_launchers_files_have_such_a_field_too() -> None:
    data = {"run": {"model_type": "gpt3"}, "model": {"tensor_model_parallel_size": 8}}
    with pytest.raises(AutoshardError, match=r"recipe\.yaml does not say micro_batch; --micro-batch does"):
        read(data)


def test_a_recipe_for_trainium_is_nxd_trainings() -> None:
    found = read(TRAINIUM)
    assert (found.form, found.problem.cluster.instance) == ("NxDT configuration", "trn1.32xlarge")
    assert found.not_priced == () and "run.compile" in found.left_out


def test_a_script_that_starts_a_recipe() -> None:
    """The launcher's other overrides, on its cluster, do not reach the recipe."""
    found = read_script(TRAINIUM, "recipes.data.global_batch_size=512 instance_type=ml.trn1n.32xlarge")
    assert (found.problem.training.global_batch_size, found.problem.cluster.instance) == (512, "trn1n.32xlarge")
    (told,) = (note for note in found.notes if "overrides of the script" in note)
    assert "recipes_collection/recipes/training/llama/pretrain.yaml" in told


def test_the_instance_of_the_launchers_own_configuration() -> None:
    Path("recipes_collection").mkdir()
    Path("recipes_collection/config.yaml").write_text("instance_type: p4de.24xlarge\n")
    Path("recipes_collection/recipes/training/llama").mkdir(parents=True)
    Path("recipes_collection/recipes/training/llama/pretrain.yaml").write_text(yaml.safe_dump(RECIPE))
    Path("run.sh").write_text(SCRIPT.replace("MORE", "\\"))
    assert autoshard.score("run.sh").written.problem.cluster.instance == "p4de.24xlarge"


def test_a_recipe_for_trainium_beside_the_launchers_usual_gpus() -> None:
    found = read({"instance_type": "p5.48xlarge", "recipes": TRAINIUM})
    assert found.problem.cluster.instance == "trn1.32xlarge"


def test_a_script_whose_recipe_is_not_there() -> None:
    Path("run.sh").write_text(SCRIPT.replace("MORE", "\\"))
    with pytest.raises(AutoshardError) as error:
        read_written("run.sh", {})
    said = "recipes=training/llama/pretrain is recipes_collection/recipes/training/llama/pretrain.yaml of SageMaker "
    assert str(error.value) == f"run.sh: {said}HyperPod, which is not here: give that file instead"
