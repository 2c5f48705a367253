"""What NxD is told for a plan: the arguments of `neuronx_distributed_config`, of NxDPPModel and of its layers.

Everything is a plain JSON value; classes are given by name. Keys under "neuronx_distributed_config" are NxD's own
(trainer/trainer.py), those under its "pipeline_config" NxDPPModel's (pipeline/model.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoshard.layout.plan import Plan
from autoshard.runtime.nxd_backend.traps import key_value_block_of_rank, kv_size_multiplier, nxd_repairs

MAX_GRAD_NORM = 1.0
SEQUENTIAL_MOVE_FACTOR = 11
"""Ranks of a node that move their weights to the device at once; NxD's default."""


@dataclass(frozen=True)
class ModuleClasses:
    """Class names of one family in NxD Training's model (models/hf_models), by what they are.

    outputs: of the model with its loss first; NxDPPModel wants to know which of them are losses.
    """

    block: str
    core_attention: str
    mlp: str
    norm: str
    rotary: str
    outputs: int


_LLAMA = ModuleClasses("LlamaDecoderLayer", "CoreAttention", "LlamaMLP", "LlamaRMSNorm", "LlamaRotaryEmbedding", 2)
_MIXTRAL = ModuleClasses("MixtralDecoderLayer", "CoreAttention", "MoE", "MixtralRMSNorm", "MixtralRotaryEmbedding", 4)
MODULE_CLASSES = {"llama": _LLAMA, "mistral": _LLAMA, "mixtral": _MIXTRAL}

LOSS_CLASS = "ParallelCrossEntropyLoss"
"""A module around NxD's parallel_cross_entropy, which torch.fx cannot trace: the pipeline takes it as a leaf."""


def nxd_configuration(plan: Plan) -> dict[str, Any]:
    """All that a program needs to build this plan with NxD. Raises AutoshardError as `nxd_repairs` does."""
    repairs = nxd_repairs(plan)
    strategy, multiplier = plan.strategy, kv_size_multiplier(plan)
    return {
        "neuronx_distributed_config": neuronx_distributed_config(plan),
        "layers": {
            "sequence_parallel_enabled": strategy.sequence_parallel,
            "qkv": {
                "class": "GQAQKVColumnParallelLinear",
                "kv_size_multiplier": multiplier,
                "fuse_qkv": False,
                "key_value_block_of_rank": list(key_value_block_of_rank(plan)),
            },
            "embedding": {"class": "ParallelEmbedding", "shard_across_embedding": False, "sequence_dimension": 0},
            "attention": "ring" if strategy.cp > 1 else strategy.attention_kernel,
            "moe": moe_configuration(plan),
        },
        "precision": {
            "parameter_dtype": plan.training.precision.parameter_dtype,
            "optimizer_dtype": plan.training.precision.optimizer_dtype,
            "stochastic_rounding": plan.training.precision.name == "bf16_sr",
        },
        "clipping": {
            "max_norm": MAX_GRAD_NORM,
            "by": "NxD" if multiplier == 1 else "autoshard",
            "key_value_weights_count": 1 / multiplier,
        },
        "checkpoint": {"save_model": True, "save_optimizer": strategy.cp == 1},
        "repairs": list(repairs),
    }


def neuronx_distributed_config(plan: Plan) -> dict[str, Any]:
    """The keyword arguments of NxD's function of that name."""
    strategy = plan.strategy
    has_pipeline = strategy.pp > 1
    precision = plan.training.precision
    accumulates_wider = precision.gradient_accumulation_dtype != precision.parameter_dtype
    return {
        "tensor_parallel_size": strategy.tp,
        "pipeline_parallel_size": strategy.pp,
        "expert_parallel_size": strategy.ep,
        "context_parallel_size": strategy.cp,
        "pipeline_config": pipeline_config(plan) if has_pipeline else None,
        "optimizer_config": {
            "zero_one_enabled": strategy.zero1,
            "grad_clipping": kv_size_multiplier(plan) == 1,
            "max_grad_norm": MAX_GRAD_NORM,
        },
        "activation_checkpoint_config": activation_checkpoint_config(plan),
        "mixed_precision_config": {
            "use_master_weights": strategy.zero1 and precision.master_dtype is not None,
            "use_fp32_grad_acc": strategy.zero1 and accumulates_wider,
            "use_master_weights_in_ckpt": False,
        },
        "sequence_parallel": strategy.sequence_parallel,
        "model_init_config": {
            "sequential_move_factor": SEQUENTIAL_MOVE_FACTOR,
            "meta_device_init": has_pipeline,
            "param_init_fn": "init_weights" if has_pipeline else None,
        },
        "pad_model": False,
        "lora_config": None,
        "lnc_size": plan.cluster.lnc,
    }


def pipeline_config(plan: Plan) -> dict[str, Any]:
    """The keyword arguments of NxDPPModel."""
    classes, strategy = MODULE_CLASSES[plan.model.model_type], plan.strategy
    return {
        "transformer_layer_cls": classes.block,
        "num_microbatches": plan.num_microbatches,
        "virtual_pipeline_size": strategy.num_virtual_stages,
        "auto_partition": False,
        "pipeline_cuts": list(pipeline_cuts(plan)),
        "input_names": ["input_ids", "attention_mask", "labels"],
        "output_loss_value_spec": [True, *[False] * (classes.outputs - 1)],
        "leaf_module_cls": [classes.norm, classes.rotary, LOSS_CLASS],
        "use_zero1_optimizer": strategy.zero1,
        "use_optimizer_wrapper": True,
        "return_loss_on_cpu": False,
        "broadcast_and_average_loss": True,
        "param_init_fn": "init_weights",
    }


def pipeline_cuts(plan: Plan) -> tuple[str, ...]:
    """The LAST block of every virtual stage but the last one: pp * vpp - 1 names."""
    return tuple(f"model.layers.{stage.stop_layer - 1}" for stage in plan.stages[:-1])


def activation_checkpoint_config(plan: Plan) -> str | list[str] | None:
    """None, "full", or the classes whose forward runs again in backward."""
    classes = MODULE_CLASSES[plan.model.model_type]
    match plan.strategy.recompute:
        case "none":
            return None
        case "full":
            return "full"
        case "core_attention":
            return [classes.core_attention]
        case _:
            return [classes.core_attention, classes.mlp]


def moe_configuration(plan: Plan) -> dict[str, Any] | None:
    """Of NxD's mixture of experts; None without experts."""
    model = plan.model
    if not model.is_moe:
        return None
    return {
        "num_experts": model.num_local_experts,
        "top_k": model.num_experts_per_tok,
        "capacity_factor": plan.training.expert_capacity_factor,
        "normalize_top_k_affinities": model.norm_topk_prob,
    }
