"""Read DeepSpeed's configurations (JSON) as layouts. They name no model: an option does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.json_file import parse_json
from autoshard.files.text_file import printable, read_text
from autoshard.interop.script_files import MOST_BYTES, named_file
from autoshard.interop.written_dtypes import SENT, SUMMED, is_half, state_dtypes_option
from autoshard.interop.written_layout import AS_ADAMW, MISSING, NO_COPIES, WrittenLayout
from autoshard.interop.written_optimizer import IN_PARTS, ON_ONE, is_muon, named, optimizer_option
from autoshard.interop.yaml_values import Values
from autoshard.spec.state_dtypes import MOMENTS

ZERO, MICRO, RUNS, BATCH = (
    "zero_optimization",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
)
KEYS = (ZERO, MICRO, RUNS, BATCH)
"""Fields one of which each configuration of DeepSpeed has."""
AUTO = "auto"
"""What transformers and Accelerate fill in when training starts."""
STAGES = (0, 1, 2, 3)
BF16, OLDER_BF16, FP16 = "bf16", "bfloat16", "fp16"
"""Sections of formats. DeepSpeed reads the second one where the first is not there [runtime/precision_config.py]."""
SENDS, SUMS = "communication_data_type", "data_types.grad_accum_dtype"
WEIGHTS_IN_BF16, STATES_IN_BF16 = "bf16_master_weights_and_grads", "bf16_optimizer_states"
OPTIMIZER, ADAM = "optimizer.type", ("adam", "adamw")
WHOLE = "{said} with ZeRO-3: gradients and momentum go whole to all ranks there; priced with a share of each"
"""The warning on Muon that takes no reduce-scatter [runtime/zero/stage3.py _apply_distributed_muon_update]."""
OFFLOADED = {"offload_optimizer": "optimizer state", "offload_param": "parameters"}
"""Parts of ZeRO that may lie on the host, by what they hold."""
NO_DEVICE = (None, "none")
NO_LENGTH = "the file does not say how long sequences are: as for autoshard plan where --seq-len says nothing else"
NO_RECOMPUTE = "the file does not say what runs again in backward: nothing where --recompute says nothing else"
NO_EFFECT = re.compile(
    r"""(steps_per_print|wall_clock_breakdown|gradient_clipping|prescale_gradients|gradient_predivide_factor|dump_state
        |zero_allow_untested_optimizer|zero_force_ds_cpu_optimizer|memory_breakdown|sparse_gradients
        |checkpoint|scheduler|tensorboard|wandb|comet|csv_monitor|flops_profiler|comms_logger
        |data_efficiency|elasticity|autotuning|optimizer|fp16|bf16|bfloat16)(\..*)?
    |zero_optimization\.(overlap_comm|contiguous_gradients|reduce_scatter|allgather_partitions|round_robin_gradients
        |sub_group_size|\w+_bucket_size|stage3_\w+|ignore_unused_parameters|load_from_fp32_weights|memory_efficient_linear
        |offload_(optimizer|param)\..*)""",
    re.VERBOSE,
)
"""Fields that leave the work of a step as it is, and those that a warning speaks of."""


def is_deepspeed(data: object) -> bool:
    """Whether a parsed JSON file is a configuration of DeepSpeed."""
    return isinstance(data, Mapping) and bool(data.keys() & {*KEYS})


def deepspeed_layout(data: Mapping[str, Any]) -> WrittenLayout:
    """The layout in a parsed configuration of DeepSpeed: all devices that tp and cp leave are replicas that ZeRO shards
    over.

    Raises AutoshardError for values that make no layout.
    """
    values = Values(data)
    tp, cp = (values.whole(key) or 1 for key in ("tensor_parallel.autotp_size", "sequence_parallel_size"))
    options: dict[str, Any] = {"tp": tp, "pp": 1, "cp": cp, "vpp": 1, "ep": 1}
    if cp > 1:
        options["context_parallel"] = "ulysses"
    micro, runs, batch = (_number(values, key) for key in (MICRO, RUNS, BATCH))
    options["micro_batch"] = MISSING if micro is None else micro
    fields: dict[str, Any] = {"zero": _stage(values), "sequence_parallel": False}
    if batch is None:
        fields["microbatches"] = runs or 1
    else:
        options["global_batch"] = batch
        if micro is not None and runs is not None:
            options["dp"] = _replicas(batch, micro, runs)
    options["precision"], notes = _precision(values)
    options |= optimizer_option(values.get(OPTIMIZER))
    if options["precision"] != "fp32":
        options |= _state_dtypes(values)
    warnings = tuple(_warnings(values, tp))
    left_out = values.left_out()
    return WrittenLayout(
        "DeepSpeed configuration",
        options,
        fields,
        notes=(*notes, NO_LENGTH, NO_RECOMPUTE),
        warnings=warnings,
        overlaps="DeepSpeed",
        left_out=left_out,
        not_priced=tuple(key for key in left_out if not NO_EFFECT.fullmatch(key) and _is_on(values.peek(key))),
    )


def filled(data: Mapping[str, Any], half: str | None) -> dict[str, Any]:
    """The configuration with the formats that are filled in where they are left to transformers' trainer, or where it
    says none of the one that the trainer has [Accelerate utils/dataclasses.py, DeepSpeedPlugin.set_mixed_precision].
    half: that, bf16 or fp16, or None for neither."""
    enabled = {
        name: {**part, "enabled": name == half}
        for name in (BF16, FP16)
        if isinstance(part := data.get(name), Mapping) and part.get("enabled") == AUTO
    }
    missing = {} if half is None or half in data else {half: {"enabled": True}}
    return {**data, **missing, **enabled}


def read_deepspeed(key: str, value: object, folder: str) -> dict[str, Any]:
    """The configuration of DeepSpeed that a field of another framework's file holds or names.

    key: what the file calls the field. folder: where the file is, which with those above it is looked through; the
    current one is too. Raises AutoshardError where there is no such configuration.
    """
    if isinstance(value, str):
        file = named_file(value, folder)
        if file is None:
            raise AutoshardError(f"{key}={show(value)} is not here: put it beside the file, or where that says")
        value = parse_json(read_text(file, printable(file), MOST_BYTES).encode(), printable(file))
    if not isinstance(value, dict) or not is_deepspeed(value):
        raise AutoshardError(f"{key} is {show(value)}, which is no configuration of DeepSpeed, nor the name of one")
    return value


def _number(values: Values, key: str) -> int | None:
    """A whole number; None where there is none, and where one is filled in later."""
    return None if values.get(key) == AUTO else values.whole(key)


def _replicas(batch: int, micro: int, runs: int) -> int:
    if batch % (micro * runs):
        raise AutoshardError(f"{MICRO}={micro} x {RUNS}={runs} must divide {BATCH}={batch}")
    return batch // (micro * runs)


def _stage(values: Values) -> int:
    """The stage of ZeRO; older files say true for the first."""
    if isinstance(values.peek(ZERO), bool):
        return int(values.flag(ZERO) or False)
    stage = values.get(f"{ZERO}.stage")
    if stage is None:
        return 0
    if isinstance(stage, bool) or stage not in STAGES:
        raise AutoshardError(f"{ZERO}.stage is {show(stage)}; it must be one of {', '.join(map(str, STAGES))}")
    return int(stage)


def _precision(values: Values) -> tuple[str, tuple[str, ...]]:
    """(the precision here, notes). One that is filled in later is taken for bf16."""
    names = (OLDER_BF16 if values.get(BF16) is None else BF16, FP16)
    said = {name: values.get(f"{name}.enabled") for name in names}
    on = [name for name, is_on in said.items() if is_on != AUTO and values.flag(f"{name}.enabled")]
    if len(on) > 1:
        raise AutoshardError(f"{names[0]}.enabled and {FP16}.enabled: DeepSpeed takes one of them")
    if on:
        return "mixed_precision", (f"{FP16}.enabled is priced as bf16",) if on == [FP16] else ()
    if open_ones := [f"{name}.enabled={AUTO}" for name, is_on in said.items() if is_on == AUTO]:
        return "mixed_precision", (f"{' and '.join(open_ones)}: priced as bf16 where --precision says nothing else",)
    return "fp32", (f"neither {BF16}.enabled nor {FP16}.enabled: DeepSpeed computes in fp32",)


def _state_dtypes(values: Values) -> dict[str, Any]:
    """The option on gradients and moments in 16 bits: gradients are sent and summed in those of the weights unless a
    field says float32 [runtime/engine.py communication_data_type, get_data_types]."""
    narrow = {SENT: values.get(SENDS), SUMMED: values.get(SUMS)}
    gradients = [name for name, dtype in narrow.items() if dtype is None or is_half(dtype)]
    return state_dtypes_option(*gradients, *([MOMENTS] if values.flag(f"{BF16}.{STATES_IN_BF16}") else []))


def _warnings(values: Values, tp: int) -> Iterator[str]:
    """Sentences about fields that change a step and are not in the price. tp: ranks that cut matrices."""
    for key, what in OFFLOADED.items() if isinstance(values.peek(ZERO), Mapping) else ():
        if values.get(f"{ZERO}.{key}") is not None and values.get(f"{ZERO}.{key}.device") not in NO_DEVICE:
            device = show(values.get(f"{ZERO}.{key}.device"))
            yield f"{ZERO}.{key}.device={device}: priced with {what} on the devices, {NO_COPIES}"
    if values.flag(f"{BF16}.{WEIGHTS_IN_BF16}"):
        yield f"{BF16}.{WEIGHTS_IN_BF16}=True: priced with float32 master weights"
    optimizer = values.get(OPTIMIZER)
    if is_muon(optimizer):
        if tp > 1:
            yield IN_PARTS.format(said=named(OPTIMIZER, optimizer), tp=tp, priced=ON_ONE)
        if _stage(values) == 3:
            yield WHOLE.format(said=named(OPTIMIZER, optimizer))
    elif optimizer is not None and str(optimizer).lower() not in ADAM:
        yield AS_ADAMW.format(said=named(OPTIMIZER, optimizer))


def _is_on(value: object) -> bool:
    return bool(value) and value != AUTO
