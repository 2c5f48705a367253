"""Read a layout from a file of any form that is understood: the file's name and content say which form it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from autoshard.errors import AutoshardError
from autoshard.files.json_file import parse_json
from autoshard.files.text_file import printable, read_text
from autoshard.files.toml_file import parse_toml
from autoshard.files.yaml_file import parse_yaml
from autoshard.interop.accelerate import accelerate_layout, is_accelerate
from autoshard.interop.axolotl import axolotl_layout, is_axolotl
from autoshard.interop.deepspeed import deepspeed_layout, is_deepspeed
from autoshard.interop.hydra_script import configured, is_hydra_script
from autoshard.interop.hyperpod import hyperpod_layout, is_hyperpod, on_instance, recipe_in
from autoshard.interop.launch_script import Place, Script, warned_of
from autoshard.interop.llama_factory import is_llama_factory, llama_factory_layout
from autoshard.interop.llama_factory_v1 import is_llama_factory_v1, llama_factory_v1_layout
from autoshard.interop.megatron import NO_FLAGS, is_megatron_script, megatron_layout
from autoshard.interop.nemo import is_nemo, nemo_layout
from autoshard.interop.neuron_script import is_neuron_script, neuron_layout
from autoshard.interop.nxdt import nxdt_layout
from autoshard.interop.script_files import MOST_BYTES, MOST_BYTES_OF_SCRIPT, started, with_parts
from autoshard.interop.torchtitan import torchtitan_layout
from autoshard.interop.torchtitan_registry import parse_registry
from autoshard.interop.written_layout import WrittenLayout

MOST_STARTED = 3
"""Scripts that start each other, one behind the other."""


def read_written_layout(path: str, nodes: int | None = None) -> WrittenLayout:
    """The layout in a recipe, a configuration of NxDT, NeMo, Accelerate, axolotl, LLaMA-Factory or HyperPod (YAML), of
    DeepSpeed (JSON) or torchtitan (TOML, or a Python registry as file.py:function), or in a script with arguments of
    Megatron, NxD's examples or Optimum Neuron, or with overrides of NeMo, NxDT or HyperPod (text). nodes: where they
    are known, for scripts that count with them.

    Raises AutoshardError, naming the file, for anything else.
    """
    where = printable(path)
    file, _, function = path.partition(".py:")
    if function or path.endswith(".py"):
        file = f"{file}.py" if function else path
        found = parse_registry(
            read_text(file, f"layout {printable(file)}", MOST_BYTES), printable(file), function or None
        )
        return _in_file(where, torchtitan_layout, found)
    has_fields = path.endswith((".toml", ".yaml", ".yml", ".json"))
    text = read_text(path, f"layout {where}", MOST_BYTES if has_fields else MOST_BYTES_OF_SCRIPT)
    if path.endswith(".toml"):
        return _in_file(where, torchtitan_layout, parse_toml(text, where))
    folder = str(Path(path).parent)
    if path.endswith((".yaml", ".yml")):
        return _in_file(where, partial(_yaml_layout, folder=folder), parse_yaml(text, where))
    if path.endswith(".json"):
        return _in_file(where, _json_layout, parse_json(text.encode(), where))
    written = _in_file(where, partial(_script_layout, place=Place(nodes, folder)), text)
    if written is None:
        raise AutoshardError(
            f"{where} is no layout: a plan (.json), a recipe, a configuration of NxDT, NeMo, Accelerate, axolotl, "
            "LLaMA-Factory or HyperPod (.yaml), of DeepSpeed (.json) or torchtitan (.toml or .py:name), Megatron's "
            "arguments (text with --tensor-model-parallel-size), a script of NxD or Optimum Neuron "
            "(--tensor_parallel_size), or one with overrides of NeMo (model.tensor_model_parallel_size=) would be"
        )
    return written


_Layout = TypeVar("_Layout", WrittenLayout, WrittenLayout | None)


def _in_file(where: str, layout: Callable[[Any], _Layout], content: object) -> _Layout:
    """The layout that `layout` reads from a content. Errors begin with the file, `where`."""
    try:
        return layout(content)
    except AutoshardError as error:
        raise AutoshardError(f"{where}: {error}") from None


def _script_layout(text: str, place: Place, before: tuple[str, ...] = ()) -> WrittenLayout | None:
    """The layout in a script, or in the one beside it that it starts; None where it looks like neither.

    before: the scripts that were started before it. Raises AutoshardError for values that make no layout.
    """
    text, parts = with_parts(text, place)
    reader = _reader(text)
    if reader is None:
        return _started_layout(text, place, before)
    written = reader(text, place)
    read_with = (f"read with {', '.join(parts)} beside it, as the script runs it",) if parts else ()
    return replace(written, notes=(*read_with, *written.notes))


def _reader(text: str) -> Callable[[str, Place], WrittenLayout] | None:
    """The function that reads a script of this kind as a layout; None where a script says none."""
    if is_neuron_script(text):
        return neuron_layout
    if is_hydra_script(text):
        return _hydra_layout
    return megatron_layout if is_megatron_script(text) else None


def _started_layout(text: str, place: Place, before: tuple[str, ...]) -> WrittenLayout | None:
    """The layout in the script that one starts; None where it starts none, and has no flags itself."""
    every = [one for one in started(text, place) if one.name not in before] if len(before) < MOST_STARTED else []
    read: list[tuple[str, WrittenLayout]] = []
    wrong: list[str] = []
    for one in every:
        name = printable(" ".join((one.name, *(one.place.arguments or ()))))[:80]
        try:
            written = None if one.text is None else _script_layout(one.text, one.place, (*before, one.name))
        except AutoshardError as error:
            wrong.append(f"{name}, which it starts: {error}")
            continue
        read += [] if written is None else [(name, written)]
    if len(read) > 1:
        raise AutoshardError(f"it starts {read[0][0]} and {read[1][0]}, each of which has a layout: give one of them")
    if read:
        (name, written), *_ = read
        return replace(written, notes=(f"read from {name}, which the script starts", *written.notes))
    if wrong:
        raise AutoshardError(wrong[0])
    if missing := [one.name for one in every if one.text is None]:
        told = "which is not beside it: give that script"
        raise AutoshardError(f"it has no layout itself and starts {printable(missing[0])[:100]}, {told}")
    if "--" in text and not before:
        raise AutoshardError(NO_FLAGS)
    return None


def _hydra_layout(text: str, place: Place) -> WrittenLayout:
    """The layout of a script with Hydra's overrides."""
    found = configured(text, place)
    written = _yaml_layout(found.data, found.environment)
    more = tuple(warned_of(Script({}, {}, {}, ()), text))
    return replace(written, notes=(*found.notes, *written.notes), warnings=(*found.warnings, *more, *written.warnings))


