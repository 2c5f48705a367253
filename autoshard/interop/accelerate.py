"""Read configurations of Hugging Face Accelerate (YAML) as layouts. They name no model: an option does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.graph.recompute import FULL_RECOMPUTE
from autoshard.interop.deepspeed import AUTO, NO_DEVICE, NO_LENGTH, NO_RECOMPUTE, OFFLOADED, STAGES
from autoshard.interop.torchtitan import CONTEXT_PARALLEL, NOTES
from autoshard.interop.written_dtypes import HALVES, SENT, state_dtypes_option
from autoshard.interop.written_layout import A_NODE, MISSING, NO_COPIES, WrittenLayout
from autoshard.interop.yaml_values import Values

KIND = "distributed_type"
FSDP, DEEPSPEED = "FSDP", "DEEPSPEED"
WHOLE = ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""Kinds that shard nothing over replicas."""
STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
"""fsdp_sharding_strategy, which may also be its place in here from 1 on, and the stage of ZeRO."""
HYBRID = "HYBRID"
"""The begin of those that shard within a node and repeat the shards in each."""
USUAL_STAGE = 2
"""deepspeed_config.zero_stage where there is none."""
PRECISIONS = {"no": "fp32", "bf16": "mixed_precision", "fp16": "mixed_precision", "fp8": "mixed_precision"}
DEGREES = {
    name: f"parallelism_config.parallelism_config_{key}"
    for name, key in {
        "tp": "tp_size",
        "cp": "cp_size",
        "sp": "sp_size",
        "shards": "dp_shard_size",
        "copies": "dp_replicate_size",
    }.items()
}
ROTATES = "parallelism_config.parallelism_config_cp_comm_strategy"
NO_EFFECT = re.compile(
    r"""(compute_environment|debug|downcast_bf16|enable_cpu_affinity|machine_rank|main_\w+|rdzv_backend|same_network|gpu_ids
        |tpu_\w+|use_cpu|commands?|command_file|mpirun_config|dynamo_config|fp8_config|num_\w+)(\..*)?
    |fsdp_config\.fsdp_(auto_wrap_policy|backward_prefetch\w*|cpu_ram_efficient_loading|forward_prefetch|state_dict_type
        |sync_module_states|use_orig_params|min_num_params|transformer_layer_cls_to_wrap|offload_params)
    |deepspeed_config\.(zero3_\w+|gradient_clipping|deepspeed_(multinode_launcher|hostfile|\w+clusion_filter)
        |offload_\w+)""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, and those that a warning speaks of."""


def is_accelerate(data: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML file is a configuration of Accelerate."""
    return KIND in data


def accelerate_layout(data: Mapping[str, Any]) -> WrittenLayout:
    """The layout in a parsed configuration of Accelerate: all devices that tp and cp leave are replicas.

    Raises AutoshardError for values that make no layout, and for kinds of training that are not read.
    """
    values = Values(data)
    kind = _word(values, KIND)
    degrees = {name: values.whole(key) or 1 for name, key in DEGREES.items()}
    options: dict[str, Any] = {"tp": degrees["tp"], "pp": 1, "vpp": 1, "ep": 1, **_context(values, degrees)}
    if values.has("parallelism_config") and values.get("parallelism_config"):
        options["dp"] = degrees["shards"] * degrees["copies"]
    nodes, devices = _machines(values)
    options |= {"micro_batch": MISSING} if nodes is None else {"micro_batch": MISSING, "nodes": nodes}
    fields: dict[str, Any] = {"sequence_parallel": False, "microbatches": 1, "zero": 0}
    copies = degrees["copies"]
    if kind == FSDP:
        fields["zero"], is_hybrid = _fsdp(values)
        if is_hybrid:
            fields["shards"], copies = A_NODE, 1
        if values.flag("fsdp_config.fsdp_activation_checkpointing"):
            options["recompute"] = FULL_RECOMPUTE
    elif kind == DEEPSPEED:
        fields |= _deepspeed(values)
    elif kind not in WHOLE:
        raise AutoshardError(f"{KIND} is {show(kind)}; {', '.join((FSDP, DEEPSPEED, *WHOLE))} are read")
    if fields["zero"] and copies > 1:
        fields["dp_replicate"] = copies
    written = _word(values, "mixed_precision") if values.get("mixed_precision") is not None else "no"
    precision = written.lower()
    if precision not in PRECISIONS:
        raise AutoshardError(f"mixed_precision is {show(written)}; it must be one of {', '.join(PRECISIONS)}")
    options["precision"] = PRECISIONS[precision]
    if kind == FSDP and precision in HALVES:
        options |= state_dtypes_option(SENT)  # [utils/dataclasses.py FullyShardedDataParallelPlugin]
    notes = (*(("mixed_precision=fp16 is priced as bf16",) if precision == "fp16" else ()), NO_LENGTH)
    notes += () if "recompute" in options else (NO_RECOMPUTE,)
    warnings = tuple(_warnings(values))
    left_out = values.left_out()
    return WrittenLayout(
        "Accelerate configuration",
        options,
        fields,
        notes=notes,
        sharding=NOTES.get(fields["zero"], "") if kind == FSDP else "",
        products={"mixed_precision=fp8": "fp8"} if precision == "fp8" else {},
        warnings=warnings,
        devices_per_node=devices,
        overlaps="DeepSpeed" if kind == DEEPSPEED else "torch",
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not NO_EFFECT.fullmatch(key) and values.peek(key)),
    )


def _word(values: Values, key: str) -> str:
    """A word; no without quotes is one, though YAML takes it for false."""
    value = values.get(key)
    return "no" if value is False and key != KIND else "NO" if value is False else str(value)


def _context(values: Values, degrees: Mapping[str, int]) -> dict[str, Any]:
    """Options on ranks that share each sequence: of torch's ring, or of DeepSpeed's all-to-all."""
    cp, sp = degrees["cp"], degrees["sp"]
    if cp > 1 and sp > 1:
        raise AutoshardError(f"{DEGREES['cp']}={cp} and {DEGREES['sp']}={sp}: one of them shares sequences; 1 works")
    if sp > 1:
        return {"cp": sp, "context_parallel": "ulysses"}
    rotates = values.get(ROTATES) or next(iter(CONTEXT_PARALLEL))
    if rotates not in CONTEXT_PARALLEL:
        raise AutoshardError(f"{ROTATES} is {show(rotates)}; it must be {' or '.join(CONTEXT_PARALLEL)}")
    return {"cp": cp, "context_parallel": CONTEXT_PARALLEL[rotates]} if cp > 1 else {"cp": cp}


def _machines(values: Values) -> tuple[int | None, int | None]:
    """(nodes, devices of each); None where the file does not say. num_processes are those of all nodes."""
    nodes, processes = values.whole("num_machines"), values.get("num_processes")
    if processes is None or str(processes) == "-1":
        return nodes, None
    processes = values.whole("num_processes") or 1
    if processes % (nodes or 1):
        raise AutoshardError(f"num_processes={processes} must be a multiple of num_machines={nodes}")
    return nodes, processes // (nodes or 1)


def _fsdp(values: Values) -> tuple[int, bool]:
    """(the stage of ZeRO, whether shards are repeated in each node)."""
    after = values.get("fsdp_config.fsdp_reshard_after_forward")
    if (values.whole("fsdp_config.fsdp_version") or 1) > 1:
        resharded = values.flag("fsdp_config.fsdp_reshard_after_forward")
        return 2 if resharded is False else 3, False
    key = "fsdp_config.fsdp_sharding_strategy" if after is None else "fsdp_config.fsdp_reshard_after_forward"
    said = str(values.get(key) or next(iter(STRATEGIES))).upper()
    numbered = {str(place): name for place, name in enumerate(STRATEGIES, 1)}
    name = numbered.get(said, said)
    if name not in STRATEGIES:
        raise AutoshardError(f"{key} is {show(values.get(key))}; it must be one of {', '.join(STRATEGIES)}, or 1 to 5")
    return STRATEGIES[name], name.startswith(HYBRID)


def _deepspeed(values: Values) -> dict[str, Any]:
    """Fields of a layout that deepspeed_config says."""
    if (file := values.get("deepspeed_config.deepspeed_config_file")) is not None:
        raise AutoshardError(f"deepspeed_config.deepspeed_config_file={show(file)} has the rest: import that file")
    stage = values.get("deepspeed_config.zero_stage")
    stage = USUAL_STAGE if stage is None else stage
    if isinstance(stage, bool) or stage not in STAGES:
        allowed = ", ".join(map(str, STAGES))
        raise AutoshardError(f"deepspeed_config.zero_stage is {show(stage)}; it must be one of {allowed}")
    runs = values.get("deepspeed_config.gradient_accumulation_steps")
    is_open = runs is None or runs == AUTO
    return {
        "zero": int(stage),
        "microbatches": 1 if is_open else values.whole("deepspeed_config.gradient_accumulation_steps"),
    }


def _warnings(values: Values) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price."""
    if values.flag("fsdp_config.fsdp_offload_params"):
        yield f"fsdp_config.fsdp_offload_params=True: priced with parameters on the devices, {NO_COPIES}"
    for part, what in OFFLOADED.items():
        device = values.get(f"deepspeed_config.{part}_device")
        if device not in NO_DEVICE:
            yield f"deepspeed_config.{part}_device={show(device)}: priced with {what} on the devices, {NO_COPIES}"
