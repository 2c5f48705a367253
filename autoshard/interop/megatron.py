"""Read Megatron-LM's command-line arguments as a layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from types import MappingProxyType
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.graph.recompute import ATTENTION_UP, FULL_RECOMPUTE, NO_RECOMPUTE, SELECTED, SELECTIVE, canonical
from autoshard.interop.launch_script import NOWHERE, Place, read_script, told_of, warned_of
from autoshard.interop.megatron_stages import LAYOUT, STAGE_FLAGS, layout_warning, uneven_stages, virtual_stages
from autoshard.interop.written_dtypes import is_half, moments_option, state_dtypes_option
from autoshard.interop.written_layout import AS_ADAMW, LORA, MISSING, WrittenLayout, number, whole_number
from autoshard.interop.written_model import GPT, SAME_PRICE, WrittenModel, guessed_vocabulary
from autoshard.interop.written_optimizer import (
    IN_PARTS,
    ON_EACH,
    ON_ONE,
    TOGETHER,
    is_muon,
    optimizer_option,
    steps_warning,
)
from autoshard.layout.mesh import tensor_ranks_apart
from autoshard.schedules import usual_schedule
from autoshard.spec.rope import RopeScaling
from autoshard.spec.state_dtypes import GRADIENTS
from autoshard.spec.training import FLOAT8

KEYS, GROUPED = "num-query-groups", "group-query-attention"
"""Key-value heads, and the switch without which Megatron gives each query head one of its own."""
DEEPSPEED_KEYS = "num-key-value-heads"
"""Key-value heads of Megatron-DeepSpeed, which has no such switch."""
SPREAD = "expert-model-parallel-size"
"""Ranks that share the experts; more than 1 has a model with experts alone."""
DEEPSPEED_SPREAD, DEEPSPEED_TOPK, DEEPSPEED_INTERVAL = "moe-expert-parallel-size", "topk", "expert-interval"
"""Of Megatron-DeepSpeed: ranks that share the experts, experts of a token, and blocks for each with experts."""
DEEPSPEED_EXPERTS = {DEEPSPEED_TOPK: "1", DEEPSPEED_INTERVAL: "2"}
"""What Megatron-DeepSpeed takes without these flags [Megatron-DeepSpeed megatron/arguments.py]."""
CUT_EXPERTS = "enable-expert-tensor-parallelism"
"""Of Megatron-DeepSpeed: tp cuts experts too, which it keeps whole without."""
DEEPSPEED_SEQUENCE = "ds-sequence-parallel-size"
"""Of Megatron-DeepSpeed: ranks that share each sequence by all-to-all, which is Ulysses, and shards with dp."""
EXPERTS, CAPACITY = "num-experts", "moe-expert-capacity-factor"
DEEPSPEED_CAPACITY, DEEPSPEED_DROPLESS = "moe-train-capacity-factor", "disable-moe-token-dropping"
DEEPSPEED_USUAL_CAPACITY = "1.0"
"""Of the tokens of an even share, as --moe-expert-capacity-factor, but there without the flag too."""
BESIDE_EXPERTS = "mlp-type"
"""Of Megatron-DeepSpeed: residual has an MLP beside the experts, whose outputs a gate weighs."""
OF_ITS_EXPERTS = (DEEPSPEED_SPREAD, *DEEPSPEED_EXPERTS, DEEPSPEED_CAPACITY, DEEPSPEED_DROPLESS, BESIDE_EXPERTS)
"""Flags on experts that Megatron-DeepSpeed alone has."""
NUMBERS = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    DEEPSPEED_SEQUENCE: "cp",
    SPREAD: "ep",
    DEEPSPEED_SPREAD: "ep",
    "micro-batch-size": "micro_batch",
    "global-batch-size": "global_batch",
    "seq-length": "seq_len",
    "nnodes": "nodes",
}
SAID_BY_OPTIONS = ("nodes", "seq_len", "micro_batch", "global_batch")
"""Numbers that a script may have of its shell: an option that says one of them overrules the variable."""
SIZES = {
    "num-layers": "num_hidden_layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "intermediate_size",
    "num-attention-heads": "num_attention_heads",
    DEEPSPEED_KEYS: "num_key_value_heads",
    KEYS: "num_key_value_heads",
    "kv-channels": "head_dim",
    "max-position-embeddings": "max_position_embeddings",
    "padded-vocab-size": "vocab_size",
    "vocab-size": "vocab_size",
    EXPERTS: "num_local_experts",
    "moe-router-topk": "num_experts_per_tok",
    DEEPSPEED_TOPK: "num_experts_per_tok",
    "moe-shared-expert-intermediate-size": "shared_expert_intermediate_size",
    "q-lora-rank": "q_lora_rank",
    "kv-lora-rank": "kv_lora_rank",
    "qk-head-dim": "qk_nope_head_dim",
    "qk-pos-emb-head-dim": "qk_rope_head_dim",
    "v-head-dim": "v_head_dim",
}
FRACTIONS = {
    "norm-epsilon": "norm_eps",
    "layernorm-epsilon": "norm_eps",
    "rotary-base": "rope_theta",
    "rotary-percent": "partial_rotary_factor",
}
SWITCHES: dict[str, tuple[str, Any]] = {
    "swiglu": ("activation", "swiglu"),
    "squared-relu": ("activation", "squared_relu"),
    "quick-geglu": ("activation", "clamped_swiglu"),
    "use-rotary-position-embeddings": ("positions", "rope"),
    "untie-embeddings-and-output-weights": ("tie_word_embeddings", False),
    "disable-bias-linear": ("bias", "none"),
    "qk-layernorm": ("normalizes_heads", True),
    "moe-router-pre-softmax": ("norm_topk_prob", False),
}
"""Flags without a value, and what they say of the model."""
MOST = ("num_hidden_layers", "hidden_size", "num_attention_heads")
"""Arguments with all of these describe their model; what they leave out then has Megatron's default."""
WITHOUT_EXPERTS = {"num_local_experts": 0, "shared_expert_intermediate_size": 0}
LATENT, FREQUENCY, WINDOW = "multi-latent-attention", "moe-layer-freq", "window-size"
AROUND_ZERO = "apply-layernorm-1p"
"""Flags of graphs that no model is made of here, and some built-in models have."""
OTHER_GRAPHS = (
    *("hybrid-attention-ratio", "hybrid-override-pattern", "is-hybrid-model"),
    "apply-residual-connection-post-layernorm",
)
"""Flags of models that no family here has."""
NOT_DECODERS = re.compile(r"^[^#\n]*?\b(pretrain_(?:bert|t5|ict|retro|vlm|vision_\w+)\.py)", re.MULTILINE)
"""Programs of Megatron's for models that are no decoders of text alone, where they are no comments."""
MODULES = {
    "core_attn": SELECTED,
    "layernorm": "attention_norm+mlp_norm",
    "mlp": "mlp",
    "moe": "mlp",
    "mla_up_proj": f"{SELECTED}+{ATTENTION_UP}",
}
"""--recompute-modules and what a block here calls them. Core attention would keep what latent attention is brought up
to, so it runs again with it."""
CONTEXT_PARALLEL = {"p2p": "zigzag_ring", "a2a": "ulysses", "allgather": "all_gather", "all_gather": "all_gather"}
TWO_LEVELS = "a2a+p2p"
"""All-to-all within groups of ranks and a ring between these; here one or the other goes over all ranks."""
TP_PP_DP = "dp-pp-cp-tp"
"""--use-tp-pp-dp-mapping: data parallelism outside of the pipeline. Without it the order is the default one."""
FP8_RECIPES = {"blockwise": "fp8_block", "mxfp8": "mxfp8"}
"""--fp8-recipe and the precision here, where it is not fp8."""
PRODUCTS = ("fp8-format", "fp8-recipe", "fp4-format")
"""Flags of products in fewer bits than 16."""
WIDE_ENDS = "first-last-layers-bf16"
WIDE_BLOCKS = {"first": "num-layers-at-start-in-bf16", "last": "num-layers-at-end-in-bf16"}
"""Blocks at the ends of the model that are not in FP8, and how many."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
SHARDING_FLAG, USUAL_SHARDING = "data-parallel-sharding-strategy", "optim_grads_params"
"""What --use-megatron-fsdp shards, and what it does without that flag, since Megatron-Core 0.18; before, nothing."""
TORCH_FSDP, TORCH_FSDP_ZERO_2 = "use-torch-fsdp2", "torch-fsdp2-no-reshard-after-forward"
KERNELS = {"flash": "flash", "fused": "flash", "unfused": "plain", "local": "plain"}


NO_FLAGS = (
    "none of its arguments is Megatron's own, such as --tensor-model-parallel-size or --ffn-hidden-size, and "
    "those of NxD's examples and Optimum Neuron are --tensor_parallel_size and a batch size, NeMo's "
    "model.tensor_model_parallel_size= and the like"
)
"""The objection to a script in which nothing of a layout is found."""


def is_megatron_script(text: str) -> bool:
    """Whether a script has flags of Megatron's own. Raises AutoshardError for no script."""
    flags = read_script(text, ()).flags if "--" in text else {}
    return bool(flags.keys() & set(READ).difference(ANYBODYS) or flags.keys() >= set(MOST_FLAGS))


