"""Read recipes of Amazon SageMaker HyperPod as layouts: those for GPUs that train with FSDP, and SMP where they use it.

Its recipes for Trainium are configurations of NxD Training. Sources: the launcher, sagemaker-hyperpod-recipes (main.py,
recipes_collection/config.yaml, launcher/nemo), until October 2025; what trains,
sagemaker-hyperpod-training-adapter-for-nemo (conf/config_schemas.py, which has the defaults, constants.py,
collections/model, collections/parts/fsdp_strategy.py, utils/fsdp_utils.py, utils/train_utils.py). On
hybrid_shard_degree and cp_comm_type it is AWS's reference of SMP v2, which is published without its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.interop import megatron
from autoshard.interop.accelerate import HYBRID, STRATEGIES
from autoshard.interop.torchtitan import NOTES
from autoshard.interop.trainer_fields import bits_warning
from autoshard.interop.written_layout import A_NODE, DPO, LORA, NO_COPIES, WrittenLayout
from autoshard.interop.written_lora import Fields, read_lora
from autoshard.interop.written_model import WrittenModel
from autoshard.interop.yaml_values import Values
from autoshard.models.registry import model_of_repository
from autoshard.spec.rope import RopeScaling

ENVELOPE = "recipes"
"""The part of the launcher's configuration that holds a recipe; recipes=training/llama/... names its file."""
INSTANCE = "instance_type"
USUAL_INSTANCE, USUAL_DEVICES = "p5.48xlarge", 8
"""instance_type of the launcher's config.yaml, and its devices."""
DEGREES = {"tp": "model.tensor_model_parallel_degree", "cp": "model.context_parallel_degree"}
EXPERT_RANKS, SHARDS, STRATEGY = "model.expert_model_parallel_degree", "model.shard_degree", "model.sharding_strategy"
BATCH, LENGTH, NODES, DEVICES = (
    "model.train_batch_size",
    "model.max_context_width",
    "trainer.num_nodes",
    "trainer.devices",
)
OWN = tuple(key.removeprefix("model.") for key in (*DEGREES.values(), EXPERT_RANKS, SHARDS, BATCH, LENGTH))
"""Fields under `model` one of which each such recipe has."""
DEFAULTS: dict[str, Any] = {BATCH: 2, LENGTH: 2048, NODES: 1, STRATEGY: "hybrid_shard"}
SMP, AGAIN, FP8 = "use_smp_model", "model.activation_checkpointing", "model.fp8"
"""Switches that are on where a recipe does not say them."""
METHOD, LORAS = "model.peft.peft_type", ("lora", "qlora_4bit")
ADAPTERS = Fields(
    r="model.peft.rank",
    lora_alpha="model.peft.alpha",
    dropout="model.peft.dropout",
    target="model.peft.target_modules",
    usual_r=32,
    usual_alpha=lambda r: 16.0,
    usual_dropout=0.1,
)
"""The fields on adapters; without target_modules it is all-linear [collections/model/sagemaker_base_model.py]."""
PRECISIONS = {"bf16": "mixed_precision", "16": "mixed_precision", "32": "fp32"}
UNREAD = re.compile(r"verl|mtrl|llm_finetuning_aws|hyperpod_\w+|(?:amazon\.)?nova\b.*")
"""run.model_type of recipes of other frameworks; the NeMo Framework Launcher has a field of this name too."""
OTHER_KINDS = "run.model_type={kind}: of HyperPod's recipes those for NxD Training, NeMo 1, and FSDP with SMP are read"
MODEL_TYPES = {
    "llama_v2": "llama",
    "llama_v3": "llama",
    "deepseek_r1_llama_v3": "llama",
    "mistral": "mistral",
    "mixtral": "mixtral",
    "qwen_v2": "qwen2",
    "deepseek_r1_qwen_v2": "qwen2",
}
"""model.model_type -> the model_type here, of those that are made of the sizes in the recipe."""
SIZES = {
    "num_hidden_layers": ("num_layers", "num_hidden_layers"),
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("intermediate_size",),
    "num_attention_heads": ("num_heads", "num_attention_heads"),
    "num_key_value_heads": ("num_key_value_heads",),
    "vocab_size": ("vocab_size",),
    "num_local_experts": ("num_local_experts",),
    "num_experts_per_tok": ("num_experts_per_tok",),
    "sliding_window": ("sliding_window",),
}
"""Whole numbers of a model -> fields under `model` that say them, of which the last one that is there counts."""
NUMBERS = {"norm_eps": ("layernorm_epsilon", "rms_norm_eps"), "rope_theta": ("rope_theta",)}
WITH_DENSE_BLOCKS = ("deepseek_r1",)
"""model.model_type of mixtures whose intermediate_size is that of blocks without experts."""
WINDOWED = ("mistral", "mixtral")
"""model_types whose window a recipe says; Llama has none, and Qwen 2 uses none."""
USUAL: dict[str, Any] = {
    "normalization": "rmsnorm",
    "activation": "swiglu",
    "positions": "rope",
    "block": "pre_ln",
    "norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_expert_intermediate_size": 0,
    "norm_topk_prob": True,
    "normalizes_heads": False,
}
OF_TYPES: dict[str, dict[str, Any]] = {
    "llama": {"bias": "none"},
    "mistral": {"bias": "none", "sliding_window": 4096, "num_key_value_heads": 8},
    "mixtral": {"bias": "none", "norm_eps": 1e-5, "num_key_value_heads": 8, "num_local_experts": 8},
    "qwen2": {"bias": "qkv", "num_key_value_heads": 32},
}
"""Values that transformers' configurations have where a recipe is silent: all of them, and each [LlamaConfig,
MistralConfig, MixtralConfig, Qwen2Config]."""
NO_EFFECT = re.compile(
    r"""(run|exp_manager|cluster|git|env_vars|hydra)\..*|distributed_backend|display_name|instance_types|version
    |log_perf_metrics|name
    |trainer\.(accelerator|max_\w+|log_\w+|val_\w+|limit_\w+|num_sanity\w+|check_val\w+|gradient_clip_val)
    |model\.(seed|grad_clip|log_reduced_training_loss|val_batch_size|activation_loading_horizon|delayed_param
        |offload_activations|forward_prefetch|backward_fetch_policy|auto_wrap_policy|limit_all_gathers|use_orig_param
        |fp8_\w+|max_position_embeddings|initializer_range|use_flash_attention|use_sliding_window|max_window_layers
        |tie_word_embeddings|moe|moe_load_balancing|do_finetune|hf_access_token|lr_decay_iters|global_token_shuffle
        |moe_all_to_all_dispatcher|nvte_attn_backend|resume_from_checkpoint)
    |model\.(optim|data|viztracer|nsys_profile|gpu_affinity|peft|dpo|rope_scaling)\..*""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, those that nothing reads, and those that a warning speaks of."""


def recipe_in(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """(the recipe in a parsed YAML file, the instance that its launcher is told): the file itself and None where it is
    no configuration of the launcher.

    Raises AutoshardError for an instance that is no text.
    """
    recipe = data.get(ENVELOPE)
    if not isinstance(recipe, Mapping):
        return data, None
    instance = data.get(INSTANCE)
    if instance is not None and not isinstance(instance, str):
        raise AutoshardError(f"{INSTANCE} is {show(instance)}; it must be a name, such as {USUAL_INSTANCE}")
    return recipe, instance and instance.lower().removeprefix("ml.")


def on_instance(written: WrittenLayout, instance: str | None) -> WrittenLayout:
    """The layout of a recipe on the instance that its launcher is told; as it is for None, and where a recipe for
    Trainium stands beside the GPUs that the launcher has unless it is told others."""
    if instance is None or (str(written.options.get("instance")).startswith("trn") and instance == USUAL_INSTANCE):
        return written
    notes = tuple(note for note in written.notes if note != OF_LAUNCHER)
    return replace(written, options={**written.options, "instance": instance}, notes=notes)


def is_hyperpod(data: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML file is a recipe of HyperPod that this module reads. Raises AutoshardError for a recipe
    that nothing here reads."""
    model, run = data.get("model"), data.get("run")
    if isinstance(model, Mapping) and model.keys() & {*OWN}:
        return True
    if isinstance(run, Mapping) and isinstance(kind := run.get("model_type"), str) and UNREAD.fullmatch(kind):
        raise AutoshardError(OTHER_KINDS.format(kind=show(kind)))
    return False


OF_LAUNCHER = f"{INSTANCE} is said to the launcher: {USUAL_INSTANCE}, as it has it, where --instance says nothing else"


def hyperpod_layout(data: Mapping[str, Any]) -> WrittenLayout:
    """The layout in a parsed recipe: ranks that tp and cp leave are replicas, in groups that share shards.

    Raises AutoshardError for values that make no layout, and for models that see.
    """
    values = Values(data, root=f"{ENVELOPE}.")
    _check_kind(values)
    degrees = {name: values.whole(key) or 1 for name, key in DEGREES.items()}
    smp, again, fp8 = (_is_on(values, key) for key in (SMP, AGAIN, FP8))
    if not smp and degrees["tp"] > 1:
        raise AutoshardError(f"{DEGREES['tp']}={degrees['tp']} needs {SMP}=True; without it 1 works")
    options: dict[str, Any] = {**degrees, "pp": 1, "vpp": 1, "ep": 1}
    for name, key in {"micro_batch": BATCH, "seq_len": LENGTH, "nodes": NODES}.items():
        options[name] = values.whole_or_variable(key) or DEFAULTS[key]
    if degrees["cp"] > 1:
        options["context_parallel"] = megatron.CONTEXT_PARALLEL["p2p"]
    options["recompute"] = FULL_RECOMPUTE if again else NO_RECOMPUTE
    options["attention_kernel"] = "flash"
    options["precision"], notes = _precision(values)
    devices = None if str(values.get(DEVICES)) == "auto" else values.whole(DEVICES)
    if devices in (None, USUAL_DEVICES):
        options["instance"] = USUAL_INSTANCE
        notes += (OF_LAUNCHER,)
    fields = {"sequence_parallel": False, "microbatches": 1, **_shards(values, degrees)}
    if degrees["tp"] > 1:
        told = "how SMP shards what is not split over tensor-parallel ranks is not published"
        notes += (f"{DEGREES['tp']}={degrees['tp']}: {told}; priced without sequence parallelism",)
    if again and fp8 and smp and values.flag("model.moe"):
        notes += (f"{AGAIN}: attention and experts run again there, and whole blocks in the price",)
    model, named = _model(values)
    if named is not None:
        options["model"] = named
    elif model.whole and values.flag("model.tie_word_embeddings"):
        notes += ("model.tie_word_embeddings=True reaches no model there: the embedding and the head are two",)
    method = values.get(METHOD) if values.get("model.peft") else None
    lora = read_lora(values, f"{METHOD}={show(method)}", ADAPTERS) if method in LORAS else None
    warnings = tuple(_warnings(values, method))
    left_out = values.left_out()
    return WrittenLayout(
        "HyperPod recipe",
        options,
        fields,
        model=model,
        notes=notes,
        sharding=NOTES.get(fields["zero"], ""),
        warnings=warnings,
        products={f"{FP8}=True": "fp8"} if fp8 and smp else {},
        lora=lora,
        overlaps="HyperPod",
        devices_per_node=devices,
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not NO_EFFECT.fullmatch(key) and values.peek(key)),
    )


def _check_kind(values: Values) -> None:
    """Raise AutoshardError for a model that sees, and for experts over ranks, whose groups SMP does not publish."""
    if values.flag("model.multi_modal"):
        raise AutoshardError("model.multi_modal=True: a plan is for a decoder of text alone, not for such a model")
    if (ranks := values.whole(EXPERT_RANKS) or 1) > 1:
        raise AutoshardError(f"{EXPERT_RANKS}={ranks}: which ranks SMP gives experts is not published; 1 works")


def _is_on(values: Values, key: str) -> bool:
    """Whether a switch is on, as it is where a recipe does not say it."""
    return values.flag(key) is not False


def _precision(values: Values) -> tuple[str, tuple[str, ...]]:
    """(the precision here, notes). Raises AutoshardError for one that FSDP gets no policy of."""
    key = "model.precision" if values.get("model.precision") is not None else "trainer.precision"
    said = str(values.get("trainer.precision") if key == "trainer.precision" else values.get(key))
    said = "bf16" if said == "None" else said
    if said not in PRECISIONS:
        raise AutoshardError(f"{key} is {show(said)}; it must be one of {', '.join(PRECISIONS)}")
    return PRECISIONS[said], (f"{key}=16 is priced as bf16",) if said == "16" else ()


def _shards(values: Values, degrees: Mapping[str, int]) -> dict[str, Any]:
    """Fields on what is sharded, and over how many ranks.

    Without a shard_degree FSDP shards by its own rule, over a node or all ranks; SMP's tensor parallelism has it shard
    over as many as there are. With one any strategy but the second kind of ZeRO is a hybrid. Raises AutoshardError for
    shards that ranks of cp do not go into.
    """
    said = str(values.get(STRATEGY) or DEFAULTS[STRATEGY])
    name = said.upper().removeprefix("_")
    if name not in STRATEGIES:
        known = ", ".join(strategy.lower() for strategy in STRATEGIES)
        raise AutoshardError(f"{STRATEGY} is {show(said)}; it must be one of {known}")
    stage, shards = STRATEGIES[name], values.whole(SHARDS)
    if stage == 0 or shards == 1:
        return {"zero": 0}
    if shards is None and name.startswith(HYBRID) and degrees["tp"] == 1:
        return {"zero": stage, "shards": A_NODE}
    if shards is None:
        return {"zero": stage}
    if shards % degrees["cp"]:
        raise AutoshardError(f"{SHARDS}={shards} must be a multiple of {DEGREES['cp']}={degrees['cp']}")
    return {"zero": stage, "shards": shards}


def _model(values: Values) -> tuple[WrittenModel, str | None]:
    """(the model of the recipe, the name of the built-in one whose repository it names)."""
    kind = values.get("model.model_type")
    kind = "llama_v3" if kind is None else str(kind)
    repository = values.get("model.hf_model_name_or_path")
    known = model_of_repository(repository) if isinstance(repository, str) else None
    named = f"model.model_type={show(kind)}"
    if isinstance(repository, str) and "$" not in repository:
        named = f"model.hf_model_name_or_path={show(repository)}"
    model_type = MODEL_TYPES.get(kind)
    said: dict[str, tuple[str, Any]] = {}
    for names, read in ((SIZES, values.whole), (NUMBERS, values.number)):
        for name, keys in names.items():
            every = [(f"model.{key}", value) for key in keys if (value := read(f"model.{key}")) is not None]
            said |= {name: every[-1]} if every else {}
    if kind in WITH_DENSE_BLOCKS and "intermediate_size" in said:
        said["dense_intermediate_size"] = said.pop("intermediate_size")
    if model_type not in WINDOWED:
        said.pop("sliding_window", None)
    if model_type == "llama" and (scaling := _scaling(values)) is not None:
        said["rope_scaling"] = ("model.rope_scaling", scaling)
    if model_type is None:
        return WrittenModel(said, named=named), known
    length = values.whole_or_variable(LENGTH)
    positions = {"max_position_embeddings": length} if isinstance(length, int) else {}
    assumed = {**USUAL, **OF_TYPES[model_type], **positions}
    if known is not None:
        return WrittenModel(said, model_types=(model_type,)), known
    return WrittenModel(said, assumed, whole=True, model_types=(model_type,)), None


def _scaling(values: Values) -> RopeScaling | None:
    """How Llama's rope is stretched; None where it is not. Only what is of this kind reaches the model."""
    if values.get("model.rope_scaling.rope_type" if values.has("model.rope_scaling") else "model.rope_scaling") is None:
        return None
    if (kind := values.get("model.rope_scaling.rope_type")) != "llama3":
        raise AutoshardError(f"model.rope_scaling.rope_type is {show(kind)}; it must be llama3 or null")
    return RopeScaling(
        kind,
        values.number("model.rope_scaling.factor") or 8.0,
        values.number("model.rope_scaling.low_freq_factor") or 1.0,
        values.number("model.rope_scaling.high_freq_factor") or 4.0,
        values.whole("model.rope_scaling.original_max_position_embeddings") or 8192,
    )


def _warnings(values: Values, method: object) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price. method: the kind of adapters, None for
    none."""
    if method is not None and method not in LORAS:
        yield LORA.format(said=f"{METHOD}={show(method)}")
    if method == "qlora_4bit":
        yield bits_warning(f"{METHOD}={show(method)}")
    if values.get("model.dpo") and values.flag("model.dpo.enabled"):
        yield DPO.format(said="model.dpo.enabled=True", batch=BATCH.removeprefix("model."))
    if values.flag("model.offload_activations"):
        yield f"model.offload_activations=True: priced with activations on the devices, {NO_COPIES}"
    if values.flag("model.moe"):
        routing = str(values.get("model.moe_load_balancing") or "sinkhorn")
        if routing == "sinkhorn" and _is_on(values, SMP):
            yield f"model.moe_load_balancing={routing} is priced as a top-k router"
