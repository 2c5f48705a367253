"""Write files as torch.save does: a zip archive of a pickle that describes tensors, and their bytes uncompressed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import pack

from autoshard.conversion.dtypes import CONFIG_NAMES, WIDTHS
from autoshard.conversion.output_file import Crc, OutputFile
from autoshard.conversion.places import TensorLayout
from autoshard.conversion.regions import Region

_STORAGES = {"BF16": "BFloat16Storage", "F16": "HalfStorage", "F32": "FloatStorage", "F64": "DoubleStorage"}
_ALIGNMENT = 64
"""torch's own, for mapped reading."""
_PADDING_FIELD = b"FB"
XSER_REFERENCE = "torch_xla.utils.serialization.TensorReference"
_LOCAL, _CENTRAL, _END64, _LOCATOR, _END = b"PK\3\4", b"PK\1\2", b"PK\6\6", b"PK\6\7", b"PK\5\6"
_VERSION, _IN_EXTRA_16, _IN_EXTRA_32 = 45, 0xFFFF, 0xFFFFFFFF


# --- pickle, protocol 2: opcodes that describe the values, nothing that runs ---


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + pack("<I", len(data)) + data


def _whole(value: int) -> bytes:
    if 0 <= value < 2**31:
        return b"J" + pack("<i", value)
    data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _dict(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in items) + b"u"


def _tensor(key: int, dtype: str, shape: tuple[int, ...]) -> bytes:
    storage = _tuple(
        _text("storage"), _global("torch", _STORAGES[dtype]), _text(str(key)), _text("cpu"), _whole(prod(shape))
    )
    strides = [_whole(prod(shape[index + 1 :])) for index in range(len(shape))]
    sizes = [_whole(size) for size in shape]
    hooks = _global("collections", "OrderedDict") + b")R"
    made_of = _tuple(storage + b"Q", _whole(0), _tuple(*sizes), _tuple(*strides), b"\x89", hooks)
    return _global("torch._utils", "_rebuild_tensor_v2") + made_of + b"R"


def _reference(index: int) -> bytes:
    """The pickle of an object of torch-xla's class, with the number of the file that has the tensor."""
    module, _, name = XSER_REFERENCE.rpartition(".")
    return _global(module, name) + b")\x81" + _dict([(_text("tid"), _whole(index))]) + b"b"


def _document(value: bytes) -> bytes:
    return b"\x80\2" + value + b"."


# --- zip, every size in its 64-bit extra field ---


@dataclass(frozen=True)
class _Record:
    """A file in the zip archive. data: its bytes; None if `size` bytes of weights are to come."""

    name: str
    size: int
    data: bytes | None = None


def _archive(path: Path, records: Sequence[_Record]) -> tuple[int, list[tuple[int, bytes]], list[Crc], list[int]]:
    """(size of the file, what is known, checksums to come, first byte of every record's data)."""
    stem = path.name.removesuffix(".pt").encode()
    known: list[tuple[int, bytes]] = []
    central: list[tuple[_Record, bytes, int]] = []
    starts, at = [], 0
    for record in records:
        name = stem + b"/" + record.name.encode()
        before = at + 30 + len(name) + 20 + 4
        padding = -before % _ALIGNMENT
        crc = zlib.crc32(record.data) if record.data is not None else 0
        extra = pack("<HHQQ", 1, 16, record.size, record.size) + _PADDING_FIELD + pack("<H", padding) + b"Z" * padding
        fixed = pack("<HHHHHIII", _VERSION, 0, 0, 0, 0x21, crc, _IN_EXTRA_32, _IN_EXTRA_32)
        header = _LOCAL + fixed + pack("<HH", len(name), len(extra)) + name + extra
        known.append((at, header + (record.data or b"")))
        central.append((record, name, at))
        starts.append(before + padding)
        at = starts[-1] + record.size
    directory, crcs, first = b"", [], at
    for (record, name, offset), start in zip(central, starts, strict=True):
        crc = zlib.crc32(record.data) if record.data is not None else 0
        if record.data is None:
            crcs.append(Crc(start, record.size, (offset + 14, first + len(directory) + 16)))
        extra = pack("<HHQQQ", 1, 24, record.size, record.size, offset)
        fixed = pack("<HHHHHHIII", _VERSION, _VERSION, 0, 0, 0, 0x21, crc, _IN_EXTRA_32, _IN_EXTRA_32)
        tail = pack("<HHHHHII", len(name), len(extra), 0, 0, 0, 0, _IN_EXTRA_32)
        directory += _CENTRAL + fixed + tail + name + extra
    count, size = len(records), len(directory)
    end = _END64 + pack("<QHHIIQQQQ", 44, _VERSION, _VERSION, 0, 0, count, count, size, first)
    end += _LOCATOR + pack("<IQI", 0, first + size, 1)
    end += _END + pack("<HHHHIIH", 0, 0, _IN_EXTRA_16, _IN_EXTRA_16, _IN_EXTRA_32, _IN_EXTRA_32, 0)
    known.append((first, directory + end))
    return first + size + len(end), known, crcs, starts