def megatron_layout(text: str, place: Place = NOWHERE) -> WrittenLayout:
    """The layout in Megatron-LM's arguments. text: a whole launch command will do, with its line ends escaped. place:
    where it is started.

    Degrees default to 1, and the global batch to one microbatch of each replica, as in Megatron. Raises AutoshardError
    for values that make no layout.
    """
    script = read_script(text, (*READ, *PRODUCTS), place)
    written = layout_of(script.flags)
    notes, warnings = told_of(script), (*warned_of(script, text), *_not_decoders(text))
    return replace(written, notes=(*written.notes, *notes), warnings=(*written.warnings, *warnings))


def layout_of(
    flags: Mapping[str, str], said: Mapping[str, tuple[str, Any]] = MappingProxyType({}), other_graph: str = ""
) -> WrittenLayout:
    """The layout that flags of Megatron-LM ask for. flags: without their dashes, and the value of each; empty for one
    that has none. A size that stands for a variable begins with $, or is ???, OmegaConf's word for one that is missing.

    said: properties of the model beside those of the flags, as in WrittenModel. other_graph: as there.
    Raises AutoshardError as `megatron_layout`.
    """
    flags = dict(flags)
    flags = _with_one_count({**flags, **_since(flags)})
    options: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp", "ep", "micro_batch"), 1)
    for flag, name in NUMBERS.items():
        if flag in flags:
            is_later = name in SAID_BY_OPTIONS and flags[flag].startswith(("$", MISSING))
            options[name] = flags[flag] if is_later else whole_number(f"--{flag}", flags[flag])
    model = _model(flags, said, other_graph)
    layers = model.wanted.get("num_hidden_layers")
    options["vpp"] = virtual_stages(flags, layers, options["pp"])
    options["schedule"] = usual_schedule(options["vpp"])
    if flags.get("mtp-num-layers", "0") != "0":
        options["mtp_num_layers"] = whole_number("--mtp-num-layers", flags["mtp-num-layers"])
        if (weight := number("--mtp-loss-scaling-factor", flags.get("mtp-loss-scaling-factor"))) is not None:
            options["mtp_loss_scaling_factor"] = weight
    if flags.get("attention-backend") in KERNELS:
        options["attention_kernel"] = KERNELS[flags["attention-backend"]]
    if options["cp"] > 1:
        options["context_parallel"] = _context_parallel(flags)
    if "use-tp-pp-dp-mapping" in flags:
        options["axis_order"] = TP_PP_DP
    is_half = bool(flags.keys() & {"bf16", "fp16"})
    options["precision"] = "mixed_precision" if is_half else "fp32"
    options |= optimizer_option(flags.get("optimizer")) | _state_dtypes(flags)
    notes: tuple[str, ...] = () if is_half else ("neither --bf16 nor --fp16: Megatron computes in fp32",)
    if "fp16" in flags:
        notes += ("--fp16 is priced as bf16",)
    if FSDP in flags and not {SHARDING_FLAG, DEEPSPEED_ZERO} & flags.keys():
        older = "before core_v0.18.0 it was no_shard"
        notes += (f"--use-megatron-fsdp without --{SHARDING_FLAG}: {USUAL_SHARDING}, Megatron's default; {older}",)
    if (etp := _expert_ranks(flags, options["tp"])) is not None and _is_spread(options, etp):
        options["etp"] = etp
    if "axis_order" in options and options["ep"] > 1:
        notes += ("--use-tp-pp-dp-mapping: experts are inside the pipeline there; priced outside, with the rest of dp",)
    fields: dict[str, Any] = {
        "sequence_parallel": "sequence-parallel" in flags and options["tp"] > 1,
        "zero": _zero(flags),
    }
    if "global_batch" not in options:
        fields["microbatches"] = 1
    instances = whole_number(f"--{INSTANCES}", flags.get(INSTANCES, "1"))
    if fields["zero"] and instances > 1:
        fields["dp_replicate"] = instances
    if (stages := uneven_stages(flags, layers, options["pp"], options["vpp"])) is not None:
        fields["stage_layers"] = stages
    options["recompute"], approximations = _recompute(flags, _most_blocks(fields, layers, options))
    capacity = _capacity(flags)
    left_out = tuple(f"--{flag}" for flag in flags if flag not in (*READ, *DROPOUT))
    return WrittenLayout(
        "Megatron arguments",
        options,
        fields,
        model=model,
        training_fields={"expert_capacity_factor": capacity} if capacity else {},
        notes=notes,
        warnings=(*approximations, *_warnings(flags, options)),
        products=_products(flags),
        wide_blocks=_wide_blocks(flags),
        drops=", ".join(_dropout(flags)),
        devices_per_node=_processes(flags),
        overlaps="Megatron",
        left_out=left_out,
        not_priced=tuple(flag for flag in left_out if not NO_EFFECT.fullmatch(flag)),
    )


