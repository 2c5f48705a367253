"""Describe a file to be written: its size, the bytes known before any weight is read, and where the weights go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from autoshard.conversion.dtypes import WIDTHS
from autoshard.conversion.places import TensorLayout
from autoshard.conversion.regions import Region


@dataclass(frozen=True)
class Crc:
    """A CRC-32 of bytes [start, start + size) of a file, stored little-endian at every one of the offsets `fields`."""

    start: int
    size: int
    fields: tuple[int, ...]


@dataclass(frozen=True)
class OutputFile:
    """A file to be written.

    path: within the output folder. known: bytes and where they go. regions: by parameter; bytes that no region names
    are zero. tensors: names of the parameters that it has parts of. sha256: whether it is wanted.
    """

    path: Path
    size: int
    known: tuple[tuple[int, bytes], ...]
    regions: tuple[tuple[str, Region], ...] = ()
    crcs: tuple[Crc, ...] = ()
    sha256: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the file has parts of, sorted."""
        return tuple(sorted({name for name, _ in self.regions}))


def plain_file(path: Path, data: bytes) -> OutputFile:
    return OutputFile(path, len(data), ((0, data),))


def safetensors_file(
    path: Path,
    tensors: Sequence[TensorLayout],
    dtypes: Mapping[str, str],
    metadata: Mapping[str, str] | None = None,
    sha256: bool = False,
) -> OutputFile:
    """A safetensors file with these tensors. dtypes: of each tensor by name. metadata: for the header."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    starts: list[int] = []
    end = 0
    for tensor in tensors:
        size = prod(tensor.shape) * WIDTHS[dtypes[tensor.name]]
        header[tensor.name] = {"dtype": dtypes[tensor.name], "shape": tensor.shape, "data_offsets": [end, end + size]}
        starts.append(end)
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    known = len(text).to_bytes(8, "little") + text
    regions = tuple(
        (place.parameter, Region.of(place, path, one.name, len(known) + start, WIDTHS[dtypes[one.name]]))
        for one, start in zip(tensors, starts, strict=True)
        for place in one.places
    )
    return OutputFile(path, len(known) + end, ((0, known),), regions, sha256=sha256)
