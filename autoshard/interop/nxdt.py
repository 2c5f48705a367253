"""Read configurations of NeuronX Distributed Training (YAML) as layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.graph.recompute import NO_RECOMPUTE, canonical
from autoshard.interop.written_dtypes import state_dtypes_option
from autoshard.interop.written_layout import AS_ADAMW, DPO, LORA, WrittenLayout, WrittenLora, number
from autoshard.interop.written_lora import LEARN_APART, NXD, Fields, read_lora
from autoshard.interop.written_model import GPT, WrittenModel, guessed_vocabulary
from autoshard.interop.yaml_values import Values, length_note
from autoshard.schedules import usual_schedule
from autoshard.spec.state_dtypes import GRADIENTS

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
RECOMPUTED: dict[bool, dict[str, tuple[str, ...]]] = {
    False: {
        "CoreAttention": ("core_attention",),
        "LlamaMLP": ("mlp",),
        "LlamaRMSNorm": ("attention_norm", "mlp_norm"),
        "ActivationMultiplyMLP": ("mlp.act_fn",),
    },
    True: {"CoreAttention": ("core_attention",), "MoE": ("mlp",)},
}
"""By whether there are experts: classes of activations_checkpoint_recompute and what a set of ours calls them
[NxDT models/hf_models/modeling_llama.py, modeling_mixtral.py]. The norm behind the last block is in no set of ours."""
WRITTEN_OUT = "CoreAttention"
"""The class of attention without a kernel, which blocks of Hugging Face's models do not call where they have one for
flash or ring attention: it runs neither in forward nor again [NxDT models/hf_models/modeling_llama.py call_attn_impln,
modeling_mixtral.py; examples/training of neuronx-distributed, modeling_llama_nxd.py and its neighbours]."""
NOT_RUN = "{field} has {name}, which a flash or ring kernel takes the place of: nothing of it runs again"
LONG = 8192
"""Tokens of a sequence from which NxDT of SDK 2.20 recomputed the MLP too, if it was asked to."""
MANUAL, MASTERS, SUMS = "manual", "precision.master_weights", "precision.fp32_grad_acc"
"""The type whose fields say it, which the others overrule."""
PRECISIONS = {"mixed_precision": "mixed_precision", "bf16SR": "bf16_sr", "fp32": "fp32"}


ALIGNMENT = "model_alignment_strategy"
PEFT = f"{ALIGNMENT}.peft"
ADAPTERS = Fields(
    r=f"{PEFT}.lora_rank",
    lora_alpha=f"{PEFT}.lora_alpha",
    dropout=f"{PEFT}.lora_dropout",
    target=f"{PEFT}.target_modules",
    usual_r=16,
    usual_alpha=lambda r: 32.0,
    usual_dropout=0.05,
    usual_names="qkv_proj",
)
"""The fields on adapters [NxDT lightning_modules/model/hf_models/llama_model.py]."""
OWN_MASTERS = (
    "distributed_strategy.zero1=false: adapters of NxD Training are FP32, their own masters; priced with ZeRO-1, which "
    "shards their states"
)
"""[NxD modules/lora/tp_layer.py; NxDT examples/conf/hf_llama3_8B_SFT_lora_config.yaml: LoRA goes without zero1]"""
TRN1_DEVICES = 32
INSTANCES = {(2, 1): "trn1.2xlarge", (4, 2): "trn2.3xlarge"}
"""By trainer.devices and trainer.lnc: smaller instances that have as many devices at that LNC, the default one of trn1.
More or other ones are of trn1.32xlarge or trn2.48xlarge."""
MODEL_TYPES = {"hf_llama": ("llama", "mistral"), "hf_mixtral": ("mixtral",)}
"""`name` of NxD Training's model -> model_types that it trains."""
SIZES = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "kv_channels",
    "max_position_embeddings": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "sliding_window": "sliding_window_size",
    "num_local_experts": "moe.num_experts",
    "num_experts_per_tok": "moe.top_k",
}
"""Whole numbers of a model, and the keys that say them, under `model`."""
POSITIONS = "max_position_embeddings"
NUMBERS = {"norm_eps": "layernorm_epsilon", "rope_theta": "rope_theta", "partial_rotary_factor": "rotary_percentage"}
WORDS = {
    "normalization": "normalization",
    "activation": "activation",
    "positions": "position_embedding_type",
    "block": "transformer_block_type",
}
FLAGS = {
    "tie_word_embeddings": "share_embeddings_and_output_weights",
    "norm_topk_prob": "moe.normalize_top_k_affinities",
}
OWN_GPT = {**GPT, "num_local_experts": 0, "num_experts_per_tok": 1, "shared_expert_intermediate_size": 0}
"""Values that NxDT's own GPT takes if a file does not give them [NxDT megatron_gpt_model.py]."""
DROPOUT = (*(f"model.{part}_dropout" for part in ("hidden", "attention", "ffn")), "model.moe.dropout")
NO_EFFECT = re.compile(
    r"""(seed|compiler_\w+|aync_exec\w+|bucket_size_collectives|neuron_(rt_exec|experimental)\w+)
    |run\..*|exp_manager\..*|data\..*|model_alignment_strategy\.(sft|peft|dpo|orpo)\..*
    |trainer\.(max|log|val|check_val|num_sanity|limit|gradient_clip|sequential_move)_?\w*
    |model\.(optim\..*|model_config|(use_cpu|weight)_init\w*|init_method_std|use_scaled_init_method|persist_layer_norm
        |apply_query_key_layer_scaling|do_layer_norm_weight_decay|make_vocab_size_divisible_by|transpose_nki_inputs
        |fusions\.softmax|(hidden|attention|ffn)_dropout)
    |model\.moe\.(sinkhorn_(iterations|tol)|router_activation|output_router_logits|router_aux_loss_coef|dropout)
    |precision\.(?!parallel_layers_reduce_dtype).*""",
    re.VERBOSE,
)
"""Keys that leave the work of a step as it is, and those that a warning speaks of. `precision.type` says the rest."""