def _with_one_count(flags: dict[str, str]) -> dict[str, str]:
    """The flags with one number of experts, which Megatron-DeepSpeed may say of each block; without those on experts
    where it says 1, which is no mixture there. Raises AutoshardError for blocks that have unlike numbers."""
    counts = list(dict.fromkeys(flags.get(EXPERTS, "").split()))
    if len(counts) > 1:
        told = "blocks with unlike numbers of experts, which no model here has"
        raise AutoshardError(f"--{EXPERTS} {flags[EXPERTS][:60]}: {told}")
    if counts == ["1"] and _is_deepspeeds_mixture(flags):
        return {flag: value for flag, value in flags.items() if flag not in (EXPERTS, *OF_ITS_EXPERTS)}
    return {**flags, EXPERTS: counts[0]} if counts else flags


def _capacity(flags: dict[str, str]) -> float | None:
    """Tokens that an expert takes at most, over its even share; None for all that the router sends it, as Megatron-LM
    has it for a number below 0 [core/transformer/transformer_config.py]. Raises AutoshardError for none at all."""
    if not _is_deepspeeds_mixture(flags):
        capacity = number(f"--{CAPACITY}", flags.get(CAPACITY) or None)
        if capacity == 0:
            raise AutoshardError(f"--{CAPACITY} {flags[CAPACITY]} drops every token; one above 0 works")
        return None if capacity is None or capacity < 0 else capacity
    if DEEPSPEED_DROPLESS in flags:
        return None
    return number(f"--{DEEPSPEED_CAPACITY}", flags.get(DEEPSPEED_CAPACITY, DEEPSPEED_USUAL_CAPACITY))


