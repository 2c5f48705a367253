"""Write a plan as a torchtitan configuration (TOML)."""

from __future__ import annotations

import json
from typing import Any

from autoshard.interop.export import Exported, common_left_out, title
from autoshard.interop.torchtitan import MODELS
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.plans.plan import Plan

FLAVORS = {**{name: flavor for flavor, name in MODELS.items()}, "llama3.1-8b": ("llama3", "8B")}
FLAVORS["llama3.1-70b"] = ("llama3", "70B")
SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe"}
RECOMPUTE = {"none": "none", "full": "full", "core_attention": "selective", "core_attention+mlp": "selective"}
ROTATE = {"all_gather": "allgather", "zigzag_ring": "alltoall"}


def torchtitan_toml(plan: Plan) -> Exported:
    """The plan as a torchtitan configuration (TOML). Every plan has one; what torchtitan does otherwise is in
    left_out.
    """
    strategy, training = plan.strategy, plan.training
    local_batch = strategy.microbatch_size * (plan.num_microbatches if strategy.pp > 1 else 1)
    sections: dict[str, dict[str, Any]] = {
        "model": dict(zip(("name", "flavor"), FLAVORS.get(plan.model.name, ()), strict=False)),
        "training": {
            "local_batch_size": local_batch,
            "global_batch_size": training.global_batch_size,
            "seq_len": training.sequence_length,
            "mixed_precision_param": training.precision.parameter_dtype,
            "mixed_precision_reduce": "float32",
        },
        "parallelism": _parallelism(plan),
        "activation_checkpoint": {"mode": RECOMPUTE.get(strategy.uniform_recompute or "", "full")},
    }
    return Exported(title(plan, "#") + "".join(map(_section, sections.items())), _left_out(plan))


def _parallelism(plan: Plan) -> dict[str, Any]:
    strategy = plan.strategy
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if strategy.zero else strategy.dp,
        "data_parallel_shard_degree": strategy.dp if strategy.zero and strategy.dp > 1 else (-1, 1)[not strategy.zero],
        "fsdp_reshard_after_forward": "always" if strategy.zero == 3 else "never",
        "tensor_parallel_degree": strategy.tp,
        "enable_sequence_parallel": strategy.sequence_parallel,
        "context_parallel_degree": strategy.cp,
        "expert_parallel_degree": strategy.ep,
        "pipeline_parallel_degree": strategy.pp,
    }
    if strategy.cp > 1:
        values["context_parallel_rotate_method"] = ROTATE.get(strategy.context_parallel, "alltoall")
    if strategy.pp > 1:
        values["pipeline_parallel_schedule"] = SCHEDULES.get(strategy.schedule, "1F1B")
        values["pipeline_parallel_microbatch_size"] = strategy.microbatch_size
        values["module_fqns_per_model_part"] = [
            [
                *(["tok_embeddings"] if stage.has_embedding else []),
                *(f"layers.{layer}" for layer in stage.layers),
                *(["norm", "output"] if stage.has_head else []),
            ]
            for stage in plan.stages
        ]
    return values


def _section(section: tuple[str, dict[str, Any]]) -> str:
    """The TOML lines of a section. JSON's numbers, texts, lists, true and false are TOML's too."""
    name, values = section
    return f"\n[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _left_out(plan: Plan) -> tuple[str, ...]:
    strategy, left_out = plan.strategy, list(common_left_out(plan))
    if plan.model.name not in FLAVORS:
        left_out.append(
            f"model {plan.model.name}: no torchtitan flavor is known for it; set model.name and model.flavor"
        )
    left_out.append(f"cluster: start {plan.cluster.nodes} x {plan.cluster.devices_per_node} processes")
    if strategy.zero in (1, 2) and strategy.dp > 1:
        more = "gradients and parameters" if strategy.zero == 1 else "parameters"
        left_out.append(f"zero={strategy.zero}: FSDP without resharding shards {more} too, between steps")
    if RECOMPUTE.get(strategy.uniform_recompute or "") == "selective":
        left_out.append(f"recompute={strategy.recompute_name}: torchtitan's selective mode chooses other operators")
    elif strategy.uniform_recompute not in RECOMPUTE:
        left_out.append(f"recompute={strategy.recompute_name}: written as full, which fits wherever the plan does")
    if strategy.attention_kernel == "plain":
        left_out.append("attention_kernel=plain: torchtitan takes the kernel that torch chooses")
    if strategy.schedule not in SCHEDULES:
        left_out.append(f"schedule={strategy.schedule}: written as 1F1B")
    if strategy.cp > 1 and strategy.context_parallel not in ROTATE:
        left_out.append(f"context_parallel={strategy.context_parallel}: written as alltoall, torch's zigzag ring")
    if strategy.axis_order != AXIS_ORDER:
        left_out.append(f"axis_order={strategy.axis_order_name}: torchtitan's is {'-'.join(AXIS_ORDER)}")
    if plan.training.precision.name == "bf16_sr":
        left_out.append("precision=bf16_sr: torchtitan keeps FP32 parameters and has no stochastic rounding")
    if plan.training.precision.products is not None:
        name = plan.training.precision.name
        left_out.append(f"precision={name}: torchtitan converts linear layers where model.converters says so")
    if plan.model.shared_expert_intermediate_size:
        left_out.append(
            f"shared_expert_intermediate_size={plan.model.shared_expert_intermediate_size}: a matter of the flavor, as "
            "is its gate"
        )
    if plan.model.is_moe:
        left_out.append(f"expert_capacity_factor={plan.expert_slots:g}: torchtitan drops no tokens of an expert")
    return tuple(left_out)
