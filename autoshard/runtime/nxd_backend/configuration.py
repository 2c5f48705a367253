"""Writes a plan as NxD's configuration: arguments of `neuronx_distributed_config`, of NxDPPModel and of its layers.

Everything is a plain JSON value; classes are given by name. Keys under "neuronx_distributed_config" are NxD's own
(trainer/trainer.py), those under its "pipeline_config" NxDPPModel's (pipeline/model.py).
"""

from __future__ import annotations

from typing import Any

from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.layout.template import template_of
from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.lowering import CROSS_ENTROPY, LOCAL, MAPPING, QKV, lower
from autoshard.runtime.nxd_backend.traps import key_value_block_of_rank, kv_size_multiplier, nxd_repairs

MAX_GRAD_NORM = 1.0
SEQUENTIAL_MOVE_FACTOR = 11
"""How many ranks of a node move their weights to the device at once; NxD's default."""


BLOCK_CLASS = "NxdBlock"
"""The class of model.py's transformer block, which NxD's pipeline takes as a leaf and cuts behind."""
LEAF_CLASSES = ("NxdEmbedding", "NxdHead")
"""Classes of modules around what torch.fx cannot trace, such as parallel_cross_entropy."""
RECOMPUTED_CLASS = "RecomputedSection"
"""The class of a set of operators in a block whose forward runs again in backward: any set that the plan names."""
INPUT_NAMES = ("input_ids", "labels", "weights")


def nxd_configuration(plan: Plan) -> dict[str, Any]:
    """The configuration of NxD for this plan, and which of its layers compute what. Raises AutoshardError as
    `nxd_repairs`."""
    repairs = nxd_repairs(plan)
    multiplier = kv_size_multiplier(plan)
    return {
        "neuronx_distributed_config": neuronx_distributed_config(plan),
        "layers": layers(plan),
        "key_value_block_of_rank": list(key_value_block_of_rank(plan)),
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
        "repairs": list(repairs),
    }


def layers(plan: Plan) -> dict[str, dict[str, Any]]:
    """Template of an operator's name -> the layer that computes it; operators that compute locally are left out."""
    found: dict[str, dict[str, Any]] = {}
    for program in plan.sample_programs:
        for one in lower(program):
            if one.layer in (LOCAL, MAPPING):
                continue
            values: dict[str, Any] = {"layer": one.layer}
            if one.layer != CROSS_ENTROPY:
                values["sequence_parallel_enabled"] = one.sequence_parallel
            if one.layer == QKV:
                values.update(kv_size_multiplier=one.kv_size_multiplier, fuse_qkv=False)
            found.update((template_of(step.operator.name), values) for step in one.steps)
    return found


def neuronx_distributed_config(plan: Plan) -> dict[str, Any]:
    """The keyword arguments of NxD's function neuronx_distributed_config."""
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
            "zero_one_enabled": strategy.zero > 0,
            "grad_clipping": strategy.zero > 0 or kv_size_multiplier(plan) == 1,
            "max_grad_norm": MAX_GRAD_NORM,
        },
        "activation_checkpoint_config": activation_checkpoint_config(plan),
        "mixed_precision_config": {
            "use_master_weights": strategy.zero > 0 and precision.master_dtype is not None,
            "use_fp32_grad_acc": strategy.zero > 0 and accumulates_wider,
            "use_master_weights_in_ckpt": False,
        },
        "sequence_parallel": strategy.sequence_parallel,
        "model_init_config": {
            "sequential_move_factor": SEQUENTIAL_MOVE_FACTOR,
            "meta_device_init": False,
            "param_init_fn": None,
        },
        "pad_model": False,
        "lora_config": None,
        "lnc_size": plan.cluster.lnc,
    }


def pipeline_config(plan: Plan) -> dict[str, Any]:
    """The keyword arguments of NxDPPModel. Each rank builds its own blocks alone, so nothing needs a meta device."""
    strategy = plan.strategy
    return {
        "transformer_layer_cls": BLOCK_CLASS,
        "num_microbatches": plan.num_microbatches,
        "virtual_pipeline_size": strategy.num_virtual_stages,
        "auto_partition": False,
        "pipeline_cuts": list(pipeline_cuts(plan)),
        "input_names": list(INPUT_NAMES),
        "output_loss_value_spec": True,
        "leaf_module_cls": list(LEAF_CLASSES),
        "use_zero1_optimizer": strategy.zero > 0,
        "use_optimizer_wrapper": True,
        "return_loss_on_cpu": False,
        "broadcast_and_average_loss": True,
    }


def pipeline_cuts(plan: Plan) -> tuple[str, ...]:
    """Names of the LAST block of every virtual stage but the last stage: pp * vpp - 1 names."""
    return tuple(f"layers.{stage.stop_layer - 1}" for stage in plan.stages[:-1])


def activation_checkpoint_config(plan: Plan) -> list[str] | None:
    """The classes whose forward runs again in backward; None where nothing does."""
    return [RECOMPUTED_CLASS] if any(one != NO_RECOMPUTE for one in plan.strategy.recompute) else None