def _dropout(flags: dict[str, str]) -> Iterator[str]:
    """The flags that drop something, and those that are not there, without which Megatron does."""
    for flag in DROPOUT:
        if number(f"--{flag}", flags.get(flag, DROPPED)):
            yield f"--{flag} {flags[flag]}" if flag in flags else f"no --{flag}, which Megatron takes for {DROPPED}"


def _processes(flags: dict[str, str]) -> int | None:
    """Processes of each node; None where the flags leave it to torchrun or to a variable."""
    said = flags.get("nproc-per-node", "")
    return whole_number("--nproc-per-node", said) if said.isdigit() else None


def _products(flags: dict[str, str]) -> dict[str, str]:
    """The precision here, by what the flags say of products in fewer bits than 16."""
    names = {"fp8-format": FP8_RECIPES.get(flags.get("fp8-recipe", ""), "fp8"), "fp4-format": "nvfp4"}
    return {f"--{flag} {flags[flag]}": name for flag, name in names.items() if flag in flags}


def _state_dtypes(flags: dict[str, str]) -> dict[str, Any]:
    """The option on gradients in 16 bits and moments in 16 or 8."""
    gradients = state_dtypes_option(*_narrow_gradients(flags))
    moments = _moments(flags) if AWARE in flags else WIDE_MOMENTS
    return {**gradients, **moments_option(gradients, None if moments == WIDE_MOMENTS else moments)}


def _narrow_gradients(flags: dict[str, str]) -> Sequence[str]:
    """The names, of GRADIENTS, of the sums and the sending that flags have in 16 bits."""
    if not flags.keys() & {"bf16", "fp16"}:
        return ()
    if FSDP in flags:
        return _of_fsdp(flags)
    if "fp16" in flags:
        return () if WIDE_GRADIENTS in flags else GRADIENTS
    is_narrow = REDUCE_IN_BF16 in flags or (AWARE in flags and is_half(flags.get(MAIN_GRADS)))
    return GRADIENTS if is_narrow else ()


def _moments(flags: dict[str, str]) -> str:
    """The dtype of the wider of both moments."""
    widths = [flags.get(flag, "fp32") for flag in MOMENTS_DTYPES]
    if all(width == "fp8" for width in widths):
        return FLOAT8
    return "bfloat16" if all(width == "fp8" or is_half(width) for width in widths) else WIDE_MOMENTS


def _of_fsdp(flags: dict[str, str]) -> list[str]:
    """The names, of GRADIENTS, of the sums and the sending that Megatron-FSDP has in 16 bits: sums are as the weights
    where no flag says otherwise, and sent as they are summed
    [core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py _resolve_group_grad_dtype]."""
    said = [flags.get(flag, "auto") for flag in FSDP_DTYPES]
    summed = is_half(said[0]) or said[0] == "auto"
    sent = is_half(said[1]) or (said[1] == "auto" and summed)
    return [name for name, narrow in zip(GRADIENTS, (summed, sent), strict=True) if narrow]


def _of_state_dtypes(flags: dict[str, str]) -> Iterator[str]:
    """Sentences on dtypes of the optimizer's state that are not in the price."""
    if AWARE not in flags:
        return
    if is_half(flags.get(MAIN_PARAMETERS)):
        yield f"--{MAIN_PARAMETERS} {flags[MAIN_PARAMETERS]}: priced with float32 master weights"
    moments = [flags.get(flag, "fp32") for flag in MOMENTS_DTYPES]
    if len(set(moments)) > 1:
        said = " ".join(f"--{flag} {flags[flag]}" for flag in MOMENTS_DTYPES if flag in flags)
        yield f"{said}: priced with both moments in {_moments(flags)}"


def _wide_blocks(flags: dict[str, str]) -> dict[str, str]:
    """The blocks at either end that multiply in bf16, by the flag that says so: one where no number is said."""
    if WIDE_ENDS not in flags:
        return {}
    counts = {end: whole_number(f"--{flag}", flags.get(flag, "1"), 0) for end, flag in WIDE_BLOCKS.items()}
    ends = "+".join(f"{end}={count}" for end, count in counts.items() if count)
    return {f"--{WIDE_ENDS}": ends} if ends else {}


def _most_blocks(fields: dict[str, Any], layers: int | None, options: dict[str, Any]) -> int | None:
    """Blocks of the stage that has most; None where the flags do not say how many the model has."""
    if "stage_layers" in fields:
        return max(map(int, fields["stage_layers"]))
    return None if layers is None else ceil(layers / (int(options["pp"]) * int(options["vpp"])))


OLDER_RECOMPUTE = {
    "activations-checkpoint-method": "recompute-method",
    "activations-checkpoint-num-layers": "recompute-num-layers",
}
"""Flags of older Megatron-LM, which ran whole blocks again, by what they are called since."""


