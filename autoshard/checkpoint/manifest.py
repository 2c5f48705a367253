"""The manifest lists all that a checkpoint holds. It is written last: a folder without a whole one is no checkpoint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from autoshard.checkpoint.layout import parameter_shapes
from autoshard.checkpoint.store import MANIFEST, Folder, folder_name, is_step
from autoshard.checkpoint.tensor_file import ELEMENT_BYTES
from autoshard.errors import AutoshardError
from autoshard.files.codec import Absence, Checked, Text, from_json, to_json
from autoshard.files.fields import LARGEST_SEED, check_choice, check_format, check_integer, check_not_negative, show
from autoshard.files.first_difference import first_difference
from autoshard.files.json_file import read_json
from autoshard.models.weights import parameter_dtypes
from autoshard.spec.dropout import NO_DROPOUT, Dropout
from autoshard.spec.lora import Lora
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import ADAMW, OPTIMIZERS

FORMAT_VERSION = 1
QUANTITIES = ("master", "first_moment", "second_moment")
"""Stored for every parameter that is learned: the weight as the optimizer keeps it, and AdamW's two moments; the first
alone of what Muon updates, its momentum."""
WEIGHTS = QUANTITIES[:1]
"""Alone in what `autoshard convert` writes: weights to start from."""
_MAX_BYTES = 1_000_000_000
_MOST_FILE_BYTES = 2**63 - 1
_NOT_OF_STATE = ("name", "dropout")
"""Fields of a model in which a run may go on with others."""


def quantities_of(moments: int) -> tuple[str, ...]:
    """The quantities that a run stores of a parameter with so many moments."""
    return QUANTITIES[: 1 + moments]


@dataclass(frozen=True)
class FileRecord:
    """A file of a checkpoint: its size in bytes, its SHA-256, and the names of the parameters that it has parts of."""

    name: str
    bytes: int
    sha256: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Base:
    """The weights that a checkpoint's adapters stand beside, which it does not hold.

    folder: its path where it was written. files: what `conversion.sample.sampled` says of the files with the weights.
    """

    folder: Text
    files: Text


def _check_files(of: str, field: str, value: Any) -> None:
    """Check names, which must stay in the checkpoint's folder, and sizes: what else there is, the type says."""
    for file in value if isinstance(value, list) else ():
        name = file.get("name") if isinstance(file, dict) else None
        if not isinstance(name, str) or name != Path(name).name or name in ("", ".", "..") or not name.isprintable():
            raise AutoshardError(f"name={show(name)} of a file of {of} must be the name of a file")
        check_integer(f"file {show(name)}", "bytes", file.get("bytes"), at_least=0, at_most=_MOST_FILE_BYTES)


def _check_quantities(of: str, field: str, value: Any) -> None:
    if value not in (list(QUANTITIES), list(WEIGHTS)):
        raise AutoshardError(f"{field}={show(value)} of {of} must be {', '.join(QUANTITIES)} or {', '.join(WEIGHTS)}")


