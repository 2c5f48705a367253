"""Read axolotl's YAML as layouts. How many devices train, and of which kind, the program that starts it is told.

Sources: src/axolotl of axolotl, utils/schemas (which has the defaults), utils/config, utils/trainer.py,
utils/distributed.py, loaders (in what weights are loaded, and what of Accelerate is replaced),
monkeypatch/accelerate/fsdp2.py (which keeps weights as they are loaded) and integrations/expert_parallel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.interop.deepspeed import AUTO
from autoshard.interop.torchtitan import IN_BF16, NOTES
from autoshard.interop.trainer_fields import (
    DEEPSPEED,
    Sharded,
    bits_warning,
    fsdp_field,
    is_fsdp,
    moments_dtype,
    named_model,
    optimizer_warnings,
    sharded_by_deepspeed,
    sharded_by_fsdp,
)
from autoshard.interop.written_dtypes import moments_option
from autoshard.interop.written_layout import DPO, LORA, NO_COPIES, WrittenLayout, WrittenLora
from autoshard.interop.written_lora import Fields, read_lora
from autoshard.interop.written_optimizer import optimizer_option
from autoshard.interop.yaml_values import Values

MODEL, LENGTH, MICRO, RUNS, BATCH = (
    "base_model",
    "sequence_len",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "batch_size",
)
OWN = (LENGTH, MICRO, RUNS, "datasets", "pretraining_dataset", "adapter", "sample_packing", "fsdp_config", "num_epochs")
"""Fields beside base_model one of which each of axolotl's files has."""
USUAL_LENGTH = 512
DEGREES = {"tp": "tensor_parallel_size", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
COPIES, SHARDS = "dp_replicate_size", "dp_shard_size"
RINGS = {"varlen_llama3": "all_gather", "batch_ring": "ring"}
"""ring_attn_func, and the way of context parallelism here: where samples are packed, and where not, unless it is
said."""
RING, OLDER_CP = "ring_attn_func", "sequence_parallel_degree"
AGAIN, OFFLOADING = "gradient_checkpointing", ("offload", "offload_disk")
"""The field for blocks that run again in backward, and its words for True with activations on the host."""
VERSION = "fsdp_version"
USUAL_OPTIMIZER = "adamw_torch_fused"
ADAPTER, EVERY = "adapter", "lora_target_linear"
ADAPTERS = Fields(
    r="lora_r",
    lora_alpha="lora_alpha",
    dropout="lora_dropout",
    target="lora_target_modules",
    dora="peft_use_dora",
    rslora="peft_use_rslora",
    saved="lora_modules_to_save",
    resumed="lora_model_dir",
    elsewhere=(
        *("lora_target_parameters", "lora_exclude_modules", "lora_rank_pattern", "lora_alpha_pattern"),
        *("peft_layers_to_transform", "peft_layer_replication"),
    ),
    usual_names="",
)
"""The fields on adapters; neither rank, scale nor layers have a default [loaders/adapter.py]."""
NO_EFFECT = re.compile(
    r"""(wandb|mlflow|comet|swanlab|trackio|lora|peft|hub|push|dataset|data|pretraining|eval|early|save|saves|evals|log
        |logging|lr|adam|warmup|val|test|special|chat|tokenizer|token|processor|ddp|dataloader|otel|use_otel
        |loss_watchdog|sample_packing|min_sample|multipack|streaming|shuffle|gcs?|profiler|max_packed|eot|roles|skip
        |total|bnb|gptq|model_quantization|quantize|load_in|trust|gradient_checkpointing|ray|dion|eta|cosine|vllm|trl
        |rl|kto|orpo|dpo|project|timeout|gpu|node|volumes|secrets|accelerator|tensorboard|embeddings)_\w+(\..*)?
    |(datasets|test_datasets|special_tokens|added_tokens_overrides|tokens|trl|vllm)(\..*)?
    |base_model_\w+|model_type|type_of_model|cls_model_config|revision_of_model|tokenizer|chat_template\w*|adapter
    |peft.*|output_dir|seed|strict|batch_size|full_finetune|learning_rate|optim_args|weight_decay|max_grad_norm
    |num_epochs|max_steps|pad_to_\w+|group_by_length|train_on_inputs|resume_\w+|auto_resume\w*|local_rank|device\w*|world_size
    |tf32|bf16|fp16|bfloat16|float16|float32|torch_dtype|dataset|debug|resize_\w+|remove_unused_columns
    |low_cpu_mem_usage|torchdistx_path|use_(wandb|tensorboard|swanlab|mlflow|comet|trackio|ray)|evaluation_strategy
    |rl|deepspeed|strategy|ddp|excess_length_strategy|include_tkps|activation_offloading|is_\w+_derived_model
    |(flash|sdp|flex|sage|xformers)_attention|flash_optimum|attn_implementation|experimental_skip_move_to_device
    |unfrozen_parameters|hf_use_auth_token|noisy_embedding_alpha|freeze_mm_modules
    |fsdp|fsdp_(version|final_state_dict_type)
    |fsdp_config\.(fsdp_)?(version|fsdp_version|offload_params|sync_module_states|cpu_\w+|\w*state_dict_type
        |use_orig_params|auto_wrap_policy|transformer_layer_cls_to_wrap|min_num_params|mixed_precision_policy
        |limit_all_gathers|backward_prefetch|forward_prefetch)""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, and those that a warning speaks of."""


def is_axolotl(data: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML file is one of axolotl's."""
    return MODEL in data and bool(data.keys() & {*OWN})


def axolotl_layout(data: Mapping[str, Any], folder: str) -> WrittenLayout:
    """The layout in a parsed file of axolotl: all devices that tp and cp leave are replicas.

    folder: where the file is, for the configuration of DeepSpeed that it names. Raises AutoshardError for values that
    make no layout.
    """
    values = Values(data)
    degrees = _degrees(values)
    micro = values.whole(MICRO) or 1
    options: dict[str, Any] = {**degrees, "pp": 1, "vpp": 1, "micro_batch": micro}
    options["seq_len"] = values.whole(LENGTH) or USUAL_LENGTH
    if degrees["cp"] > 1:
        options["context_parallel"] = _ring(values)
    options["recompute"] = FULL_RECOMPUTE if _runs_again(values) else NO_RECOMPUTE
    options["attention_kernel"] = _kernel(values)
    fields: dict[str, Any] = {"sequence_parallel": False, "microbatches": _runs(values, micro), "zero": 0}
    half = _half(values)
    notes = tuple(_notes(values, half))
    options["precision"], unlike = _precision(values, half)
    options |= optimizer_option(values.get("optimizer"))
    notes += unlike
    shards = Sharded({}, {}, ())
    if is_fsdp(values):
        shards = sharded_by_fsdp(values, options["precision"])
        options |= shards.options | (sizes := _replicas(values, degrees)).options
        fields |= {**shards.fields, **sizes.fields}
    elif (ranks := values.whole(SHARDS) or 1) > 1:
        raise AutoshardError(f"{SHARDS}={ranks} needs fsdp_config; 1 works without it")
    elif values.get(DEEPSPEED):
        shards = sharded_by_deepspeed(DEEPSPEED, values, half, folder)
        options |= shards.options
        fields |= shards.fields
    options |= moments_option(options, moments_dtype(values.get("optimizer")))
    model, known = named_model(values, MODEL)
    if known is not None:
        options["model"] = known
    lora = _lora(values)
    warnings = (*shards.warnings, *_warnings(values, degrees["ep"], lora))
    products = {"fp8=True": "fp8"} if values.flag("fp8") else {}
    left_out = values.left_out()
    return WrittenLayout(
        "axolotl configuration",
        options,
        fields,
        model=model,
        notes=notes,
        sharding=NOTES.get(fields["zero"], "") if is_fsdp(values) else "",
        warnings=warnings,
        products=products,
        lora=lora,
        overlaps="axolotl",
        left_out=left_out,
        not_priced=tuple(
            key for key in left_out if not NO_EFFECT.fullmatch(key) and _may_matter(key, values.peek(key))
        ),
    )


def _may_matter(key: str, value: object) -> bool:
    """Whether a field that nothing here reads may change a step: no switch that is off, nor what FSDP does anyway."""
    return bool(value) and not (key.endswith("sharding_strategy") and value == "FULL_SHARD")


def _degrees(values: Values) -> dict[str, int]:
    """Ranks by the names of options. Raises AutoshardError for experts over ranks of those that cut matrices."""
    degrees = {name: values.whole(key) or 1 for name, key in DEGREES.items()}
    degrees["cp"] = max(degrees["cp"], values.whole(OLDER_CP) or 1)
    tp, ep = degrees["tp"], degrees["ep"]
    if tp > 1 and ep > 1:
        raise AutoshardError(f"{DEGREES['ep']}={ep} with {DEGREES['tp']}={tp}: axolotl takes one of them; 1 works")
    return degrees


def _ring(values: Values) -> str:
    """The way of context parallelism. Raises AutoshardError for one that axolotl does not take."""
    packed, whole = RINGS
    said = values.get(RING) or (packed if values.flag("sample_packing") else whole)
    if said not in RINGS:
        raise AutoshardError(f"{RING} is {show(said)}; it must be {' or '.join(RINGS)}")
    return RINGS[said]


def _runs(values: Values, micro: int) -> int:
    """Microbatches of a replica in each step."""
    if values.has(RUNS) and values.get(RUNS) is None:
        return max(1, (values.whole(BATCH) or micro) // micro)
    return values.whole(RUNS) or 1


def _half(values: Values) -> str | None:
    """The half precision that it computes in, where the devices have both; None for none."""
    bf16 = values.get("bf16") if values.has("bf16") else AUTO
    is_fp16 = values.flag("fp16")
    if bf16 == AUTO:
        return "fp16" if is_fp16 else "bf16"
    if values.flag("bf16") or values.flag("bfloat16"):
        return "bf16"
    return "fp16" if is_fp16 or values.flag("float16") else None


def _precision(values: Values, half: str | None) -> tuple[str, tuple[str, ...]]:
    """(the precision here without DeepSpeed, notes). Weights are loaded in half precision; the first FSDP alone has
    Accelerate widen them. half: as `_half` has it."""
    if half is None:
        return "fp32", ()
    if is_fsdp(values):
        said = VERSION if values.get(VERSION) is not None else fsdp_field(values, "version")[0]
        if str(values.get(said)) != "2":
            return "mixed_precision", ()
        said = f"{said}=2"
    elif values.get(DEEPSPEED):
        return "mixed_precision", ()
    else:
        said = "neither fsdp_config nor deepspeed"
    kept = "weights and moments" if moments_dtype(values.get("optimizer")) is None else "weights"
    return IN_BF16, (f"{said}: {kept} are kept in {half}; priced as {IN_BF16}, which rounds at random",)


def _replicas(values: Values, degrees: Mapping[str, int]) -> Sharded:
    """Ranks that share shards of FSDP, and copies of those: ranks of experts are replicas of the rest; without either
    size FSDP's own rule holds."""
    copies, shards, ep = values.whole(COPIES) or 1, values.whole(SHARDS) or 1, degrees["ep"]
    fields = {"dp_replicate": copies} if copies > 1 else {}
    if shards == 1:
        return Sharded({}, fields, ())
    if copies == 1 and ep == 1:
        return Sharded({}, {"shards": shards * degrees["cp"]}, ())
    return Sharded({"dp": copies * shards * ep}, fields, ())


def _runs_again(values: Values) -> bool:
    """Whether blocks run again in backward. Raises AutoshardError for a word that axolotl does not take."""
    key, _ = fsdp_field(values, "activation_checkpointing")
    by_fsdp = values.flag(key)
    return bool(values.get(AGAIN) in OFFLOADING or values.flag(AGAIN) or by_fsdp)


def _kernel(values: Values) -> str:
    is_plain = values.get("attn_implementation") == "eager" or values.flag("eager_attention")
    return "plain" if is_plain else "flash"


def _notes(values: Values, half: str | None) -> Iterator[str]:
    """Sentences on what is read as something that is nearly the same."""
    if half == "fp16":
        yield "fp16 is priced as bf16"
    if not values.flag("sample_packing") and not values.flag("pad_to_sequence_len"):
        yield f"neither sample_packing nor pad_to_sequence_len: rows may be shorter than {LENGTH}, which is priced"


def _lora(values: Values) -> WrittenLora | None:
    """The adapters that it trains, where the file says enough of them."""
    if (adapter := values.get(ADAPTER)) not in ("lora", "qlora"):
        return None
    lora = read_lora(values, f"{ADAPTER}={show(adapter)}", ADAPTERS)
    return replace(lora, every=True) if lora is not None and values.flag(EVERY) else lora


def _warnings(values: Values, ep: int, lora: WrittenLora | None) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price. ep: ranks of experts. lora: as `_lora` has
    it."""
    if lora is None and (adapter := values.get(ADAPTER)):
        yield LORA.format(said=f"{ADAPTER}={show(adapter)}")
    elif values.get("unfrozen_parameters"):
        yield "unfrozen_parameters: priced as training of all weights"
    for bits in (4, 8):
        if values.flag(f"load_in_{bits}bit"):
            yield bits_warning(f"load_in_{bits}bit=True")
    if isinstance(values.peek("peft"), Mapping) and (kept := values.get("peft.weight_dtype")):
        yield bits_warning(f"peft.weight_dtype={show(kept)}")
    if kind := values.get("rl"):
        said = f"rl={show(kind)}"
        is_dpo = kind in ("dpo", "ipo")
        yield DPO.format(said=said, batch=MICRO) if is_dpo else f"{said}: priced as plain training on {MICRO} sequences"
    for key in ("reward_model", "process_reward_model"):
        if values.flag(key):
            yield f"{key}=True: priced with the head and the loss of a language model"
    yield from optimizer_warnings("optimizer", str(values.get("optimizer") or USUAL_OPTIMIZER), lora is None)
    yield from _offloaded(values)
    if values.get("selective_checkpointing"):
        yield "selective_checkpointing: priced as if attention ran again too"
    if ep > 1 and is_fsdp(values) and (values.whole(SHARDS) or 1) > 1:
        yield f"{DEGREES['ep']}={ep}: all but experts is sharded over {SHARDS} ranks there, and over all in the price"


def _offloaded(values: Values) -> Iterator[str]:
    """Sentences on what lies on the host."""
    for name, what in {
        AGAIN: "activations",
        "activation_offloading": "activations",
        "layer_offloading": "parameters",
    }.items():
        said = values.get(name)
        if said and (name != AGAIN or said in OFFLOADING):
            yield f"{name}={show(said)}: priced with {what} on the devices, {NO_COPIES}"
