"""Write a plan as a torchtitan configuration: a function of its Python registry, or TOML for releases until 0.2.2."""

from __future__ import annotations

import json
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop import torchtitan
from autoshard.interop.exported import Exported, common_left_out, title, written_schedule
from autoshard.layout.mesh import AXIS_ORDER, tensor_ranks_apart
from autoshard.layout.strategy import Strategy
from autoshard.plans.plan import Plan

FLAVORS = {**{name: flavor for flavor, name in torchtitan.MODELS.items()}, "llama3.1-8b": ("llama3", "8B")}
FLAVORS["llama3.1-70b"] = ("llama3", "70B")
SCHEDULES = {schedule: name for name, schedule in torchtitan.SCHEDULES.items()}
RECOMPUTE = {"none": "none", "full": "full", "core_attention": "selective", "core_attention+mlp": "selective"}
ROTATE = {"all_gather": "allgather", "zigzag_ring": "alltoall"}


BASES = {
    "llama3-8b": "llama3_8b",
    "llama3-70b": "llama3_70b",
    "llama3.1-8b": "llama3_8b",
    "llama3.1-70b": "llama3_70b",
    "llama3.1-405b": "llama3_405b",
    "qwen3-8b": "qwen3_14b",
    "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b",
}
"""By model, the function of torchtitan's registry that data, optimizer and loss are taken from."""
LOAD_BALANCERS = {"all_gather": None, "zigzag_ring": "headtail"}


def torchtitan_toml(plan: Plan) -> Exported:
    """The plan as a torchtitan configuration (TOML), as releases until 0.2.2 read it. Every plan has one; what
    torchtitan does otherwise is in left_out.
    """
    strategy = plan.strategy
    sections: dict[str, dict[str, Any]] = {
        "model": dict(zip(("name", "flavor"), FLAVORS.get(plan.model.name, ()), strict=False)),
        "training": {**_batch(plan), **_training(plan)},
        "parallelism": _parallelism(plan, is_released=True),
        "activation_checkpoint": _activation_checkpoint(strategy),
    }
    return Exported(title(plan) + "".join(map(_section, sections.items())), _left_out(plan, is_released=True))


def _activation_checkpoint(strategy: Strategy) -> dict[str, str]:
    mode = RECOMPUTE.get(strategy.uniform_recompute or "", "full")
    return {"mode": mode, torchtitan.SELECTIVE_OPTION: "op"} if mode == "selective" else {"mode": mode}


def torchtitan_registry(plan: Plan) -> Exported:
    """The plan as a function of a Python registry: as torchtitan's main branch of August 2026 reads it, or for a plan
    for native PyTorch on Neuron as TorchTitan Neuron does, whose release 0.2.2 counts sequences, not tokens.

    Raises AutoshardError for a model that neither has.
    """
    if plan.model.name not in BASES:
        known = ", ".join(BASES)
        raise AutoshardError(
            f"torchtitan's registries have no {plan.model.name}; known: {known}, or --to torchtitan-toml"
        )
    (module, flavor), base = FLAVORS[plan.model.name], BASES[plan.model.name]
    is_neuron, name = plan.cluster.stack is not None, f"{base}_{_short(plan)}"
    package = f"{'torchtitan_neuron' if is_neuron else 'torchtitan'}.models.{module}"
    mode = RECOMPUTE.get(plan.strategy.uniform_recompute or "", "full")
    values, imports = _registry_values(plan, is_neuron), []
    if is_neuron:
        values["activation_checkpoint.mode"] = repr(mode)
        values["compile.enable"] = repr(plan.cluster.compiles)
        values["compile.backend"] = repr("neuron")
    else:
        kind = {"full": "FullAC", "selective": "SelectiveAC"}.get(mode)
        values["activation_checkpoint"] = f"{kind}.Config()" if kind else "None"
        imports = [f"from torchtitan.distributed.activation_checkpoint import {kind}"] if kind else []
    lines = [
        f"# torchrun --nproc-per-node {plan.cluster.devices_per_node} -m torchtitan.train --module FILE \\",
        f"#     --config {name}",
        "# where FILE is this file's name without .py, in a folder that Python finds.",
        *imports,
        f"from {package} import model_registry",
        f"from {package}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        f"def {name}() -> Trainer.Config:",
        f"    config = {base}()",
        f'    config.model_spec = model_registry("{flavor}")',
        *(f"    config.{key} = {value}" for key, value in values.items()),
        "    return config",
    ]
    left_out = _left_out(plan, is_released=is_neuron)
    if is_neuron:
        unread = "its sources could not be read: change names where they differ"
        left_out += (f"TorchTitan Neuron: {package} and {base} are torchtitan's names in its package; {unread}",)
    return Exported(title(plan) + "\n".join(lines) + "\n", left_out)


