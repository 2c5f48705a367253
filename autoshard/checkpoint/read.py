"""Read the elements of one layout from the files of another, by global coordinates; only what overlaps is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from autoshard.checkpoint.boxes import Box
from autoshard.checkpoint.directory import LocalFolder
from autoshard.checkpoint.layout import Piece
from autoshard.checkpoint.manifest import Manifest, dtypes, shapes
from autoshard.checkpoint.store import Folder
from autoshard.checkpoint.tensor_file import ELEMENT_BYTES, Bytes, StoredTensor, parse_header
from autoshard.errors import AutoshardError


def tensor_key(quantity: str, name: str, box: Box) -> str:
    """The name of a stored box, such as 'master/model.norm.weight@16': where it starts.

    Its sizes are the tensor's shape.
    """
    return f"{quantity}/{name}@{','.join(map(str, box.offsets))}"


def stored_box(
    path: object,
    key: str,
    stored: StoredTensor,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[tuple[str, str], str],
) -> tuple[str, str, Box]:
    """(quantity, parameter, box) of a tensor in a file, from its key.

    path: names the file in errors. shapes: those of the model, by parameter. dtypes: by quantity and parameter.
    Raises AutoshardError for one that the checkpoint's model does not have.
    """
    quantity, _, rest = key.partition("/")
    name, _, at = rest.rpartition("@")
    shape = shapes.get(name)
    if shape is None or stored.dtype != dtypes.get((quantity, name)):
        raise AutoshardError(f"{path}: {key[:200]!r} is not a tensor of this checkpoint")
    offsets = tuple(int(one) for one in at.split(",") if one.isdecimal() and len(one) < 19)
    box = Box(offsets, stored.shape)
    if not len(offsets) == len(stored.shape) == len(shape) or box.common(Box((0,) * len(shape), shape)) != box:
        raise AutoshardError(f"{path}: {key[:200]!r} lies outside the parameter, which is {list(shape)}")
    return quantity, name, box


@dataclass(frozen=True)
class _Part:
    """A box of a parameter that a file has. offset: of its first byte in the file."""

    box: Box
    file: str
    offset: int


class CheckpointReader:
    """The tensors of a checkpoint by parameter and box. Opens only the files that hold parts of the wanted names.

    Raises AutoshardError for files whose tensors are not what the manifest says.
    """

    def __init__(self, folder: Path | Folder, manifest: Manifest, names: Iterable[str]):
        self._folder = LocalFolder(folder) if isinstance(folder, Path) else folder
        self._shapes, self._dtypes = shapes(manifest), dtypes(manifest)
        self._parts: dict[tuple[str, str], list[_Part]] = {}
        wanted = set(names)
        for record in manifest.files:
            if wanted.intersection(record.tensors):
                self._index(record.name)

    def dtype_of(self, quantity: str, name: str) -> str:
        """Safetensors' name of the dtype in which a parameter's quantity is stored."""
        return self._dtypes[quantity, name]

    def fill_all(self, wanted: Iterable[tuple[str, Piece, Bytes]]) -> int:
        """Fill every (quantity, piece, shard), as `fill` does; returns the bytes of the files that were used.

        Several are filled at a time if that pays.
        """
        at_a_time = self._folder.parallel_reads
        if at_a_time == 1:
            return sum(self.fill(*one) for one in wanted)
        with ThreadPoolExecutor(at_a_time) as pool:
            return sum(done.result() for done in [pool.submit(self.fill, *one) for one in wanted])

    def fill(self, quantity: str, piece: Piece, shard: Bytes) -> int:
        """Copy a piece into the bytes of the shard that it is part of; returns the bytes of the files that were used.

        quantity: such as "master". Raises AutoshardError when the checkpoint does not have all of it.
        """
        width = ELEMENT_BYTES[self._dtypes[quantity, piece.name]]
        target = piece.view(shard.view(f"u{width}"))
        copied = taken = 0
        for part in self._parts.get((quantity, piece.name), ()):
            common = piece.box.common(part.box)
            if common is not None:
                around = part.box.rows_around(common)
                values = self._values(part, around, width)
                target[common.slices(piece.box.offsets)] = values[common.slices(around.offsets)]
                copied += common.elements
                taken += around.elements * width
        if copied != piece.box.elements:
            raise AutoshardError(
                f"checkpoint {self._folder} has {copied:,} of {piece.box.elements:,} elements of the {quantity} of "
                f"{piece.name} from {list(piece.box.offsets)} on"
            )
        return taken

    def _values(self, part: _Part, box: Box, width: int) -> NDArray[Any]:
        """Values of a contiguous box of a part, in the box's shape, as unsigned integers of so many bytes."""
        start = part.offset + part.box.position(box) * width
        data = self._folder.read(part.file, start, start + box.elements * width)
        values: NDArray[Any] = data.view(f"u{width}").reshape(box.sizes)
        return values

    def _index(self, file: str) -> None:
        path, folder = f"{self._folder}/{file}", self._folder
        header = parse_header(path, folder.size(file), lambda start, stop: folder.read(file, start, stop).tobytes())
        for key, stored in header.items():
            quantity, name, box = stored_box(path, key, stored, self._shapes, self._dtypes)
            self._parts.setdefault((quantity, name), []).append(_Part(box, file, stored.offset))
