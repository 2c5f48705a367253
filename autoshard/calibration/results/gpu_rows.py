"""Reads results on GPUs: a row names the GPU and the software that ran on it. Knows no constants."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autoshard.calibration.results.dispatch import USUAL, Dispatch, dispatch_of
from autoshard.calibration.results.gradients import SAID, SINGLE, assumed_gradients, known_gradients
from autoshard.calibration.results.mixtures import Extras, Spread, extras, spread
from autoshard.calibration.results.rows import Row, Unscored, blocks, count, fields_left_open, integer, number, pipeline
from autoshard.cost.stage import DenseBlocks
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, SELECTED, SELECTIVE, canonical
from autoshard.interop import megatron
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.schedules import SCHEDULES, usual_schedule
from autoshard.spec.model import ModelSpec
from autoshard.spec.product_format import PRODUCT_FORMATS, ProductFormat
from autoshard.spec.training import Precision, TrainingSpec, load_precision
from autoshard.units import GIB

COLUMNS = ("source_id", "gpu", "n_gpus", "model", "layers", "hidden", "heads", "ffn", "act", "vocab", "seq_len", "gbs")
"""Columns that a row must have; any other that is missing counts as 1 or none."""

GATED = ("swiglu", "geglu", "silu", "reglu")
"""Activations of a gated MLP: three matrices."""
KERNELS = (
    ("flash_attentionv1", "flash_attention_1"),
    ("flash1", "flash_attention_1"),
    ("no flash", "fused_softmax"),
    ("unfused", "fused_softmax"),
    ("cudnn", "cudnn"),
    ("te fused", "cudnn"),
    ("flash", "flash_attention_2"),
    ("sdpa", "flash_attention_2"),
    ("fused", "fused_softmax"),
    ("torch", "torch"),
    ("naive", "torch"),
)
"""(text in the row's attn_kernel, name of the kernel); the first that matches counts."""
TRITON = "llm-foundry"
"""How frameworks begin whose "flash" is Triton's copy of the first flash kernel. attn_impl is triton in llm-foundry's
scripts/train/benchmarking/submit_benchmarks.py, and sweep.sh beside it, which has the microbatches of the rows, asks
for no other."""
LOW_PRECISIONS = ("nvfp4", "mxfp8", "fp8")
"""Formats of products in a row's precision; the first that is found counts."""
WHOLE_GATHERS = "rowwise"
"""What precisions say whose activations travel between tensor-parallel ranks in 16 bits, though products read 8:
"float8 all-gather with TP is only supported for tensorwise" [torchtitan, models/llama3/parallelize_llama.py]."""
MODULES = {
    **{name: megatron.MODULES[name] for name in ("core_attn", "layernorm")},
    "moe_act": "block_sparse_moe.experts.act_fn",
}
"""Megatron-Core's --recompute-modules -> what a block here calls them. Not its mla_up_proj: latent attention is priced
as heads of equal FLOPs, which have no products behind compressed vectors."""
EVERY_SECOND = canonical(
    "attention_norm+mlp_norm+residual+self_attn.k_proj+self_attn.o_proj+self_attn.q_rope+self_attn.k_rope+"
    "mlp.up_proj+mlp.act_fn"
)
"""torchtitan's selective activation checkpointing of operators: it keeps attention and the first, third, ... of a
block's products in the order in which they run (wq, wk, wv, wo, w1, w3, w2), and repeats all else
[torchtitan/parallelisms/parallelize_llama.py: _save_list and _get_custom_policy]."""
HYBRID = re.compile(r"\bHSDP\b(?:[^;]*?\bfor (\d[\d.]*B(?:/\d[\d.]*B)*))?")
"""What a framework or notes say of shards that fill a node and are repeated in others, and of which sizes of models:
of all where they name none."""
OFFLOAD = re.compile(r"\s*\+\s*cpu offload (\d+) layers", re.IGNORECASE)
"""What a row's recompute says of layers whose activations go to the host."""
EXPERT_IMBALANCE = 1.0
"""Tokens of the busiest rank's experts over the mean: published benchmarks route evenly by force."""
ENDS_HOLD_LESS = ("embedding counted as layer", "first and last stage hold one layer less")
"""Notes of rows whose first and last stage hold a layer less than the others."""
PLAIN_KERNELS = ("fused_softmax", "torch")
LATENT_ON_BLACKWELL = 25.07
"""The first of NeMo's containers with a flash kernel that trains latent attention on Blackwell: cuDNN has one for heads
of 192 and 128 columns from 9.11 on, and before Transformer Engine takes its plain attention (recalled, not read, of its
nvte_get_fused_attn_backend). The rows agree: DeepSeek-V3's recipe of NeMo 25.04 recomputes the core of attention on
GB200, which frees nothing where a flash kernel runs, and does not on H100, with less than half the memory."""
OTHER_RELEASE = "NOT the release of this row"
"""What a note says where a setting was read in another release of the software than that which was measured."""


@dataclass(frozen=True)
class Case:
    """One measured row. family, link, network: the machine. stack, kernel: the software.

    low_precision: format of linear layers' inputs, "" where it is the half-precision one. trusted: False where part of
    the row was guessed or taken from another release: it is scored, and nothing is fitted to it.
    network_bytes_per_s: of one node, all its adapters, one direction; None where the row does not say. time_s,
    memory_bytes: as measured, None where they were not (nvidia-smi and torch print binary units whatever they call
    them). allocated_only: memory_bytes is of tensors alone, without the context and what the allocator loses.
    overlaps: False where the row says that nothing was sent beside work. fits: False for a run that ran out of memory.
    dense: blocks of a mixture that have no experts. dispatch: how a mixture's tokens travel.
    assumed: what was assumed of its gradients, in words; empty where their dtype is known. gathers_quantized: whether
    tensor parallelism sends what 8-bit products read in 8 bits: see WHOLE_GATHERS. offloaded: of all blocks, those
    whose activations go to the host.
    """

    key: str
    source: str
    group: str
    gpu: str
    memory_gb: float | None
    gpus_per_node: int
    nodes: int
    network_bytes_per_s: float | None
    model: ModelSpec
    training: TrainingSpec
    strategy: Strategy
    stack: str
    kernel: str
    zero: int
    low_precision: str
    fused_norm: bool
    cuda_graphs: bool
    overlaps: bool
    trusted: bool
    time_s: float | None
    memory_bytes: float | None
    allocated_only: bool
    fits: bool
    dense: DenseBlocks | None = None
    dispatch: Dispatch = USUAL
    assumed: str = ""
    gathers_quantized: bool = True
    offloaded: float = 0.0


def gpu_case(row: Row) -> Case:
    """The case of one row. Raises Unscored where something that the model needs is missing or is beyond what it
    describes."""
    status = row.get("status") or "ok"
    if status not in ("ok", "oom"):
        raise Unscored(f"status {status!r} is neither ok nor oom")
    time_s = number(row, "iter_time_s")
    if status == "ok" and time_s is None and number(row, "mem_gb") is None:
        raise Unscored("neither a step time nor memory was measured")
    try:
        copied = offloaded(row)
        model, strategy, dense = gpu_model(row), gpu_strategy(row), dense_blocks(row)
        experts = spread(row, strategy.tp, strategy.dp, strategy.cp)
        half = "float16" if "fp16" in row.get("precision", "").lower() else "bfloat16"
        training = TrainingSpec(
            integer(row, "seq_len"), integer(row, "gbs"), precision(row, half), expert_imbalance=EXPERT_IMBALANCE
        )
        if model.is_moe and strategy.cp > 1:
            training, strategy = _without_context_parallel(training, strategy, experts)
    except AutoshardError as error:
        raise Unscored(str(error)) from error
    world, per_node = count(row, "n_gpus"), count(row, "gpus_per_node", 8)
    if world != strategy.world_size:
        raise Unscored(f"n_gpus={world} is not tp x pp x dp x cp = {strategy.world_size}")
    replicas = strategy.dp * strategy.microbatch_size
    if training.global_batch_size < replicas:
        raise Unscored(f"gbs={training.global_batch_size} is less than dp x mbs = {replicas}")
    per_node = min(per_node, world)
    if world % per_node:
        raise Unscored(f"n_gpus={world} does not fill nodes of {per_node}")
    memory_gb = number(row, "mem_gb")
    return Case(
        key=row.get("row_id") or "?",
        source=row["source_id"],
        group=row.get("group_id") or row["source_id"],
        gpu=row["gpu"],
        memory_gb=number(row, "gpu_mem_gb"),
        gpus_per_node=per_node,
        nodes=world // per_node,
        network_bytes_per_s=network(row.get("inter_link", ""), per_node),
        model=model,
        training=training,
        strategy=strategy,
        stack=(row.get("framework") or "unknown").strip(),
        kernel=kernel(_kernel_text(row)),
        zero=integer(row, "zero", 0),
        low_precision=next((name for name in LOW_PRECISIONS if name in row.get("precision", "").lower()), ""),
        fused_norm="fusedRMSNorm" in row.get("attn_kernel", ""),
        cuda_graphs=bool(re.search(r"(?<!\bno )(?<!\bwithout )CUDA graphs", row.get("notes", ""))),
        overlaps="no TP/DP/p2p overlap" not in row.get("notes", ""),
        trusted=row.get("complete", "yes") != "no" and OTHER_RELEASE not in row.get("notes", ""),
        time_s=time_s if status == "ok" else None,
        memory_bytes=memory_gb * GIB if memory_gb and status == "ok" else None,
        allocated_only="max_memory_allocated" in row.get("mem_kind", ""),
        fits=status == "ok",
        dense=dense,
        dispatch=dispatch_of(row) if model.is_moe else USUAL,
        assumed=assumption(row),
        gathers_quantized=WHOLE_GATHERS not in row.get("precision", "").lower(),
        offloaded=copied,
    )


def _without_context_parallel(
    training: TrainingSpec, strategy: Strategy, experts: Spread
) -> tuple[TrainingSpec, Strategy]:
    """The same work without context parallelism: each part of a sequence counts as a sequence of its own, because
    mixtures of experts are routed on whole sequences here. It leaves out the attention between parts, a few percent of
    such models."""
    cp = strategy.cp
    shorter = replace(
        training,
        sequence_length=training.sequence_length // cp,
        global_batch_size=training.global_batch_size * cp,
    )
    ep, etp, dp = experts.ep, experts.etp, strategy.dp * cp
    return shorter, replace(strategy, cp=1, dp=dp, ep=ep, etp=etp, context_parallel="all_gather")


def gpu_model(row: Row) -> ModelSpec:
    """The model in the row. Norms, positions and biases follow from the activation's family."""
    act, hidden, heads = row.get("act", "").lower(), count(row, "hidden"), count(row, "heads")
    experts = integer(row, "moe_experts", 0)
    gpt = act not in GATED and experts <= 1
    more = extras(row) if experts > 1 else Extras()
    key_value_heads, head_dim = integer(row, "kv_heads", heads), integer(row, "head_dim", hidden // heads)
    if more.latent is not None:
        key_value_heads, head_dim = 1, more.latent.value
    shared = max(0, more.shared_width + latent_columns(row, more))
    kind = "gpt2" if gpt else "llama"
    if experts > 1:
        kind = "qwen2_moe" if shared else "mixtral"
    return ModelSpec(
        name=row.get("model") or "unnamed",
        model_type=kind,
        hidden_size=hidden,
        intermediate_size=integer(row, "moe_ffn", 0) or integer(row, "ffn") if experts > 1 else integer(row, "ffn"),
        num_hidden_layers=blocks(row),
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        vocab_size=integer(row, "vocab"),
        max_position_embeddings=integer(row, "seq_len"),
        tie_word_embeddings=row.get("tied_emb", "").lower() == "yes",
        **fields_left_open(gpt),
        num_local_experts=experts if experts > 1 else 0,
        num_experts_per_tok=integer(row, "moe_topk", 1) if experts > 1 else 0,
        shared_expert_intermediate_size=shared,
    )


def latent_columns(row: Row, more: Extras) -> int:
    """Columns of a gated MLP, fewer or more, that make up for pricing latent attention as heads as wide as its values
    that share one key: of equal FLOPs, projections and scores together."""
    if more.latent is None:
        return 0
    hidden, heads, keys = integer(row, "hidden"), integer(row, "heads"), integer(row, "seq_len") // 2
    latent = more.latent
    usual = hidden * latent.value * (2 * heads + 2)
    scores = heads * keys * (latent.unturned + latent.turned - latent.value)
    return round((latent.weights(hidden, heads) - usual + scores) / (3 * hidden))


def dense_blocks(row: Row) -> DenseBlocks | None:
    """The blocks without experts of a row's mixture; None where all have them."""
    model = gpu_model(row)
    if not model.is_moe or not (more := extras(row)).dense_share:
        return None
    dense = replace(
        model,
        model_type="llama",
        intermediate_size=integer(row, "ffn") + latent_columns(row, more),
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_expert_intermediate_size=0,
    )
    return DenseBlocks(dense, more.dense_share)


def gpu_strategy(row: Row) -> Strategy:
    """The layout in the row. Where the sequence divides, context parallelism is a ring, as in Megatron and torch."""
    layers, (pp, vpp) = blocks(row), pipeline(row)
    tp, dp, cp = (count(row, name, 1) for name in ("tp", "dp", "cp"))
    experts = spread(row, tp, dp, cp) if cp == 1 else Spread(1, None)
    if pp == 1:
        vpp = 1
    stages = pp * vpp
    cut = even_stage_layers(layers, stages)
    ends_hold_less = any(text in row.get("notes", "") for text in ENDS_HOLD_LESS)
    if ends_hold_less and (layers + 2) % stages == 0 and stages > 1:
        each = (layers + 2) // stages
        cut = (each - 1, *(each,) * (stages - 2), each - 1)
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=experts.ep,
        num_virtual_stages=vpp,
        microbatch_size=count(row, "mbs", 1),
        schedule=named_schedule(row.get("framework", ""), vpp),
        recompute=(recompute(row),),
        sequence_parallel=integer(row, "sp", 0) == 1 and tp > 1,
        zero=int(integer(row, "zero", 0) > 0),
        attention_kernel="plain" if kernel(_kernel_text(row)) in PLAIN_KERNELS else "flash",
        stage_layers=cut,
        context_parallel="zigzag_ring" if cp > 1 and integer(row, "seq_len") % (2 * cp) == 0 else "all_gather",
        etp=experts.etp,
        dp_replicate=copies_of_shards(row, dp),
    )


def copies_of_shards(row: Row, dp: int) -> int:
    """How many nodes hold all shards each (HSDP), 1 where they are spread over all ranks or the row says nothing."""
    found = HYBRID.search(f"{row.get('framework', '')}; {row.get('notes', '')}")
    nodes, rest = divmod(count(row, "n_gpus"), count(row, "gpus_per_node", 8))
    if found is None or rest or dp % max(1, nodes) or integer(row, "zero", 0) < 2:
        return 1
    named = [rf"(?<![\d.]){re.escape(size)}\b" for size in (found[1] or "").split("/") if size]
    return nodes if not named or any(re.search(size, row.get("model", "")) for size in named) else 1


def named_schedule(framework: str, vpp: int) -> str:
    """The schedule that a row's framework names, or the usual one of so many virtual stages. Raises Unscored where it
    is none of ours."""
    name = framework.partition("schedule ")[2]
    if name.startswith("ZB-2p"):
        raise Unscored("schedule ZB-2p holds twice the activations of 1F1B; none of autoshard's does")
    if name.startswith("ZB-1p"):
        return next(known for known, schedule in SCHEDULES.items() if schedule.weights_apart)
    return usual_schedule(vpp)


def recompute(row: Row) -> str:
    """The recompute set of a row. "selective" alone is Megatron's, core attention; torchtitan's is EVERY_SECOND; what
    Megatron-Core names in brackets is in MODULES; else modules and operators joined by +, as plans write them, before
    what goes to the host. Raises AutoshardError for a text that is no set."""
    text = OFFLOAD.sub("", row.get("recompute", "").lower())
    if text.startswith("full"):
        return FULL_RECOMPUTE
    if "+" in text and not text.startswith(SELECTIVE):
        return canonical(OFFLOAD.sub("", row["recompute"]))
    if not text.startswith(SELECTIVE):
        return NO_RECOMPUTE
    if row.get("framework", "").lower().startswith("torchtitan"):
        return EVERY_SECOND
    if not (named := re.search(r"\[(.*)\]", text)):
        return SELECTED
    found = [MODULES[name] for name in named[1].split(",") if name in MODULES]
    return canonical("+".join(found)) if found else NO_RECOMPUTE


def offloaded(row: Row) -> float:
    """The share of blocks whose activations go to the host. Raises Unscored where a row does not say of how many, or
    has experts, whose blocks differ."""
    text = row.get("recompute", "")
    if "offload" not in text.lower():
        return 0.0
    if not (found := OFFLOAD.search(text)) or integer(row, "moe_experts", 0) > 1:
        raise Unscored(f"recompute={text!r}: copies to the host are priced of a number of layers without experts")
    return min(1.0, int(found[1]) / blocks(row))


def _kernel_text(row: Row) -> str:
    """The words of a row on its attention kernel; of NeMo 2, which has Transformer Engine's, that takes cuDNN's kernels
    on Hopper and Blackwell, where it says nothing; "unfused" where no release of those had one yet; see TRITON."""
    release = re.search(r"NeMo (2\d\.\d\d)\b", row.get("framework", ""))
    if release and float(release[1]) < LATENT_ON_BLACKWELL and re.match(r"G?B\d", row["gpu"]) and extras(row).latent:
        return "unfused"
    if row.get("framework", "").lower().startswith(TRITON) and row.get("attn_kernel") == "flash":
        return "flash1"
    silent = "cudnn" if row.get("framework", "").lower().startswith("nemo 2") else ""
    return row.get("attn_kernel") or silent


def kernel(text: str) -> str:
    lowered = text.lower()
    return next((name for part, name in KERNELS if part in lowered), "flash_attention_2")


def precision(row: Row, half: str) -> Precision:
    """Number formats: parameters in `half` with FP32 master weights and moments; the row decides the gradients'
    format."""
    text = row.get("precision", "").lower()
    products = next((PRODUCT_FORMATS[name] for name in LOW_PRECISIONS if name in text), None)
    if text == "fp32":
        return load_precision("fp32")
    found = known_gradients(row.get("framework", "")) or assumed_gradients(integer(row, "zero", 0) >= 2)
    summed, sent = (single(half) if one == SINGLE else half for one in (found.summed, found.sent))
    if any(words in text for words in SAID):
        summed = sent = single(half)
    return _precision(half, summed, sent, products)


def single(half: str) -> str:
    """The dtype of gradients that a stack keeps in float32 beside bfloat16. Beside float16 they stay in it: Megatron-LM
    [training/arguments.py] and DeepSpeed [runtime/engine.py] widen them with bfloat16 alone."""
    return "float32" if half == "bfloat16" else half


def _precision(half: str, summed: str, sent: str, products: ProductFormat | None) -> Precision:
    return Precision(f"measured {half} {summed} {sent}", half, half, "float32", "float32", summed, sent, products)


def assumption(row: Row) -> str:
    """A sentence on the dtype in which a row's gradients are taken to travel; empty where it was read."""
    framework, text = row.get("framework", ""), row.get("precision", "").lower()
    known = known_gradients(framework) or text == "fp32" or "fp16" in text or any(words in text for words in SAID)
    if known or count(row, "dp", 1) * count(row, "cp", 1) == 1:
        return ""
    taken = assumed_gradients(integer(row, "zero", 0) >= 2)
    dtype = single("bfloat16") if taken.sent == SINGLE else "bfloat16"
    return f"framework={framework!r} is not known: gradients are taken to travel in {dtype}, {taken.source}"


def as_assumed(case: Case) -> tuple[Case, ...]:
    """The case; where the dtype of its gradients is assumed, that with the other dtype besides."""
    if not case.assumed:
        return (case,)
    known = case.training.precision
    half = known.parameter_dtype
    other = half if known.gradient_reduce_dtype == single(half) else single(half)
    training = replace(case.training, precision=_precision(half, other, other, known.products))
    return case, replace(case, training=training)


def network(text: str, gpus_per_node: int) -> float | None:
    """Bytes per second that a node sends, from 'Nx200Gb/s', '400Gb/s per GPU', '1600Gb/s per node' or '3.2Tb/s per
    node'.

    InfiniBand HDR without a number of links is taken for a DGX A100's: an adapter for each GPU.
    """
    found = re.search(
        r"(?:(\d+)\s*x\s*)?[A-Za-z ]*?(\d+(?:\.\d+)?)\s*([GT])b/s(\s*(?:(?:RDMA )?per GPU|HDR IB))?", text
    )
    if not found:
        return None
    count, value, unit, each = found.groups()
    rate = float(value) * (1e9 if unit == "G" else 1e12) / 8
    return rate * (int(count) if count else gpus_per_node if each else 1)