def _short(plan: Plan) -> str:
    """Degrees as names of torchtitan's functions have them: 'tp4_fsdp16_sac'."""
    s, mode = plan.strategy, RECOMPUTE.get(plan.strategy.uniform_recompute or "", "full")
    degrees = {"tp": s.tp, "pp": s.pp, "cp": s.cp, "ep": s.ep, "fsdp" if s.zero else "ddp": s.dp}
    if s.dp_replicate > 1:
        degrees |= {"fsdp": s.dp_shard, "replicas": s.dp_replicate}
    words = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    return "_".join([*words, {"none": "noac", "selective": "sac", "full": "fac"}[mode]])


def _registry_values(plan: Plan, is_neuron: bool) -> dict[str, str]:
    """Fields of the configuration and their values as Python."""
    training, strategy = plan.training, plan.strategy
    values = {f"training.{key}": repr(value) for key, value in _training(plan).items()}
    parallelism = _parallelism(plan, is_released=is_neuron)
    if is_neuron:
        values |= {f"training.{key}": repr(value) for key, value in _batch(plan).items()}
    else:
        length = training.sequence_length
        values["training.max_context_length"] = repr(length)
        values["training.num_tokens_per_microbatch_per_dp_rank"] = f"{strategy.microbatch_size} * {length}"
        values["training.num_tokens_per_train_step"] = f"{training.global_batch_size} * {length}"
        if parallelism.pop("pipeline_parallel_microbatch_size", None) is not None:
            parallelism["num_pp_microbatches"] = plan.num_microbatches
        if parallelism.pop("context_parallel_rotate_method", None) is not None:
            parallelism["context_parallel_load_balancer"] = LOAD_BALANCERS.get(strategy.context_parallel, "headtail")
    return values | {f"parallelism.{key}": repr(value) for key, value in parallelism.items()}


def _batch(plan: Plan) -> dict[str, Any]:
    strategy, training = plan.strategy, plan.training
    return {
        "local_batch_size": strategy.microbatch_size * (plan.num_microbatches if strategy.pp > 1 else 1),
        "global_batch_size": training.global_batch_size,
        "seq_len": training.sequence_length,
    }


def _training(plan: Plan) -> dict[str, Any]:
    return {"mixed_precision_param": plan.training.precision.parameter_dtype, "mixed_precision_reduce": "float32"}


def _parallelism(plan: Plan, is_released: bool) -> dict[str, Any]:
    """Fields of ParallelismConfig. is_released: whether for releases until 0.2.2; the main branch has others."""
    strategy, head = plan.strategy, "output" if is_released else "lm_head"
    shards = _shards(strategy)
    values: dict[str, Any] = {
        "data_parallel_replicate_degree": strategy.dp_replicate if shards else strategy.dp,
        "data_parallel_shard_degree": strategy.dp_shard if shards and strategy.dp > 1 else (1, -1)[shards],
        "fsdp_reshard_after_forward": "always" if strategy.zero == 3 else "never",
        "tensor_parallel_degree": strategy.tp,
        **({} if is_released else {"enable_sequence_parallel": strategy.sequence_parallel}),
        "context_parallel_degree": strategy.cp,
        **(_experts(strategy) if is_released else {"expert_parallel_degree": strategy.ep}),
        "pipeline_parallel_degree": strategy.pp,
    }
    if strategy.cp > 1:
        values["context_parallel_rotate_method"] = ROTATE.get(strategy.context_parallel, "alltoall")
    if strategy.pp > 1:
        values["pipeline_parallel_schedule"] = written_schedule(plan, SCHEDULES)[0]
        values["pipeline_parallel_microbatch_size"] = strategy.microbatch_size
        values["module_fqns_per_model_part"] = [
            [
                *(["tok_embeddings"] if stage.has_embedding else []),
                *(f"layers.{layer}" for layer in stage.layers),
                *(["norm", head] if stage.has_head else []),
            ]
            for stage in plan.stages
        ]
    return values


def _shards(strategy: Strategy) -> bool:
    """Whether the file shards over data-parallel ranks: torchtitan spreads experts over ranks that shard, no others."""
    return strategy.zero > 0 or strategy.ep > 1