def _json_layout(data: object) -> WrittenLayout:
    if not isinstance(data, dict) or not is_deepspeed(data):
        raise AutoshardError("it is no configuration of DeepSpeed, the only JSON that is read; replan takes plans")
    return deepspeed_layout(data)


def _yaml_layout(
    data: object, environment: Mapping[str, str] = MappingProxyType({}), folder: str = ""
) -> WrittenLayout:
    """The layout in a parsed file. environment: variables that the program gets, as far as they are known. folder: of
    the file."""
    if not isinstance(data, dict):
        raise AutoshardError("it must hold named fields")
    recipe, instance = recipe_in(data)
    return on_instance(_fields_layout(recipe, environment, folder), instance)


def _fields_layout(data: Mapping[str, Any], environment: Mapping[str, str], folder: str) -> WrittenLayout:
    """The layout of named fields. environment, folder: as in `_yaml_layout`."""
    if "distributed_strategy" in data:
        return nxdt_layout(data)
    if is_hyperpod(data):
        return hyperpod_layout(data)
    if is_nemo(data):
        return nemo_layout(data, environment)
    if is_accelerate(data):
        return accelerate_layout(data)
    if is_axolotl(data):
        return axolotl_layout(data, folder)
    if is_llama_factory(data):
        return llama_factory_layout(data, folder)
    if is_llama_factory_v1(data):
        return llama_factory_v1_layout(data, folder)
    return WrittenLayout("recipe", {str(name): value for name, value in data.items()}, complete=False)
