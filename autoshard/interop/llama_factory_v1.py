"""Read the YAML of LLaMA-Factory's version 1 as layouts: its own trainer, with FSDP2 or DeepSpeed.

Sources: src/llamafactory/v1 of LLaMA-Factory, config (which has the defaults), accelerator/interface.py for the ranks,
core/model_engine.py for what weights are kept in, core/base_trainer.py and plugins/trainer_plugins/distributed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.interop.torchtitan import NOTES
from autoshard.interop.trainer_fields import Sharded, bits_warning, named_model, sharded_by_deepspeed
from autoshard.interop.written_layout import AS_ADAMW, NO_COPIES, WrittenLayout
from autoshard.interop.written_lora import Fields, read_lora
from autoshard.interop.written_optimizer import ON_EACH, ON_ONE, is_muon, named, optimizer_option, steps_warning
from autoshard.interop.yaml_values import Values

MODEL, LENGTH, MICRO, BATCH, CP = "model", "cutoff_len", "micro_batch_size", "global_batch_size", "cp_size"
OWN = ("dist_config", "train_dataset", "model_class")
"""Fields beside `model` one of which each file has."""
USUAL_LENGTH, USUAL_CLASS = 2048, "llm"
KIND, FILE = "dist_config.name", "dist_config.config_file"
FSDP, DEEPSPEED = "fsdp2", "deepspeed"
RESHARDS, OFFLOADS = "dist_config.reshard_after_forward", "dist_config.offload_params"
COPIES, SHARDS = "mp_replicate_size", "mp_shard_size"
ADAPTERS, METHOD = "peft_config", "peft_config.name"
FIELDS = Fields(
    r=f"{ADAPTERS}.r",
    lora_alpha=f"{ADAPTERS}.lora_alpha",
    dropout=f"{ADAPTERS}.lora_dropout",
    target=f"{ADAPTERS}.target_modules",
    dora=f"{ADAPTERS}.use_dora",
    rslora=f"{ADAPTERS}.use_rslora",
    saved=f"{ADAPTERS}.modules_to_save",
    resumed=f"{ADAPTERS}.adapter_name_or_path",
    usual_r=8,
    usual_alpha=lambda r: 16.0,
    usual_dropout=0.05,
)
"""The fields on adapters [plugins/model_plugins/peft.py]."""
AGAIN, WAY = "enable_activation_checkpointing", "cp_mode"
OPTIMIZER, STEPS = "optim_config.name", "optim_config.ns_steps"
NO_EFFECT = re.compile(
    r"""(sample|save|pref|dpo|simpo|lr_scheduler|max|num_train|logging|batching|resume|custom|dist)_\w+(\..*)?
    |(peft_config|quant_config|optim_config|dist_config|init_config)(\..*)?|train_dataset|eval_dataset|output_dir
    |learning_rate|seed|trust_remote_code|bf16|full_determinism|ld_alpha""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, and those that a warning speaks of."""


def is_llama_factory_v1(data: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML file is one of LLaMA-Factory's version 1."""
    return isinstance(data.get(MODEL), str) and bool(data.keys() & {*OWN})


def llama_factory_v1_layout(data: Mapping[str, Any], folder: str) -> WrittenLayout:
    """The layout in a parsed file of LLaMA-Factory's version 1: all devices that cp leaves are replicas.

    folder: where the file is, for the configuration of DeepSpeed that it names. Raises AutoshardError for values that
    make no layout.
    """
    values = Values(data)
    cp = values.whole(CP) or 1
    options: dict[str, Any] = {
        **dict.fromkeys(("tp", "pp", "vpp", "ep"), 1),
        "cp": cp,
        "micro_batch": values.whole(MICRO) or 1,
        "seq_len": values.whole(LENGTH) or USUAL_LENGTH,
        "recompute": NO_RECOMPUTE if values.flag(AGAIN) is False else FULL_RECOMPUTE,
        "attention_kernel": "plain" if values.get("flash_attn") == "eager" else "flash",
    }
    if (replicas := values.whole("dp_size")) is not None:
        options["dp"] = replicas
    if cp > 1:
        options["context_parallel"] = _way(values)
    fields: dict[str, Any] = {"sequence_parallel": False}
    if (batch := values.whole(BATCH)) is None:
        fields["microbatches"] = 1
    else:
        options["global_batch"] = batch
    shards = _sharded(values, folder)
    options |= shards.options
    fields |= shards.fields
    model, known = named_model(values, MODEL)
    if known is not None:
        options["model"] = known
    notes = tuple(_notes(values))
    is_lora = bool(values.get(ADAPTERS)) and values.get(METHOD) == "lora"
    if not is_lora:  # it trains adapters by AdamW
        options |= optimizer_option(_optimizer(values))
    lora = read_lora(values, f"{METHOD}=lora", FIELDS) if is_lora else None
    warnings = (*shards.warnings, *_warnings(values, is_lora))
    left_out = values.left_out()
    return WrittenLayout(
        "LLaMA-Factory configuration",
        options,
        fields,
        model=model,
        notes=notes,
        sharding=NOTES.get(fields["zero"], "") if values.get(KIND) == FSDP else "",
        warnings=warnings,
        lora=lora,
        overlaps="LLaMA-Factory",
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not NO_EFFECT.fullmatch(key) and values.peek(key)),
    )


