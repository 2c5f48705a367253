"""Read a layout from a file of any form that is understood: the file's name and content say which form it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.json_file import parse_json
from autoshard.files.text_file import printable, read_text
from autoshard.files.toml_file import parse_toml
from autoshard.files.yaml_file import parse_yaml
from autoshard.interop.accelerate import accelerate_layout, is_accelerate
from autoshard.interop.deepspeed import deepspeed_layout, is_deepspeed
from autoshard.interop.launch_script import Place
from autoshard.interop.megatron import megatron_layout
from autoshard.interop.nemo import is_nemo, nemo_layout
from autoshard.interop.neuron_script import is_neuron_script, neuron_layout
from autoshard.interop.nxdt import nxdt_layout
from autoshard.interop.torchtitan import torchtitan_layout
from autoshard.interop.torchtitan_registry import parse_registry
from autoshard.interop.written_layout import WrittenLayout

MOST_BYTES = 1_000_000
"""Of a file with a layout; those of frameworks have some thousand."""


def read_written_layout(path: str, nodes: int | None = None) -> WrittenLayout:
    """The layout in a recipe, a configuration of NxDT, NeMo or Accelerate (YAML), of DeepSpeed (JSON) or torchtitan
    (TOML, or a Python registry as file.py:function), or in a script with arguments of Megatron, NxD's examples or
    Optimum Neuron (text). nodes: where they are known, for scripts that count with them.

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
    text = read_text(path, f"layout {where}", MOST_BYTES)
    if path.endswith(".toml"):
        return _in_file(where, torchtitan_layout, parse_toml(text, where))
    if path.endswith((".yaml", ".yml")):
        return _in_file(where, _yaml_layout, parse_yaml(text, where))
    if path.endswith(".json"):
        return _in_file(where, _json_layout, parse_json(text.encode(), where))
    if "--" in text:
        return _in_file(where, partial(_script_layout, place=Place(nodes, str(Path(path).parent))), text)
    raise AutoshardError(
        f"{where} is no layout: a plan (.json), a recipe, a configuration of NxDT, NeMo or Accelerate (.yaml), of "
        "DeepSpeed (.json) or torchtitan (.toml or .py:name), Megatron's arguments (text with "
        "--tensor-model-parallel-size), or a script of NxD or Optimum Neuron (--tensor_parallel_size) would be"
    )


def _in_file(where: str, layout: Callable[[Any], WrittenLayout], content: object) -> WrittenLayout:
    """The layout that `layout` reads from a content. Errors begin with the file, `where`."""
    try:
        return layout(content)
    except AutoshardError as error:
        raise AutoshardError(f"{where}: {error}") from None


def _script_layout(text: str, place: Place) -> WrittenLayout:
    if is_neuron_script(text):
        return neuron_layout(text, place)
    return megatron_layout(text)


def _json_layout(data: object) -> WrittenLayout:
    if not isinstance(data, dict) or not is_deepspeed(data):
        raise AutoshardError("it is no configuration of DeepSpeed, the only JSON that is read; replan takes plans")
    return deepspeed_layout(data)


def _yaml_layout(data: object) -> WrittenLayout:
    if not isinstance(data, dict):
        raise AutoshardError("it must hold named fields")
    if "distributed_strategy" in data:
        return nxdt_layout(data)
    if is_nemo(data):
        return nemo_layout(data)
    if is_accelerate(data):
        return accelerate_layout(data)
    return WrittenLayout("recipe", {str(name): value for name, value in data.items()}, complete=False)
