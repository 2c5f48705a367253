"""Read torchtitan's configurations as layouts: TOML of releases 0.1.0 to 0.2.2, Python registries after them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from math import gcd, prod
from typing import Any

from autoshard.backends.torch import TORCH
from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.interop.torchtitan_stages import EACH, SPLITS, STAGE_KEYS, stages_of
from autoshard.interop.written_layout import AS_ADAMW, LORA, WrittenLayout, WrittenLora, whole_number
from autoshard.interop.written_model import WrittenModel, property_of
from autoshard.interop.written_optimizer import is_muon, optimizer_option
from autoshard.models.registry import load_model
from autoshard.schedules import usual_schedule

DEGREES = {
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}
MODELS = {
    ("llama3", "8B"): "llama3-8b",
    ("llama3", "70B"): "llama3-70b",
    ("llama3", "405B"): "llama3.1-405b",
    ("qwen3", "8B"): "qwen3-8b",
    ("qwen3", "32B"): "qwen3-32b",
    ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
}
NAMED = {
    **MODELS,
    ("qwen3", "0.6B"): "qwen3-0.6b",
    ("qwen3", "1.7B"): "qwen3-1.7b",
    ("qwen3", "4B"): "qwen3-4b",
    ("qwen3", "14B"): "qwen3-14b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
"""Those, and others that are read alone: plans for them are written without a flavor."""
RECOMPUTE = {
    "none": "none",
    "full": "full",
    "selective": "core_attention+mlp",
    "memory_budget": "core_attention+mlp",
}

SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved"}
"""pipeline_parallel_schedule, whose case does not matter, and the schedule here that it is."""
STAND_INS = {"InterleavedZeroBubble": "interleaved", "ZBVZeroBubble": "interleaved", "DualPipeV": "interleaved"}
"""Those that put off weight gradients, with two chunks a rank, and what they are priced as."""
PARAMETERS = "mixed_precision_param"
PRECISIONS = {"float32": "fp32"}
"""What parameters are computed with, where it is not bfloat16, and the precision here."""
SEQUENCE_LENGTH, USUAL_LOCAL_BATCH = 2048, 8
"""torchtitan's defaults: tokens, and sequences of a data-parallel rank between two gradients."""
LOCAL_BATCH = ("local_batch_size", "batch_size")
DTYPE = "dtype"
"""What parameters, gradients and optimizer states are kept in: float32, the default, or bfloat16."""
IN_BF16 = "bf16_sr"
"""The precision without a copy of the weights in float32."""
SCHEDULE = "parallelism.pipeline_parallel_schedule"
CONTEXT_PARALLEL = {"allgather": "all_gather", "alltoall": "zigzag_ring"}
"""context_parallel_rotate_method: its all-to-all passes keys and values around; the sequence is balanced by zigzag."""
NOTES = {
    1: "FSDP shards parameters and gradients too; it is priced as ZeRO-1, which shards the optimizer state",
    3: "FSDP that reshards parameters after forward is priced as ZeRO-3",
}
"""By stage of ZeRO."""
RESHARDS = ("default", "always", "never")
"""fsdp_reshard_after_forward: whether parameters are sharded again after forward."""
SHARDS = "data_parallel_shard_degree"
"""Ranks that share shards, but for those of context parallelism; -1, the default, for all that are left."""
EXPERT_RANKS = "expert_tensor_parallel_degree"
"""Ranks that cut an expert: those of tensor parallelism or 1, the default."""
SELECTIVE_OPTION = "selective_ac_option"
"""op, or how many blocks there are for each that runs again whole: 2 where it is not given."""
BUDGET = "memory_budget"
"""Activations that torch.compile may keep: 0 for those of full recompute, 1 for all."""
USUAL_RANK, USUAL_ALPHA, TARGETS = 8, 16.0, "target_modules"
"""Of the section lora and of LoRAConverter [components/lora.py]."""
READ = {
    f"{section}.{key}"
    for section, keys in {
        "model": ("name", "flavor"),
        "training": ("seq_len", *LOCAL_BATCH, "global_batch_size", DTYPE),
        "activation_checkpoint": ("mode", SELECTIVE_OPTION, BUDGET),
        "lora": ("rank", "alpha", TARGETS, "dropout"),
        "optimizer": ("name",),
        "parallelism": (
            *DEGREES.values(),
            EXPERT_RANKS,
            SHARDS,
            "data_parallel_replicate_degree",
            "fsdp_reshard_after_forward",
            "enable_sequence_parallel",
            "pipeline_parallel_schedule",
            "pipeline_parallel_microbatch_size",
            "module_fqns_per_model_part",
            *STAGE_KEYS,
            "context_parallel_rotate_method",
        ),
    }.items()
    for key in keys
}
"""Keys that say something about the layout, or the model that it is for, each with its section."""
UNREAD = "unread"
"""A section that no file has: of a registry, the calls whose settings are not known."""
BEFORE = re.compile(
    r"""training\.(\w+_parallel_\w+|fsdp_reshard_after_forward|(enable_)?fp8_linear|enable_float8_linear)
    |experimental\.(tensor|pipeline|context|expert)_parallel_\w+
    |float8\.enable_float8_linear""",
    re.VERBOSE,
)
"""Keys on the layout, or on products of matrices, from before release 0.1.0."""
LAYERS = {
    "wq": "q_proj",
    "wk": "k_proj",
    "wv": "v_proj",
    "wo": "o_proj",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
}
"""Layers' names in torchtitan and here."""
SWITCH = ".enable_"
"""Part of the name of a key that does nothing where it is false."""
FLAVOR_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"),
    "rope_theta",
)
"""Sizes that the versions of a flavor share."""
NO_EFFECT = re.compile(
    r"""(job|profiling|metrics|lr_scheduler|optimizer|checkpoint|comm|validation|debug|fault_tolerance|compile
    |memory_estimation|quantize|float8|mx|lora|peft|profiler|validator|dataloader)(\..*)?
    |model\.(hf_assets_path|tokenizer_path|tokenizer|print_after_conversion|converters)
    |training\.(dataset\w*|max_norm|steps|seed|deterministic|gc_freq|gc_debug|mixed_precision_\w+)
    |experimental\.custom_\w+|parallelism\.disable_loss_parallel""",
    re.VERBOSE,
)
"""Keys that leave the work of a step as it is, and those that a warning speaks of."""