def _way(values: Values) -> str:
    """The way of context parallelism. Raises AutoshardError for another one, and without FSDP."""
    if (way := values.get(WAY) or "ulysses") != "ulysses":
        raise AutoshardError(f"{WAY} is {show(way)}; it must be ulysses")
    if not values.get("dist_config") or values.get(KIND) != FSDP:
        raise AutoshardError(f"{CP}={values.get(CP)} needs {KIND}={FSDP}; 1 works without it")
    return "ulysses"


def _sharded(values: Values, folder: str) -> Sharded:
    """How ranks share weights and states, and the precision: weights are kept in float32, whatever computes.

    Raises AutoshardError for a kind that is not read.
    """
    kind = values.get(KIND) if values.get("dist_config") else None
    if kind is None:
        return Sharded({"precision": "fp32"}, {"zero": 0}, ())
    if kind == DEEPSPEED:
        return sharded_by_deepspeed(FILE, values, "bf16", folder)
    if kind != FSDP:
        raise AutoshardError(f"{KIND} is {show(kind)}; {FSDP} and {DEEPSPEED} are read")
    precision = "fp32" if values.flag("bf16") is False else "mixed_precision"
    fields: dict[str, Any] = {"zero": 2 if values.flag(RESHARDS) is False else 3}
    if (shards := values.whole(SHARDS)) is not None:
        fields["shards"] = shards
    elif (copies := values.whole(COPIES) or 1) > 1:
        fields["dp_replicate"] = copies
    warning = f"{OFFLOADS}=True: priced with parameters on the devices, {NO_COPIES}"
    return Sharded({"precision": precision}, fields, (warning,) if values.flag(OFFLOADS) else ())


def _notes(values: Values) -> Iterator[str]:
    """Sentences on what is read as something that is nearly the same."""
    yield f"rows may be shorter than {LENGTH}, which is priced"
    if not values.get("dist_config") and values.flag("bf16") is not False:
        yield "no dist_config: weights are float32, and nothing computes in fewer bits"


def _warnings(values: Values, is_lora: bool) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price. is_lora: whether it trains adapters."""
    if values.get(ADAPTERS) and not is_lora:
        yield f"{METHOD}={show(values.get(METHOD))}: priced as training of all weights"
    if values.get("quant_config"):
        yield bits_warning(f"quant_config.name={show(values.get('quant_config.name'))}")
    if is_muon(optimizer := _optimizer(values)):
        yield from () if is_lora else _of_muon(values)
    elif values.get("optim_config"):
        yield AS_ADAMW.format(said=named(OPTIMIZER, optimizer))
    if (kind := values.get("model_class") or USUAL_CLASS) != USUAL_CLASS:
        yield f"model_class={show(kind)}: priced with the head and the loss of a language model"


def _optimizer(values: Values) -> object:
    """The name of an optimizer that is not the usual one; None for that."""
    return values.get(OPTIMIZER) if values.get("optim_config") else None


def _of_muon(values: Values) -> Iterator[str]:
    """Sentences on Muon [v1/plugins/trainer_plugins/optimizers/muon_optimizer.py]."""
    if values.get("dist_config") and values.get(KIND) == FSDP:
        yield ON_EACH.format(said=named(OPTIMIZER, values.get(OPTIMIZER)), ranks="rank", priced=ON_ONE)
    steps = values.get(STEPS)
    yield from steps_warning(named(STEPS, steps), steps)