def nxdt_layout(data: Mapping[str, Any]) -> WrittenLayout:
    """The layout in a parsed NxDT configuration. References such as ${model.encoder_seq_length} are followed, and a
    variable of the environment has the default that the file gives it.

    Degrees default to 1 and zero1 to True, as in NxDT. Raises AutoshardError for values that make no layout.
    """
    values = Values(data, FOLLOWS, root="recipes.")
    options = _sizes(values)
    ring = values.flag("model.fusions.ring_attention") or False
    asked = values.flag("model.fusions.flash_attention") or ring
    has_kernels = values.get("model_source") != "megatron"  # whose blocks read no fusions
    flash = asked and has_kernels
    options["recompute"], notes = _recompute(values, flash)
    if asked and not has_kernels:
        notes += ("model.fusions: models of model_source=megatron have no flash kernel; read as plain attention",)
    options["attention_kernel"] = "flash" if flash else "plain"
    if options["cp"] > 1:
        options["context_parallel"] = "ring"
    precision = str(values.get("precision.type") or "mixed_precision")
    options["precision"] = PRECISIONS.get(precision, "mixed_precision")
    notes += length_note(values, "data.seq_length", "model.encoder_seq_length")
    if precision not in PRECISIONS:
        notes += (f"precision.type={precision} is priced as mixed_precision",)
    if precision == MANUAL and values.flag(MASTERS) and values.flag(SUMS) is False:
        options |= state_dtypes_option(*GRADIENTS)
    layers = values.whole("model.num_layers")
    fields: dict[str, Any] = {
        "sequence_parallel": values.flag("distributed_strategy.sequence_parallel") is True and options["tp"] > 1,
        "zero": int(values.flag("distributed_strategy.zero1") or not values.has("distributed_strategy.zero1")),
    }
    cuts, stages = values.get("model.pipeline_cuts"), options["pp"] * options["vpp"]
    if cuts:
        fields["stage_layers"] = _stage_layers(cuts, layers)
    elif layers is not None and layers > stages and layers % stages:
        fields["stage_layers"] = auto_partition(layers, stages)
    capacity = _capacity(values)
    model, lora, warnings = _model(values), _lora(values), tuple(_warnings(values))
    if lora is not None and fields["sequence_parallel"]:
        warnings += (LEARN_APART.format(said=lora.said, library=NXD),)
    if lora is not None and not fields["zero"] and options["precision"] != "fp32":
        fields["zero"] = 1
        notes += (OWN_MASTERS,)
    copies = values.whole("distributed_strategy.kv_replicator")
    kv_copies = copies if values.flag("model.qkv_linear") else None  # without it NxD Training reads no kv_replicator
    left_out = values.left_out()
    if values.defaults:
        told = ", ".join(f"{name}={'null' if value is None else value}" for name, value in values.defaults.items())
        notes += (f"variables have the defaults that the file gives them: {told}",)
    return WrittenLayout(
        "NxDT configuration",
        options,
        fields,
        model=model,
        training_fields={} if capacity is None else {"expert_capacity_factor": capacity},
        notes=notes,
        warnings=warnings,
        lora=lora,
        drops=", ".join(f"{key}={rate:g}" for key in DROPOUT if (rate := number(key, values.peek(key)))),
        devices_per_node=values.whole("trainer.devices"),
        kv_copies=kv_copies,
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not NO_EFFECT.fullmatch(key)),
    )


