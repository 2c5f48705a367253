"""Megatron-LM's command-line arguments as a layout."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop.written_layout import WrittenLayout, builtin_model_with, whole_number
from autoshard.schedules import usual_schedule

NUMBERS = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "micro-batch-size": "micro_batch",
    "global-batch-size": "global_batch",
    "seq-length": "seq_len",
    "nnodes": "nodes",
}
SIZES = {
    "num-layers": "num_hidden_layers",
    "hidden-size": "hidden_size",
    "ffn-hidden-size": "intermediate_size",
    "num-attention-heads": "num_attention_heads",
    "num-query-groups": "num_key_value_heads",
}
RECOMPUTE = {"full": "full", "selective": "core_attention"}
CONTEXT_PARALLEL = {"p2p": "zigzag_ring", "a2a": "ulysses", "allgather": "all_gather", "all_gather": "all_gather"}
SEVERAL = ("recompute-modules",)
"""Flags that take more than one word."""
TP_PP_DP = "dp-pp-cp-tp"
"""--use-tp-pp-dp-mapping: data parallelism outside of the pipeline. Without it the order is the default one."""
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
KERNELS = {"flash": "flash", "fused": "flash", "unfused": "plain", "local": "plain"}


def megatron_layout(text: str) -> WrittenLayout:
    """Degrees default to 1, as there; text may be a whole launch command with its line ends escaped."""
    flags = _flags(text)
    options: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp", "ep", "micro_batch"), 1)
    for flag, name in NUMBERS.items():
        if flag in flags:
            options[name] = whole_number(f"--{flag}", flags[flag])
    sizes = {name: whole_number(f"--{flag}", flags[flag]) for flag, name in SIZES.items() if flag in flags}
    if "num-experts" in flags and "moe-ffn-hidden-size" in flags:
        sizes["intermediate_size"] = whole_number("--moe-ffn-hidden-size", flags["moe-ffn-hidden-size"])
    hints = {
        "num_local_experts": number(flags.get("num-experts")) or 0,
        "shared_expert_intermediate_size": number(flags.get("moe-shared-expert-intermediate-size")) or 0,
        "rope_theta": number(flags.get("rotary-base")),
        "max_position_embeddings": number(flags.get("max-position-embeddings")),
    }
    model = builtin_model_with(hints, **sizes)
    if model:
        options["model"] = model
    options["vpp"] = _virtual_stages(flags, sizes.get("num_hidden_layers"), options["pp"])
    options["schedule"] = usual_schedule(options["vpp"])
    granularity = "selective" if "recompute-activations" in flags else flags.get("recompute-granularity")
    if granularity is not None and granularity not in RECOMPUTE:
        raise AutoshardError(f"--recompute-granularity is {granularity[:40]!r}; it must be full or selective")
    options["recompute"] = "none" if granularity is None else RECOMPUTE[granularity]
    if granularity == "selective" and set(flags.get("recompute-modules", "").split()) & {"mlp", "moe"}:
        options["recompute"] = "core_attention+mlp"
    if flags.get("attention-backend") in KERNELS:
        options["attention_kernel"] = KERNELS[flags["attention-backend"]]
    if options["cp"] > 1 and flags.get("cp-comm-type", "p2p") in CONTEXT_PARALLEL:
        options["context_parallel"] = CONTEXT_PARALLEL[flags.get("cp-comm-type", "p2p")]
    if "use-tp-pp-dp-mapping" in flags:
        options["axis_order"] = TP_PP_DP
    options["precision"] = "mixed_precision" if flags.keys() & {"bf16", "fp16"} else "fp32"
    notes: tuple[str, ...] = ("--fp16 is priced as bf16",) if "fp16" in flags else ()
    if "axis_order" in options and options["ep"] > 1:
        notes += ("--use-tp-pp-dp-mapping: experts are inside the pipeline there; priced outside, with the rest of dp",)
    fields: dict[str, Any] = {
        "sequence_parallel": "sequence-parallel" in flags and options["tp"] > 1,
        "zero": _zero(flags),
    }
    if "pipeline-model-parallel-layout" in flags:
        fields["stage_layers"] = layout_layers(flags["pipeline-model-parallel-layout"])
        options["vpp"] = max(1, len(fields["stage_layers"]) // options["pp"])
        options["schedule"] = usual_schedule(options["vpp"])
    capacity = number(flags.get("moe-expert-capacity-factor"))
    return WrittenLayout(
        "Megatron arguments",
        options,
        fields,
        notes=notes,
        model_fields={name: sizes[name] for name in ("num_hidden_layers", "hidden_size") if name in sizes},
        training_fields={"expert_capacity_factor": capacity} if capacity else {},
        left_out=tuple(f"--{flag}" for flag in flags if flag not in READ),
    )


READ = (
    *NUMBERS,
    *SIZES,
    *("num-experts", "rotary-base", "max-position-embeddings", "moe-expert-capacity-factor", "moe-router-topk"),
    *("moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-shared-expert-gate", "moe-router-pre-softmax"),
    *("recompute-activations", "recompute-granularity", "recompute-modules", "recompute-method"),
    *("recompute-num-layers", "attention-backend", "cp-comm-type", "bf16", "fp16", "sequence-parallel"),
    *("use-megatron-fsdp", "data-parallel-sharding-strategy", "use-tp-pp-dp-mapping"),
    *("use-distributed-optimizer", "pipeline-model-parallel-layout", "num-virtual-stages-per-pipeline-rank"),
    *("num-layers-per-virtual-pipeline-stage", "nproc-per-node", "group-query-attention"),
)
"""Flags that say something about the layout, or about the model that it is found by."""


def layout_layers(layout: str) -> tuple[int, ...]:
    """Blocks of each stage in Megatron's notation: 'Et*3|(t|)*2t*4L' is 3, 1, 1, 4."""
    text = re.sub(r"\(([^()]*)\)\*(\d{1,3})", lambda found: found[1] * int(found[2]), layout[:500].replace(",", ""))
    text = re.sub(r"([EtmL])\*(\d{1,3})", lambda found: found[1] * int(found[2]), text[:5000])
    if len(layout) > 500 or not re.fullmatch(r"[EtmL|]+", text):
        raise AutoshardError(f"--pipeline-model-parallel-layout is {layout[:60]!r}; one reads Et*3|t*4|t*4|t*3L")
    return tuple(stage.count("t") for stage in text.split("|"))


