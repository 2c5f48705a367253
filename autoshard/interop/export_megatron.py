"""Write a plan as Megatron-LM's command-line arguments."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, gcd

from autoshard.graph.orthogonal import NEWTON_SCHULZ_STEPS
from autoshard.graph.recompute import COMMON_SETS
from autoshard.interop.exported import IN_TURNS, Exported, common_left_out, title, written_schedule
from autoshard.interop.megatron import (
    AWARE,
    FSDP,
    FSDP_DTYPES,
    MOMENTS_DTYPES,
    MUON_MODE,
    MUON_STEPS,
    REDUCE_IN_BF16,
    TP_PP_DP,
    llama3_scaling,
)
from autoshard.interop.written_dtypes import SENT
from autoshard.interop.written_model import property_of
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.plans.plan import Plan
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import RMS_NORM
from autoshard.spec.state_dtypes import GRADIENTS, MOMENTS, apart_from_masters
from autoshard.spec.training import FLOAT8, MUON

SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", FLOAT8: "fp8"}
"""Megatron's names of dtypes."""
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
LOW_PRECISION = {
    "fp8": "--fp8-format hybrid --fp8-recipe delayed",
    "fp8_block": "--fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--fp4-format e2m1 --fp4-recipe nvfp4",
}
"""What Megatron calls the formats of linear layers' products."""
SCALED_NOW = "--fp8-format hybrid --fp8-recipe tensorwise"
"""What fp8 is with blocks in bf16, which Megatron's delayed scaling does not have: scales of the step itself."""
GATHERED_LOW = {
    "fp8": "--fp8-param-gather",
    "fp8_block": "--fp8-param-gather",
    "mxfp8": "--fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag",
}
"""Flags of parameters held in the format, which Megatron's distributed optimizer of AdamW alone has."""
VOCABULARY_MULTIPLE = 128
"""--make-vocab-size-divisible-by without the flag: of a rank's rows of the vocabulary."""
COMMUNICATION = {"zigzag_ring": "p2p", "ulysses": "a2a", "all_gather": "allgather"}


def megatron_arguments(plan: Plan) -> Exported:
    """The plan as lines of a shell array; the first line is for torchrun, the rest for pretrain_gpt.py."""
    torchrun = f"--nnodes {plan.cluster.nodes} --nproc-per-node {plan.cluster.devices_per_node}"
    lines = [*_model(plan), *_layout(plan), *_batch(plan)]
    body = "".join(f"    {line}\n" for line in lines)
    text = f"{title(plan)}TORCHRUN_ARGUMENTS=(\n    {torchrun}\n)\nMEGATRON_ARGUMENTS=(\n{body})\n"
    return Exported(text, _left_out(plan))


def _model(plan: Plan) -> Iterator[str]:
    model = plan.model
    yield f"--num-layers {model.num_hidden_layers} --hidden-size {model.hidden_size}"
    yield f"--ffn-hidden-size {model.intermediate_size} --num-attention-heads {model.num_attention_heads}"
    positions = model.max_position_embeddings
    if model.rope_theta is not None:
        positions = max(positions, plan.training.sequence_length)
    yield f"--kv-channels {model.head_dim} --max-position-embeddings {positions}"
    multiple = gcd(VOCABULARY_MULTIPLE, ceil(model.vocab_size / plan.strategy.tp))
    divisible = f" --make-vocab-size-divisible-by {multiple}" if multiple != VOCABULARY_MULTIPLE else ""
    yield f"--vocab-size {model.vocab_size}{divisible}"
    if model.num_key_value_heads != model.num_attention_heads:
        yield f"--group-query-attention --num-query-groups {model.num_key_value_heads}"
    if model.rope_theta is None:
        yield "--position-embedding-type learned_absolute"
    else:
        yield f"--position-embedding-type rope --rotary-base {model.rope_theta:.0f}"
        if model.partial_rotary_factor != 1:
            yield f"--rotary-percent {model.partial_rotary_factor:g}"
    if model.rope_scaling is not None and model.rope_scaling == llama3_scaling(model.rope_scaling.factor):
        yield f"--use-rope-scaling --rope-scaling-factor {model.rope_scaling.factor:g}"
    activation = {"silu": ["--swiglu"], "relu2": ["--squared-relu"]}.get(model.hidden_act, [])
    norm = ["--normalization RMSNorm"] if model.normalization == RMS_NORM else []
    if activation or norm:
        yield " ".join([*activation, *norm])
    yield f"--norm-epsilon {model.norm_eps:g}"
    match property_of(model, "bias"):
        case "none":
            yield "--disable-bias-linear"
        case "qkv":
            yield "--disable-bias-linear --add-qkv-bias"
    if not model.tie_word_embeddings:
        yield "--untie-embeddings-and-output-weights"
    if model.normalizes_heads:
        yield "--qk-layernorm"
    if model.is_moe:
        factor = plan.expert_slots
        yield f"--num-experts {model.num_local_experts} --moe-router-topk {model.num_experts_per_tok}"
        yield f"--moe-ffn-hidden-size {model.intermediate_size} --moe-expert-capacity-factor {factor:g}"
        yield "--moe-token-dispatcher-type alltoall"  # which alone knows capacities, also where ep is 1
        if not model.norm_topk_prob:
            yield "--moe-router-pre-softmax"
        if (coefficient := _of_each_layer(model)) > 0:
            yield f"--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff {coefficient:.6g}"
    if model.shared_expert_intermediate_size:
        yield f"--moe-shared-expert-intermediate-size {model.shared_expert_intermediate_size} --moe-shared-expert-gate"