def torch_file(path: Path, document: bytes, tensors: Sequence[tuple[TensorLayout, str]] = ()) -> OutputFile:
    """A .pt file. document: its pickle. tensors: with their dtypes, in the order of the storages that the
    pickle names.
    """
    sizes = [prod(one.shape) * WIDTHS[dtype] for one, dtype in tensors]
    records = [
        _Record("data.pkl", len(document), document),
        _Record("byteorder", 6, b"little"),
        *(_Record(f"data/{index}", size) for index, size in enumerate(sizes)),
        _Record("version", 2, b"3\n"),
    ]
    size, known, crcs, starts = _archive(path, records)
    regions = tuple(
        (place.parameter, Region.of(place, path, one.name, start, WIDTHS[dtype]))
        for (one, dtype), start in zip(tensors, starts[2:], strict=False)
        for place in one.places
    )
    return OutputFile(path, size, tuple(known), regions, tuple(crcs))


def state_file(path: Path, tensors: Sequence[tuple[TensorLayout, str]]) -> OutputFile:
    """A .pt file that holds a dict of tensors by name. tensors: with their dtypes."""
    items = [(_text(one.name), _tensor(index, dtype, one.shape)) for index, (one, dtype) in enumerate(tensors)]
    return torch_file(path, _document(_dict(items)), tensors)


def xser_files(
    path: Path, tensors: Sequence[tuple[TensorLayout, str]], own: Sequence[bool], of_experts: Sequence[bool]
) -> list[OutputFile]:
    """The files of torch-xla's serialization: a dict of references, a file for each tensor, and NxD's notes about them.

    tensors: with their dtypes. own: whether the tensor's file belongs beside this one; if not, readers find it beside
    the file of expert rank 0.
    of_experts: whether ranks hold different experts of it.
    """
    references = [(_text(one.name), _reference(index)) for index, (one, _) in enumerate(tensors)]
    notes = [
        (_whole(index), _note(one.shape, dtype, experts))
        for index, ((one, dtype), experts) in enumerate(zip(tensors, of_experts, strict=True))
    ]
    folder = path.with_name(path.name + ".tensors")
    files = [torch_file(path, _document(_dict(references)))]
    files.append(torch_file(path.with_name(path.name + ".info.pt"), _document(_dict(notes))))
    for index, (one, dtype) in enumerate(tensors):
        if own[index]:
            document = _document(_tensor(0, dtype, one.shape))
            files.append(torch_file(folder / f"tensor_{index}.pt", document, [(one, dtype)]))
    return files


def _note(shape: tuple[int, ...], dtype: str, of_experts: bool) -> bytes:
    size = _global("torch", "Size") + _tuple(_tuple(*(_whole(one) for one in shape))) + b"R"
    return _dict(
        [
            (_text("dtype"), _global("torch", CONFIG_NAMES[dtype])),
            (_text("shape"), size),
            (_text("expert_model_parallel"), b"\x88" if of_experts else b"\x89"),
        ]
    )
