"""One rank's shards of the optimizer's state, to its file of a checkpoint and back from the files of any layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from autoshard.checkpoint.layout import Shard
from autoshard.checkpoint.manifest import FileRecord, Manifest, quantities_of
from autoshard.checkpoint.read import CheckpointReader, tensor_key
from autoshard.checkpoint.store import Folder, Hashed, Store, rank_file
from autoshard.checkpoint.tensor_file import ELEMENT_BYTES, Bytes, TensorBytes, tensor_stream
from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.conversion.source import Source

DTYPE_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
State = Sequence[tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Loaded:
    """A rank's shards, and how many bytes of the checkpoint it took for them."""

    state: list[tuple[torch.Tensor, ...]]
    bytes_read: int


def host_copy(state: State) -> list[tuple[torch.Tensor, ...]]:
    """On the host, and untouched by the steps that follow."""
    return [tuple(one.detach().to("cpu", copy=True) for one in shard) for shard in state]


def write_rank(store: Store, step: int, rank: int, shards: Sequence[Shard], state: State) -> FileRecord:
    """The pieces that this rank is the first to hold, of shards that have a state: one that is empty is not saved.
    Raises AutoshardError, too where one has nan or inf: nothing can go on from there, and a checkpoint before it has to
    stay."""
    tensors = []
    saved = [(shard, quantities) for shard, quantities in zip(shards, state, strict=True) if quantities]
    for shard, quantities in saved:
        for quantity, values in zip(quantities_of(shard.moments), quantities, strict=True):
            assert values.shape == (shard.elements,), (values.shape, shard.elements)
            name, data = DTYPE_NAMES[values.dtype], _bytes_of(values)
            elements = data.view(f"u{ELEMENT_BYTES[name]}")
            for piece in shard.pieces:
                if piece.writes:
                    if not _is_finite(piece.view(values)):
                        raise AutoshardError(f"{quantity} of {piece.name} has nan or inf")
                    part = np.ascontiguousarray(piece.view(elements)).reshape(-1).view(np.uint8)
                    tensors.append(
                        TensorBytes(tensor_key(quantity, piece.name, piece.box), name, piece.box.sizes, part)
                    )
    stream = tensor_stream(tensors)
    hashed = Hashed(stream.chunks)
    store.write(step, rank_file(rank), hashed, stream.bytes)
    names = sorted({piece.name for shard, _ in saved for piece in shard.pieces if piece.writes})
    return FileRecord(rank_file(rank), stream.bytes, hashed.hexdigest(), tuple(names))


def read_rank(
    folder: Folder | Path,
    manifest: Manifest,
    shards: Sequence[Shard],
    mine: Sequence[bool] | None = None,
    beside: Source | None = None,
) -> Loaded:
    """This rank's shards, from a checkpoint of any layout; padding is zero. In the checkpoint's dtypes.

    mine: which of the shards to read, None: all; the others stay zero. beside: where what is not learned is read
    instead.
    """
    own = [True] * len(shards) if mine is None else mine
    names = {piece.name for shard, is_own in zip(shards, own, strict=True) if is_own for piece in shard.pieces}
    reader = CheckpointReader(folder, manifest, names)
    dtypes = {name: dtype for dtype, name in DTYPE_NAMES.items()}
    found = []
    for shard in shards:  # its parameters share their dtypes; one of padding alone may have any
        name = shard.pieces[0].name if shard.pieces else None
        stored = [
            manifest.dtype if name is None else reader.dtype_of(quantity, name)
            for quantity in quantities_of(shard.moments)
        ]
        found.append(tuple(torch.zeros(shard.elements, dtype=dtypes[one]) for one in stored))
    read = [(shard, values) for shard, is_own, values in zip(shards, own, found, strict=True) if is_own]
    taken = 0 if beside is None else _fill(beside, [one for one in read if not one[0].learned])
    taken += reader.fill_all(
        (quantity, piece, _bytes_of(one))
        for shard, values in read
        if shard.learned or beside is None
        for quantity, one in zip(quantities_of(shard.moments), values, strict=True)
        for piece in shard.pieces
    )
    return Loaded(found, taken)


def _fill(source: Source, shards: Iterable[tuple[Shard, tuple[torch.Tensor, ...]]]) -> int:
    """Fills shards that have weights alone from files of any form; returns the bytes that were taken from these."""
    from autoshard.conversion.source import WeightReader  # brings all that converts weights

    taken = 0
    with WeightReader(source) as reader:
        for shard, (values,) in shards:
            dtype = DTYPE_NAMES[values.dtype]
            elements = _bytes_of(values).view(f"u{ELEMENT_BYTES[dtype]}")
            for piece in shard.pieces:
                piece.view(elements)[...] = reader.read(piece.name, piece.box, dtype)
                taken += piece.box.elements * ELEMENT_BYTES[source.dtypes[piece.name]]
        reader.finish()
    return taken


def _is_finite(values: torch.Tensor) -> bool:
    """Whether no element is nan or inf, by the two that are passed on: a tenth of the time of `isfinite`, no copy."""
    return all(one.isfinite() for one in torch.aminmax(values))


def _bytes_of(values: torch.Tensor) -> Bytes:
    found: Bytes = values.view(torch.uint8).numpy()
    return found
