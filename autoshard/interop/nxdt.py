"""Configurations of NeuronX Distributed Training (YAML) as layouts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop.written_layout import WrittenLayout, builtin_model_with, whole_number
from autoshard.schedules import usual_schedule

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
}
RECOMPUTE = {
    ("CoreAttention",): "core_attention",
    ("CoreAttention", "LlamaMLP"): "core_attention+mlp",
    ("CoreAttention", "MoE"): "core_attention+mlp",
}
PRECISIONS = {"mixed_precision": "mixed_precision", "bf16SR": "bf16_sr", "fp32": "fp32"}


def nxdt_layout(data: Mapping[str, Any]) -> WrittenLayout:
    """Degrees default to 1, as there. References such as ${model.encoder_seq_length} are followed."""
    found = _Values(data)
    options = _sizes(found)
    ring = bool(found.get("model.fusions.ring_attention"))
    flash = bool(found.get("model.fusions.flash_attention")) or ring
    options["recompute"], notes = _recompute(found, flash)
    options["attention_kernel"] = "flash" if flash else "plain"
    if options["cp"] > 1:
        options["context_parallel"] = "ring"
    precision = str(found.get("precision.type") or "mixed_precision")
    options["precision"] = PRECISIONS.get(precision, "mixed_precision")
    if precision not in PRECISIONS:
        notes += (f"precision.type={precision} is priced as mixed_precision",)
    layers, moe = found.whole("model.num_layers"), found.get("model.moe.num_experts")
    if model := _builtin_model(found):
        options["model"] = model
    fields: dict[str, Any] = {
        "sequence_parallel": bool(found.get("distributed_strategy.sequence_parallel")) and options["tp"] > 1,
        "zero": int(bool(found.get("distributed_strategy.zero1"))),
    }
    cuts, stages = found.get("model.pipeline_cuts"), options["pp"] * options["vpp"]
    if cuts:
        fields["stage_layers"] = _stage_layers(cuts, layers)
    elif layers is not None and layers > stages and layers % stages:
        fields["stage_layers"] = auto_partition(layers, stages)
    capacity = _number(found.get("model.moe.capacity_factor"))
    training_fields = {"expert_capacity_factor": capacity} if moe and capacity else {}
    model_fields = {"num_hidden_layers": layers, "hidden_size": found.whole("model.hidden_size")}
    return WrittenLayout(
        "NxDT configuration",
        options,
        fields,
        notes=notes,
        model_fields={name: value for name, value in model_fields.items() if value is not None},
        training_fields=training_fields,
        left_out=found.left_out(),
    )


def _sizes(found: _Values) -> dict[str, Any]:
    """Degrees, batch, sequence and machine, as options of `autoshard plan`."""
    options: dict[str, Any] = {name: found.whole(f"distributed_strategy.{key}") or 1 for name, key in DEGREES.items()}
    options["micro_batch"] = found.whole("data.micro_batch_size") or 1
    options["schedule"] = usual_schedule(options["vpp"])
    if batch := found.whole("data.global_batch_size"):
        options["global_batch"] = batch
    if length := found.whole("data.seq_length") or found.whole("model.encoder_seq_length"):
        options["seq_len"] = length
    if nodes := found.whole("trainer.num_nodes"):
        options["nodes"] = nodes
    devices, lnc = found.whole("trainer.devices"), found.whole("trainer.lnc")
    if devices is not None:
        options["instance"] = "trn1.32xlarge" if devices == 32 and lnc is None else "trn2.48xlarge"
    if lnc is not None:
        options["lnc"] = lnc
    return options


def _builtin_model(found: _Values) -> str | None:
    """The name of the one that has these sizes."""
    hints = {
        "num_local_experts": found.get("model.moe.num_experts") or 0,
        "rope_theta": _number(found.get("model.rope_theta")),
        "max_position_embeddings": found.get("model.max_position_embeddings"),
    }
    return builtin_model_with(
        hints,
        num_hidden_layers=found.whole("model.num_layers"),
        hidden_size=found.whole("model.hidden_size"),
        intermediate_size=found.whole("model.ffn_hidden_size"),
        num_key_value_heads=found.whole("model.num_kv_heads"),
    )


def auto_partition(layers: int, stages: int) -> tuple[int, ...]:
    """NxD's even cut (pipeline/partition.py): the remainder goes to the last stages."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stage >= stages - extra) for stage in range(stages))


def _number(value: object) -> float | None:
    """YAML 1.1 takes 1e-5 for a text."""
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except ValueError:
        return None


FOLLOWS = (
    "distributed_strategy.kv_replicator",
    "exp_manager.checkpoint_callback_params.model_parallel_size",
    "model.qkv_linear",
    "model.fuse_qkv",
    "name",
    "model_source",
)
"""Keys that follow from the rest of a layout."""


class _Values:
    """Fields by dotted path."""

    def __init__(self, data: Mapping[str, Any]):
        self._data = data
        self._asked = set(FOLLOWS)

    def left_out(self) -> tuple[str, ...]:
        """Paths that nobody asked for, in the order of the file."""
        return tuple(path for path in _paths(self._data) if path not in self._asked)

    def get(self, path: str, depth: int = 0) -> Any:
        self._asked.add(path)
        node: Any = self._data
        for part in path.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return None
            node = node[part]
        reference = re.fullmatch(r"\$\{(\.?)([\w.]+)\}", node) if isinstance(node, str) else None
        if reference is None:
            return node
        if depth > 10:
            raise AutoshardError(f"{path} refers to itself")
        parent = path.rpartition(".")[0] + "." if reference[1] else ""
        return self.get(parent + reference[2], depth + 1)

    def whole(self, path: str) -> int | None:
        value = self.get(path)
        return None if value is None else whole_number(path, value)


def _paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _recompute(found: _Values, flash: bool) -> tuple[str, tuple[str, ...]]:
    """NxDT's Llama recomputes core attention where nothing is said and there is no flash attention."""
    granularity = found.get("model.activations_checkpoint_granularity")
    modules = found.get("model.activations_checkpoint_recompute")
    if granularity is None:
        source, moe = found.get("model_source"), found.get("model.moe")
        return ("core_attention" if source == "hf" and not moe and not flash else "none"), ()
    if granularity == "full":
        return "full", ()
    names = tuple(map(str, modules)) if isinstance(modules, list) else ("CoreAttention",)
    if names in RECOMPUTE:
        return RECOMPUTE[names], ()
    nearest = "core_attention" if "CoreAttention" in names else "none"
    return nearest, (f"activations_checkpoint_recompute={', '.join(names)} is priced as {nearest}",)


def _stage_layers(cuts: object, layers: int | None) -> tuple[int, ...]:
    """pipeline_cuts names the last block of every stage but the last."""
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