def _model(found: Values) -> WrittenModel:
    """The model in the file: a GPT that the file describes whole, or a few sizes of the config.json that the file
    names.
    """
    is_described = found.get("model_source") == "megatron"
    said: dict[str, tuple[str, Any]] = {}
    sizes = dict(SIZES)
    if isinstance(found.whole_or_variable(f"model.{SIZES[POSITIONS]}"), str):  # the sequence's, which an option says
        del sizes[POSITIONS]
    for names, read in ((sizes, found.whole), (NUMBERS, found.number), (WORDS, found.get), (FLAGS, found.flag)):
        for name, key in names.items():
            value = read(f"model.{key}")
            if value is not None:
                said[name] = (f"model.{key}", value)
    if (bias := found.flag("model.has_bias")) is not None:
        said["bias"] = ("model.has_bias", "all" if bias else "none")
    if (frequency := found.whole("model.moe.frequency") or 1) != 1:
        raise AutoshardError(f"model.moe.frequency={frequency}: every layer must have experts here; 1 works")
    if not is_described:
        types = MODEL_TYPES.get(str(found.get("name")), ())
        config = found.peek("model.model_config")
        assumed = {"num_local_experts": 0} if not types else {}
        return WrittenModel(
            said,
            assumed,
            model_types=types,
            config=None if config is None else str(config),
            plain=found.get("name") == "hf_llama",
        )
    unread = said.pop("rope_theta", None)
    base, stretch = (found.number(f"model.position_{part}") for part in ("freq_base", "abf_factor"))
    if base is not None or stretch is not None:
        said["rope_theta"] = ("model.position_freq_base", (base or OWN_GPT["rope_theta"]) * (stretch or 1))
    vocabulary, notes = guessed_vocabulary("data.tokenizer.type", found.peek("data.tokenizer.type"))
    assumed = OWN_GPT if vocabulary is None else {**OWN_GPT, "vocab_size": vocabulary}
    if "vocab_size" in said:
        notes = ()
    if unread is not None:
        notes += (f"model.rope_theta={unread[1]:g}: model_source=megatron reads model.position_freq_base instead",)
    return WrittenModel(said, assumed, whole=True, notes=notes)


