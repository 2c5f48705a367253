"""Hugging Face folders: config.json, safetensors in one file or several with an index, the tokenizer's files."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from autoshard.checkpoint.tensor_file import StoredTensor, read_header
from autoshard.conversion.dtypes import CONFIG_NAMES, INTEGERS, WIDTHS
from autoshard.conversion.mxfp4 import BLOCKS, DTYPE, SCALES, check_shapes, packed_region, stored_part
from autoshard.conversion.output_file import OutputFile, plain_file, safetensors_file
from autoshard.conversion.places import Place, TensorLayout, part_shape, place_of
from autoshard.conversion.regions import Region
from autoshard.conversion.sample import are_alike
from autoshard.conversion.source import Source
from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.json_file import parse_json, read_json
from autoshard.models.families import weights_of
from autoshard.models.huggingface import MAX_CONFIG_BYTES, read_config, read_other_parts, to_config
from autoshard.models.prediction import has_module
from autoshard.models.text_part import is_part
from autoshard.models.traced.weights import is_of_a_block
from autoshard.models.weight_names import Part
from autoshard.models.weights import checkpoint_parts, parameter_dims, written_parts
from autoshard.spec.model import ModelSpec
from autoshard.spec.prediction import MultiTokenPrediction

CONFIG, ONE_FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""PEFT's file of adapters, which may lie beside the weights."""
CARRIED = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
"""Files that describe a tokenizer, and nothing that runs: copied as bytes, never interpreted."""
FUSED = ".experts.gate_up_proj"
FUSED_DOWN = ".experts.down_proj"
"""The ends of names of tensors with matrices of all experts of a block."""
OUTER, AROUND, THINKER = "model.language_model.", "language_model.", "thinker."
"""Starts of names of the text model in checkpoints of models that see images: in place of model., or before it; the
last one before all of what does not speak, of models that speak as well."""
HEADS = ("lm_head.weight", "embed_out.weight")
"""Names of the head's table."""
SHARD_BYTES = 5_000_000_000
_MAX_INDEX_BYTES = 100_000_000
_CONSTANTS = re.compile(
    r".*(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias|attn\.(slope_rate|(query|key|diagonal)_decay))"
)
"""Tensors that are computed from the config: frequencies and masks of older files, rates of fading of lightning
attention and what is made of these."""


def is_huggingface(folder: Path) -> bool:
    return (folder / INDEX).exists() or bool(_files_without_index(folder))