def _recompute(flags: dict[str, str], most_blocks: int | None) -> tuple[str, list[str]]:
    """(the recompute set, sentences on what it stands in for). most_blocks: of a stage, as far as it is known."""
    granularity = SELECTIVE if "recompute-activations" in flags else flags.get("recompute-granularity")
    if DEEPSPEED_RECOMPUTE in flags and granularity is None:
        granularity = FULL_RECOMPUTE
    if granularity is None:
        return NO_RECOMPUTE, []
    if granularity not in (FULL_RECOMPUTE, SELECTIVE):
        raise AutoshardError(f"--recompute-granularity is {granularity[:40]!r}; it must be full or selective")
    return _whole_blocks(flags, most_blocks) if granularity == FULL_RECOMPUTE else _modules(flags)


def _since(flags: dict[str, str]) -> dict[str, str]:
    """Older flags on recompute, as they are called since; none where the newer ones are there too."""
    if next(iter(OLDER_RECOMPUTE)) not in flags or "recompute-granularity" in flags:
        return {}
    newer = {name: flags[flag] for flag, name in OLDER_RECOMPUTE.items() if flag in flags}
    return {"recompute-granularity": FULL_RECOMPUTE, **newer}


def _whole_blocks(flags: dict[str, str], most_blocks: int | None) -> tuple[str, list[str]]:
    method, count = flags.get("recompute-method", "uniform"), flags.get("recompute-num-layers", "1")
    if method not in ("uniform", "block"):
        raise AutoshardError(f"--recompute-method is {method[:40]!r}; it must be uniform or block")
    if method == "block" and count == "0":
        return NO_RECOMPUTE, []
    blocks = whole_number("--recompute-num-layers", count)
    if method == "uniform" and blocks > 1:
        told = f"priced with the input of each block kept, not of every {blocks}, which takes more"
        return FULL_RECOMPUTE, [f"--recompute-num-layers {blocks}: {told}"]
    if method == "block" and (most_blocks is None or blocks < most_blocks):
        told = "priced as if all did, which takes longer and less memory"
        return FULL_RECOMPUTE, [f"--recompute-method block: {blocks} of a stage's blocks run again; {told}"]
    return FULL_RECOMPUTE, []


def _modules(flags: dict[str, str]) -> tuple[str, list[str]]:
    named = flags.get("recompute-modules", "").replace(",", " ").split() or ["core_attn"]
    warnings, sets = [], []
    for name in named:
        if name == "mlp" and (EXPERTS in flags or flags.get(SPREAD, "1") != "1"):
            warnings.append("--recompute-modules mlp: blocks without experts alone run theirs again; not in the price")
        elif name not in MODULES:
            warnings.append(f"--recompute-modules {name[:40]}: no recompute set here names it; not in the price")
        else:
            sets.append(MODULES[name])
            if name == "mla_up_proj" and "core_attn" not in named:
                warnings.append("--recompute-modules mla_up_proj: priced as if core attention ran again with it")
    return canonical("+".join(sets)) if sets else NO_RECOMPUTE, warnings


def _model(flags: dict[str, str], more: Mapping[str, tuple[str, Any]], other_graph: str) -> WrittenModel:
    """The model of the flags. more: properties that they do not say. other_graph: as in WrittenModel, of these."""
    said: dict[str, tuple[str, Any]] = {}
    for flag, name in SIZES.items():
        if flag in flags and (flag != KEYS or GROUPED in flags):
            said[name] = (f"--{flag}", whole_number(f"--{flag}", flags[flag]))
    if EXPERTS in flags and "moe-ffn-hidden-size" in flags:
        flag = "--moe-ffn-hidden-size"
        said["intermediate_size"] = (flag, whole_number(flag, flags["moe-ffn-hidden-size"]))
    for flag, name in FRACTIONS.items():
        if flag in flags:
            said[name] = (f"--{flag}", number(f"--{flag}", flags[flag]))
    said |= {name: (f"--{flag}", value) for flag, (name, value) in SWITCHES.items() if flag in flags}
    if "add-qkv-bias" in flags and "disable-bias-linear" in flags:
        said["bias"] = ("--add-qkv-bias", "qkv")
    said |= {**_built_in_graphs(flags), **more}
    if LATENT in flags:  # which leaves --kv-channels alone, and means norms of the compressed vectors by --qk-layernorm
        said = {name: one for name, one in said.items() if name not in ("head_dim", "normalizes_heads")}
    if _scores_by_sigmoid(flags):  # whose weights are made to add up to 1 all the same
        said.pop("norm_topk_prob", None)
    if "normalization" in flags:
        said["normalization"] = ("--normalization", flags["normalization"].lower())
    if "position-embedding-type" in flags:
        said["positions"] = ("--position-embedding-type", flags["position-embedding-type"])
    if "use-rope-scaling" in flags:
        factor = number("--rope-scaling-factor", flags.get("rope-scaling-factor", "8")) or 0.0
        said["rope_scaling"] = ("--use-rope-scaling", llama3_scaling(factor))
    if not said.keys() >= set(MOST):
        return WrittenModel(said, WITHOUT_EXPERTS)
    key = next((key for key in ("tokenizer-model", "tokenizer-type") if guessed_vocabulary(key, flags.get(key))[0]), "")
    vocabulary, notes = guessed_vocabulary(f"--{key}", flags.get(key))
    assumed = {**GPT, **WITHOUT_EXPERTS, "intermediate_size": _inner_size(said)}
    if _is_deepspeeds_mixture(flags):
        assumed["num_experts_per_tok"] = int(DEEPSPEED_EXPERTS[DEEPSPEED_TOPK])
    graphs = [*([other_graph] if other_graph else []), *_other_graphs(flags)]
    built_in = _built_in_graphs(flags).items()
    graphs += [key for name, (key, has_it) in built_in if has_it and name not in SAME_PRICE]
    if vocabulary is not None:
        assumed["vocab_size"] = vocabulary
    notes = () if "vocab_size" in said else notes
    return WrittenModel(said, assumed, whole=True, other_graph=next(iter(graphs), ""), notes=notes)


