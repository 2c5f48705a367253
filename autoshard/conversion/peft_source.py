"""Reads adapters that PEFT saved, beside weights of the model that they were trained for."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

from autoshard.checkpoint.tensor_file import ELEMENT_BYTES, StoredTensor, read_header
from autoshard.conversion.huggingface import ADAPTER_WEIGHTS, names_in_files
from autoshard.conversion.peft import ADAPTER_CONFIG
from autoshard.conversion.places import part_shape, place_of
from autoshard.conversion.regions import Region
from autoshard.conversion.source import Source
from autoshard.errors import AutoshardError
from autoshard.files.fields import SHOWN_CHARACTERS, check_choice, check_flag, check_integer, check_positive, show
from autoshard.files.json_file import read_json
from autoshard.graph.adapters import DOWN, UP, WEIGHT
from autoshard.models.adapter_weights import OUTERMOST, layers_of, module_of, peft_layout
from autoshard.models.stage import check_adapters
from autoshard.models.weights import checkpoint_parts, parameter_dims
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec

_PICKLE = "adapter_model.bin"
_MAX_CONFIG_BYTES = 10_000_000
_LONGEST_NAME = 200
_TENSOR = re.compile(rf"{re.escape(OUTERMOST)}(.+)\.(?:{DOWN}|{UP}){re.escape(WEIGHT)}")
_READ = ("peft_type", "task_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias", "init_lora_weights")
_TOLD_BY_TENSORS = ("exclude_modules", "layers_to_transform", "layers_pattern")
_OF_TRAINING = ("lora_dropout", "inference_mode", "eva_config", "corda_config", "lora_ga_config", "loftq_config")
_OF_FILES = ("base_model_name_or_path", "revision", "auto_mapping", "peft_version")
_OF_OTHER_LAYERS = ("fan_in_fan_out", "megatron_core", "qalora_group_size", "ensure_weight_tying")
"""Keys that say nothing of what adapters of linear layers do: PEFT takes fan_in_fan_out from the layer itself."""
_KNOWN = {*_READ, *_TOLD_BY_TENSORS, *_OF_TRAINING, *_OF_FILES, *_OF_OTHER_LAYERS}
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights with which the weights beside the adapters stay as they were."""
_MERGE = "the model that PEFT's merge_and_unload makes can be read"


def peft_source(base: Source, folder: Path) -> Source:
    """The weights of a model with the adapters in a folder of PEFT.

    base: weights without adapters; of a prediction module none are kept, which PEFT does not know.
    Raises AutoshardError naming the file, and the key or tensor where it is not LoRA of one rank in all blocks of the
    model.
    """
    config = _config(folder)
    if base.model.graph is not None:
        raise AutoshardError(f"{folder} has adapters of PEFT, and {base.form} is of a traced module, which has none")
    base, path = base.without_prediction, folder / ADAPTER_WEIGHTS
    if not path.is_file():
        is_pickle = (folder / _PICKLE).exists()
        told = f"; {_PICKLE} is a pickle, which can run anything: save it anew with PEFT's save_pretrained"
        raise AutoshardError(f"{path} is missing{told if is_pickle else ''}")
    found = _by_published_names(path, read_header(path), base.model, config)
    layers = layers_of(base.model, {_module(name) for name in found})
    try:
        model = replace(base.model, lora=Lora(config["r"], _alpha(config), layers))
        check_adapters(model)
        layout = peft_layout(model, _MERGE)
    except AutoshardError as error:
        raise AutoshardError(f"{path}: {error}") from None
    dims, sizes = parameter_dims(model)
    regions, dtypes = dict(base.regions), dict(base.dtypes)
    for part in layout.parts:
        if part.tensor not in found:
            raise AutoshardError(
                f"{path} has no tensor {part.tensor}: adapters are read that stand beside {', '.join(layers)} of all "
                f"blocks; {_MERGE}"
            )
        name, stored = found.pop(part.tensor)
        shape = part_shape(part, sizes)
        if stored.dtype not in ELEMENT_BYTES:
            raise AutoshardError(f"{path}: {name} has dtype {stored.dtype}; {', '.join(ELEMENT_BYTES)} are read")
        if stored.shape != shape:
            raise AutoshardError(
                f"{path}: {name} has shape {list(stored.shape)}; with r={config['r']} and the sizes of {base.form} it "
                f"is {list(shape)}"
            )
        place = place_of(part, dims[part.parameter], sizes)
        regions[part.parameter] = [Region.of(place, path, name, stored.offset, ELEMENT_BYTES[stored.dtype])]
        dtypes[part.parameter] = stored.dtype
    form = f"{base.form} with the adapters {folder}"
    return replace(base, form=form, model=model, dtypes=dtypes, regions=regions)


