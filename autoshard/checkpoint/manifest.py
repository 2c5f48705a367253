"""What a checkpoint holds, written last: a folder without a whole manifest is no checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoshard.checkpoint.layout import parameter_shapes
from autoshard.checkpoint.store import Folder, folder_name, is_step
from autoshard.checkpoint.tensor_file import ELEMENT_BYTES
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.files.fields import LARGEST_SEED, check_choice, check_integer, is_finite, show
from autoshard.files.json_file import read_json
from autoshard.spec.dropout import NO_DROPOUT, Dropout
from autoshard.spec.model import ModelSpec

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
QUANTITIES = ("master", "first_moment", "second_moment")
"""Of every parameter: the weight as the optimizer keeps it, and AdamW's two moments."""
WEIGHTS = QUANTITIES[:1]
"""Alone in what `autoshard convert` writes: weights to start from."""
_MAX_BYTES = 1_000_000_000
_MOST_FILE_BYTES = 2**63 - 1
_NOT_OF_STATE = ("name", "dropout")
"""Fields of a model in which a run may go on with others."""


@dataclass(frozen=True)
class FileRecord:
    """A file of a checkpoint. tensors: names of the parameters that it has parts of."""

    name: str
    bytes: int
    sha256: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """step: optimizer steps done. model: a ModelSpec as JSON. data_position: a DataPosition as JSON.

    dtype: of the tensors, by safetensors' name. learning_rate: of the step done last. seed: all that a run's random
    numbers come from. versions: of the software that wrote it. world_size: of its ranks, each of which wrote a file.
    quantities: of every parameter, QUANTITIES or WEIGHTS.
    """

    step: int
    model: dict[str, Any]
    data_position: dict[str, Any]
    dtype: str
    learning_rate: float
    seed: int
    versions: dict[str, str]
    world_size: int
    files: tuple[FileRecord, ...]
    quantities: tuple[str, ...] = QUANTITIES

    def to_json(self) -> str:
        content = to_json(self)
        return json.dumps({"format_version": FORMAT_VERSION, "sha256": _digest(content), "content": content}) + "\n"

    def check_model(self, model: ModelSpec, where: Path | Folder) -> None:
        """Raises AutoshardError naming a field in which the model is another one; its name and dropout may be."""
        mine = to_json(model)
        for field in sorted(mine.keys() | self.model.keys()):
            if field not in _NOT_OF_STATE and mine.get(field) != self.model.get(field):
                raise AutoshardError(
                    f"checkpoint {where} is of another model: {field}={show(self.model.get(field))}, "
                    f"the plan's has {show(mine.get(field))}"
                )

    @property
    def dropout(self) -> Dropout:
        """That the model was trained with."""
        return from_json(Dropout, self.model.get("dropout", to_json(NO_DROPOUT)), "dropout of the checkpoint's model")


def read_manifest(folder: Path | Folder) -> Manifest:
    """Raises AutoshardError for anything that to_json did not write, and in a folder that is named for another step."""
    path = f"{folder}/{MANIFEST}"
    what = "checkpoint manifest"
    values = read_json(path, what, _MAX_BYTES) if isinstance(folder, Path) else folder.json(MANIFEST, what, _MAX_BYTES)
    if not isinstance(values, dict) or values.keys() != {"format_version", "sha256", "content"}:
        raise AutoshardError(f"checkpoint manifest {path} is not one of autoshard's")
    if values["format_version"] != FORMAT_VERSION:
        raise AutoshardError(
            f"checkpoint manifest {path} has format_version {show(values['format_version'])}; "
            f"this autoshard reads {FORMAT_VERSION}"
        )
    content = values["content"]
    if not isinstance(content, dict) or _digest(content) != values["sha256"]:
        raise AutoshardError(f"checkpoint manifest {path} was changed after it was written: its SHA-256 is another")
    try:
        manifest = _manifest(content)
    except AutoshardError as error:
        raise AutoshardError(f"checkpoint manifest {path} is not one of autoshard's: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AutoshardError(f"checkpoint manifest {path} is not one of autoshard's: {error!r}") from None
    name = folder_name(manifest.step)
    if is_step(folder.name) and folder.name != name:
        raise AutoshardError(f"checkpoint {folder} is of step {manifest.step} by its manifest: rename it to {name}")
    return manifest


def shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Of every parameter."""
    return parameter_shapes(from_json(ModelSpec, manifest.model, "model"))


def _manifest(content: dict[str, Any]) -> Manifest:
    """Raises what Python raises for values of other types, and AutoshardError for numbers that no run has."""
    quantities = tuple(content.pop("quantities"))
    if quantities not in (QUANTITIES, WEIGHTS):
        raise ValueError("quantities")
    files = tuple(_file(one) for one in content.pop("files"))
    manifest = Manifest(**content, files=files, quantities=quantities)
    of = "its content"
    check_integer(of, "step", manifest.step, at_least=0)
    check_integer(of, "world_size", manifest.world_size)
    check_integer(of, "seed", manifest.seed, at_least=0, at_most=LARGEST_SEED)
    check_choice(of, "dtype", manifest.dtype, ELEMENT_BYTES)
    rate = manifest.learning_rate
    if type(rate) not in (int, float) or not is_finite(rate) or rate < 0:
        raise AutoshardError(f"learning_rate={show(rate)} of {of} must be a finite number of at least 0")
    for name in ("model", "data_position", "versions"):
        if type(getattr(manifest, name)) is not dict:
            raise TypeError(name)
    return manifest


def _file(values: dict[str, Any]) -> FileRecord:
    one = FileRecord(**{**values, "tensors": tuple(values["tensors"])})
    if type(one.name) is not str or one.name != Path(one.name).name or one.name in ("", ".", ".."):
        raise ValueError(f"file name {one.name!r}")
    check_integer(f"file {show(one.name)}", "bytes", one.bytes, at_least=0, at_most=_MOST_FILE_BYTES)
    if type(one.sha256) is not str or any(type(name) is not str for name in one.tensors):
        raise TypeError("files")
    return one


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
