"""Read and write safetensors files: 8 bytes of header length, a JSON header, the tensors' bytes. Nothing is
executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from autoshard.errors import AutoshardError
from autoshard.files.json_file import parse_json

Bytes = NDArray[np.uint8]
ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
"""Bytes of an element of a weight, by safetensors' name of the dtype."""
_OTHER_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4}
_OTHER_BYTES |= {"I64": 8, "U64": 8}
"""Bytes of an element of the other dtypes, which other people's files have beside the weights."""
_CHUNK_BYTES = 1 << 22
_MAX_HEADER_BYTES = 100_000_000
"""The safetensors library's own limit."""


@dataclass(frozen=True)
class TensorBytes:
    """A tensor to be written under `key`. data: its elements, row-major."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file. offset: of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * (ELEMENT_BYTES | _OTHER_BYTES)[self.dtype]


@dataclass(frozen=True)
class TensorStream:
    """The bytes of a file in order, some megabytes at a time, and how many there are."""

    bytes: int
    chunks: Iterator[memoryview]


def tensor_stream(tensors: Sequence[TensorBytes]) -> TensorStream:
    """The bytes of a safetensors file with these tensors, in order; no tensor is copied."""
    header: dict[str, Any] = {}
    end = 0
    for tensor in tensors:
        assert tensor.data.nbytes == prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype], tensor.key
        header[tensor.key] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [end, end + tensor.data.nbytes],
        }
        end += tensor.data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = memoryview(len(text).to_bytes(8, "little") + text)
    return TensorStream(len(start) + end, _chunks((start, *(one.data.data for one in tensors))))


def _chunks(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    for data in parts:
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def checksum(path: Path) -> str:
    """SHA-256 of a file on this machine, in hexadecimal. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, by name. Raises AutoshardError for anything but a file whose tensors fill it exactly."""
    try:
        with path.open("rb") as file:
            return parse_header(path, path.stat().st_size, lambda start, stop: _at(file, start, stop))
    except OSError as error:
        raise AutoshardError(f"{path} cannot be read: {error.strerror or error}") from error


def parse_header(where: object, size: int, read: Callable[[int, int], bytes]) -> dict[str, StoredTensor]:
    """The tensors of a file in any place, by name. Raises AutoshardError as `read_header`.

    where: its name in errors. size: its bytes. read: gives bytes [start, stop) of it.
    """
    length = int.from_bytes(read(0, min(8, size)), "little")
    if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
        raise AutoshardError(f"{where} is not a safetensors file: its header of {length:,} bytes does not fit")
    values = parse_json(read(8, 8 + length), f"header of {where}")
    if not isinstance(values, dict):
        raise AutoshardError(f"header of {where} is not an object")
    values.pop("__metadata__", None)
    tensors = {key: _stored(where, key, value, 8 + length) for key, value in values.items()}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda one: (one.offset, one.bytes)):
        if tensor.offset != end:
            raise AutoshardError(f"{where}: tensors overlap or leave a gap at byte {end:,}")
        end += tensor.bytes
    if end != size:
        raise AutoshardError(f"{where} has {size:,} bytes; its header describes {end:,}")
    return tensors


def _at(file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    return file.read(stop - start)


def map_file(path: Path) -> Bytes:
    """All bytes of a file with a header, mapped and not yet read."""
    try:
        mapped: Bytes = np.memmap(path, np.uint8, "r").view(np.ndarray)
        return mapped
    except (OSError, ValueError) as error:
        raise AutoshardError(f"{path} cannot be read: {error}") from error


def _stored(where: object, key: str, value: object, base: int) -> StoredTensor:
    if isinstance(value, dict) and value.keys() == {"dtype", "shape", "data_offsets"}:
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        known = isinstance(dtype, str) and dtype in ELEMENT_BYTES | _OTHER_BYTES
        if known and _are_counts(shape) and _are_counts(offsets) and len(offsets) == 2:
            stored = StoredTensor(dtype, tuple(shape), base + offsets[0])
            if stored.bytes == offsets[1] - offsets[0]:
                return stored
    raise AutoshardError(f"{where}: tensor {key[:200]!r} has an entry that is not a dtype, a shape and its bytes")


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**62 for one in value)
