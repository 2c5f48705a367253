"""Read configurations of NVIDIA NeMo 1 (YAML) as layouts: NeMo trains with Megatron Core, so they are read as arguments
of Megatron-LM and told in NeMo's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.text_file import printable
from autoshard.interop import megatron
from autoshard.interop.megatron_stages import EMBEDDING, FIRST, LAST, LOSS, VIRTUAL
from autoshard.interop.nemo_neuron import NO_EFFECT as OF_NEURON
from autoshard.interop.nemo_neuron import is_for_neuron, on_neuron
from autoshard.interop.written_dtypes import SENT, is_half, state_dtypes_option
from autoshard.interop.written_layout import MISSING, WrittenLayout, WrittenLora
from autoshard.interop.written_lora import Fields, read_lora
from autoshard.interop.written_model import WrittenModel
from autoshard.interop.yaml_values import Values, length_note

SAME = (
    *("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size", megatron.SPREAD),
    *(megatron.EXPERT_RANKS, "cp-comm-type", "attention-backend", "recompute-modules", "fp8-recipe"),
    *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", megatron.KEYS, "kv-channels"),
    *("max-position-embeddings", "layernorm-epsilon", "rotary-base", "hidden-dropout", "attention-dropout"),
    *("moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", megatron.CAPACITY),
    *("moe-token-dispatcher-type", "moe-router-load-balancing-type", "moe-router-score-function"),
    *("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"),
    *(megatron.FREQUENCY, megatron.WINDOW, "mtp-num-layers", "mtp-loss-scaling-factor"),
    *megatron.WIDE_BLOCKS.values(),
)
"""Flags of Megatron-LM whose value a field under `model` has, in the same words with underscores."""
FIELDS = {
    **{flag: f"model.{flag.replace('-', '_')}" for flag in SAME},
    VIRTUAL: "model.virtual_pipeline_model_parallel_size",
    FIRST: "model.num_layers_in_first_pipeline_stage",
    LAST: "model.num_layers_in_last_pipeline_stage",
    megatron.EXPERTS: "model.num_moe_experts",
    megatron.INSTANCES: "model.optim.num_distributed_optimizer_instances",
    "rotary-percent": "model.rotary_percentage",
    "rope-scaling-factor": "model.scale_factor",
    "vocab-size": "model.override_vocab_size",
    "tokenizer-type": "model.tokenizer.type",
    "tokenizer-model": "model.tokenizer.model",
}
"""Flags of Megatron-LM -> the fields that say the same."""
SWITCHES = {
    **{
        flag: f"model.{flag.replace('-', '_')}"
        for flag in (
            *("sequence-parallel", "use-tp-pp-dp-mapping", EMBEDDING, LOSS, megatron.LATENT, megatron.WIDE_ENDS),
            *("moe-router-pre-softmax", "moe-shared-expert-gate"),
        )
    },
    megatron.AROUND_ZERO: "model.layernorm_zero_centered_gamma",
    "use-rope-scaling": "model.scale_positional_embedding",
}
"""Flags without a value -> the fields that are true where they would stand."""
LATER = {
    "micro-batch-size": "model.micro_batch_size",
    "global-batch-size": "model.global_batch_size",
    "nnodes": "trainer.num_nodes",
}
"""Flags -> the fields that an option may say instead, where they stand for a variable or are missing."""
LENGTHS = ("model.data.train_ds.max_seq_length", "model.data.seq_length", "model.encoder_seq_length")
"""Fields that say how long sequences are: the first counts that is there."""
GRANULARITY, METHOD, COUNT = (
    f"model.activations_checkpoint_{part}" for part in ("granularity", "method", "num_layers")
)
SCHEME = "model.peft.peft_scheme"
OPTIMIZER, PRECISION, FSDP, WIDE_WEIGHTS = "model.optim.name", "precision", "model.fsdp", "model.megatron_amp_O2"
NAMES = {
    **FIELDS,
    **SWITCHES,
    **LATER,
    "recompute-granularity": GRANULARITY,
    "recompute-method": METHOD,
    "recompute-num-layers": COUNT,
    "optimizer": OPTIMIZER,
    "peft-scheme": SCHEME,
    "fp8-format": "model.fp8",
    "bf16": f"trainer.{PRECISION}=bf16",
    "fp16": f"trainer.{PRECISION}=16",
    megatron.TORCH_FSDP: FSDP,
    "nproc-per-node": "trainer.devices",
}
"""What a sentence about a flag of Megatron-LM calls it."""
ADAPTERS = Fields(
    r="model.peft.lora_tuning.adapter_dim",
    lora_alpha="model.peft.lora_tuning.alpha",
    dropout="model.peft.lora_tuning.adapter_dropout",
    target="model.peft.lora_tuning.target_modules",
    elsewhere=("model.peft.lora_tuning.layer_selection", "model.peft.lora_tuning.weight_tying"),
    usual_alpha=float,
    usual_names="attention_qkv",
)
"""The fields on adapters [NeMo nlp/parts/peft_config.py]."""
PARTS_OF_ALL = {
    "attention": ("attention_qkv", "attention_dense"),
    "mlp": ("mlp_fc1", "mlp_fc2"),
    "all": ("attention_qkv", "attention_dense", "mlp_fc1", "mlp_fc2"),
}
"""Words of target_modules for several layers."""
ADAM = ("adam", "adamw", "fused_adam", "megatron_fused_adam")
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
"""Names of Adam: those of which each rank of data parallelism has all, and those that it shards."""
HALVES = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}
WHOLE = ("32", "32-true", "None")
"""trainer.precision, by the flag that says as much and where none does. Lightning's own is 32."""
FSDP_SHARDS = {"full": (megatron.TORCH_FSDP,), "grad": (megatron.TORCH_FSDP, megatron.TORCH_FSDP_ZERO_2)}
"""model.fsdp_sharding_strategy -> the flags that shard as much. NeMo refuses its third word, hybrid."""
ACTIVATIONS = {
    **dict.fromkeys(("gelu", "approx-gelu"), "gelu"),
    **dict.fromkeys(("swiglu", "fast-swiglu"), "swiglu"),
    **dict.fromkeys(("geglu", "fast-geglu"), "geglu"),
    **dict.fromkeys(("reglu", "fast-reglu"), "reglu"),
    "squared-relu": "squared_relu",
}
"""model.activation -> the property's value, as property_of has it [NeMo nlp/parts/utils_funcs.py]."""
NORMS = {"layernorm1p": "layernorm", "low_precision_layernorm": "layernorm"}
"""model.normalization of norms whose kind has another word in models."""
PLAIN_BLOCKS = ("", "te_gpt", "megatron_gpt_full_te_layer_autocast", "modelopt", "decoder_block_gpt")
"""model.name of a block as the fields describe it; others are graphs of their own [NeMo megatron_gpt_model.py]."""
OF_FALCON = ("new_decoder_architecture", "parallel_attention")
"""Keys of model.mcore_customization_config that Falcon's block alone reads."""
OTHER_KINDS = (
    *("encoder", "encoder_tokenizer", "bert_binary_head", "mcore_bert", "mm_cfg", "vision", "vision_pretraining_type"),
    *("retro", "hyena", "unet", "unet_config", "data.masked_lm_prob"),
)
"""Fields under `model` of what is no decoder of text alone."""
OTHER_NAMES = re.compile(r"megatron_(m?t5|t0|ul2|bert|bart|retro|griffin|mamba|jamba)\w*|\w*retro\w*")
"""Of models that are none either, by the names that NeMo's examples give them."""
LATER_NEMO = "_target_"
"""A field of NeMo 2 and of Megatron Bridge, whose configurations are Python."""
OWN = ("micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "encoder_seq_length", "num_layers")
"""Fields under `model` one of which each configuration of NeMo has."""
FOLLOWS = ("model.transformer_engine", "model.use_flash_attention", "model.apply_rope_fusion", GRANULARITY)
"""Fields that follow from the rest of a layout, or say nothing without another."""
PARTS = ("model.fsdp", "model.fp8", "model.cpu_offloading")
"""Switches: fields that begin with their name say nothing where they are off."""
SENDS, FSDP_SENDS = "model.optim.grad_sync_dtype", "model.fsdp_grad_reduce_dtype"
"""The dtype of gradients, and in which FSDP sends them; FP32 where they are not there."""
NO_EFFECT = re.compile(
    r"""(?!model\.).*
    |model\.(seed|name|target|nemo_version|precision|mcore_gpt|(restore|resume)_from_\w+|init_method_std|\w+_init_method
        |make_vocab_size_divisible_by|pre_process|post_process|persist_layer_norm|apply_query_key_layer_scaling
        |normalize_attention_scores|do_layer_norm_weight_decay|openai_gelu|native_amp_\w+|hysteresis
        |grad_allreduce_chunk_size_mb|grad_div_ar_fusion|\w+_fusion|get_attention_mask_from_fusion
        |use_cpu_initialization|onnx_safe|apex_transformer_log_level|gradient_as_bucket_view|sync_batch_comm
        |nccl_communicator_config_path|fp8_(e4m3|hybrid|margin|interval|amax\w*|wgrad)|reduce_amax|tp_only_amax_red
        |(ub_)?tp_comm_\w+|overlap_p2p_comm|batch_p2p_comm|gc_interval|enable_megatron_timers|dist_ckpt_\w+|sharp
        |fsdp_(sharding_strategy|sharded_checkpoint|limit_all_gathers|use_orig_params)|validation_\w+
        |seq_len_interpolation_factor|rotary_interleaved|low_freq_factor|high_freq_factor|old_context_len|reset_lr\w*
        |moe_(grouped_gemm|aux_loss_coeff|z_loss_coeff|input_jitter_eps|pad_expert_input_to_capacity)
        |headscale|attention_type|wgrad_deferral_limit|use_te_rng_tracker|answer_only_loss|save_nemo_on_validation_end)
    |model\.(tokenizer|nsys_profile|memory_profile|megatron_timer_kwargs|ub_tp_comm_overlap_cfg|peft
        |mcore_customization_config)\..*
    |model\.data\.(?!reset_attention_mask).*
    |model\.optim\.(lr|weight_decay|betas|eps|bucket_cap_mb|ddp_bucket_size|overlap_\w+|contiguous_\w+|align_\w+
        |average_in_collective|check_for_nan_in_grad|nccl_ub|lock_timeout|sched\..*)""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, and those that a warning or a refusal speaks of."""


def is_nemo(data: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML file can be a configuration of NeMo: it describes a model, alone or in `training`."""
    return isinstance(_own_part(data).get("model"), Mapping)


def _own_part(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration; one of the Launcher's that is written out whole has it in `training`."""
    training = data.get("training")
    return training if isinstance(training, Mapping) and "model" not in data else data


def nemo_layout(data: Mapping[str, Any], environment: Mapping[str, str] = MappingProxyType({})) -> WrittenLayout:
    """The layout in a parsed configuration of NeMo 1, also of the one for Trainium, or of the NeMo Framework Launcher's
    conf/training. environment: variables that the program gets, as far as they are known.

    Fields have NeMo's defaults, but the batch, which it asks for: it may be given as an option. Raises AutoshardError
    for values that make no layout, and for configurations of other models than decoders.
    """
    data = _own_part(data)
    values = Values(data, FOLLOWS, root="training.")
    _check_kind(values, data["model"])
    lora = _lora(values)
    flags = _flags(values, lora)
    said, other_graph = _said(values)
    neuron = None
    if is_for_neuron(values, environment):
        neuron = on_neuron(values, environment, flags.pop("optimizer", ADAM[0]))
        flags, said = {**flags, **neuron.flags}, {**said, **neuron.said}
    told = partial(_told, flags=flags, names=NAMES if neuron is None else {**NAMES, **neuron.names})
    try:
        written = megatron.layout_of(flags, said, other_graph)
    except AutoshardError as error:
        raise AutoshardError(told(str(error))) from None
    warnings = (*map(told, written.warnings), *_warnings(values, flags, other_graph, neuron is not None))
    notes = (*map(told, written.notes), *_notes(values))
    options = written.options
    if is_half(values.get(FSDP_SENDS)) and values.flag(FSDP) and _half(values):
        options = {**options, **state_dtypes_option(SENT)}
    if neuron is not None:
        options, notes, warnings = {**options, **neuron.options}, (*notes, *neuron.notes), (*warnings, *neuron.warnings)
    left_out = values.left_out()
    return replace(
        written,
        form="NeMo configuration",
        options=options,
        model=_model_told(written.model, told),
        notes=notes,
        warnings=warnings,
        products={told(text): precision for text, precision in written.products.items()},
        wide_blocks={told(text): blocks for text, blocks in written.wide_blocks.items()},
        drops=told(written.drops),
        lora=lora,
        overlaps="NeMo",
        left_out=left_out,
        not_priced=tuple(_not_priced(values, left_out)),
    )


def _check_kind(values: Values, model: Mapping[str, Any]) -> None:
    """Raise AutoshardError for a model that is no decoder, and for what is no configuration of NeMo 1."""
    if LATER_NEMO in model:
        told = "configurations of NeMo 2 and of Megatron Bridge have it; those of NeMo 1 are read"
        raise AutoshardError(f"model.{LATER_NEMO}: {told}")
    if not model.keys() & {*OWN}:
        raise AutoshardError(f"model has none of NeMo's fields, such as {', '.join(OWN[:3])}")
    for key in OTHER_KINDS:
        if values.get(f"model.{key}") not in (None, False):
            raise AutoshardError(f"model.{key}: a plan is for a decoder of text alone, not for such a model")
    for path in ("name", "exp_manager.name"):
        if OTHER_NAMES.fullmatch(str(values.peek(path))):
            raise AutoshardError(f"{path}={values.peek(path)}: a plan is for a decoder of text alone, not for this one")
    if (count := values.whole("trainer.accumulate_grad_batches") or 1) != 1:
        told = "NeMo counts microbatches from the batches; 1 works"
        raise AutoshardError(f"trainer.accumulate_grad_batches={count}: {told}")


def _lora(values: Values) -> WrittenLora | None:
    """The adapters that it trains, where it says enough of them."""
    if not values.get("model.peft") or values.get(SCHEME) != "lora":
        return None
    lora = read_lora(values, f"{SCHEME}=lora", ADAPTERS)
    if lora is None:
        return None
    names = ("all",) if lora.every else lora.names
    parts = dict.fromkeys(part for name in names for part in PARTS_OF_ALL.get(name, (name,)))
    return replace(lora, names=tuple(parts), every=False)


def _flags(values: Values, lora: WrittenLora | None) -> dict[str, str]:
    """The flags of Megatron-LM, without their dashes, that ask for what the configuration does, with their values.
    lora: the adapters that it trains, which no flag says."""
    flags = {flag: _text(value) for flag, path in FIELDS.items() if (value := values.get(path)) is not None}
    flags |= {flag: "" for flag, path in SWITCHES.items() if values.flag(path)}
    for flag, path in LATER.items():
        value = values.whole_or_variable(path)
        if value is not None or flag != "nnodes":
            flags[flag] = MISSING if value is None else str(value)
    lengths = LENGTHS[1:] if values.flag("model.data.fine_tuning") is False else LENGTHS
    if (length := next(filter(None, map(values.whole_or_variable, lengths)), None)) is not None:
        flags["seq-length"] = str(length)
    if (devices := _devices(values)) is not None:
        flags["nproc-per-node"] = str(devices)
    if megatron.KEYS in flags:
        flags[megatron.GROUPED] = ""
    if str(values.get("model.normalization")).lower() == "layernorm1p":
        flags[megatron.AROUND_ZERO] = ""
    if lora is None and (scheme := values.get(SCHEME)):
        flags |= {} if scheme in ("none", "null") else {"peft-scheme": _text(scheme)}
    has_kernels = values.flag("model.transformer_engine") or values.flag("model.use_flash_attention")
    if not has_kernels:
        flags.setdefault("attention-backend", "unfused")
    flags |= _recompute(values) | _shards(values)
    if half := _half(values):
        flags[half] = ""
    if is_half(values.get(SENDS)):
        flags[megatron.REDUCE_IN_BF16] = ""
    if values.flag("model.fp8"):
        flags["fp8-format"] = _fp8_format(values)
    return flags


def _text(value: object) -> str:
    """A value as a flag would have it: words of a list behind each other, on one line."""
    words = value if isinstance(value, list) and all(isinstance(one, str) for one in value) else None
    return printable(str(value) if words is None else " ".join(words))


def _devices(values: Values) -> int | None:
    """Devices of a node; None for all that there are. Lightning takes a number, a list, -1 or auto."""
    devices = values.get("trainer.devices")
    if isinstance(devices, list):
        return len(devices)
    return None if str(devices) in ("-1", "auto") else values.whole("trainer.devices")


def _recompute(values: Values) -> dict[str, str]:
    """Flags on what runs again in backward."""
    granularity, method = values.get(GRANULARITY), values.get(METHOD)
    if granularity is None:
        is_older = method is not None and not values.has(GRANULARITY)
        return {"recompute-granularity": "full", **_whole_blocks(values)} if is_older else {}
    if granularity == "full" and method is None:
        raise AutoshardError(f"{GRANULARITY}=full needs {METHOD}, uniform or block")
    return {"recompute-granularity": _text(granularity), **(_whole_blocks(values) if granularity == "full" else {})}


def _whole_blocks(values: Values) -> dict[str, str]:
    fields = {"recompute-method": METHOD, "recompute-num-layers": COUNT}
    return {flag: _text(value) for flag, path in fields.items() if (value := values.get(path)) is not None}


def _shards(values: Values) -> dict[str, str]:
    """Flags on the optimizer and what is sharded over data parallelism."""
    name = values.get(OPTIMIZER)
    name = ADAM[0] if name is None else _text(name)
    if not values.flag(FSDP):
        known = {} if name in (*ADAM, *SHARDED) else {"optimizer": name}
        return {**known, **({"use-distributed-optimizer": ""} if name in SHARDED else {})}
    if name in SHARDED:
        raise AutoshardError(f"{FSDP} with {OPTIMIZER}={name}: NeMo shards by one of them; fused_adam goes with FSDP")
    if values.flag("model.fp8"):
        raise AutoshardError(f"{FSDP} with model.fp8: NeMo has no FP8 with FSDP; False for one of them works")
    strategy = values.get("model.fsdp_sharding_strategy") or "full"
    if strategy not in FSDP_SHARDS:
        allowed = " or ".join(FSDP_SHARDS)
        raise AutoshardError(f"model.fsdp_sharding_strategy is {show(strategy)}; it must be {allowed}")
    return {**({} if name in ADAM else {"optimizer": name}), **dict.fromkeys(FSDP_SHARDS[strategy], "")}


def _half(values: Values) -> str | None:
    """bf16 or fp16; None for FP32. The model's own precision overrules the trainer's."""
    path = f"model.{PRECISION}" if values.get(f"model.{PRECISION}") is not None else f"trainer.{PRECISION}"
    name = str(values.get(path))
    if name not in (*HALVES, *WHOLE):
        raise AutoshardError(f"{path} is {show(name)}; it must be bf16, 16 or 32")
    return HALVES.get(name)


def _fp8_format(values: Values) -> str:
    for name in ("e4m3", "hybrid"):
        if values.flag(f"model.fp8_{name}"):
            return name
    raise AutoshardError("model.fp8 needs model.fp8_hybrid or model.fp8_e4m3, which say the format")


def _said(values: Values) -> tuple[dict[str, tuple[str, Any]], str]:
    """(what words and switches say of the model, a field for a graph that no model is made of; empty for none)."""
    said: dict[str, tuple[str, Any]] = {}
    if (activation := values.get("model.activation")) is not None:
        said["activation"] = ("model.activation", ACTIVATIONS.get(str(activation), activation))
    if (norm := values.get("model.normalization")) is not None:
        said["normalization"] = ("model.normalization", NORMS.get(str(norm).lower(), str(norm).lower()))
    for name, key in {"positions": "position_embedding_type", "block": "transformer_block_type"}.items():
        if (word := values.get(f"model.{key}")) is not None:
            said[name] = (f"model.{key}", word)
    if (tied := values.flag("model.share_embeddings_and_output_weights")) is not None:
        said["tie_word_embeddings"] = ("model.share_embeddings_and_output_weights", tied)
    bias, of_heads = values.flag("model.bias"), values.flag("model.qkv_bias")
    if bias is not None:
        said["bias"] = ("model.bias", "all") if bias else ("model.bias", "none")
        if of_heads and not bias:
            said["bias"] = ("model.qkv_bias", "qkv")
    if values.flag("model.qk_layernorm"):
        said["normalizes_heads"] = ("model.qk_layernorm", True)
    return said, next(_other_graphs(values), "")


def _other_graphs(values: Values) -> Iterator[str]:
    """Yields fields, with their values, for graphs that the other fields do not describe."""
    name = values.get("model.name")
    if name is not None and name not in PLAIN_BLOCKS:
        yield f"model.name={show(name)}"
    if values.flag("model.headscale"):
        yield "model.headscale=True"
    if (kind := values.get("model.attention_type") or "multihead") != "multihead":
        yield f"model.attention_type={show(kind)}"
    if values.flag("model.apply_embedding_scaling"):
        yield "model.apply_embedding_scaling=True"
    custom = values.get("model.mcore_customization_config")
    for key, value in (custom if isinstance(custom, Mapping) else {}).items():
        if value and key not in OF_FALCON:
            yield f"model.mcore_customization_config.{show(key)}"


def _warnings(values: Values, flags: Mapping[str, str], other_graph: str, neuron: bool) -> Iterator[str]:
    """Sentences on fields that change a step and that no flag says. neuron: whether it is for Trainium, where variables
    of the environment say what numbers are kept in."""
    if not neuron and flags.keys() & {"bf16", "fp16"} and not (values.flag(WIDE_WEIGHTS) or values.flag(FSDP)):
        told = "NeMo keeps weights in float32 and casts them where they are used"
        yield f"{WIDE_WEIGHTS} is not True: {told}; priced with weights in bfloat16 beside the optimizer's in float32"
    if "recompute-granularity" in flags and not values.has(GRANULARITY):
        yield f"{METHOD} without {GRANULARITY}: full, as NeMo before 1.11 read it; later ones run nothing again"
    if other_graph:
        yield f"{other_graph}: the plan has its model's own graph, whatever this says"
    if files := [name for name in _files(values) if "tp_comm_overlap" not in name]:
        yield f"defaults names other files, whose fields are not read: {', '.join(files)[:200]}"


def _files(values: Values) -> Iterator[str]:
    """Yields the other files of which Hydra makes a configuration."""
    listed = values.get("defaults")
    for one in listed if isinstance(listed, list) else ():
        name = _text(": ".join(map(str, *one.items()))) if isinstance(one, Mapping) and len(one) == 1 else _text(one)
        if name != "_self_":
            yield name


def _notes(values: Values) -> Iterator[str]:
    """Sentences on what is read as something that is nearly the same."""
    if values.get(OPTIMIZER) == SHARDED[0]:
        yield f"{OPTIMIZER}={SHARDED[0]} is priced as ZeRO-1: gradients are kept whole between microbatches"
    yield from length_note(values, LENGTHS[1], LENGTHS[2])


def _not_priced(values: Values, left_out: tuple[str, ...]) -> Iterator[str]:
    """Yields those of the fields that are left out which may matter: what is off or has its usual value does not."""
    off = {part for part in PARTS if not values.peek(part)}
    for path in left_out:
        own = path.removeprefix("model.").removeprefix("optim.") in OF_NEURON
        if own or NO_EFFECT.fullmatch(path) or any(path.startswith(f"{part}_") for part in off):
            continue
        if values.peek(path):
            yield path


def _told(text: str, flags: Mapping[str, str], names: Mapping[str, str]) -> str:
    """A sentence about flags of Megatron-LM, with NeMo's fields in their place, which `names` has."""
    for flag, value in flags.items():
        if value and flag in names:
            text = text.replace(f"--{flag} {value}", f"{names[flag]}={value}")
    return re.sub(r"--([a-z0-9-]+)", lambda found: names.get(found[1], found[0]), text)


def _model_told(model: WrittenModel, told: Callable[[str], str]) -> WrittenModel:
    """The model with NeMo's fields as its keys."""
    said = {name: (told(key), value) for name, (key, value) in model.said.items()}
    return replace(model, said=said, other_graph=told(model.other_graph), notes=tuple(map(told, model.notes)))
