"""Read a layout that a person or another framework wrote down, in the words of `autoshard plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.text_file import printable, read_text
from autoshard.files.toml_file import parse_toml
from autoshard.files.yaml_file import parse_yaml
from autoshard.interop.written_model import WrittenModel

MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class WrittenLayout:
    """A layout that a file describes.

    options: by the names of `autoshard plan`, pins included; what the file does not say is absent.
    fields: of Strategy, for choices that no option pins; besides, sequences_per_replica or one_microbatch, which say a
    global batch by its replicas. stages: where the format's own cut of a model is not even:
    (the model's blocks, pp, vpp or None for what the file says) -> blocks of each stage. complete: whether absent
    options have the format's defaults, rather than being left to the search. model: what the file says of its model.
    training_fields: of TrainingSpec, where the file overrules what `autoshard plan` takes. notes: what could not be
    taken over unchanged. warnings: what the file says that changes the step and is not in the price. products: what it
    says of products of matrices in fewer bits -> the precision here. wide_blocks: what it says of blocks that multiply
    in bf16 all the same -> these, as --keep-bf16 has them. drops: what it says of dropout, empty for nothing.
    overlaps: the framework on GPUs, where it hides transfers behind work; else empty. devices_per_node: those that the
    file starts processes for, None where it does not say. kv_copies: how often it has each key-value head over tp, None
    where it does not say.
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
    warnings: tuple[str, ...] = ()
    products: Mapping[str, str] = field(default_factory=dict)
    wide_blocks: Mapping[str, str] = field(default_factory=dict)
    devices_per_node: int | None = None
    kv_copies: int | None = None
    drops: str = ""
    overlaps: str = ""
    left_out: tuple[str, ...] = ()
    not_priced: tuple[str, ...] = ()


def read_written_layout(path: str) -> WrittenLayout:
    """The layout in a recipe or NxDT configuration (YAML), a torchtitan configuration (TOML, or a Python registry as
    file.py:function) or Megatron's arguments (text).

    Raises AutoshardError, naming the file, for anything else.
    """
    where = printable(path)
    file, _, function = path.partition(".py:")
    if function or path.endswith(".py"):
        from autoshard.interop.torchtitan import torchtitan_layout
        from autoshard.interop.torchtitan_registry import parse_registry

        file = f"{file}.py" if function else path
        found = parse_registry(
            read_text(file, f"layout {printable(file)}", MOST_BYTES), printable(file), function or None
        )
        return _in_file(where, torchtitan_layout, found)
    text = read_text(path, f"layout {where}", MOST_BYTES)
    if path.endswith(".toml"):
        from autoshard.interop.torchtitan import torchtitan_layout

        return _in_file(where, torchtitan_layout, parse_toml(text, where))
    if path.endswith((".yaml", ".yml")):
        return _in_file(where, _yaml_layout, parse_yaml(text, where))
    if "--" in text:
        from autoshard.interop.megatron import megatron_layout

        return _in_file(where, megatron_layout, text)
    raise AutoshardError(
        f"{where} is no layout: a plan (.json), a recipe or an NxDT configuration (.yaml), a torchtitan configuration "
        "(.toml or .py:name) or Megatron's arguments (text with --tensor-model-parallel-size) would be"
    )


def _in_file(where: str, layout: Callable[[Any], WrittenLayout], content: object) -> WrittenLayout:
    """The layout that `layout` reads from a content. Errors begin with the file, `where`."""
    try:
        return layout(content)
    except AutoshardError as error:
        raise AutoshardError(f"{where}: {error}") from None


def _yaml_layout(data: object) -> WrittenLayout:
    if not isinstance(data, dict):
        raise AutoshardError("it must hold named fields")
    if "distributed_strategy" in data:
        from autoshard.interop.nxdt import nxdt_layout

        return nxdt_layout(data)
    return WrittenLayout("recipe", {str(name): value for name, value in data.items()}, complete=False)


def whole_number(name: str, value: object, least: int = 1) -> int:
    """The value as a whole number of at least `least`, from a file or command line. Raises AutoshardError naming the
    field.
    """
    text = str(value).replace("_", "")
    if isinstance(value, bool) or len(text) > 12 or not text.isascii() or not text.isdigit() or int(text) < least:
        raise AutoshardError(f"{name} is {str(value)[:40]!r}; it must be a whole number of at least {least}")
    return int(text)


def number(name: str, value: object) -> float | None:
    """The value as a number, from a file or command line; None stays None. YAML 1.1 reads 1e-5 as a text, which is
    accepted.
    """
    if value is None:
        return None
    try:
        parsed = None if isinstance(value, bool) else float(str(value))
    except ValueError:
        parsed = None
    if parsed is None or not isfinite(parsed):
        raise AutoshardError(f"{name} is {str(value)[:40]!r}; it must be a number")
    return parsed
