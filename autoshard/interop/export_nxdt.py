"""Write a plan as a configuration of NxD Training (YAML)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoshard.backends.nxd import NXD
from autoshard.backends.rules import Problem, all_broken
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, members
from autoshard.interop.exported import IN_TURNS, Exported, common_left_out, title, written_schedule
from autoshard.interop.nxdt import MANUAL, MODEL_TYPES, RECOMPUTED, WRITTEN_OUT, recomputed_by, run_by
from autoshard.plans.plan import Plan
from autoshard.plans.prices import is_cheap, unrounded
from autoshard.spec.model import ModelSpec
from autoshard.spec.state_dtypes import GRADIENTS, with_state_dtypes
from autoshard.spec.training import Precision, load_precision
from autoshard.units import format_bytes

NAMES = {model_type: name for name, types in MODEL_TYPES.items() for model_type in types}
"""model_type -> `name` of NxD Training's model."""
PRECISION_TYPES = {"mixed_precision": "mixed_precision", "bf16_sr": "bf16SR", "fp32": "fp32"}
MODEL_CONFIG = "config.json"


def nxdt_yaml(plan: Plan) -> Exported:
    """The plan as a configuration of NxD Training (YAML).

    Raises AutoshardError for a model or a precision that NxD Training does not have.
    """
    import yaml

    model, precision = plan.model, _type(plan.training.precision)
    if model.model_type not in NAMES:
        raise AutoshardError(
            f"model_type={model.model_type} of {model.name} has no NxD Training model that a plan can be written for; "
            f"{', '.join(NAMES)} have one"
        )
    if precision is None:
        raise AutoshardError(
            f"precision {plan.training.precision.name} is unknown to NxD Training; {', '.join(PRECISION_TYPES)} are "
            "known"
        )
    values = {
        "name": NAMES[model.model_type],
        "model_source": "hf",
        "trainer": _trainer(plan),
        "exp_manager": {"checkpoint_callback_params": {"model_parallel_size": plan.strategy.tp * plan.strategy.pp}},
        "distributed_strategy": _distributed_strategy(plan),
        "data": {
            "micro_batch_size": plan.strategy.microbatch_size,
            "global_batch_size": plan.training.global_batch_size,
        },
        "model": _model(plan),
        "precision": _precision(plan),
    }
    return Exported(title(plan) + str(yaml.safe_dump(values, sort_keys=False, width=120)), _left_out(plan))


def _trainer(plan: Plan) -> dict[str, Any]:
    lnc = {"lnc": plan.cluster.lnc} if plan.cluster.platform.has_lnc_choice else {}
    return {"devices": plan.cluster.devices_per_node, **lnc, "num_nodes": plan.cluster.nodes}