def _layout(plan: Plan) -> Iterator[str]:
    strategy = plan.strategy
    yield f"--tensor-model-parallel-size {strategy.tp} --pipeline-model-parallel-size {strategy.pp}"
    yield f"--context-parallel-size {strategy.cp} --expert-model-parallel-size {strategy.ep}"
    if strategy.etp is not None:
        yield f"--expert-tensor-parallel-size {strategy.etp}"
    if strategy.axis_order_name == TP_PP_DP:
        yield "--use-tp-pp-dp-mapping"
    if strategy.cp > 1:
        yield f"--cp-comm-type {COMMUNICATION.get(strategy.context_parallel, 'p2p')}"
    if len(set(strategy.stage_layers)) > 1:
        stages = "|".join(
            f"{'E' if stage.has_embedding else ''}t*{len(stage.layers)}{'L' if stage.has_head else ''}"
            for stage in plan.stages
        )
        yield f"--pipeline-model-parallel-layout '{stages}'"
    elif strategy.num_virtual_stages > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {strategy.num_virtual_stages}"
    if strategy.sequence_parallel or _needs_sequence_parallel(plan):
        yield "--sequence-parallel"
    has_muon = plan.training.optimizer == MUON
    if strategy.zero:
        yield "--use-distributed-optimizer"
    if _has_fsdp(plan):
        yield f"--{FSDP} --data-parallel-sharding-strategy {SHARDING[strategy.zero]}"
        precision = plan.training.precision
        dtypes = precision.gradient_accumulation_dtype, precision.gradient_reduce_dtype
        yield " ".join(f"--{flag} {SHORT[dtype]}" for flag, dtype in zip(FSDP_DTYPES, dtypes, strict=True))
        yield "--ckpt-format fsdp_dtensor"
    if strategy.dp_replicate > 1 and not has_muon:
        yield f"--num-distributed-optimizer-instances {strategy.dp_replicate}"
    if has_muon:
        mode = f" --{MUON_MODE} distributed" if strategy.tp > 1 else ""
        yield f"--optimizer {MUON} --{MUON_STEPS} {NEWTON_SCHULZ_STEPS}{mode}"
    yield from _state_dtypes(plan)
    yield f"--attention-backend {'flash' if strategy.attention_kernel == 'flash' else 'unfused'}"
    match strategy.uniform_recompute:
        case "none":
            pass
        case "core_attention":
            yield "--recompute-granularity selective --recompute-modules core_attn"
        case "core_attention+mlp":
            mlp = "moe" if plan.model.is_moe else "mlp"
            yield f"--recompute-granularity selective --recompute-modules core_attn {mlp}"
        case _:
            yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def _batch(plan: Plan) -> Iterator[str]:
    training = plan.training
    yield f"--micro-batch-size {plan.strategy.microbatch_size} --global-batch-size {training.global_batch_size}"
    yield f"--seq-length {training.sequence_length}"
    dropout = plan.model.dropout  # without the flags Megatron drops a tenth
    yield f"--hidden-dropout {dropout.residual:g} --attention-dropout {dropout.attention:g}"
    if training.precision.parameter_dtype == "bfloat16":
        yield "--bf16"
    products = training.precision.products
    if products is not None and products.name in LOW_PRECISION:
        ends = _blocks_in_bf16(plan)
        low = SCALED_NOW if products.name == "fp8" and any(ends) else LOW_PRECISION[products.name]
        is_sharded = plan.strategy.zero and training.optimizer != MUON
        gathered = GATHERED_LOW.get(products.name) if is_sharded else None
        yield f"{low} {gathered}" if gathered else low
        if any(ends):
            at_ends = f"--num-layers-at-start-in-bf16 {ends[0]} --num-layers-at-end-in-bf16 {ends[1]}"
            yield f"--first-last-layers-bf16 {at_ends}"