def _built_in_graphs(flags: dict[str, str]) -> dict[str, tuple[str, Any]]:
    """Properties of graphs that some built-in models have, as far as the flags say them: name -> (flag, value)."""
    said: dict[str, tuple[str, Any]] = {}
    if LATENT in flags:
        said["has_latent_attention"] = (f"--{LATENT}", True)
    if AROUND_ZERO in flags:
        said["has_unit_offset"] = (f"--{AROUND_ZERO}", True)
    frequency = flags.get(FREQUENCY, "")
    if frequency.isdigit() or frequency.startswith(("[", "(")):
        has_zeros = re.search(r"(?<!\d)0(?!\d)", frequency) is not None
        has_dense = frequency != "1" if frequency.isdigit() else has_zeros
        said["has_dense_blocks"] = (f"--{FREQUENCY} {frequency[:40]}", has_dense)
    if _is_deepspeeds_mixture(flags):
        interval, usual = flags.get(DEEPSPEED_INTERVAL, ""), DEEPSPEED_EXPERTS[DEEPSPEED_INTERVAL]
        absent = f"no --{DEEPSPEED_INTERVAL}, which Megatron-DeepSpeed takes for {usual}"
        key = f"--{DEEPSPEED_INTERVAL} {interval[:40]}" if interval else absent
        said["has_dense_blocks"] = (key, whole_number(f"--{DEEPSPEED_INTERVAL}", interval or usual) > 1)
    if WINDOW in flags and not flags[WINDOW].strip("(").startswith("-1"):
        said["has_windows"] = (f"--{WINDOW} {flags[WINDOW][:40]}", True)
    return said


def _is_deepspeeds_mixture(flags: dict[str, str]) -> bool:
    return EXPERTS in flags and bool(flags.keys() & {*OF_ITS_EXPERTS, "deepspeed"})


def _scores_by_sigmoid(flags: dict[str, str]) -> bool:
    return flags.get("moe-router-score-function") == "sigmoid"


def _inner_size(said: dict[str, tuple[str, Any]]) -> int:
    """Inner width of the MLP by Megatron's default: 4 times the hidden size; with three matrices two thirds of it, in
    64s.
    """
    hidden = int(said["hidden_size"][1])
    return int(4 * hidden * 2 / 3 / 64) * 64 if said.get("activation", ("", ""))[1] == "swiglu" else 4 * hidden


def llama3_scaling(factor: float) -> RopeScaling:
    """The scaling that --use-rope-scaling asks for: all numbers but the factor are Megatron's constants, Llama
    3.1's.
    """
    return RopeScaling("llama3", factor, 1.0, 4.0, 8192)


def _not_decoders(text: str) -> Iterator[str]:
    for program in dict.fromkeys(NOT_DECODERS.findall(text)):
        yield f"{program} trains another kind of model; priced as a decoder that sees earlier tokens alone"


def _warnings(flags: dict[str, str], options: dict[str, Any]) -> Iterator[str]:
    """Sentences about arguments that change a step and are not in the price."""
    if LAYOUT in flags and (apart := layout_warning(flags[LAYOUT])):
        yield apart
    for flag in flags:
        if ("lora" in flag and flag not in SIZES) or flag == "peft-scheme":
            yield LORA.format(said=f"--{flag}")
    if options["cp"] > 1 and TWO_LEVELS in flags.get("cp-comm-type", "").split():
        yield f"--cp-comm-type {TWO_LEVELS} is priced as p2p, a ring over all ranks of cp"
    if KEYS in flags and GROUPED not in flags:
        yield f"--{KEYS} {flags[KEYS]} without --{GROUPED}: Megatron gives each query head a key of its own"
    balancing = flags.get("moe-router-load-balancing-type", "aux_loss")
    if balancing == "sinkhorn":
        yield "--moe-router-load-balancing-type sinkhorn is priced as a top-k router"
    has_no_gate = LATENT in flags or _scores_by_sigmoid(flags)  # here either
    if "moe-shared-expert-intermediate-size" in flags and "moe-shared-expert-gate" not in flags and not has_no_gate:
        yield "--moe-shared-expert-intermediate-size without --moe-shared-expert-gate is priced with the gate"
    if flags.get("moe-token-dispatcher-type") == "allgather" and options["ep"] > 1:
        yield "--moe-token-dispatcher-type allgather is priced as alltoall, which moves fewer tokens"
    etp = _expert_ranks(flags, options["tp"])
    if etp is not None and not _is_spread(options, etp):
        yield f"--{EXPERT_RANKS} {etp}: experts are priced with tp={options['tp']}, as the rest"
    if DEEPSPEED_SPREAD in flags and options["tp"] > 1 and CUT_EXPERTS not in flags:
        whole = f"no --{CUT_EXPERTS}: Megatron-DeepSpeed keeps experts whole on each rank of tp"
        yield f"{whole}; priced with tp={options['tp']}, as the rest"
    if is_muon(optimizer := flags.get("optimizer", "adam")):
        yield from _of_muon(flags, options["tp"])
    elif optimizer != "adam":
        yield AS_ADAMW.format(said=f"--optimizer {optimizer}")
    yield from _of_state_dtypes(flags)
    for said in _other_graphs(flags):
        yield f"{said}: no family of models here has it, and it is not in the price"