def huggingface_source(folder: Path, traced: ModelSpec | None = None) -> Source:
    """The weights in a Hugging Face folder, those of a prediction module too where it has one.

    traced: the model of a traced module, whose own tensors the folder has then, without a config; buffers among them,
    and second names of tensors that the module ties, are not read.
    Raises AutoshardError naming the file and the tensor where the folder is not a whole checkpoint of its config.
    """
    model = read_config(folder) if traced is None else traced
    tensors: dict[str, tuple[Path, StoredTensor]] = {}
    for path, wanted in _files(folder).items():
        header = read_header(path)
        for name in wanted if wanted is not None else header:
            if name not in header:
                raise AutoshardError(f"{path} has no tensor {name[:200]}, which {INDEX} says it has")
            if name in tensors:
                raise AutoshardError(f"{path} has tensor {name[:200]}, and so has {tensors[name][0]}")
            tensors[name] = (path, header[name])
    if has_module(model, tensors):
        model = replace(model, multi_token_prediction=MultiTokenPrediction())
    dims, sizes = parameter_dims(model)
    regions: dict[str, list[Region]] = {}
    dtypes: dict[str, str] = {}
    used = set()
    for part in checkpoint_parts(model, fused=any(name.endswith(FUSED) for name in tensors)):
        if part.tensor not in tensors and part.tensor + BLOCKS in tensors:
            packed = _packed_region(part, dims[part.parameter], sizes, tensors, folder)
            regions.setdefault(part.parameter, []).append(packed)
            dtypes[part.parameter] = DTYPE
            used |= {part.tensor + BLOCKS, part.tensor + SCALES}
            continue
        name = _name_in_file(part.tensor, model, tensors, folder)
        path, stored = tensors[name]
        part = _as_stored(part, stored.shape, sizes)
        _check(path, name, stored, part, part_shape(part, sizes), dtypes.setdefault(part.parameter, stored.dtype))
        place = place_of(part, dims[part.parameter], sizes)
        region = Region.of(place, path, name, stored.offset, WIDTHS[stored.dtype])
        regions.setdefault(part.parameter, []).append(region)
        used.add(name)
    used.update(part.tensor for part in written_parts(model))
    carried = tuple(path for name in (CONFIG, *CARRIED) if (path := folder / name).is_file())
    if traced is not None:
        _check_blocks(traced, tensors, used)
        return Source(f"the module's checkpoint {folder}", traced, dtypes, regions, carried, place=folder)
    weights = weights_of(model.family)
    left_out = (*getattr(weights, "LEFT_OUT", ()), *getattr(weights, "left_out", lambda model: ())(model))
    others = tuple(name for start in left_out for name in _names_in_files(start))
    modules = {_module(name) for name in used} if read_other_parts(folder) else None
    heads = {name for head in HEADS for name in _names_in_files(head)} if model.tie_word_embeddings else set()
    for name in sorted(tensors.keys() - used):
        if name in heads:
            embedding = next(regions[one][0] for one, held in dims.items() if held == ("vocab", "embed"))
            _check_tied(name, embedding, tensors, folder)
        elif modules is not None and _module(name) not in modules:
            continue  # of what sees or hears
        elif not name.startswith(others) and not _CONSTANTS.fullmatch(name):
            raise AutoshardError(
                f"{tensors[name][0]} has tensor {name[:200]}, which the model of {folder / CONFIG} does not have"
            )
    return Source(f"the Hugging Face checkpoint {folder}", model, dtypes, regions, carried, place=folder)


