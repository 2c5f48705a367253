"""Fields that files of more than one program hand on to transformers' trainer: FSDP, DeepSpeed, the optimizer, a model
by its name. Sources: transformers' training_args.py, Accelerate's FullyShardedDataParallelPlugin and prepare_model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.interop.accelerate import HYBRID, STRATEGIES
from autoshard.interop.deepspeed import deepspeed_layout, filled, read_deepspeed
from autoshard.interop.written_dtypes import SENT, state_dtypes_option
from autoshard.interop.written_layout import A_NODE, AS_ADAMW, NO_COPIES
from autoshard.interop.written_model import WrittenModel
from autoshard.interop.written_optimizer import is_muon
from autoshard.interop.yaml_values import Values
from autoshard.models.registry import model_of_repository
from autoshard.spec.training import INT8

FSDP, FSDP_CONFIG, DEEPSPEED = "fsdp", "fsdp_config", "deepspeed"
OFFLOAD = "offload"
NARROW = re.compile(r"(?:4|8)_?bit|fp8|flash_adam")
"""Names of optimizers that keep moments in fewer bits."""
EIGHT = re.compile(r"8_?bit|fp8")
"""Names of those that keep them in 8 bits, in blocks of 256 elements: bitsandbytes' and torchao's."""
WITHOUT_TABLES = re.compile(r"ao_|adamw_torch|galore")
"""Names of those in 8 bits whose embeddings have moments as narrow as all else: not bitsandbytes' by transformers."""


class Sharded(NamedTuple):
    """How replicas share weights and states. options: of `autoshard plan`. fields: of a layout, `zero` among them.
    warnings: on what is not in the price."""

    options: dict[str, Any]
    fields: dict[str, Any]
    warnings: tuple[str, ...]


def is_fsdp(values: Values) -> bool:
    return bool(values.get(FSDP) or values.peek(FSDP_CONFIG))


def fsdp_field(values: Values, name: str) -> tuple[str, Any]:
    """(the field of fsdp_config with this name, or with what older files put before it, its value or None)."""
    keys = [f"{FSDP_CONFIG}.{prefix}{name}" for prefix in ("", "fsdp_")]
    found = [(key, value) for key in keys if (value := values.get(key)) is not None]
    return found[-1] if found else (keys[0], None)


def sharded_by_fsdp(values: Values, precision: str) -> Sharded:
    """The stage of ZeRO that FSDP is; over all replicas, or over those of a node. Raises AutoshardError for what is no
    switch. precision: beside master weights Accelerate sends gradients in half precision [utils/dataclasses.py,
    FullyShardedDataParallelPlugin.set_mixed_precision]."""
    words = _words(values)
    key, _ = fsdp_field(values, "reshard_after_forward")
    name = next((word.upper() for word in words if word.upper() in STRATEGIES), "FULL_SHARD")
    resharded = values.flag(key)
    fields: dict[str, Any] = {"zero": STRATEGIES[name] if resharded is None else 3 if resharded else 2}
    if name.startswith(HYBRID):
        fields["shards"] = A_NODE
    key, offloads = fsdp_field(values, "offload_params")
    on_host = "" if offloads is None or not values.flag(key) else f"{key}=True"
    if OFFLOAD in words:
        on_host = f"{FSDP}={OFFLOAD}"
    warning = f"{on_host}: priced with parameters on the devices, {NO_COPIES}"
    options = state_dtypes_option(SENT) if precision == "mixed_precision" else {}
    return Sharded(options, fields, (warning,) if on_host else ())


def sharded_by_deepspeed(key: str, values: Values, half: str | None, folder: str) -> Sharded:
    """All that DeepSpeed's configuration says, which a field holds or names: its precision, its Muon and its dtypes of
    gradients too.

    key: of the field. half: bf16, fp16 or None, as the trainer is told. folder: where the file is. Raises
    AutoshardError where there is no such configuration.
    """
    found = deepspeed_layout(filled(read_deepspeed(key, values.get(key), folder), half))
    said = ("precision", "optimizer", "state_dtypes")
    options = {name: found.options[name] for name in said if name in found.options}
    for name, also in {"tp": (), "cp": ("context_parallel",)}.items():
        if found.options[name] > 1:
            options |= {one: found.options[one] for one in (name, *also)}
    return Sharded(options, {"zero": found.fields["zero"]}, found.warnings)


def _words(values: Values) -> list[str]:
    """The words of `fsdp`, a list or a text."""
    said = values.get(FSDP)
    return [str(word) for word in said] if isinstance(said, list) else said.split() if isinstance(said, str) else []


def named_model(values: Values, key: str) -> tuple[WrittenModel, str | None]:
    """(the model that a field names, the name of the built-in one whose repository that is). Raises AutoshardError for
    no name."""
    said = values.get(key)
    if not isinstance(said, str):
        raise AutoshardError(f"{key} is {show(said)}; it must name a model")
    return WrittenModel(config=said, named=f"{key}={show(said)}"), model_of_repository(said)


def moments_dtype(name: object) -> str | None:
    """The format in which an optimizer of this name keeps moments, where that is one of eight bits."""
    return INT8 if EIGHT.search(str(name)) else None


def optimizer_warnings(key: str, name: str, has_tables: bool = True) -> Iterator[str]:
    """Sentences on an optimizer that is neither Muon nor AdamW with moments as they are priced. key: what the file
    calls it. has_tables: whether embeddings are learned.

    [transformers trainer.py create_optimizer: embeddings of bitsandbytes' 8-bit optimizers have optim_bits=32]
    """
    said, dtype = f"{key}={show(name)}", moments_dtype(name)
    if "adam" not in name and not is_muon(name):
        yield AS_ADAMW.format(said=said)
    elif dtype is None and (narrow := NARROW.search(name)):
        yield f"{said}: moments of {narrow[0]} are priced as wide as they are without it"
    if dtype is not None and has_tables and not WITHOUT_TABLES.search(name):
        yield f"{said}: moments of the embedding are in float32 there; priced in {dtype}, as all others"
    if name.startswith("paged"):
        yield f"{said}: priced with optimizer state on the devices, {NO_COPIES}"


def bits_warning(said: str) -> str:
    """A sentence on weights that a field keeps in fewer bits. said: the field, with its value."""
    return f"{said}: priced with weights in half precision"