def _of_muon(flags: dict[str, str], tp: int) -> Iterator[str]:
    """Sentences about arguments of Muon that are not in the price [core/optimizer/emerging_optimizers.py]."""
    mode = flags.get(MUON_MODE)
    said = f"no --{MUON_MODE} (duplicated today, blockwise before)" if mode is None else f"--{MUON_MODE} {mode}"
    if tp > 1 and mode == "blockwise":
        yield IN_PARTS.format(said=said, tp=tp, priced=ON_ONE)
    elif tp > 1 and mode in (None, "duplicated"):
        yield ON_EACH.format(said=said, ranks=f"rank of tp={tp}", priced=ON_ONE)
    elif tp > 1 and mode == "distributed":
        yield TOGETHER.format(said=said, tp=tp, priced=ON_ONE)
    elif tp > 1:
        yield f"{said}: {ON_ONE}"
    steps = flags.get(MUON_STEPS)
    yield from steps_warning(f"--{MUON_STEPS} {steps}", steps)
    if flags.get(MUON_REST, "adam") != "adam":
        yield AS_ADAMW.format(said=f"--{MUON_REST} {flags[MUON_REST]}, of all but matrices of blocks,")


def _other_graphs(flags: dict[str, str]) -> Iterator[str]:
    """Yields the flags, with their values, that ask for graphs which no family of models here has."""
    yield from (f"--{flag}" for flag in OTHER_GRAPHS if flag in flags)
    if flags.get(BESIDE_EXPERTS) == "residual":
        yield f"--{BESIDE_EXPERTS} residual"