def torchtitan_layout(data: Mapping[str, Any]) -> WrittenLayout:
    """The layout in a parsed torchtitan configuration.

    What is absent has torchtitan's default: degrees are 1, and data-parallel shards take the devices that are left.
    Raises AutoshardError for values that make no layout.
    """
    sections = {section: values for section, values in data.items() if isinstance(values, Mapping)}
    said = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    if old := next(filter(BEFORE.fullmatch, said), None):
        today = "[parallelism] has the degrees and model.converters names float8"
        raise AutoshardError(f"{old} is of torchtitan before 0.1.0; files are read from 0.1.0 on, where {today}")
    parallelism, training = _section(data, "parallelism"), _section(data, "training")
    options: dict[str, Any] = {name: whole_number(key, parallelism.get(key, 1)) for name, key in DEGREES.items()}
    etp, cut_experts = _expert_ranks(parallelism, options)
    if etp is not None:
        options["etp"] = etp
    options["seq_len"] = whole_number("training.seq_len", training.get("seq_len", SEQUENCE_LENGTH))
    key = next((key for key in LOCAL_BATCH if key in training), LOCAL_BATCH[0])
    local = whole_number(f"training.{key}", training.get(key, USUAL_LOCAL_BATCH))
    options["micro_batch"] = local if options["pp"] == 1 else parallelism.get("pipeline_parallel_microbatch_size", 1)
    batch = training.get("global_batch_size", -1)
    fields: dict[str, Any] = {
        "sequence_parallel": _flag(parallelism, "enable_sequence_parallel", True) and options["tp"] > 1,
        "zero": _zero(parallelism, options["pp"], options["cp"]),
    }
    copies = whole_number("data_parallel_replicate_degree", parallelism.get("data_parallel_replicate_degree", 1))
    if fields["zero"] and copies > 1:
        fields["dp_replicate"] = copies
    if (shards := parallelism.get(SHARDS, -1)) != -1:
        shards = whole_number(f"parallelism.{SHARDS}", shards)
        _check_experts(options, shards, cut=parallelism.get(EXPERT_RANKS, 1) != 1)
        options["dp"] = copies * shards
    if batch != -1:
        options["global_batch"] = whole_number("training.global_batch_size", batch)
    if batch == -1 or options["pp"] > 1:
        fields["sequences_per_replica"] = local
    schedule, stand_in = _schedule(parallelism) if options["pp"] > 1 else (None, None)
    if options["pp"] == 1 or not (EACH in parallelism or parallelism.get(SPLITS)):
        options["vpp"] = 2 if schedule == "interleaved" else 1
    if parts := parallelism.get("module_fqns_per_model_part"):
        fields["stage_layers"] = stage_layers(parts)
        options["vpp"] = max(1, len(fields["stage_layers"]) // options["pp"])
    rotate = str(parallelism.get("context_parallel_rotate_method", "allgather"))
    if options["cp"] > 1:
        if rotate not in CONTEXT_PARALLEL:
            ways = " or ".join(CONTEXT_PARALLEL)
            raise AutoshardError(f"parallelism.context_parallel_rotate_method is {show(rotate)}; it must be {ways}")
        options["context_parallel"] = CONTEXT_PARALLEL[rotate]
    options["schedule"] = schedule or usual_schedule(options.get("vpp", 1))
    options["recompute"], kept, approximation = _recompute(_section(data, "activation_checkpoint"))
    options["precision"] = _precision(training)
    options |= optimizer_option(_optimizer(data))
    options["backend"] = TORCH.name
    model = _section(data, "model")
    known = NAMED.get((str(model.get("name")), str(model.get("flavor"))))
    if known:
        options["model"] = known
    lora = _lora(data)
    left_out = tuple(key for key in said if key not in READ and not key.startswith(f"{UNREAD}."))
    return WrittenLayout(
        "torchtitan configuration",
        options,
        fields,
        stages=stages_of(parallelism),
        model=_unknown(model) if known is None else _flavor(known, show(model.get("flavor"))),
        notes=tuple(kept),
        sharding=NOTES.get(fields["zero"], ""),
        products={
            f"model.converters has {name}": precision for name in _converters(data) if (precision := _products(name))
        },
        lora=lora,
        warnings=(*_warnings(data, lora), *filter(None, (stand_in, cut_experts)), *approximation),
        overlaps="torchtitan",
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not (NO_EFFECT.fullmatch(key) or _is_off(key, said[key]))),
    )