def _capacity(found: Values) -> float | None:
    """The slots of an expert over its even share; None without experts or without a limit."""
    capacity, dropless = found.number("model.moe.capacity_factor"), found.flag("model.moe.dropless") or False
    if found.get("model.moe.num_experts") is None or capacity is None or dropless:
        return None
    if capacity <= 0:
        raise AutoshardError(
            f"model.moe.capacity_factor={capacity:g} without model.moe.dropless drops every token; one above 0 works"
        )
    return capacity


def _lora(found: Values) -> WrittenLora | None:
    """The adapters that it trains."""
    if not isinstance(peft := found.peek(PEFT), Mapping) or not peft:
        return None
    lora = read_lora(found, PEFT, ADAPTERS)
    return None if lora is None else replace(lora, said=f"{PEFT} (LoRA of rank {lora.r})")


def _warnings(found: Values) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price."""
    if (peft := found.get(PEFT)) and not isinstance(peft, Mapping):
        yield LORA.format(said=PEFT)
    if found.get(f"{ALIGNMENT}.dpo"):
        yield DPO.format(said=f"{ALIGNMENT}.dpo", batch="global_batch_size")
    if found.get(f"{ALIGNMENT}.orpo"):
        yield (
            f"{ALIGNMENT}.orpo: priced as plain training on global_batch_size sequences; ORPO runs a chosen and a "
            "rejected one for each"
        )
    if (routing := found.get("model.moe.routing_algorithm") or "top_k") != "top_k":
        yield f"model.moe.routing_algorithm={routing} is priced as top_k"
    if (shuffled := found.whole("distributed_strategy.token_shuffle_group_size") or 1) > 1:
        yield f"distributed_strategy.token_shuffle_group_size={shuffled}: the exchange of tokens is not in the price"
    optimizer = str(found.peek("model.optim.name") or "adamw")
    if not optimizer.startswith("adamw"):
        yield AS_ADAMW.format(said=f"model.optim.name={optimizer}")
    reduced = found.get("precision.parallel_layers_reduce_dtype") or "bf16"
    if reduced != "bf16" and found.get("precision.type") != "fp32":
        yield f"precision.parallel_layers_reduce_dtype={reduced}: tensor-parallel sums are priced in bf16"


def _sizes(found: Values) -> dict[str, Any]:
    """Degrees, batch, sequence and machine, as options of `autoshard plan`."""
    options: dict[str, Any] = {name: found.whole(f"distributed_strategy.{key}") or 1 for name, key in DEGREES.items()}
    options["micro_batch"] = found.whole_or_variable("data.micro_batch_size") or 1
    options["schedule"] = usual_schedule(options["vpp"])
    if batch := found.whole_or_variable("data.global_batch_size"):
        options["global_batch"] = batch
    if length := found.whole_or_variable("data.seq_length") or found.whole_or_variable("model.encoder_seq_length"):
        options["seq_len"] = length
    if nodes := found.whole_or_variable("trainer.num_nodes"):
        options["nodes"] = nodes
    devices, lnc = found.whole("trainer.devices"), found.whole("trainer.lnc")
    if devices is not None:
        options["instance"] = instance_of(devices, lnc)
    if lnc is not None:
        options["lnc"] = lnc
    return options


def instance_of(devices: int, lnc: int | None) -> str:
    """The instance with so many devices, each of lnc physical NeuronCores; lnc None where nothing says it."""
    is_trn1 = lnc in (None, 1) and devices <= TRN1_DEVICES
    return INSTANCES.get((devices, lnc or 1), "trn1.32xlarge" if is_trn1 else "trn2.48xlarge")


def auto_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage by NxD's even cut (pipeline/partition.py): the remainder goes to the last stages."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stage >= stages - extra) for stage in range(stages))


FOLLOWS = (
    "distributed_strategy.kv_replicator",
    "exp_manager.checkpoint_callback_params.model_parallel_size",
    "model.qkv_linear",
    "model.fuse_qkv",
    "name",
    "model_source",
)
"""Keys that follow from the rest of a layout."""


def _recompute(found: Values, flash: bool) -> tuple[str, tuple[str, ...]]:
    """NxDT's Llama recomputes core attention where nothing is said and there is no flash attention."""
    granularity = found.get("model.activations_checkpoint_granularity")
    modules = found.get("model.activations_checkpoint_recompute")
    if granularity is None:
        source, moe = found.get("model_source"), found.get("model.moe")
        return ("core_attention" if source == "hf" and not moe and not flash else "none"), ()
    if granularity == "full":
        return "full", ()
    if granularity != "selective":
        raise AutoshardError(
            f"model.activations_checkpoint_granularity is {str(granularity)[:40]!r}; it must be full or selective"
        )
    if not isinstance(modules, list | None):
        key = "model.activations_checkpoint_recompute"
        raise AutoshardError(f"{key} is {str(modules)[:40]!r}; it must be a list of classes, such as [CoreAttention]")
    names = tuple(map(str, modules or ()))
    known = RECOMPUTED[bool(found.get("model.moe"))]
    if not names:
        return _unlisted(found)
    notes = (not_run("activations_checkpoint_recompute"),) if flash and WRITTEN_OUT in names else ()
    running = run_by(names, flash)
    if known.keys() >= set(names):
        return recomputed_by(known, running), notes
    nearest = recomputed_by(known, [name for name in running if name == WRITTEN_OUT])
    return nearest, (*notes, f"activations_checkpoint_recompute={', '.join(names)} is priced as {nearest}")


