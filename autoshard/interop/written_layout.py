"""A layout as a person or another framework wrote it down, in the words of `autoshard plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.interop.written_model import WrittenModel

MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class WrittenLayout:
    """options: by the names of `autoshard plan`, pins included; what the file does not say is absent.

    fields: of Strategy, beyond what can be pinned. complete: what is absent has the format's default, rather than being
    left to the search. model: what the file says of its model. training_fields: of TrainingSpec, where the file
    overrules what `autoshard plan` takes. notes: what could not be taken over as it is. warnings: what the file says
    that changes the step, and that the price leaves out. drops: what it says of dropout, empty for nothing.
    left_out: what the file says and a layout does not, by its names there. not_priced: those of them that may matter
    to the price.
    """

    form: str
    options: Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True
    model: WrittenModel = field(default_factory=WrittenModel)
    training_fields: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    drops: str = ""
    left_out: tuple[str, ...] = ()
    not_priced: tuple[str, ...] = ()


def read_written_layout(path: str) -> WrittenLayout:
    """A recipe or NxDT configuration (YAML), a torchtitan configuration (TOML) or Megatron's arguments (text).

    Raises AutoshardError, naming the file, for anything else.
    """
    text = _read(path)
    try:
        if path.endswith(".toml"):
            from autoshard.interop.torchtitan import torchtitan_layout

            return torchtitan_layout(text)
        if path.endswith((".yaml", ".yml")):
            return _yaml_layout(text)
        if "--" in text:
            from autoshard.interop.megatron import megatron_layout

            return megatron_layout(text)
    except AutoshardError as error:
        raise AutoshardError(f"{path}: {error}") from None
    raise AutoshardError(
        f"{path} is no layout: a plan (.json), a recipe or an NxDT configuration (.yaml), a torchtitan configuration "
        "(.toml) or Megatron's arguments (text with --tensor-model-parallel-size) would be"
    )


def _read(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise AutoshardError(f"layout {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise AutoshardError(f"layout {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > MOST_BYTES:
        raise AutoshardError(f"layout {path} has {len(data):,} bytes, more than {MOST_BYTES:,}; is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise AutoshardError(f"layout {path} is not UTF-8; save it as UTF-8") from None


def _yaml_layout(text: str) -> WrittenLayout:
    import yaml

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise AutoshardError(f"it is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(data, dict):
        raise AutoshardError("it must hold named fields")
    if "distributed_strategy" in data:
        from autoshard.interop.nxdt import nxdt_layout

        return nxdt_layout(data)
    return WrittenLayout("recipe", {str(name): value for name, value in data.items()}, complete=False)


def whole_number(name: str, value: object) -> int:
    """A number of at least 1, as a file or command line gives it."""
    text = str(value).replace("_", "")
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) < 1 or len(text) > 12:
        raise AutoshardError(f"{name} is {str(value)[:40]!r}; it must be a whole number of at least 1")
    return int(text)


def number(name: str, value: object) -> float | None:
    """A number, as a file or command line gives it (YAML 1.1 takes 1e-5 for a text); None for nothing."""
    if value is None:
        return None
    try:
        found = None if isinstance(value, bool) else float(str(value))
    except ValueError:
        found = None
    if found is None or not isfinite(found):
        raise AutoshardError(f"{name} is {str(value)[:40]!r}; it must be a number")
    return found
