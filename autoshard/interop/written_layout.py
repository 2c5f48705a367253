"""A layout that a person or another framework wrote down, in the words of `autoshard plan`; checks of its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop.written_model import WrittenModel

MISSING = "???"
"""The value of an option that must be given and that a file leaves open: OmegaConf's word for such a field."""
A_NODE = "node"
"""The word for shards over as many ranks as a node has."""
LORA = "{said}: priced as training of all weights; LoRA freezes most of them"
DPO = (
    "{said}: priced as plain training on {batch} sequences; DPO runs a chosen and a rejected one for each, and before "
    "that the reference model"
)
AS_ADAMW = "{said} is priced as AdamW, with two moments"
"""Warnings on kinds of training, and of optimizers, that have no price of their own."""
NO_COPIES = "and no copies to and from the host"
"""The end of a warning on what lies on the host, and is priced on the devices."""


_MOST_DIGITS = 12
"""Of a whole number in a file: beyond what any field has."""
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
"""A variable of a shell, $NAME or ${NAME}."""


@dataclass(frozen=True)
class WrittenLora:
    """Low-rank adapters that a file trains.

    said: the field that says so, with its value. r, lora_alpha: as `autoshard.spec.lora.Lora` has them. names: ends of
    the names of layers that have one. every: whether all linear layers have one. key: the field that names layers.
    warnings: what the file says of them that is not in the price. drops: what it says of dropout before them.
    """

    said: str
    r: int
    lora_alpha: float
    names: tuple[str, ...] = ()
    every: bool = False
    key: str = ""
    warnings: tuple[str, ...] = ()
    drops: str = ""


@dataclass(frozen=True)
class WrittenLayout:
    """A layout that a file describes.

    options: by the names of `autoshard plan`, pins included; what the file does not say is absent.
    fields: of Strategy, for choices that no option pins; besides, sequences_per_replica or microbatches (of each),
    which say a global batch by its replicas, and shards, the ranks of dp and cp that share shards,
    a number or A_NODE.
    stages: where the format's own cut of a model is not even:
    (the model's blocks, pp, vpp or None for what the file says) -> blocks of each stage. complete: whether absent
    options have the format's defaults, rather than being left to the search. model: what the file says of its model.
    training_fields: of TrainingSpec, where the file overrules what `autoshard plan` takes. notes: what could not be
    taken over unchanged. sharding: one more of them, where ranks shard. warnings: what the file says that changes the
    step and is not in the price. products: what it says of products of matrices in fewer bits -> the precision here.
    wide_blocks: what it says of blocks that multiply in bf16 all the same -> these, as --keep-bf16 has them. drops:
    what it says of dropout, empty for nothing. lora: the adapters that it trains, where it says enough of them.
    overlaps: the framework on GPUs, where it hides transfers behind work; else empty. devices_per_node: those that the
    file starts processes for, None where it does not say. kv_copies: how often it has each key-value head over tp, None
    where it does not say.
    no_batch: the reason why a batch that the file counts is missing; empty where it is none.
    left_out: what the file says and a layout does not, by the file's names. not_priced: those of left_out that may
    matter to the price.
    """

    form: str
    options: Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)
    stages: Callable[[int, int, int | None], tuple[int, ...]] | None = None
    complete: bool = True
    model: WrittenModel = field(default_factory=WrittenModel)
    training_fields: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sharding: str = ""
    warnings: tuple[str, ...] = ()
    products: Mapping[str, str] = field(default_factory=dict)
    wide_blocks: Mapping[str, str] = field(default_factory=dict)
    devices_per_node: int | None = None
    kv_copies: int | None = None
    drops: str = ""
    lora: WrittenLora | None = None
    overlaps: str = ""
    no_batch: str = ""
    left_out: tuple[str, ...] = ()
    not_priced: tuple[str, ...] = ()


def check_value(name: str, value: object) -> None:
    """Raise AutoshardError, naming the field, for a variable of a shell that stands for a value."""
    if isinstance(value, str) and _VARIABLE.fullmatch(value):
        told = "a variable to which the script gives no value, or several: write one in its place"
        raise AutoshardError(f"{name} is {value[:40]}, {told}")


def whole_number(name: str, value: object, least: int = 1) -> int:
    """The value as a whole number of at least `least`, from a file or command line. Raises AutoshardError naming the
    field.
    """
    check_value(name, value)
    text = str(value).replace("_", "")
    is_number = not isinstance(value, bool) and text.isascii() and text.isdigit()
    too_long = is_number and len(text) > _MOST_DIGITS
    if not is_number or too_long or int(text) < least:
        most = f" and of at most {_MOST_DIGITS} digits" if too_long else ""
        raise AutoshardError(f"{name} is {str(value)[:40]!r}; it must be a whole number of at least {least}{most}")
    return int(text)


def number(name: str, value: object) -> float | None:
    """The value as a number, from a file or command line; None stays None. YAML 1.1 reads 1e-5 as a text, which is
    accepted.
    """
    if value is None:
        return None
    check_value(name, value)
    try:
        parsed = None if isinstance(value, bool) else float(str(value))
    except ValueError:
        parsed = None
    if parsed is None or not isfinite(parsed):
        raise AutoshardError(f"{name} is {str(value)[:40]!r}; it must be a number")
    return parsed