def run_by(classes: Iterable[str], flash: bool) -> list[str]:
    """The classes, of some, that a block runs. flash: whether a kernel takes the place of attention written out."""
    return [name for name in classes if not (flash and name == WRITTEN_OUT)]


def recomputed_by(known: Mapping[str, tuple[str, ...]], classes: Iterable[str]) -> str:
    """The recompute set of classes that run again. known: as RECOMPUTED."""
    parts = [part for name in classes for part in known[name]]
    return canonical("+".join(parts)) if parts else NO_RECOMPUTE


def not_run(field: str) -> str:
    """A sentence on a field that names attention written out beside a kernel that takes its place."""
    return NOT_RUN.format(field=field, name=WRITTEN_OUT)


def _unlisted(found: Values) -> tuple[str, tuple[str, ...]]:
    """The recompute set of a selective file that lists no classes; by SDK 2.20 if a key is of then."""
    key = "activations_checkpoint_recompute"
    with_mlp = found.flag(f"model.{key}_mlp")
    if with_mlp is None:
        told = "NxD Training recomputes nothing; until SDK 2.20 it was core attention"
        return "none", (f"activations_checkpoint_granularity=selective without {key}: {told}",)
    is_long = (found.whole("model.encoder_seq_length") or 0) >= LONG
    name = "core_attention+mlp" if with_mlp and is_long else "core_attention"
    return name, (
        f"{key}_mlp={with_mlp} is priced as {name}, as NxD Training read it until SDK 2.20; later ones have {key}",
    )


def _stage_layers(cuts: object, layers: int | None) -> tuple[int, ...]:
    """Blocks of each stage. cuts: pipeline_cuts, the last block of every stage but the last."""
    names = cuts if isinstance(cuts, list) else [cuts]
    ends = []
    for name in names:
        match = re.fullmatch(r".*\.(\d{1,6})", str(name))
        if match is None:
            raise AutoshardError(f"model.pipeline_cuts has {str(name)[:60]!r}, which names no block")
        ends.append(int(match[1]) + 1)
    if layers is None:
        raise AutoshardError("model.pipeline_cuts needs model.num_layers")
    edges = [0, *ends, layers]
    if edges != sorted(edges):
        raise AutoshardError(f"model.pipeline_cuts={[end - 1 for end in ends]} must rise and stay below {layers}")
    return tuple(stop - start for start, stop in pairwise(edges))