def number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _flags(text: str) -> dict[str, str]:
    """Flag without dashes -> what follows it, '' for nothing. Underscores are dashes, as torchrun has them."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise AutoshardError(f"it is no command line: {error}") from None
    flags: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            after = list(takewhile(lambda word: not word.startswith("--"), words[index + 1 :]))
            several = name.replace("_", "-") in SEVERAL
            flags[name.replace("_", "-")] = value or " ".join(after if several else after[:1])
    return flags


def _zero(flags: dict[str, str]) -> int:
    if "use-megatron-fsdp" not in flags:
        return int("use-distributed-optimizer" in flags)
    strategy = flags.get("data-parallel-sharding-strategy", "no_shard")
    if strategy not in SHARDING:
        raise AutoshardError(f"--data-parallel-sharding-strategy is {strategy[:40]!r}; known: {', '.join(SHARDING)}")
    return SHARDING[strategy]


def _virtual_stages(flags: dict[str, str], layers: int | None, pp: int) -> int:
    if "num-virtual-stages-per-pipeline-rank" in flags:
        return whole_number("--num-virtual-stages-per-pipeline-rank", flags["num-virtual-stages-per-pipeline-rank"])
    name = "num-layers-per-virtual-pipeline-stage"
    if name not in flags:
        return 1
    each = whole_number(f"--{name}", flags[name])
    if layers is None or layers % (pp * each):
        raise AutoshardError(f"--{name}={each} x pp={pp} must divide --num-layers={layers}")
    return layers // (pp * each)
