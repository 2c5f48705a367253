"""Read LLaMA-Factory's YAML as layouts. How many devices train, and of which kind, the program that starts it is told.

Sources: src/llamafactory of LLaMA-Factory, hparams (which has the defaults), model/adapter.py for what weights are kept
in, model/model_utils/checkpointing.py and attention.py; for fields of the trainer transformers' training_args.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.interop.torchtitan import IN_BF16, NOTES
from autoshard.interop.trainer_fields import (
    DEEPSPEED,
    Sharded,
    bits_warning,
    is_fsdp,
    moments_dtype,
    named_model,
    optimizer_warnings,
    sharded_by_deepspeed,
    sharded_by_fsdp,
)
from autoshard.interop.written_dtypes import moments_option
from autoshard.interop.written_layout import AS_ADAMW, DPO, WrittenLayout
from autoshard.interop.written_lora import Fields, read_lora
from autoshard.interop.written_optimizer import optimizer_option
from autoshard.interop.yaml_values import Values
from autoshard.spec.training import MUON

MODEL, LENGTH, MICRO, RUNS = (
    "model_name_or_path",
    "cutoff_len",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
)
METHOD, STAGE, PURE, NO_AGAIN = "finetuning_type", "stage", "pure_bf16", "disable_gradient_checkpointing"
OWN = (METHOD, STAGE, LENGTH, "template", "infer_backend", "export_dir")
"""Fields beside a model's name one of which each of its files has."""
USUAL_LENGTH, USUAL_MICRO, USUAL_METHOD, USUAL_STAGE, USUAL_OPTIMIZER = 2048, 8, "lora", "sft", "adamw_torch"
ADAPTERS = Fields(
    r="lora_rank",
    lora_alpha="lora_alpha",
    dropout="lora_dropout",
    target="lora_target",
    dora="use_dora",
    rslora="use_rslora",
    saved="additional_target",
    resumed="adapter_name_or_path",
    usual_r=8,
    usual_alpha=lambda r: 2.0 * r,
)
"""The fields on adapters [hparams/finetuning_args.py]."""
TEXT, PREFERENCES = ("pt", "sft"), "dpo"
"""Stages of plain training, and the one on a chosen and a rejected answer."""
OF_MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
OTHER_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini")
NO_EFFECT = re.compile(
    r"""(dataset|eval|save|logging|log|lr|lora|pissa|loraplus|oft|freeze|galore|apollo|badam|adam|warmup|push|hub|report
        |dataloader|ddp|preprocessing|overwrite|ray|swanlab|trackio|mix|val|image|video|audio|pref|dpo|kto|ppo|simpo
        |reward_model|ref_model|quantization|asft|eaft|max|num_train|resume|include|train_on|tokenized|skip|media|vllm
        |profiler|plot|project|run|cache|hf|ms|om|tool|generation|predict|do|print|init)_\w+(\..*)?
    |dataset|template|seed|output_dir|learning_rate|weight_decay|bf16|fp16|pure_bf16|tf32|flash_attn|packing
    |neat_packing|trust_remote_code|use_fast_tokenizer|split_special_tokens|add_(special_)?tokens
    |new_special_tokens_config|optim|optim_args|streaming|buffer_size|fsdp|fsdp_\w+(\..*)?|deepspeed
    |adapter_name_or_path|adapter_folder|additional_target|gradient_checkpointing(_kwargs)?(\..*)?|use_reentrant_gc
    |double_quantization|compute_accuracy|additional_config|create_new_adapter|mask_history|enable_thinking
    |model_revision|low_cpu_mem_usage|remove_unused\w+|use_(galore|apollo|badam|adam_mini|muon|swanlab|rslora|dora)
    |infer_dtype|upcast_layernorm|disable_shuffling|fp8_backend""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, and those that a warning speaks of."""


def is_llama_factory(data: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML file is one of LLaMA-Factory's, but for those of its version 1."""
    return MODEL in data and bool(data.keys() & {*OWN})


def llama_factory_layout(data: Mapping[str, Any], folder: str) -> WrittenLayout:
    """The layout in a parsed file of LLaMA-Factory: all devices are replicas, but where DeepSpeed splits matrices.

    folder: where the file is, for the configuration of DeepSpeed that it names. Raises AutoshardError for values that
    make no layout, and for files that train nothing.
    """
    values = Values(data)
    _check_kind(values)
    options: dict[str, Any] = {
        **dict.fromkeys(("tp", "pp", "cp", "vpp", "ep"), 1),
        "micro_batch": values.whole(MICRO) or USUAL_MICRO,
        "seq_len": values.whole(LENGTH) or USUAL_LENGTH,
        "recompute": NO_RECOMPUTE if values.flag(NO_AGAIN) else FULL_RECOMPUTE,
        "attention_kernel": "plain" if values.get("flash_attn") == "disabled" else "flash",
    }
    half = "bf16" if values.flag("bf16") or values.flag(PURE) else "fp16" if values.flag("fp16") else None
    options["precision"] = "fp32" if half is None else IN_BF16 if values.flag(PURE) else "mixed_precision"
    options |= optimizer_option(MUON if values.flag("use_muon") else values.get("optim"))
    fields: dict[str, Any] = {"sequence_parallel": False, "microbatches": values.whole(RUNS) or 1, "zero": 0}
    shards = Sharded({}, {}, ())
    if values.get(DEEPSPEED):
        shards = sharded_by_deepspeed(DEEPSPEED, values, half, folder)
    elif is_fsdp(values):
        shards = sharded_by_fsdp(values, options["precision"])
    options |= shards.options
    fields |= shards.fields
    options |= moments_option(options, moments_dtype(values.get("optim")))
    model, known = named_model(values, MODEL)
    if known is not None:
        options["model"] = known
    notes = tuple(_notes(values, half))
    method = str(values.get(METHOD) or USUAL_METHOD)
    lora = read_lora(values, f"{METHOD}={method}", ADAPTERS) if method == "lora" else None
    warnings = (*shards.warnings, *_warnings(values, method))
    products = {"fp8=True": "fp8"} if values.flag("fp8") else {}
    left_out = values.left_out()
    return WrittenLayout(
        "LLaMA-Factory configuration",
        options,
        fields,
        model=model,
        notes=notes,
        sharding=NOTES.get(fields["zero"], "") if is_fsdp(values) else "",
        warnings=warnings,
        products=products,
        lora=lora,
        overlaps="LLaMA-Factory",
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not NO_EFFECT.fullmatch(key) and values.peek(key)),
    )


def _check_kind(values: Values) -> None:
    """Raise AutoshardError for a file that trains nothing, and for one of Megatron, which has other defaults."""
    if not values.flag("do_train"):
        raise AutoshardError("do_train is not True: the file trains nothing")
    for key in OF_MEGATRON:
        if values.has(key):
            raise AutoshardError(f"{key}: LLaMA-Factory trains such files with Megatron, and none of them is read")


def _notes(values: Values, half: str | None) -> Iterator[str]:
    """Sentences on what is read as something that is nearly the same."""
    if half == "fp16":
        yield "fp16 is priced as bf16"
    if values.flag(PURE):
        yield f"{PURE}=True: priced as {IN_BF16}, which rounds at random"
    is_packed = values.flag("packing")
    if not (values.get(STAGE) == "pt" if is_packed is None else is_packed):
        yield f"no packing: rows may be shorter than {LENGTH}, which is priced"
    if not values.get(DEEPSPEED) and not is_fsdp(values):
        yield "neither deepspeed nor fsdp: priced as DDP; a configuration of Accelerate that starts it may shard more"


def _warnings(values: Values, method: str) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price. method: what is trained."""
    stage = str(values.get(STAGE) or USUAL_STAGE)
    if method not in ("lora", "full"):
        yield f"{METHOD}={method[:40]}: priced as training of all weights"
    if (bits := values.get("quantization_bit")) is not None:
        yield bits_warning(f"quantization_bit={show(bits)}")
    if stage == PREFERENCES:
        yield DPO.format(said=f"{STAGE}={stage}", batch=MICRO)
    elif stage not in TEXT:
        yield f"{STAGE}={stage[:40]}: priced as plain training on {MICRO} sequences"
    for key in OTHER_OPTIMIZERS:
        if values.flag(key):
            yield AS_ADAMW.format(said=f"{key}=True")
    yield from optimizer_warnings("optim", str(values.get("optim") or USUAL_OPTIMIZER), method != "lora")
