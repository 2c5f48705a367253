"""Elements of one layout from the files of another, found by coordinates; only what overlaps is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.checkpoint.boxes import Box
from autoshard.checkpoint.layout import Piece
from autoshard.checkpoint.manifest import QUANTITIES, Manifest, shapes
from autoshard.checkpoint.tensor_file import ELEMENT_BYTES, Bytes, map_file, read_header
from autoshard.errors import AutoshardError


def tensor_key(quantity: str, name: str, box: Box) -> str:
    """'master/model.norm.weight@16': where the box starts; its sizes are the stored tensor's shape."""
    return f"{quantity}/{name}@{','.join(map(str, box.offsets))}"


@dataclass(frozen=True)
class _Part:
    """values: mapped from the file, as unsigned integers of the dtype's width, in the box's shape."""

    box: Box
    values: NDArray[Any]


class CheckpointReader:
    """The tensors of a checkpoint by parameter and box. Opens only the files that hold parts of the wanted names.

    Raises AutoshardError for files whose tensors are not what the manifest says.
    """

    def __init__(self, folder: Path, manifest: Manifest, names: Iterable[str]):
        self._folder, self._manifest = folder, manifest
        self._shapes = shapes(manifest)
        if manifest.dtype not in ELEMENT_BYTES:
            raise AutoshardError(f"checkpoint {folder} has dtype {manifest.dtype!r}, which is not read")
        self._parts: dict[tuple[str, str], list[_Part]] = {}
        wanted = set(names)
        for record in manifest.files:
            if wanted.intersection(record.tensors):
                self._index(folder / record.name)

    def fill(self, quantity: str, piece: Piece, shard: Bytes) -> None:
        """Copy a piece into the bytes of the shard that it is part of.

        Raises AutoshardError when the checkpoint does not have all of it.
        """
        width = ELEMENT_BYTES[self._manifest.dtype]
        element = np.dtype(f"u{width}")
        target = shard[piece.start * width : (piece.start + piece.box.elements) * width].view(element)
        target = target.reshape(piece.box.sizes)
        found = 0
        for part in self._parts.get((quantity, piece.name), ()):
            common = piece.box.common(part.box)
            if common is not None:
                target[common.slices(piece.box.offsets)] = part.values[common.slices(part.box.offsets)]
                found += common.elements
        if found != piece.box.elements:
            raise AutoshardError(
                f"checkpoint {self._folder} has {found:,} of {piece.box.elements:,} elements of the {quantity} of "
                f"{piece.name} from {list(piece.box.offsets)} on"
            )

    def _index(self, path: Path) -> None:
        header, data = read_header(path), map_file(path)
        for key, stored in header.items():
            quantity, _, rest = key.partition("/")
            name, _, at = rest.rpartition("@")
            shape = self._shapes.get(name)
            offsets = tuple(int(one) for one in at.split(",") if one.isdecimal() and len(one) < 19)
            if quantity not in QUANTITIES or shape is None or stored.dtype != self._manifest.dtype:
                raise AutoshardError(f"{path}: {key[:200]!r} is not a tensor of this checkpoint")
            box = Box(offsets, stored.shape)
            if not len(offsets) == len(stored.shape) == len(shape) or box.common(Box((0,) * len(shape), shape)) != box:
                raise AutoshardError(f"{path}: {key[:200]!r} lies outside the parameter, which is {list(shape)}")
            values = data[stored.offset : stored.offset + stored.bytes].view(f"u{ELEMENT_BYTES[stored.dtype]}")
            self._parts.setdefault((quantity, name), []).append(_Part(box, values.reshape(box.sizes)))
