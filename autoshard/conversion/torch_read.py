"""Find out where a .pt file has its tensors; nothing in it is executed, and no weight is read.

torch.load does it, with weights_only and a mapped file. Before that, the sizes that the archive states are checked:
nothing in it can be larger than the file. The bytes are read later like those of any other file.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from autoshard.checkpoint.manifest import QUANTITIES
from autoshard.conversion.torch_file import XSER_REFERENCE
from autoshard.errors import AutoshardError
from autoshard.units import format_bytes

_LOCAL_HEADER = 30
MAX_DESCRIPTION_BYTES = 8_000_000
"""Most bytes of the pickle that describes the tensors, and of the archive's directory. A guess: some 300 bytes a
tensor, so that 25,000 tensors fit. Both are read whole, and become Python objects of up to 70 times the size."""
_EXPERT_RANK = re.compile(r"_ep_rank_\d+")
_STATE_KEYS = ("model", "state_dict", "module")
"""Keys under which programs around NxD put the state."""
_MOMENTS, _MASTER = ("exp_avg", "exp_avg_sq"), "master"


@dataclass(frozen=True)
class FoundTensor:
    """A tensor of a file. offset: of its first element in the file, in bytes. strides: in elements."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class TensorReference:
    """An object that torch-xla's serialization puts in a tensor's place. tid: number of the file that has the
    tensor.
    """

    tid: Any


def read_state(path: Path) -> dict[str, FoundTensor]:
    """The tensors of a dict in a .pt file, plain or with each tensor in a file of its own, by name.

    Raises AutoshardError for anything else, a file that would run something above all.
    """
    state = _load(path)
    for key in _STATE_KEYS:
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or any(type(name) is not str for name in state):
        raise AutoshardError(f"{path} is not a dict of tensors by name")
    return _found(path, state)


@dataclass(frozen=True)
class FoundOptimizer:
    """The optimizer state in a rank's file.

    groups: numbers of its parameters. shapes: of these, whole, before ZeRO-1 cuts them.
    moments: of the rank's part, by number. masters: the same, empty if they were not saved. sharded: whether by ZeRO-1.
    """

    path: Path
    step: int
    learning_rate: float
    sharded: bool
    groups: tuple[tuple[int, ...], ...]
    shapes: Mapping[int, tuple[int, ...]]
    moments: Mapping[int, tuple[FoundTensor, FoundTensor]]
    masters: Mapping[int, FoundTensor]

    def tensor(self, quantity: str, number: int) -> FoundTensor:
        """The tensor of one of the manifest's quantities, for the parameter with this number."""
        index = QUANTITIES.index(quantity)
        return self.masters[number] if index == 0 else self.moments[number][index - 1]


def read_optimizer(path: Path) -> FoundOptimizer:
    """AdamW's state as NxD saves it. Raises AutoshardError for anything else."""
    values = _load(path)
    try:
        return _optimizer(path, values)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise AutoshardError(
            f"{path} is not the state of AdamW as NxD saves it: {type(error).__name__} {error}"
        ) from None


def _optimizer(path: Path, values: Any) -> FoundOptimizer:
    """The optimizer state in an unpickled value. Raises the Python error that values other than NxD's cause."""
    sharded = "base_state" in values
    state = values["base_state"] if sharded else values["state"]
    groups = tuple(tuple(int(number) for number in group["params"]) for group in values["param_groups"])
    numbers = [number for group in groups for number in group]
    masters = values.get("sharded_master_weights", {})
    tensors = {f"{number}/{key}": state[number][key] for number in numbers for key in _MOMENTS}
    tensors |= {f"{number}/{_MASTER}": masters[number] for number in numbers if masters}
    steps = {number: state[number]["step"] for number in numbers}
    tensors |= {f"{number}/step": step for number, step in steps.items() if not isinstance(step, (int, float))}
    tensor_of = _found(path, tensors)
    moments = {number: tuple(tensor_of[f"{number}/{key}"] for key in _MOMENTS) for number in numbers}
    shapes = {number: moments[number][0].shape for number in numbers}
    if sharded:
        shapes = {number: tuple(int(size) for size in values["shape_info"][number]) for number in numbers}
    done = {_whole_step(path, step, tensor_of.get(f"{number}/step")) for number, step in steps.items()}
    if len(done) != 1:
        raise ValueError(f"its parameters are at {len(done)} steps")
    rate = float(values["param_groups"][0]["lr"])
    if not isfinite(rate):
        raise ValueError(f"lr {rate}")
    held = {number: tensor_of[f"{number}/{_MASTER}"] for number in numbers if masters}
    return FoundOptimizer(path, done.pop(), rate, sharded, groups, shapes, moments, held)  # type: ignore[arg-type]


def _whole_step(path: Path, step: Any, found: FoundTensor | None) -> int:
    value = float(_load(found.path) if isinstance(step, TensorReference) and found is not None else step)
    if not value.is_integer() or value < 0:
        raise ValueError(f"step {value}")
    return int(value)