MUON_MODE, MUON_STEPS, MUON_REST = "muon-tp-mode", "muon-num-ns-steps", "muon-scalar-optimizer"
"""Of Muon: where ranks of tp orthogonalise matrices, in how many steps, and the optimizer of what is no such matrix."""
DROPOUT = ("hidden-dropout", "attention-dropout")
DROPPED = "0.1"
"""Of both without the flag [Megatron-LM training/arguments.py _add_regularization_args]."""
NO_EFFECT = re.compile(
    r"""--(train|eval|log|save|load|lr|min-lr|max-lr|weight-decay|adam|clip-grad|seed|data|tokenizer|vocab|merge|split
    |tensorboard|wandb|exit|distributed-(backend|timeout)|init-method|num-workers|no-(load|save)|master|node|rdzv|tee
    |start-weight|end-weight|use-(mcore|flash|checkpoint)|mock-data|dataloader|legacy|ckpt|dist-ckpt|async-save
    |make-vocab|timing|no-create|override|use-cpu-init|standalone|manual-gc|max-restarts|hidden-dropout
    |attention-dropout|moe-(aux|z)-loss|moe-loss|moe-(eval|min)-capacity|create-moe|moe-router-load|moe-token-drop|fp8-format|fp4-format|lora
    |muon|no-use-layer|attention-softmax-in-fp32|accumulate-allreduce-grads-in-fp32|no-masked|no-position|ddp)[\w-]*"""
    + "".join(f"|--{flag}" for flag in OTHER_GRAPHS),
    re.VERBOSE,
)
"""Flags that leave the work of a step as it is, and those that a warning speaks of."""
SHARDED_MUON = "dist_muon"
"""The older name of Muon with --use-distributed-optimizer [Megatron-LM training/arguments.py validate_args]."""
REDUCE_IN_BF16, AWARE = "grad-reduce-in-bf16", "use-precision-aware-optimizer"
WIDE_GRADIENTS = "accumulate-allreduce-grads-in-fp32"
"""With --bf16 and without the first of these Megatron has this one [training/arguments.py validate_args]."""
FSDP, FSDP_DTYPES = "use-megatron-fsdp", ("megatron-fsdp-main-grads-dtype", "megatron-fsdp-grad-comm-dtype")
"""Megatron's own FSDP, and the dtypes in which that sums and sends gradients."""
MAIN_GRADS, MAIN_PARAMETERS = "main-grads-dtype", "main-params-dtype"
MOMENTS_DTYPES, WIDE_MOMENTS = ("exp-avg-dtype", "exp-avg-sq-dtype"), "float32"
"""Flags on the dtypes of gradients, master weights and moments; those of the state are read with AWARE alone."""
EXPERT_RANKS = "expert-tensor-parallel-size"
"""Ranks that cut an expert; those of tensor parallelism where it is left out."""
INSTANCES = "num-distributed-optimizer-instances"
"""Groups of data-parallel ranks that each hold all shards."""
DEEPSPEED_ZERO, DEEPSPEED_RECOMPUTE = "zero-stage", "checkpoint-activations"
"""Of Megatron-DeepSpeed: the stage of ZeRO, and that all blocks run again."""
READ = (
    *NUMBERS,
    *SIZES,
    *FRACTIONS,
    *SWITCHES,
    *("normalization", "position-embedding-type", "use-rope-scaling", "rope-scaling-factor", "add-qkv-bias"),
    *("moe-ffn-hidden-size", "moe-shared-expert-gate", CAPACITY, "moe-token-dispatcher-type"),
    *("recompute-activations", "recompute-granularity", "recompute-modules", "recompute-method"),
    *OLDER_RECOMPUTE,
    *("recompute-num-layers", "attention-backend", "cp-comm-type", "bf16", "fp16", "sequence-parallel"),
    *(FSDP, *FSDP_DTYPES, SHARDING_FLAG, TORCH_FSDP, TORCH_FSDP_ZERO_2, "use-tp-pp-dp-mapping"),
    *(EXPERT_RANKS, INSTANCES, "optimizer", "use-distributed-optimizer", *STAGE_FLAGS),
    *(DEEPSPEED_ZERO, DEEPSPEED_RECOMPUTE, LATENT, FREQUENCY, WINDOW, AROUND_ZERO, *OF_ITS_EXPERTS, CUT_EXPERTS),
    *("nproc-per-node", GROUPED, WIDE_ENDS, *WIDE_BLOCKS.values()),
    *("mtp-num-layers", "mtp-loss-scaling-factor"),
    *(REDUCE_IN_BF16, AWARE, MAIN_GRADS, MAIN_PARAMETERS, *MOMENTS_DTYPES),
)
"""Flags that say something about the layout, or about the model that it is found by."""
MOST_FLAGS = ("num-layers", "hidden-size", "num-attention-heads")
ANYBODYS = (
    *("bf16", "fp16", "nnodes", "nproc-per-node", "vocab-size", "attention-backend", "seq-length"),
    *("micro-batch-size", "global-batch-size", "context-parallel-size", EXPERTS, *MOST_FLAGS),
    *(DEEPSPEED_KEYS, DEEPSPEED_TOPK),
)
"""Those that scripts of other frameworks have too, if not all of MOST_FLAGS."""


def _expert_ranks(flags: dict[str, str], tp: int) -> int | None:
    """How many ranks cut an expert; None for a model without experts, and where it is as many as cut the rest."""
    if EXPERT_RANKS not in flags or not flags.keys() & {EXPERTS, SPREAD}:
        return None
    etp = whole_number(f"--{EXPERT_RANKS}", flags[EXPERT_RANKS])
    return None if etp == tp else etp


def _is_spread(options: dict[str, Any], etp: int) -> bool:
    """Whether the ranks that cut an expert are a part of tensor parallelism, and those that share sequences all hold
    other experts or other parts of them: what plans have."""
    tp, cp, ep = (int(options[name]) for name in ("tp", "cp", "ep"))
    return tp % etp == 0 and ep % (cp * tensor_ranks_apart(tp, etp)) == 0


def _context_parallel(flags: dict[str, str]) -> str:
    if DEEPSPEED_SEQUENCE in flags:
        return CONTEXT_PARALLEL["a2a"]
    kind, *others = dict.fromkeys(flags.get("cp-comm-type", "p2p").split() or [""])
    if others:
        raise AutoshardError(f"--cp-comm-type has {kind[:40]} and {others[0][:40]}: here all layers have the same")
    if kind == TWO_LEVELS:
        return CONTEXT_PARALLEL["p2p"]
    if kind not in CONTEXT_PARALLEL:
        known = ", ".join(("p2p", "a2a", "allgather"))
        raise AutoshardError(f"--cp-comm-type is {kind[:40]!r}; it must be {known} or {TWO_LEVELS}")
    return CONTEXT_PARALLEL[kind]


def _zero(flags: dict[str, str]) -> int:
    if DEEPSPEED_ZERO in flags:
        stage = whole_number(f"--{DEEPSPEED_ZERO}", flags[DEEPSPEED_ZERO], least=0)
        if stage > 3:
            raise AutoshardError(f"--{DEEPSPEED_ZERO} is {stage}; it must be 0, 1, 2 or 3")
        return stage
    if TORCH_FSDP in flags:
        return 2 if TORCH_FSDP_ZERO_2 in flags else 3
    if FSDP not in flags:
        return int("use-distributed-optimizer" in flags or flags.get("optimizer") == SHARDED_MUON)
    strategy = flags.get(SHARDING_FLAG, USUAL_SHARDING)
    if strategy not in SHARDING:
        raise AutoshardError(f"--{SHARDING_FLAG} is {strategy[:40]!r}; known: {', '.join(SHARDING)}")
    return SHARDING[strategy]
