"""Megatron-LM's command-line arguments as a layout."""

from __future__ import annotations

import shlex
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop.written_layout import WrittenLayout, builtin_model_with, whole_number

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


def megatron_layout(text: str) -> WrittenLayout:
    """Degrees default to 1, as there; text may be a whole launch command with its line ends escaped."""
    flags = _flags(text)
    options: dict[str, Any] = dict.fromkeys(("tp", "pp", "cp", "ep", "micro_batch"), 1)
    for flag, name in NUMBERS.items():
        if flag in flags:
            options[name] = whole_number(f"--{flag}", flags[flag])
    sizes = {name: whole_number(f"--{flag}", flags[flag]) for flag, name in SIZES.items() if flag in flags}
    model = builtin_model_with(**sizes)
    if model:
        options["model"] = model
    options["vpp"] = _virtual_stages(flags, sizes.get("num_hidden_layers"), options["pp"])
    options["schedule"] = "interleaved" if options["vpp"] > 1 else "1f1b"
    granularity = "selective" if "recompute-activations" in flags else flags.get("recompute-granularity")
    if granularity is not None and granularity not in RECOMPUTE:
        raise AutoshardError(f"--recompute-granularity is {granularity[:40]!r}; it must be full or selective")
    options["recompute"] = "none" if granularity is None else RECOMPUTE[granularity]
    options["precision"] = "mixed_precision" if flags.keys() & {"bf16", "fp16"} else "fp32"
    notes = ("--fp16 is priced as bf16",) if "fp16" in flags else ()
    fields = {
        "sequence_parallel": "sequence-parallel" in flags and options["tp"] > 1,
        "zero1": "use-distributed-optimizer" in flags,
    }
    return WrittenLayout("Megatron arguments", options, fields, notes=notes)


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
            after = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("--") else ""
            flags[name.replace("_", "-")] = value or after
    return flags


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