def _found(path: Path, state: Mapping[str, Any]) -> dict[str, FoundTensor]:
    """The tensors of a file, by name, whether they are in it or in files of their own beside it."""
    referred = {name: value for name, value in state.items() if isinstance(value, TensorReference)}
    plain = {name: value for name, value in state.items() if name not in referred}
    tensors = _located(path, plain) if plain else {}
    for name, reference in referred.items():
        index = getattr(reference, "tid", None)
        if type(index) is not int or not 0 <= index < 10**9:
            raise AutoshardError(f"{path}: {name[:200]} refers to no tensor")
        file = path.with_name(path.name + ".tensors") / f"tensor_{index}.pt"
        if not file.exists():  # what all experts' ranks have is beside the first one's file
            file = file.parent.with_name(_EXPERT_RANK.sub("_ep_rank_00", file.parent.name)) / file.name
        tensors[name] = _located(file, {name: _load(file)})[name]
    return tensors


def _load(path: Path) -> Any:
    if not path.is_file():
        raise AutoshardError(f"{path} is missing")
    _records(path)
    import torch

    try:
        with torch.serialization.safe_globals([(TensorReference, XSER_REFERENCE)]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever a broken or hostile file makes torch raise
        raise AutoshardError(f"{path} {_reason(error)}") from None


_DAMAGED = "is not a whole file of torch.save: cut off, damaged or of another kind"


def _reason(error: Exception) -> str:
    text = str(error)
    for mark in ("GLOBAL ", "Unsupported global: GLOBAL "):
        if "eights only load failed" in text and mark in text:
            name = text.split(mark, 1)[1].split()[0]
            return f"is refused: it asks to run {name[:100]}, and a file of weights has nothing to run"
    if "eights only load failed" in text:
        return "is refused: it holds something else than tensors"
    return _DAMAGED


def _located(path: Path, tensors: Mapping[str, Any]) -> dict[str, FoundTensor]:
    """The place of each tensor in the file.

    The archive's records, in their order, are the storages in the order of their addresses: one distance serves all.
    """
    import torch

    dtypes = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
    for name, value in tensors.items():
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.dtype not in dtypes:
            what = f"dtype {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise AutoshardError(f"{path}: {name[:200]} is {what}, not a tensor of {', '.join(dtypes.values())}")
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in tensors.values()}
    addresses = sorted(address for address, size in storages.items() if size)
    records = _storages(path)
    distances = {address - offset for address, (offset, _) in zip(addresses, records, strict=False)}
    sizes_agree = all(storages[address] == size for address, (_, size) in zip(addresses, records, strict=False))
    if len(addresses) != len(records) or len(distances) > 1 or not sizes_agree:
        raise AutoshardError(f"{path} is not laid out as torch.save does it, or holds more than the tensors of a model")
    base = min(distances, default=0)
    return {
        name: FoundTensor(path, dtypes[value.dtype], tuple(value.shape), value.stride(), value.data_ptr() - base)
        for name, value in tensors.items()
    }


class _BoundedFile(io.FileIO):
    """An open archive that refuses to read a directory larger than MAX_DESCRIPTION_BYTES.

    zipfile reads the directory at once, however large the archive says that it is.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_DESCRIPTION_BYTES:
            raise AutoshardError(
                f"{self.name} has a directory of {format_bytes(size)}, more than the "
                f"{format_bytes(MAX_DESCRIPTION_BYTES)} that are read"
            )
        return super().read(size) or b""


def _records(path: Path) -> list[zipfile.ZipInfo]:
    """The records that the archive's directory lists.

    Raises AutoshardError if the archive is damaged or compressed, or would unpack to more than the file has.
    """
    try:
        with _BoundedFile(path) as file, zipfile.ZipFile(file) as archive:
            size, records = path.stat().st_size, archive.infolist()
    except AutoshardError:
        raise
    except Exception:  # whatever a broken or hostile file makes zipfile raise
        raise AutoshardError(f"{path} {_DAMAGED}") from None
    if any(one.compress_type != zipfile.ZIP_STORED for one in records):
        raise AutoshardError(f"{path} is compressed, which torch.save never does")
    stated = sum(max(one.file_size, one.compress_size) for one in records)
    if stated > size:
        raise AutoshardError(f"{path} has {format_bytes(size)}, but its records state {format_bytes(stated)}")
    described = sum(one.file_size for one in records if not _is_storage(one))
    if described > MAX_DESCRIPTION_BYTES:
        raise AutoshardError(
            f"{path} describes its tensors in {format_bytes(described)}, more than the "
            f"{format_bytes(MAX_DESCRIPTION_BYTES)} that are read"
        )
    return records


def _is_storage(record: zipfile.ZipInfo) -> bool:
    return record.filename.partition("/")[2].startswith("data/")


def _storages(path: Path) -> list[tuple[int, int]]:
    """(first byte, bytes) of every storage of the archive that is not empty."""
    storages = []
    with path.open("rb") as file:
        for record in _records(path):
            if _is_storage(record) and record.file_size:
                file.seek(record.header_offset + 26)
                lengths = file.read(4)
                name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
                storages.append((record.header_offset + _LOCAL_HEADER + name + extra, record.file_size))
    return sorted(storages)
