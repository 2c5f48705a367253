"""Hugging Face folders of toy models with weights that are all different, and plans to cut them for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.checkpoint.tensor_file import read_header
from autoshard.conversion.places import contiguous, whole_box
from autoshard.conversion.regions import Region
from autoshard.conversion.source import Source
from autoshard.models.huggingface import to_config
from autoshard.models.weights import parameter_dims, whole_numbers, written_parts
from autoshard.plans.plan import Plan
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import load_precision
from tests.multiprocess.plans import plan_of, strategy
from tests.whole_weights import to_checkpoint

NUMPY = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
Tensors = dict[str, np.ndarray[Any, Any]]


def weights(model: ModelSpec, dtype: str, seed: int = 0) -> Tensors:
    """By the published names, reproducible; BF16 as bits. Tables of whole numbers are int64."""
    dims, sizes = parameter_dims(model)
    tables = whole_numbers(model)
    random = np.random.default_rng(seed)
    parameters: dict[str, np.ndarray[Any, Any]] = {}
    for name, own in dims.items():
        if name in tables:
            parameters[name] = random.integers(0, 1000, [sizes[dim] for dim in own])
            continue
        values = random.standard_normal([sizes[dim] for dim in own]).astype(np.float32)
        parameters[name] = (
            (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "BF16" else values.astype(NUMPY[dtype])
        )
    return dict(to_checkpoint(written_parts(model), dims, sizes, parameters.__getitem__))


def huggingface_folder(folder: Path, model: ModelSpec, dtype: str = "F32", files: int = 1, seed: int = 0) -> Path:
    """With config.json and one file, or several and their index."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_config(model)))
    tensors = weights(model, dtype, seed)
    names = sorted(tensors)
    if files == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    where = {}
    for number in range(files):
        own = names[number::files]
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        write_safetensors(folder / name, {one: tensors[one] for one in own}, dtype)
        where.update(dict.fromkeys(own, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def trained(folder: Path, model: ModelSpec) -> tuple[Source, Tensors]:
    """Weights in a file by our names, adapters among them, and the values."""
    dims, sizes = parameter_dims(model)
    random = np.random.default_rng(0)
    values: Tensors = {
        name: random.standard_normal([sizes[dim] for dim in own]).astype(np.float32)
        if name not in whole_numbers(model)
        else random.integers(0, 9, [sizes[dim] for dim in own]).astype(np.float32)
        for name, own in dims.items()
    }
    folder.mkdir()
    path = folder / "ours"
    write_safetensors(path, values, "F32")
    regions = {
        name: [Region.of(contiguous(name, whole_box(dims[name], sizes)), path, name, one.offset, 4)]
        for name, one in read_header(path).items()
    }
    return Source("a file of ours", model, dict.fromkeys(dims, "F32"), regions), values


def write_safetensors(path: Path, tensors: Tensors, dtype: str) -> None:
    """By hand: numpy has no bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        kept = "I64" if values.dtype == np.int64 else dtype
        header[name] = {"dtype": kept, "shape": values.shape, "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(one.tobytes() for one in tensors.values()))


def plan(model: ModelSpec, **degrees: Any) -> Plan:
    return plan_of(model, strategy(**degrees), 2, load_precision("fp32"))


def bytes_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Of every tensor of a Hugging Face folder: dtype, shape, data."""
    found = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, one in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, stop = one["data_offsets"]
                found[name] = (one["dtype"], tuple(one["shape"]), data[8 + length + start : 8 + length + stop])
    return found