@dataclass(frozen=True)
class Manifest:
    """The description of a checkpoint, stored in its manifest.json.

    step: optimizer steps done. model: a ModelSpec as JSON. data_position: a DataPosition as JSON.
    dtype: of what is learned, by safetensors' name. learning_rate: of the last step done. seed: all that a run's random
    numbers come from. versions: of the software that wrote it. world_size: number of its ranks, each of which wrote a
    file.
    quantities: stored for every parameter that is learned, QUANTITIES or WEIGHTS, but for the second moment of what
    Muon updates; of others there are only WEIGHTS.
    base: None where all parameters are stored; else those alone that are learned.
    optimizer: that of the run, as in TrainingSpec.
    moments_dtype: of moments; '' for `dtype`.
    """

    step: Annotated[int, Checked(partial(check_integer, at_least=0))]
    model: dict[str, Any]
    data_position: dict[str, Any]
    dtype: Annotated[str, Checked(partial(check_choice, choices=ELEMENT_BYTES))]
    learning_rate: Annotated[float, Checked(check_not_negative)]
    seed: Annotated[int, Checked(partial(check_integer, at_least=0, at_most=LARGEST_SEED))]
    versions: dict[str, str]
    world_size: Annotated[int, Checked(check_integer)]
    files: Annotated[tuple[FileRecord, ...], Checked(_check_files)]
    quantities: Annotated[tuple[str, ...], Checked(_check_quantities)] = QUANTITIES
    base: Annotated[Base | None, Absence.WRITTEN] = None
    optimizer: Annotated[str, Checked(partial(check_choice, choices=OPTIMIZERS)), Absence.WRITTEN] = ADAMW
    moments_dtype: Annotated[str, Checked(partial(check_choice, choices=("", *ELEMENT_BYTES))), Absence.WRITTEN] = ""

    def to_json(self) -> str:
        content = to_json(self)
        return json.dumps({"format_version": FORMAT_VERSION, "sha256": _digest(content), "content": content}) + "\n"

    def check_model(self, model: ModelSpec, where: Path | Folder) -> None:
        """Raise AutoshardError naming a field in which the model differs; its name and dropout may differ, and of a
        traced module the tokens of the trace. Where one of both has adapters it says what starts from the weights.

        where: names the checkpoint in the error.
        """
        has_state = (self.model.get("lora") is None) == (model.lora is None)
        may_differ = (*_NOT_OF_STATE, *of_the_trace(model), *(() if has_state else ("lora",)))
        if (apart := first_difference(self.model, to_json(model), may_differ)) is not None:
            lora = self.model.get("lora")
            told = f": a plan with --lora {from_json(Lora, lora, 'lora')} goes on with these" if lora else ""
            raise AutoshardError(
                f"checkpoint {where} is of another model: {apart}{told if apart.startswith('lora.') else ''}"
            )
        if not has_state:
            told = "has adapters, which the plan lacks" if model.lora is None else "lacks the plan's adapters"
            begins = "the merged model" if model.lora is None else "its weights and new adapters"
            raise AutoshardError(f"checkpoint {where} {told}: --weights {where} starts from {begins}")

    def check_optimizer(self, optimizer: str, where: Path | Folder) -> None:
        """Raise AutoshardError for another optimizer than the run's, whose moments mean something else."""
        if optimizer != self.optimizer:
            raise AutoshardError(
                f"checkpoint {where} was trained with optimizer={self.optimizer}, the plan has optimizer={optimizer}: "
                f"--weights {where} starts from its weights"
            )

    @property
    def dropout(self) -> Dropout:
        """The dropout that the model was trained with."""
        return from_json(Dropout, self.model.get("dropout", to_json(NO_DROPOUT)), "dropout of the checkpoint's model")


def of_the_trace(model: ModelSpec) -> tuple[str, ...]:
    """The field of a traced model that says how long the trace was, which is nothing of its weights; none of others."""
    return () if model.traced_length is None else ("max_position_embeddings",)


def read_manifest(folder: Path | Folder) -> Manifest:
    """The manifest of a checkpoint's folder.

    Raises AutoshardError for anything that to_json did not write, and in a folder that is named for another step.
    """
    path = f"{folder}/{MANIFEST}"
    what = "checkpoint manifest"
    values = read_json(path, what, _MAX_BYTES) if isinstance(folder, Path) else folder.json(MANIFEST, what, _MAX_BYTES)
    if not isinstance(values, dict) or values.keys() != {"format_version", "sha256", "content"}:
        raise AutoshardError(f"checkpoint manifest {path} is not one of autoshard's")
    check_format(f"checkpoint manifest {path}", values["format_version"], FORMAT_VERSION)
    content = values["content"]
    if not isinstance(content, dict) or _digest(content) != values["sha256"]:
        raise AutoshardError(f"checkpoint manifest {path} was changed after it was written: its SHA-256 is another")
    try:
        manifest = from_json(Manifest, content, "its content")
    except AutoshardError as error:
        raise AutoshardError(f"checkpoint manifest {path} is not one of autoshard's: {error}") from None
    name = folder_name(manifest.step)
    if is_step(folder.name) and folder.name != name:
        raise AutoshardError(f"checkpoint {folder} is of step {manifest.step} by its manifest: rename it to {name}")
    return manifest


def shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of the checkpoint's model, by name, without padding."""
    return parameter_shapes(from_json(ModelSpec, manifest.model, "model"))


def dtypes(manifest: Manifest) -> dict[tuple[str, str], str]:
    """Dtype of every tensor of the checkpoint, by its quantity and the name of its parameter."""
    weights = parameter_dtypes(from_json(ModelSpec, manifest.model, "model"), manifest.dtype)
    return {
        (quantity, name): dtype if quantity in WEIGHTS else manifest.moments_dtype or dtype
        for quantity in QUANTITIES
        for name, dtype in weights.items()
    }


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