def _of_each_layer(model: ModelSpec) -> float:
    """The weight of each layer's load-balancing loss. Megatron adds the layers' losses, each 1 where experts have
    equally many tokens; router_aux_loss_coef is of their mean, each as much as a token has experts."""
    return model.router_aux_loss_coef * model.num_experts_per_tok / max(1, model.num_sparse_layers)


def _needs_sequence_parallel(plan: Plan) -> bool:
    """Whether Megatron trains these experts with sequence parallelism alone, which the plan has not."""
    return plan.model.is_moe and plan.strategy.tp > 1 and not plan.strategy.sequence_parallel


def _blocks_in_bf16(plan: Plan) -> tuple[int, int]:
    """Blocks at either end that Megatron keeps in bf16: with FP8 at most as many as a pipeline rank has."""
    training, products = plan.training, plan.training.precision.products
    wanted = training.unquantized_first, training.unquantized_last
    if products is None or products.name not in GATHERED_LOW:
        return wanted
    most = plan.model.num_hidden_layers // plan.strategy.pp
    return min(wanted[0], most), min(wanted[1], most)


def _of_muon(plan: Plan) -> Iterator[str]:
    """Sentences on what Megatron's Muon does otherwise [core/optimizer/__init__.py, training/arguments.py]."""
    strategy = plan.strategy
    if plan.training.optimizer != MUON:
        return
    yield f"optimizer={MUON}: --muon-momentum and --muon-extra-scale-factor, as the learning rate, are yours to add"
    if strategy.tp > 1:
        yield f"optimizer={MUON}: ranks of tp={strategy.tp} orthogonalise each matrix together there, not one for all"
    products = plan.training.precision.products
    if strategy.zero and products is not None and products.name in GATHERED_LOW:
        yield f"precision={products.name}: Megatron gathers parameters in bf16 with Muon"
    if strategy.zero > 1:
        whole = "gradients" if strategy.zero == 2 else "gradients and weights"
        yield f"zero={strategy.zero}: Megatron has no FSDP with Muon; ZeRO-1 is written, with whole {whole}"
    if strategy.dp_replicate > 1:
        yield f"dp_replicate={strategy.dp_replicate}: Megatron's Muon has one group of shards, over all of dp"


def _said_dtypes(plan: Plan) -> set[str]:
    """The dtypes of gradients and moments, by FIELDS of spec/state_dtypes.py, that Megatron has flags for: of gradients
    one for both, but with its FSDP, and of moments with shards alone, none in blocks."""
    apart = apart_from_masters(plan.training.precision)
    gradients = {*GRADIENTS} if _has_fsdp(plan) or {*GRADIENTS} <= apart.keys() else set[str]()
    has_moments = plan.strategy.zero and apart.get(MOMENTS) in SHORT
    return gradients | ({MOMENTS} if has_moments else set[str]())


def _has_fsdp(plan: Plan) -> bool:
    """Whether the plan is written with Megatron's FSDP, which has no Muon."""
    return plan.strategy.zero > 1 and plan.training.optimizer != MUON


def _state_dtypes(plan: Plan) -> Iterator[str]:
    said = _said_dtypes(plan)
    if SENT in said and not _has_fsdp(plan):
        yield f"--{REDUCE_IN_BF16}"
    if MOMENTS in said:
        dtype = SHORT[plan.training.precision.optimizer_dtype]
        yield f"--{AWARE} " + " ".join(f"--{flag} {dtype}" for flag in MOMENTS_DTYPES)