def _experts(strategy: Strategy) -> dict[str, int]:
    """Fields on experts of releases, which cut them over all ranks of tensor parallelism or over none."""
    if strategy.ep == 1 or strategy.tp == 1:
        return {"expert_parallel_degree": strategy.ep}
    if strategy.etp == 1:
        return {"expert_parallel_degree": strategy.ep, "expert_tensor_parallel_degree": 1}
    ep = strategy.ep // tensor_ranks_apart(strategy.tp, strategy.etp)
    return {"expert_parallel_degree": ep, "expert_tensor_parallel_degree": strategy.tp}


def _section(section: tuple[str, dict[str, Any]]) -> str:
    """The TOML lines of a section. JSON's numbers, texts, lists, true and false are TOML's too."""
    name, values = section
    return f"\n[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _left_out(plan: Plan, is_released: bool) -> tuple[str, ...]:
    strategy, left_out = plan.strategy, list(common_left_out(plan))
    if plan.model.name not in FLAVORS:
        left_out.append(
            f"model {plan.model.name}: no torchtitan flavor is known for it; set model.name and model.flavor"
        )
    left_out.append(f"cluster: start {plan.cluster.nodes} x {plan.cluster.devices_per_node} processes")
    if strategy.zero in (1, 2) and strategy.dp > 1:
        more = "gradients and parameters" if strategy.zero == 1 else "parameters"
        left_out.append(f"zero={strategy.zero}: FSDP without resharding shards {more} too, between steps")
    if strategy.zero == 0 and strategy.ep > 1:
        left_out.append(f"zero=0: written as FSDP, since torchtitan spreads ep={strategy.ep} over ranks that shard")
    elif strategy.zero == 0 and strategy.cp > 1:
        left_out.append(f"zero=0: torchtitan shards over the ranks of cp={strategy.cp} all the same")
    if RECOMPUTE.get(strategy.uniform_recompute or "") == "selective":
        left_out.append(f"recompute={strategy.recompute_name}: torchtitan's selective mode chooses other operators")
    elif strategy.uniform_recompute not in RECOMPUTE:
        left_out.append(f"recompute={strategy.recompute_name}: written as full, which fits wherever the plan does")
    if strategy.attention_kernel == "plain":
        left_out.append("attention_kernel=plain: torchtitan takes the kernel that torch chooses")
    left_out += written_schedule(plan, SCHEDULES)[1]
    if is_released and strategy.tp > 1 and not strategy.sequence_parallel:
        left_out.append(f"sequence_parallel=false: torchtitan until 0.2.2 has it wherever tp={strategy.tp} is above 1")
    if is_released and strategy.etp not in (None, 1):
        left_out.append(f"etp={strategy.etp}: torchtitan has 1 and tp={strategy.tp}, which is written")
    elif not is_released and strategy.etp != 1 and strategy.tp > 1 and strategy.ep > 1:
        etp = strategy.etp or strategy.tp
        left_out.append(f"etp={etp}: torchtitan's main branch keeps experts whole where ep={strategy.ep} spreads them")
    if strategy.cp > 1 and strategy.context_parallel not in ROTATE:
        left_out.append(f"context_parallel={strategy.context_parallel}: written as alltoall, torch's zigzag ring")
    if strategy.axis_order != AXIS_ORDER:
        left_out.append(f"axis_order={strategy.axis_order_name}: torchtitan's is {'-'.join(AXIS_ORDER)}")
    if plan.training.precision.rounds_at_random:
        left_out.append("precision=bf16_sr: torchtitan keeps FP32 parameters and has no stochastic rounding")
    if plan.training.precision.products is not None:
        precision = plan.training.precision
        left_out.append(
            f"precision={precision.name}: linear layers are in {precision.parameter_dtype} by this file; torchtitan "
            "converts them where model.converters says so"
        )
    if plan.model.shared_expert_intermediate_size:
        left_out.append(
            f"shared_expert_intermediate_size={plan.model.shared_expert_intermediate_size}: a matter of the flavor, as "
            "is its gate"
        )
    if plan.model.is_moe:
        left_out.append(f"expert_capacity_factor={plan.expert_slots:g}: torchtitan drops no tokens of an expert")
    if (coefficient := plan.model.router_aux_loss_coef) > 0:
        left_out.append(f"router_aux_loss_coef={coefficient:g}: torchtitan moves a bias of the choice instead")
    return tuple(left_out)
