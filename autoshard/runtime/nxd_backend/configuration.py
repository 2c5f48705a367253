"""Writes a plan as NxD's configuration: arguments of its function neuronx_distributed_config and of NxDPPModel.

Everything is a plain JSON value; classes are given by name. Keys are NxD's own (trainer/trainer.py), those under
"pipeline_config" NxDPPModel's (pipeline/model.py).
"""

from __future__ import annotations

from typing import Any

from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.traps import kv_size_multiplier

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


def neuronx_distributed_config(plan: Plan) -> dict[str, Any]:
    """The keyword arguments of NxD's function neuronx_distributed_config."""
    strategy = plan.strategy
    has_pipeline = strategy.pp > 1
    precision = plan.training.precision
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
            "use_fp32_grad_acc": strategy.zero > 0 and precision.sums_apart,
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
