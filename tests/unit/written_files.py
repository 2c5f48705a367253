"""Files of NxD Training as AWS publishes them, what autoshard import makes of a file, and plans to write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from autoshard.models.registry import load_model
from autoshard.planner.imported import plan_of
from autoshard.planner.written import read_written
from autoshard.plans.plan import Plan, make_plan
from tests.unit.plan_examples import by_hand, plan_mixtral

SENT_IN_BF16 = "mixed_precision with gradient_reduce=bfloat16"
GRADIENTS_IN_BF16 = "mixed_precision with gradient_accumulation=bfloat16,gradient_reduce=bfloat16"
"""Precisions of files whose framework sends gradients in bf16, or has them in bf16 everywhere."""


def as_nxdt_runs(plan: Plan) -> Plan:
    """The plan with what NxD Training runs again: where a kernel computes attention, no CoreAttention."""
    if plan.strategy.attention_kernel != "flash":
        return plan
    sets = ("+".join(one for one in name.split("+") if one != "core_attention") for name in plan.strategy.recompute)
    return replace(plan, strategy=replace(plan.strategy, recompute=tuple(name or "none" for name in sets)))


SUFFIX = {"nxdt": "yaml", "torchtitan": "py", "torchtitan-toml": "toml", "megatron": "sh"}


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


def mixture_plan(name: str) -> Plan:
    mixture, model = plan_mixtral(), load_model(name)
    layers = model.num_hidden_layers
    chosen = replace(mixture.strategy, tp=2, pp=4, dp=32, ep=8, stage_layers=(layers // 4,) * 4)
    cost = by_hand(model, mixture.training, mixture.cluster, chosen)
    return make_plan(model, mixture.training, mixture.cluster, "torch", chosen, cost)


def in_model(name: str, **changes: Any) -> dict[str, Any]:
    return {**UNNAMED[name], "model": {**UNNAMED[name]["model"], **changes}}