def huggingface_files(model: ModelSpec, dtypes: Mapping[str, str], shard_bytes: int = SHARD_BYTES) -> list[OutputFile]:
    """The files of a folder that transformers loads: weights and their index.

    dtypes: by parameter. shard_bytes: most bytes of a file, unless one tensor is larger.
    Raises AutoshardError for a tensor whose parameters differ in dtype.
    """
    tensors = tensor_layouts(model, written_parts(model))
    dtype_of = {one.name: common_dtype(one, dtypes) for one in tensors}
    shards: list[list[TensorLayout]] = [[]]
    size = 0
    for tensor in tensors:
        tensor_bytes = prod(tensor.shape) * WIDTHS[dtype_of[tensor.name]]
        if shards[-1] and size + tensor_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor_bytes
    names = [f"model-{number + 1:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))]
    if len(shards) == 1:
        names = [ONE_FILE]
    files = [
        safetensors_file(Path(name), shard, dtype_of, metadata={"format": "pt"})
        for name, shard in zip(names, shards, strict=True)
    ]
    if len(shards) > 1:
        total = sum(prod(one.shape) * WIDTHS[dtype_of[one.name]] for one in tensors)
        where = {one.name: name for name, shard in zip(names, shards, strict=True) for one in shard}
        files.append(json_file(INDEX, {"metadata": {"total_size": total}, "weight_map": where}))
    return files


def carried_files(model: ModelSpec, carried: tuple[Path, ...], dtype: str | None) -> list[OutputFile]:
    """The other files of a folder that transformers loads: config.json, if the model has one, and files from the
    source.

    carried: files that came with the weights. dtype: of all weights, for the config; None: the config says none.
    """
    files = {path.name: plain_file(Path(path.name), _bytes(path)) for path in carried}
    if CONFIG in files and is_part(_config_in(files)):  # what is written is the text model alone
        del files[CONFIG]
    if CONFIG not in files and not model.family.is_published:
        return list(files.values())
    config = _config_in(files) if CONFIG in files else to_config(model)
    was_quantized = config.pop("quantization_config", None) is not None  # what is written is not
    key = "dtype" if "dtype" in config else "torch_dtype"
    said = {} if dtype is None else {key: CONFIG_NAMES[dtype]}
    if CONFIG not in files or was_quantized or config != {**config, **said}:
        files[CONFIG] = json_file(CONFIG, {**config, **said})
    return list(files.values())


def _config_in(files: Mapping[str, OutputFile]) -> dict[str, Any]:
    config = parse_json(files[CONFIG].known[0][1], "model config", has_infinity=True)
    assert isinstance(config, dict), "read as the model before"
    return config


def common_dtype(tensor: TensorLayout, dtypes: Mapping[str, str]) -> str:
    """The dtype that all parameters in a tensor share. dtypes: by parameter. Raises AutoshardError if they differ."""
    parameter_of = {dtypes[place.parameter]: place.parameter for place in tensor.places}
    if len(parameter_of) > 1:
        told = ", ".join(f"{name} {dtype}" for dtype, name in sorted(parameter_of.items()))
        raise AutoshardError(f"{tensor.name} holds parameters of several dtypes ({told}): give one with --dtype")
    return next(iter(parameter_of))


def tensor_layouts(model: ModelSpec, parts: Iterable[Part]) -> list[TensorLayout]:
    """The tensors that hold these parts of the model's parameters, in the order of the parameters."""
    dims, sizes = parameter_dims(model)
    order = {name: index for index, name in enumerate(dims)}
    by_tensor: dict[str, list[tuple[Part, Place]]] = {}
    for part in sorted(parts, key=lambda part: order[part.parameter]):
        place = place_of(part, dims[part.parameter], sizes)
        by_tensor.setdefault(part.tensor, []).append((part, place))
    return [
        TensorLayout(name, part_shape(held[0][0], sizes), tuple(place for _, place in held))
        for name, held in by_tensor.items()
    ]


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """File with weights -> the tensors that the index says it has; None if there is no index."""
    if (folder / ONE_FILE).is_file():
        return {folder / ONE_FILE: None}
    index = folder / INDEX
    if not index.is_file():
        return dict.fromkeys(_files_without_index(folder))
    values = read_json(index, "index of a checkpoint", _MAX_INDEX_BYTES)
    where = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(where, dict) or not where or any(type(name) is not str for name in where.values()):
        raise AutoshardError(f"{index} has no weight_map from tensors to files")
    files: dict[Path, list[str] | None] = {}
    for tensor, name in where.items():
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise AutoshardError(
                f"{index}: {tensor[:200]} is in {show(name)}, which is not a safetensors file beside it"
            )
        listed = files.setdefault(folder / name, [])
        assert listed is not None
        listed.append(tensor)
    for path in files:
        if not path.is_file():
            raise AutoshardError(f"{path} is missing, and {index.name} names it")
    return files


def _files_without_index(folder: Path) -> list[Path]:
    """All files of a folder that have weights, by name."""
    return sorted(path for path in folder.glob("*.safetensors") if path.name != ADAPTER_WEIGHTS)


def _check_blocks(model: ModelSpec, tensors: Mapping[str, tuple[Path, StoredTensor]], used: Collection[str]) -> None:
    """Raise AutoshardError for a tensor of a block that the traced model does not have. used: names that it has."""
    for name in sorted(tensors.keys() - used):
        if is_of_a_block(model, name):
            raise AutoshardError(
                f"{tensors[name][0]} has tensor {name[:200]}, and {model.name} has {model.num_hidden_layers} blocks"
            )


def _check_tied(name: str, embedding: Region, tensors: Mapping[str, tuple[Path, StoredTensor]], folder: Path) -> None:
    """Raise AutoshardError for a head that is not the embedding, though the config says so: transformers ties them only
    where they are equal. name: of the head's tensor."""
    path, head = tensors[name]
    table = tensors[embedding.tensor][1]
    alike = (head.dtype, head.shape) == (table.dtype, table.shape)
    if not alike or not are_alike((path, head.offset), (embedding.path, table.offset), head.bytes):
        raise AutoshardError(
            f"{path}: {name} is not {embedding.tensor}, and {folder / CONFIG} ties them: set tie_word_embeddings to "
            "false there, or remove the tensor"
        )


def _as_stored(part: Part, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Part:
    """A part in a tensor of this shape: with the matrices of all experts the other way round where only so they have
    it. Qwen publishes Qwen3-VL's mixtures so, and transformers saves them as others."""
    is_fused = part.tensor.endswith((FUSED, FUSED_DOWN))
    return part.turned if is_fused and part_shape(part, sizes) != shape == part_shape(part.turned, sizes) else part


def _module(tensor: str) -> str:
    """The two outermost modules of a tensor in a file: 'language_model.model'."""
    return ".".join(tensor.split(".")[:2])


def _name_in_file(tensor: str, model: ModelSpec, found: Mapping[str, Any], folder: Path) -> str:
    """The name of a tensor of the model as the files have it."""
    for name in names_in_files(tensor, model):
        if name in found:
            return name
    says = "its config.json" if model.family.is_published else "the plan"
    raise AutoshardError(f"{folder} has no tensor {tensor}, which the model of {says} needs")


def names_in_files(tensor: str, model: ModelSpec) -> tuple[str, ...]:
    """The names that a tensor of a model may have in files, the published one first."""
    saved_as = getattr(weights_of(model.family), "saved_as", None)
    known = (tensor,) if saved_as is None else (tensor, saved_as(tensor))
    return tuple(name for published in known for name in _names_in_files(published))


def _names_in_files(tensor: str) -> tuple[str, ...]:
    """The names that a tensor may have in files: OpenAI's GPT-2 files leave out the outermost module's name, those of
    models that see images have one more, or have it around the whole model, as those of models that speak have."""
    seeing = OUTER + tensor.removeprefix("model."), AROUND + tensor
    return tensor, tensor.removeprefix("transformer."), *seeing, THINKER + tensor


def _packed_region(
    part: Part, dims: tuple[str, ...], sizes: dict[str, int], tensors: Mapping[str, Any], folder: Path
) -> Region:
    """The place of a parameter that lies in MXFP4. dims: of the parameter."""
    stored = stored_part(part)
    places: list[tuple[Path, str, int]] = []
    headers: list[StoredTensor] = []
    for name in (part.tensor + BLOCKS, part.tensor + SCALES):
        if name not in tensors:
            raise AutoshardError(f"{folder} has no tensor {name}, and has {part.tensor}{BLOCKS}")
        path, header = tensors[name]
        places.append((path, name, header.offset))
        headers.append(header)
    blocks, scales = headers
    check_shapes(places[0][0], stored, sizes, blocks, scales)
    (packed,) = stored.groups[-1]
    return packed_region(place_of(stored, dims, sizes), dims.index(packed), places[0], places[1])


def _check(path: Path, name: str, stored: StoredTensor, part: Part, shape: tuple[int, ...], dtype: str) -> None:
    known = [one for one in WIDTHS if part.whole_numbers or one not in INTEGERS]
    if stored.dtype not in known:
        raise AutoshardError(f"{path}: {name} has dtype {stored.dtype}; {', '.join(known)} are converted")
    if stored.shape != shape:
        raise AutoshardError(f"{path}: {name} has shape {list(stored.shape)}; the model's is {list(shape)}")
    if stored.dtype != dtype:
        raise AutoshardError(f"{path}: {name} has dtype {stored.dtype}, others of its layer have {dtype}")


def json_file(name: str, values: object) -> OutputFile:
    return plain_file(Path(name), (json.dumps(values, indent=2) + "\n").encode())


def _bytes(path: Path) -> bytes:
    limit = MAX_CONFIG_BYTES if path.name == CONFIG else _MAX_INDEX_BYTES
    try:
        if path.stat().st_size > limit:
            raise AutoshardError(f"{path} has {path.stat().st_size:,} bytes: it is not what its name says")
        return path.read_bytes()
    except OSError as error:
        raise AutoshardError(f"{path} cannot be read: {error.strerror or error}") from None