def _left_out(plan: Plan) -> tuple[str, ...]:
    strategy, model = plan.strategy, plan.model
    common = common_left_out(plan, says_dropout=True, says_muon=True, says_dtypes=_said_dtypes(plan))
    left_out = [*common, *_of_muon(plan)]
    if model.dropout.embedding != model.dropout.residual:
        written = f"--hidden-dropout is of both; residual={model.dropout.residual:g} is written"
        left_out.append(f"dropout embedding={model.dropout.embedding:g}: Megatron's {written}")
    left_out += written_schedule(plan, IN_TURNS)[1]
    if strategy.uniform_recompute not in COMMON_SETS:
        left_out.append(f"recompute={strategy.recompute_name}: written as full, which fits wherever the plan does")
    if _needs_sequence_parallel(plan):
        left_out.append(
            f"sequence_parallel=false: Megatron trains experts with tp={strategy.tp} with --sequence-parallel alone, "
            "which is written"
        )
    if strategy.cp > 1 and strategy.context_parallel not in COMMUNICATION:
        left_out.append(f"context_parallel={strategy.context_parallel}: written as p2p, Megatron's zigzag ring")
    if strategy.axis_order_name not in (TP_PP_DP, "-".join(AXIS_ORDER)):
        left_out.append(f"axis_order={strategy.axis_order_name}: Megatron's is {'-'.join(AXIS_ORDER)} or {TP_PP_DP}")
    if strategy.axis_order_name == TP_PP_DP and strategy.ep > 1:
        left_out.append(f"axis_order={TP_PP_DP} with ep={strategy.ep}: Megatron puts experts inside the pipeline")
    if plan.training.precision.rounds_at_random:
        left_out.append("precision=bf16_sr: written as --bf16, which keeps FP32 master weights and rounds to nearest")
    products = plan.training.precision.products
    if products is not None and products.name not in LOW_PRECISION:
        left_out.append(f"precision={plan.training.precision.name}: Megatron has no such recipe; written as --bf16")
    elif products is not None:
        first, last = _blocks_in_bf16(plan)
        if (first, last) != (plan.training.unquantized_first, plan.training.unquantized_last):
            most = f"Megatron keeps at most layers / pp={model.num_hidden_layers // strategy.pp} at either end in bf16"
            left_out.append(f"keep_bf16={plan.training.kept_wide}: {most}, which is written")
        if products.name == "fp8" and (first or last):
            left_out.append("precision=fp8: Megatron's delayed scaling keeps no blocks in bf16; written as tensorwise")
    if plan.training.unquantized:
        left_out.append(f"keep_bf16={'+'.join(plan.training.unquantized)}: Megatron keeps whole blocks in bf16 alone")
    if model.sliding_window is not None:
        left_out.append(f"sliding_window={model.sliding_window}: Megatron takes it with Transformer Engine only")
    if model.rope_scaling is not None and model.rope_scaling != llama3_scaling(model.rope_scaling.factor):
        left_out.append(
            f"rope_scaling {model.rope_scaling.rope_type}: Megatron's --use-rope-scaling is Llama 3.1's alone"
        )
    if model.rope_theta is not None and not float(model.rope_theta).is_integer():
        left_out.append(f"rope_theta={model.rope_theta}: --rotary-base is a whole number")
    if model.rope_theta is None and plan.training.sequence_length > model.max_position_embeddings:
        learned = f"{model.name} has {model.max_position_embeddings:,} learned positions"
        left_out.append(
            f"sequence_length={plan.training.sequence_length}: {learned}; Megatron refuses longer sequences"
        )
    if model.use_parallel_residual:
        left_out.append("use_parallel_residual: Megatron runs the MLP after attention")
    if property_of(model, "bias") == "attention":
        left_out.append("attention_bias: Megatron has biases everywhere, or of q, k and v alone (--add-qkv-bias)")
    if model.shared_expert_intermediate_size:
        left_out.append(
            "--moe-shared-expert-gate: Megatron has it since Core 0.13, earlier ones add the expert ungated"
        )
    if plan.cluster.platform.is_trainium:
        left_out.append(f"instance={plan.cluster.instance}: Megatron-LM runs on GPUs")
    return tuple(left_out)