def _distributed_strategy(plan: Plan) -> dict[str, Any]:
    strategy = plan.strategy
    values = {
        "tensor_model_parallel_size": strategy.tp,
        "pipeline_model_parallel_size": strategy.pp,
        "virtual_pipeline_model_parallel_size": strategy.num_virtual_stages,
        "zero1": strategy.zero > 0,
        "sequence_parallel": strategy.sequence_parallel,
        "kv_replicator": max(1, strategy.tp // plan.model.num_key_value_heads),
    }
    if strategy.cp > 1:
        values["context_parallel_size"] = strategy.cp
    if plan.model.is_moe:
        values["expert_model_parallel_size"] = strategy.ep
    return values


def _model(plan: Plan) -> dict[str, Any]:
    """The section `model`.

    fuse_qkv is off: NxD's fused weight loses its tensor-parallel mark, and the norm depends on tp. Mixtral does not
    read it.
    """
    model, strategy = plan.model, plan.strategy
    granularity, modules = _recompute(plan)
    ring = strategy.cp > 1
    values: dict[str, Any] = {
        "model_config": MODEL_CONFIG,
        "encoder_seq_length": plan.training.sequence_length,
        "max_position_embeddings": max(model.max_position_embeddings, plan.training.sequence_length),
        "num_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "rope_theta": model.rope_theta,
        "qkv_linear": _qkv_style(plan) in ("gqa", "fused"),
    }
    if not model.is_moe:
        values["fuse_qkv"] = False
    if len(strategy.stage_layers) > 1:
        values["pipeline_cuts"] = [f"model.layers.{stage.stop_layer - 1}" for stage in plan.stages[:-1]]
    if model.is_moe:
        values["moe"] = {
            "num_experts": model.num_local_experts,
            "top_k": model.num_experts_per_tok,
            "frequency": 1,
            "capacity_factor": plan.expert_slots,
            "dropless": False,
            "normalize_top_k_affinities": model.norm_topk_prob,
            # NxD divides its loss by top_k. Without one the weight is 0: NxD Training's pipelines expect the logits.
            "output_router_logits": True,
            "router_aux_loss_coef": model.router_aux_loss_coef * model.num_experts_per_tok,
        }
    values["activations_checkpoint_granularity"] = granularity
    values["activations_checkpoint_recompute"] = modules
    values["fusions"] = {"flash_attention": strategy.attention_kernel == "flash" and not ring, "ring_attention": ring}
    return values


def _qkv_style(plan: Plan) -> str:
    """The `--qkv` of autoshard convert whose names are those of NxD Training's model with the written file.

    [NxDT models/hf_models: modeling_mixtral.py leaves fuse_qkv at NxD's default, True]
    """
    model = plan.model
    if model.is_moe and model.num_key_value_heads == model.num_attention_heads:
        return "coalesced"
    if plan.strategy.tp <= model.num_key_value_heads:
        return "separate"
    return "fused" if model.is_moe else "gqa"


def _recompute(plan: Plan) -> tuple[str | None, list[str] | None]:
    name = plan.strategy.uniform_recompute
    if name == NO_RECOMPUTE:
        return None, None
    recomputed = members(name or FULL_RECOMPUTE)
    classes = {one: parts for one, parts in RECOMPUTED[plan.model.is_moe].items() if recomputed.issuperset(parts)}
    if recomputed == {part for parts in classes.values() for part in parts}:
        return "selective", list(classes)
    return "full", None


def _not_run_again(plan: Plan) -> Iterator[str]:
    """A sentence on attention that the plan runs again, where NxD Training has a kernel in the place of the class that
    it would; and on the memory that this takes."""
    strategy, modules = plan.strategy, _recompute(plan)[1] or []
    if WRITTEN_OUT not in modules or not (strategy.attention_kernel == "flash" or strategy.cp > 1):
        return
    again = recomputed_by(RECOMPUTED[plan.model.is_moe], run_by(modules, flash=True))
    other = replace(strategy, recompute=(again,) * len(strategy.recompute))
    left = "nothing" if again == NO_RECOMPUTE else again
    told = f"recompute={strategy.recompute_name}: NxD Training's kernel takes the place of {WRITTEN_OUT}, so {left}"
    if not is_cheap(plan):
        yield f"{told} runs again there, which keeps more"
        return
    planned, held = unrounded(plan), unrounded(replace(plan, strategy=other))
    difference = held.fullest.total_bytes - planned.fullest.total_bytes
    more = f"{format_bytes(difference)} more" if difference > 0 else "no more"
    fits = "" if held.fits or not planned.fits else ", and it no longer fits"
    yield f"{told} runs again there; the fullest device holds {more} than planned{fits}"


def _precision(plan: Plan) -> dict[str, Any]:
    """The section `precision`: the type, and the settings that it stands for, which `manual` would read.

    [NxDT examples/training_orchestrator.py]
    """
    precision = plan.training.precision
    name, mixed, rounded = precision.name, precision.master_dtype is not None, precision.rounds_at_random
    return {
        "type": _type(precision),
        "master_weights": mixed,
        "fp32_grad_acc": mixed and precision.sums_apart,
        "xla_use_bf16": "1" if rounded else "0",
        "xla_downcast_bf16": "1" if mixed else "0",
        "neuron_rt_stochastic_rounding_en": "1" if rounded else "0",
        "parallel_layers_reduce_dtype": "fp32" if name == "fp32" else "bf16",
    }


def _type(precision: Precision) -> str | None:
    """NxD Training's type of a precision: manual, whose fields say it, where gradients are in bf16 beside FP32 masters;
    None for one that it has not."""
    mixed = load_precision("mixed_precision")
    if precision == with_state_dtypes(mixed, ",".join(f"{name}=bfloat16" for name in GRADIENTS)):
        return MANUAL
    return PRECISION_TYPES.get(precision.name)


def _other_model(model: ModelSpec, sequence_length: int) -> Iterator[str]:
    """Sentences on what NxD Training trains otherwise than the model's config says.

    [NxDT lightning_modules/model/hf_models/llama_model.py sets config.head_dim; of models/hf_models modeling_mixtral.py
    alone has a window]
    """
    own = model.hidden_size // model.num_attention_heads
    if model.head_dim != own:
        yield (
            f"head_dim={model.head_dim}: NxD Training takes hidden_size / num_attention_heads={own}, another model, "
            f"which checkpoints of {model.name} do not fit"
        )
    window = model.sliding_window
    if window is not None and window < sequence_length and not model.is_moe:
        name = NAMES[model.model_type]
        yield f"sliding_window={window}: {name} of NxD Training has none, queries see all of {sequence_length} tokens"


def _left_out(plan: Plan) -> tuple[str, ...]:
    strategy, left_out = plan.strategy, list(common_left_out(plan, says_dtypes=GRADIENTS))
    left_out.append(
        f"model.model_config={MODEL_CONFIG}: NxD Training reads the model's other sizes from the file named there"
    )
    style = _qkv_style(plan)
    left_out.append(
        f"weights: autoshard convert SOURCE TARGET --plan PLAN --to nxd --qkv {style} names queries, keys and values "
        "as NxD Training's model does with this file"
    )
    left_out += _other_model(plan.model, plan.training.sequence_length)
    model = replace(plan.model, router_aux_loss_coef=0.0)  # NxD Training has that loss, backend nxd has not
    broken = all_broken(Problem(model, plan.training, plan.cluster, NXD.name), strategy)
    left_out += [f"the layout breaks a rule of NxD: {wrong}" for wrong in dict.fromkeys(wrong for _, wrong in broken)]
    if strategy.uniform_recompute != FULL_RECOMPUTE and _recompute(plan)[0] == "full":
        left_out.append(f"recompute={strategy.recompute_name}: written as full, which fits wherever the plan does")
    left_out += _not_run_again(plan)
    if strategy.uniform_recompute == "none" and strategy.attention_kernel == "plain" and not plan.model.is_moe:
        left_out.append("recompute=none: without flash attention NxD Training recomputes core attention all the same")
    left_out += written_schedule(plan, IN_TURNS)[1]
    if strategy.cp > 1:
        left_out.append(
            f"cp={strategy.cp}: NxD's optimizer checkpoints overwrite each other; a resumed run continues wrongly"
        )
    if plan.cluster.fold(strategy.tp) and strategy.dp > 1:
        left_out.append(
            f"tp={strategy.tp} at lnc {plan.cluster.lnc} has folded rank groups, and NxD's save_checkpoint leaves out "
            "the model files of half their ranks; autoshard convert writes all, autoshard run saves its own"
        )
        if not strategy.zero:
            left_out.append(
                f"zero1=false with tp={strategy.tp}: NxD sums gradients of different shards; use zero1=true"
            )
    if style == "fused":
        left_out.append(
            "qkv_linear=true: NxD Training's Mixtral fuses queries, keys and values whatever fuse_qkv says, and NxD's "
            "fused weight loses its tensor-parallel mark: the gradient norm, and so gradient_clip_val, depend on tp"
        )
    elif style == "gqa":
        left_out.append(
            f"kv_replicator={strategy.tp // plan.model.num_key_value_heads}: NxD's gradient norm counts key-value "
            "weights that often, so gradient_clip_val sets in early"
        )
    if strategy.tp > plan.model.num_key_value_heads and not plan.cluster.platform.kv_heads_innermost:
        left_out.append(
            f"random initial weights: on {plan.cluster.instance} NxD repeats rows of key-value weights, not heads; "
            "start from a checkpoint (autoshard convert)"
        )
    if not plan.cluster.platform.is_trainium:
        left_out.append(f"instance={plan.cluster.instance}: NxD Training runs on Trainium")
    return tuple(left_out)