def _is_off(key: str, value: object) -> bool:
    """Whether a key enables something, and says no."""
    return value is False and SWITCH in key


def _recompute(section: Mapping[str, Any]) -> tuple[str, list[str], list[str]]:
    """(the recompute set, notes, warnings). Raises AutoshardError for words that torchtitan has not."""
    mode, option = str(section.get("mode", "selective")), str(section.get(SELECTIVE_OPTION, "2"))
    if mode not in RECOMPUTE:
        raise AutoshardError(f"activation_checkpoint.mode is {mode[:40]!r}; it must be one of {', '.join(RECOMPUTE)}")
    recompute, key = RECOMPUTE[mode], f"activation_checkpoint.{SELECTIVE_OPTION}"
    if mode == "memory_budget":
        budget = f"activation_checkpoint.{BUDGET}={show(section.get(BUDGET, 0.5))}"
        return recompute, [], [f"{budget}: torch.compile chooses what runs again; priced as {recompute}"]
    if mode != "selective":
        return recompute, [], []
    if option == "op":
        kept = "torchtitan keeps attention and every second product of matrices"
        return recompute, [f"{key}=op is priced as {recompute}; {kept}"], []
    if not re.fullmatch(r"[1-9][0-9]{0,5}", option):
        raise AutoshardError(f"{key} is {option[:40]!r}; it must be op or a whole number of at least 1")
    if option == "1":
        return RECOMPUTE["full"], [], []
    told = f"one block of {option} runs again, whole; priced as {recompute} of each"
    return recompute, [], [f"{key}={option}: {told}"]