def _config(folder: Path) -> dict[str, Any]:
    """The values of adapter_config.json, of a kind of adapters that there is here. Raises AutoshardError for others."""
    path = folder / ADAPTER_CONFIG
    config = read_json(path, "config of adapters", _MAX_CONFIG_BYTES)
    if not isinstance(config, dict):
        raise AutoshardError(f"config of adapters {path} is not an object")
    of = str(path)
    check_choice(of, "peft_type", config.get("peft_type"), ("LORA",))
    if config.get("task_type") is not None:
        check_choice(of, "task_type", config["task_type"], ("CAUSAL_LM",))
    check_integer(of, "r", config.get("r"))
    check_positive(of, "lora_alpha", config.get("lora_alpha"))
    for key in ("use_rslora", "fan_in_fan_out"):
        if config.get(key) is not None:
            check_flag(of, key, config[key])
    for key, value in _other_mathematics(config):
        raise AutoshardError(
            f"{_named(key)}={_shown(value)} of {path} is not read: adapters are W + lora_alpha / r B A, all of one "
            f"rank; {_MERGE}"
        )
    return config


def _other_mathematics(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys with values that change what adapters do or which weights they stand beside, those that nobody knows here
    among them: what is off in PEFT is null, false or empty."""
    if config.get("bias", "none") != "none":
        yield "bias", config["bias"]
    start = config.get("init_lora_weights")
    if not any(start is one or (isinstance(one, str) and start == one) for one in _STARTS):
        yield "init_lora_weights", start
    yield from ((key, value) for key, value in config.items() if key not in _KNOWN and value)


def _named(name: str) -> str:
    """A key or a tensor's name as it is, or quoted where that is no part of one line."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else show(name)


def _shown(value: object) -> str:
    """The begin of a value as JSON has it."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _alpha(config: Mapping[str, Any]) -> float:
    """By what, times r, adapters are divided: with use_rslora they are divided by its root alone."""
    alpha = float(config["lora_alpha"])
    return alpha * sqrt(config["r"]) if config.get("use_rslora") else alpha


def _by_published_names(
    path: Path, header: Mapping[str, StoredTensor], model: ModelSpec, config: Mapping[str, Any]
) -> dict[str, tuple[str, StoredTensor]]:
    """Tensors of a file of adapters, each with its name there, by the names that published ones would have.

    Raises AutoshardError for one that is no adapter of a linear layer of the model, and where target_modules lists
    others.
    """
    tensors = {part.tensor for part in checkpoint_parts(model)}
    published = {module_of(name): module_of(one) for one in tensors for name in names_in_files(one, model)}
    published |= {module_of(one): module_of(one) for one in tensors}
    found: dict[str, tuple[str, StoredTensor]] = {}
    modules = set()
    for name, stored in header.items():
        match = _TENSOR.fullmatch(name)
        module = None if match is None else published.get(match[1])
        if match is None or module is None:
            raise AutoshardError(
                f"{path} has tensor {_named(name)}, which is no adapter of a linear layer of {model.name}: {_MERGE}"
            )
        modules.add(match[1])
        ours = f"{OUTERMOST}{module}{name[match.end(1) :]}"
        if ours in found:
            raise AutoshardError(f"{path} has tensors {name} and {found[ours][0]}, which are the same adapter's")
        found[ours] = (name, stored)
    if not found:
        raise AutoshardError(f"{path} has no tensors")
    _check_targets(path, modules, config.get("target_modules"))
    return found


def _check_targets(path: Path, modules: Collection[str], targets: Any) -> None:
    """Raises AutoshardError where a list of target_modules names others than the modules with adapters; where it is a
    pattern, or PEFT has chosen, the tensors alone say which there are."""
    if not isinstance(targets, list):
        return
    ends = {module: {module, *_ends(module)} for module in sorted(modules)}
    every = set().union(*ends.values())
    for name in targets:
        if not isinstance(name, str) or name not in every:
            raise AutoshardError(f"{path} has no adapter of {show(name)}, which target_modules of its config names")
    for module, own in ends.items():
        if own.isdisjoint(targets):
            raise AutoshardError(f"{path} has an adapter of {module}, which target_modules of its config does not name")


def _ends(module: str) -> Iterator[str]:
    """The ends of a module's name that begin behind a dot."""
    while module := module.partition(".")[2]:
        yield module


def _module(tensor: str) -> str:
    """The module of an adapter's tensor."""
    match = _TENSOR.fullmatch(tensor)
    assert match is not None, tensor
    return match[1]
