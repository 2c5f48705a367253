"""Read and write autoshard's checkpoints: a run's, whose weights are read, and one of weights alone, cut for a plan."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import autoshard
from autoshard.checkpoint.directory import LocalFolder, LocalStore
from autoshard.checkpoint.layout import parameter_shapes, shards_of
from autoshard.checkpoint.manifest import QUANTITIES, WEIGHTS, FileRecord, Manifest, read_manifest
from autoshard.checkpoint.manifest import dtypes as stored_dtypes
from autoshard.checkpoint.read import stored_box, tensor_key
from autoshard.checkpoint.store import MANIFEST, PLAN, rank_file
from autoshard.checkpoint.tensor_file import read_header
from autoshard.conversion.dtypes import WIDTHS
from autoshard.conversion.huggingface import CARRIED, CONFIG, common_dtype
from autoshard.conversion.output_file import OutputFile, plain_file, safetensors_file
from autoshard.conversion.places import TensorLayout, contiguous
from autoshard.conversion.regions import Region
from autoshard.conversion.source import Source, key_of
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.models.weights import parameter_dtypes
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import plan_to_json
from autoshard.spec.model import ModelSpec

_MASTER = WEIGHTS[0]


def checkpoint_folder(folder: Path) -> Path | None:
    """The checkpoint at a path: the folder itself, or the newest in it; None if it is neither."""
    if LocalFolder(folder).has(MANIFEST):
        return folder
    return next((folder / one.name for one in LocalStore(folder).folders()), None)


def checkpoint_source(folder: Path, share: tuple[int, int] = (0, 1)) -> Source:
    """The weights of a checkpoint, or its adapters alone where it holds no more. share: (i, n) compares every n-th file
    with its checksum, from the i-th on.

    Raises AutoshardError naming what is wrong with a file.
    """
    manifest = read_manifest(folder)
    _check_sizes(folder, manifest.files)
    model = from_json(ModelSpec, manifest.model, "model")
    shapes, weights = parameter_shapes(model), parameter_dtypes(model, manifest.dtype)
    stored = stored_dtypes(manifest)
    regions: dict[str, list[Region]] = {}
    for record in manifest.files:
        if record.tensors:
            for name, region in _regions(folder / record.name, shapes, stored):
                regions.setdefault(name, []).append(region)
    carried = tuple(path for name in (CONFIG, *CARRIED) if (path := folder / name).is_file())
    sha256 = {folder / record.name: record.sha256 for record in manifest.files[share[0] :: share[1]]}
    form, place = f"the checkpoint {folder}", folder if manifest.quantities == WEIGHTS else None
    return Source(form, model, weights, regions, carried, sha256, place=place, base=manifest.base)


def _check_sizes(folder: Path, records: Sequence[FileRecord]) -> None:
    for record in records:
        try:
            size = (folder / record.name).stat().st_size
        except OSError as error:
            raise AutoshardError(f"checkpoint {folder}: {record.name}: {error.strerror or error}") from None
        if size != record.bytes:
            raise AutoshardError(f"checkpoint {folder}: {record.name} has {size:,} bytes, not {record.bytes:,}")


def _regions(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[tuple[str, str], str]
) -> list[tuple[str, Region]]:
    regions = []
    for key, stored in read_header(path).items():
        quantity, name, box = stored_box(path, key, stored, shapes, dtypes)
        if quantity == _MASTER:
            regions.append((name, Region.of(contiguous(name, box), path, key, stored.offset, WIDTHS[stored.dtype])))
    return regions


def checkpoint_files(
    plan: Plan, dtypes: Mapping[str, str], carried: tuple[OutputFile, ...], quantities: tuple[str, ...] = WEIGHTS
) -> list[OutputFile]:
    """The files of a checkpoint for a plan: one for each rank that writes anything, as that rank would save it, and the
    plan. dtypes: by parameter; adapters that are to begin anew have none and are left out.
    """
    shapes = parameter_shapes(plan.model)
    order = {name: index for index, name in enumerate(shapes)}
    files = []
    for rank, shards in enumerate(shards_of(plan, range(plan.mesh.world_size))):
        pieces = [piece for shard in shards for piece in shard.pieces if piece.writes and piece.name in dtypes]
        pieces.sort(key=lambda piece: (order[piece.name], piece.box.offsets))
        fixed = {piece.name for shard in shards if not shard.learned for piece in shard.pieces}
        tensors = [
            TensorLayout(
                tensor_key(quantity, one.name, one.box),
                one.box.sizes,
                (contiguous(key_of(quantity, one.name), one.box),),
            )
            for quantity in quantities
            for one in pieces
            if quantity in (WEIGHTS if one.name in fixed else QUANTITIES)  # those of AdamW
        ]
        if tensors:
            typed = {one.name: common_dtype(one, dtypes) for one in tensors}
            files.append(safetensors_file(Path(rank_file(rank)), tensors, typed, sha256=True))
    return [*files, plain_file(Path(PLAN), plan_to_json(plan).encode()), *carried]


def manifest_of(
    plan: Plan, dtype: str, files: list[OutputFile], sha256: Mapping[Path, str], source: Source
) -> Manifest:
    """The manifest of the files that were written. sha256: of every file.

    It has no data position: other programs count in other ways.
    """
    model = to_json(replace(plan.model, lora=source.model.lora))
    versions = {"autoshard": autoshard.__version__, "python": platform.python_version()}
    moments = tuple(key_of(quantity, "") for quantity in QUANTITIES[1:])
    records = tuple(
        FileRecord(
            str(one.path),
            one.size,
            sha256[one.path],
            tuple(name for name in one.parameters if not name.startswith(moments)),
        )
        for one in files
    )
    world, rate = plan.mesh.world_size, source.learning_rate
    return Manifest(source.step, model, {}, dtype, rate, 0, versions, world, records, source.quantities)