def _precision(training: Mapping[str, Any]) -> str:
    """The name of the precision. Raises AutoshardError for a dtype that torchtitan has not."""
    kept = training.get(DTYPE, "float32")
    if kept not in ("float32", "bfloat16"):
        raise AutoshardError(f"training.{DTYPE} is {show(kept)}; it must be float32 or bfloat16")
    return IN_BF16 if kept == "bfloat16" else PRECISIONS.get(str(training.get(PARAMETERS)), "mixed_precision")


def _schedule(parallelism: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(the schedule, a warning where it stands in for another one): None where the file names none. Raises
    AutoshardError for one that nothing here is like."""
    if "pipeline_parallel_schedule" not in parallelism:
        return None, None
    written = str(parallelism["pipeline_parallel_schedule"])
    for known in (SCHEDULES, STAND_INS):
        for name, schedule in known.items():
            if name.lower() == written.lower():
                warning = f"{SCHEDULE}={name} is priced as {schedule}, which puts off no weight gradients"
                return schedule, warning if known is STAND_INS else None
    names = ", ".join([*SCHEDULES, *STAND_INS])
    raise AutoshardError(f"{SCHEDULE} is {written[:40]!r}, which has no price here; those that have: {names}")


def _expert_ranks(parallelism: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """(how many ranks cut an expert, None where it is as many as cut the rest; a warning where torchtitan has none do).

    torchtitan keeps experts whole by default. Where ep has too few ranks for each of tp to hold other experts, ranks of
    the same experts split the tokens there and the experts here, which is as much work.
    """
    ep, tp = options["ep"], options["tp"]
    if ep == 1 or tp == 1:
        return None, None
    etp = whole_number(EXPERT_RANKS, parallelism.get(EXPERT_RANKS, 1))
    if etp not in (1, tp):
        raise AutoshardError(f"parallelism.{EXPERT_RANKS}={etp} must be 1 or tensor_parallel_degree={tp}")
    if etp == tp:
        return None, None
    etp = tp // gcd(ep // options["cp"], tp)
    said = f"parallelism.{DEGREES['ep']}={ep}: torchtitan keeps experts whole"
    return None if etp == tp else etp, None if etp == 1 else f"{said}; priced with each cut over {etp} ranks of tp={tp}"


def _check_experts(options: Mapping[str, Any], shards: int, cut: bool) -> None:
    """Raise AutoshardError where experts do not lie within the ranks that share shards, as torchtitan wants
    [torchtitan distributed/parallel_dims.py]; its copies of the model each have all. cut: whether tp cuts experts."""
    degrees = {SHARDS: shards, DEGREES["cp"]: options["cp"], **({} if cut else {DEGREES["tp"]: options["tp"]})}
    if prod(degrees.values()) % options["ep"]:
        within = " x ".join(f"{key}={degree}" for key, degree in degrees.items())
        raise AutoshardError(f"parallelism.{DEGREES['ep']}={options['ep']} must divide {within}")


def _unknown(model: Mapping[str, Any]) -> WrittenModel:
    named = ", ".join(f"model.{key}={show(model[key])}" for key in ("name", "flavor") if key in model)
    return WrittenModel(named=named)


def _flavor(name: str, flavor: str) -> WrittenModel:
    model = load_model(name)
    return WrittenModel(
        {size: (f"model.flavor={flavor} with {size}", property_of(model, size)) for size in FLAVOR_SIZES}
    )


def _asks_for_lora(data: Mapping[str, Any]) -> str | None:
    """The converter, or the section, that asks for adapters; None for none."""
    converters = (f"model.converters has {name}" for name in _converters(data) if "lora" in name.lower())
    sections = (f"[{section}]" for section in ("lora", "peft") if section in data)
    return next(chain(converters, sections), None)


def _lora(data: Mapping[str, Any]) -> WrittenLora | None:
    """The adapters that are trained; None where there are none, and where their rank cannot be read. Without
    target_modules all linear layers have one, the head among them."""
    said = _asks_for_lora(data)
    if said is None or said == "[peft]":
        return None
    section = _section(data, "lora")
    rank, alpha, targets = section.get("rank", USUAL_RANK), section.get("alpha", USUAL_ALPHA), section.get(TARGETS)
    if not (isinstance(rank, int) and isinstance(alpha, int | float) and isinstance(targets, list | None)):
        return None
    dropout = section.get("dropout")
    drops = f"lora.dropout={dropout}" if dropout else ""
    names = ("output",) if targets is None else tuple(LAYERS.get(str(name), str(name)) for name in targets)
    return WrittenLora(said, rank, float(alpha), names, targets is None, f"lora.{TARGETS}", drops=drops)


def _warnings(data: Mapping[str, Any], lora: WrittenLora | None) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price. lora: as `_lora` has it."""
    if lora is None and (said := _asks_for_lora(data)) is not None:
        yield LORA.format(said=said)
    for name in _converters(data):
        if "lora" not in name.lower() and not _products(name):
            yield f"model.converters has {name}: it is not in the price"
    for call in _section(data, UNREAD):
        yield f"{call}: what it sets is not read"
    training, optimizer = _section(data, "training"), _optimizer(data)
    for key, priced in {PARAMETERS: ("bfloat16", *PRECISIONS), "mixed_precision_reduce": ("float32",)}.items():
        if training.get(key, priced[0]) not in priced:
            yield f"training.{key}={show(training[key])} is priced as {priced[0]}"
    if training.get(DTYPE) == "bfloat16":
        rounds = "which sums gradients of all ranks in bfloat16 too and rounds at random"
        yield f"training.{DTYPE}=bfloat16 is priced as {IN_BF16}, {rounds}"
    if training.get("enable_cpu_offload") is True:
        yield "training.enable_cpu_offload: copies to and from the host are not in the price"
    if not (optimizer.startswith("Adam") or is_muon(optimizer)):
        yield AS_ADAMW.format(said=f"optimizer.name={optimizer}")


def _optimizer(data: Mapping[str, Any]) -> str:
    return str(_section(data, "optimizer").get("name", "AdamW"))


def _converters(data: Mapping[str, Any]) -> list[str]:
    converters = _section(data, "model").get("converters", [])
    return [str(converter) for converter in (converters if isinstance(converters, list) else [converters])]


def _products(converter: str) -> str | None:
    """The precision here that a converter stands for; None for another kind of converter."""
    if "lora" in converter.lower():
        return None
    parts = converter.lower().split(".")
    if "nvfp4" in parts[-1]:
        return "nvfp4"
    return "mxfp8" if "mx" in parts or "mxfp8" in parts[-1] else "fp8" if "float8" in converter.lower() else None


def _zero(parallelism: Mapping[str, Any], pp: int, cp: int) -> int:
    """The ZeRO stage; ranks of cp share shards too. By torchtitan's default, parameters are sharded again after forward
    if there is no pipeline. Raises AutoshardError for a word that torchtitan has not."""
    after = parallelism.get("fsdp_reshard_after_forward", "default")
    if after not in RESHARDS:
        raise AutoshardError(
            f"parallelism.fsdp_reshard_after_forward is {show(after)}; it must be one of {', '.join(RESHARDS)}"
        )
    if parallelism.get(SHARDS, -1) == 1 and cp == 1:
        return 0
    return 3 if after == "always" or (after == "default" and pp == 1) else 1


def _flag(section: Mapping[str, Any], key: str, usual: bool) -> bool:
    """A key of [parallelism] that is true or false. Raises AutoshardError for anything else, such as a text."""
    value = section.get(key, usual)
    if not isinstance(value, bool):
        raise AutoshardError(f"parallelism.{key} is {show(value)}; it must be true or false")
    return value


def stage_layers(parts: object) -> tuple[int, ...]:
    """Blocks of each stage. parts: for each stage the names of its modules."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise AutoshardError("parallelism.module_fqns_per_model_part must be a list of lists of names")
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name, {})
    if not isinstance(section, Mapping):
        raise AutoshardError(f"{name} must be a table")
    return section
