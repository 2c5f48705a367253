"""A layout as a person or another framework wrote it down, in the words of `autoshard plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError

MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class WrittenLayout:
    """options: by the names of `autoshard plan`, pins included; what the file does not say is absent.

    fields: of Strategy, beyond what can be pinned. complete: what is absent has the format's default, rather than being
    left to the search. notes: what could not be taken over as it is. model_fields, training_fields: of ModelSpec and
    TrainingSpec, where the file overrules the model's own or what `autoshard plan` takes. left_out: what the file says
    and a layout does not, by its names there.
    """

    form: str
    options: Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True
    notes: tuple[str, ...] = ()
    model_fields: Mapping[str, Any] = field(default_factory=dict)
    training_fields: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


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


def builtin_model_with(hints: Mapping[str, Any] | None = None, **sizes: int | None) -> str | None:
    """The built-in model that alone has these sizes (fields of ModelSpec; None is not compared).

    hints: fields that choose among several such models, one after another; one that none of them has is passed over.
    """
    from autoshard.models.registry import builtin_models, load_model

    known = {name: value for name, value in sizes.items() if value is not None}
    if not known:
        return None
    models = [load_model(name) for name in builtin_models()]
    found = [one for one in models if all(getattr(one, field) == value for field, value in known.items())]
    for name, value in (hints or {}).items():
        narrowed = [one for one in found if value is not None and getattr(one, name) == value]
        found = narrowed or found
    return found[0].name if len(found) == 1 else None
