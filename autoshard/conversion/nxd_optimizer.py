"""Read NxD's optimizer files: optim/dp_rank_DD_tp_rank_TT_pp_rank_PP.pt, AdamW's state of each rank under ZeRO-1."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autoshard.checkpoint.manifest import QUANTITIES
from autoshard.conversion.dtypes import WIDTHS, as_dtype, element_type
from autoshard.conversion.nxd import CONSTANTS, States, open_ranks, weights_of
from autoshard.conversion.nxd_layout import NxdLayout
from autoshard.conversion.places import Place, restrided, rows_of
from autoshard.conversion.regions import Array, Region
from autoshard.conversion.source import Source, key_of
from autoshard.conversion.torch_read import FoundOptimizer, FoundTensor, read_optimizer
from autoshard.errors import AutoshardError
from autoshard.spec.model import ModelSpec

OPTIMIZER = "optim"
_NAME = re.compile(r"dp_rank_(\d+)(_ep_rank_\d+)?_tp_rank_(\d+)_pp_rank_(\d+)\.pt")
_MASTER, *_MOMENTS = QUANTITIES
_COMPARED_ELEMENTS = 1 << 14
_ROUNDING = 2.0**-7
"""Relative error of rounding to bfloat16 in any direction."""
_UNDECAYED: tuple[Callable[[str, tuple[int, ...]], bool], ...] = (
    lambda name, shape: False,
    lambda name, shape: len(shape) < 2,
    lambda name, shape: "bias" in name,
    lambda name, shape: "bias" in name or "norm" in name,
)
"""Which parameters training scripts put into a group without weight decay."""


@dataclass(frozen=True)
class OptimizerFiles:
    """The optimizer files of all ranks.

    ranks: by (tensor, pipeline) rank, the files of its data-parallel ranks in order.
    """

    ranks: Mapping[tuple[int, int], tuple[FoundOptimizer, ...]]

    @property
    def first(self) -> FoundOptimizer:
        return self.ranks[0, 0][0]


def nxd_training_source(folder: Path, model: ModelSpec) -> Source:
    """The weights in the ranks' model files in `folder`, with AdamW's moments, and masters if they were saved.

    It has weights alone if no moments were saved.
    Raises AutoshardError if the state is not whole, or if it cannot be told which parameter a state belongs to.
    """
    layout, states = open_ranks(folder, model)
    weights = weights_of(folder, layout, states)
    saved = folder.parent / OPTIMIZER
    return _with_state(weights, saved, layout, states) if saved.is_dir() and any(saved.iterdir()) else weights


def _with_state(source: Source, folder: Path, layout: NxdLayout, states: States) -> Source:
    files = _files(folder, states)
    dtypes, regions = dict(source.dtypes), {name: list(held) for name, held in source.regions.items()}
    masters = bool(files.first.masters)
    for quantity in QUANTITIES if masters else _MOMENTS:
        for name in source.regions:
            regions[key_of(quantity, name)] = []
    seen: set[tuple[str, object]] = set()
    for (tp_rank, pp_rank), optimizers in files.ranks.items():
        held = states[0, tp_rank, pp_rank]
        numbers = _numbers(optimizers[0], held, layout.model.tie_word_embeddings)
        if masters:
            _compare(optimizers[0], held, numbers)
        expected = layout.tensors(tp_rank, 0)
        for name, number in numbers.items():
            places = [one for one in expected[name].places if (one.parameter, one.box) not in seen]
            seen.update((one.parameter, one.box) for one in places)  # replicas hold the same
            for quantity in QUANTITIES if masters else _MOMENTS:
                for parameter, region, dtype in _regions(optimizers, quantity, number, expected[name].shape, places):
                    key = key_of(quantity, parameter)
                    dtypes[key] = dtype
                    regions[key].append(region)
    return replace(
        source,
        form=f"{source.form} with its optimizer's state",
        dtypes=dtypes,
        regions=regions,
        quantities=QUANTITIES,
        step=files.first.step,
        learning_rate=files.first.learning_rate,
    )


def _files(folder: Path, states: States) -> OptimizerFiles:
    paths: dict[tuple[int, int], dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is not None:
            if match[2] or any(ep for ep, _, _ in states):
                raise AutoshardError(
                    f"{path}: the optimizer's state of expert parallelism is not read; --weights-only takes the weights"
                )
            paths.setdefault((int(match[3]), int(match[4])), {})[int(match[1])] = path
    if not paths:
        raise AutoshardError(
            f"{folder} has no files as dp_rank_00_tp_rank_00_pp_rank_00.pt (NxD's use_zero1_dcp writes others, with "
            "pickles): --weights-only takes the weights"
        )
    count = 1 + max(max(held) for held in paths.values())
    ranks: dict[tuple[int, int], tuple[FoundOptimizer, ...]] = {}
    for _, tp_rank, pp_rank in sorted(states):
        path_of = paths.get((tp_rank, pp_rank), {})
        for dp_rank in range(count):
            if dp_rank not in path_of:
                name = f"dp_rank_{dp_rank:02d}_tp_rank_{tp_rank:02d}_pp_rank_{pp_rank:02d}.pt"
                raise AutoshardError(f"{folder / name} is missing: the folder has {count} data-parallel ranks")
        ranks[tp_rank, pp_rank] = tuple(read_optimizer(path_of[dp_rank]) for dp_rank in range(count))
    optimizers = [one for held in ranks.values() for one in held]
    for optimizer in optimizers:
        for what, mine, first in (
            ("step", optimizer.step, optimizers[0].step),
            ("sharded_master_weights", bool(optimizer.masters), bool(optimizers[0].masters)),
            ("ZeRO-1", optimizer.sharded, optimizers[0].sharded),
        ):
            if mine != first:
                raise AutoshardError(f"{optimizer.path}: {what} is {mine}, in {optimizers[0].path} it is {first}")
    return OptimizerFiles(ranks)


def _numbers(found: FoundOptimizer, held: Mapping[str, FoundTensor], tied: bool) -> dict[str, int]:
    """The number in the optimizer of each tensor of a model file: they count in the order of the file, group
    by group.
    """
    names = [name for name in held if not CONSTANTS.fullmatch(name)]
    variants = [names, [name for name in names if name != "lm_head.weight"]] if tied else [names]
    groups = [list(group) for group in found.groups if group]
    candidates: list[dict[str, int]] = []
    for variant in variants:
        for is_plain in _UNDECAYED:
            plain = [name for name in variant if is_plain(name, held[name].shape)]
            decayed = [name for name in variant if name not in plain]
            for parts in ([decayed, plain], [plain, decayed]):
                parts = [part for part in parts if part]
                if [len(part) for part in parts] != [len(group) for group in groups]:
                    continue
                numbers = {
                    name: number
                    for part, group in zip(parts, groups, strict=True)
                    for name, number in zip(part, group, strict=True)
                }
                fits = all(found.shapes[number] == held[name].shape for name, number in numbers.items())
                if fits and numbers not in candidates:
                    candidates.append(numbers)
    if len(candidates) != 1:
        sizes = " + ".join(str(len(group)) for group in groups)
        raise AutoshardError(
            f"{found.path}: which of its {sizes} parameters is which cannot be told: they have numbers as the training "
            "script grouped them, known are one group, and one without weight decay for biases, with or without norms; "
            "--weights-only takes the weights"
        )
    return candidates[0]


def _regions(
    found: Sequence[FoundOptimizer], quantity: str, number: int, shape: tuple[int, ...], places: Sequence[Place]
) -> Iterator[tuple[str, Region, str]]:
    """(key of the parameter, region of a file, dtype) for each part of a rank's tensor, over its data-parallel ranks.

    quantity, number: the tensor. shape: of the whole tensor, before ZeRO-1 cuts it by rows.
    """
    parts = len(found) if found[0].sharded else 1
    rows = -(-shape[0] // parts)
    for index in range(parts):
        tensor = found[index].tensor(quantity, number)
        if tensor.shape != (rows, *shape[1:]):
            raise AutoshardError(
                f"{found[index].path}: {quantity} of parameter {number} has shape {list(tensor.shape)}, {parts} "
                f"data-parallel ranks have {[rows, *shape[1:]]} each (with context parallelism NxD's files overwrite "
                "each other: they lack a rank in their names); --weights-only takes the weights"
            )
        for place in places:
            for part in rows_of(place, shape, index * rows, min((index + 1) * rows, shape[0])):
                moved = restrided(part, tensor.shape, tensor.strides)
                region = Region.of(moved, tensor.path, f"{quantity} {number}", tensor.offset, WIDTHS[tensor.dtype])
                yield place.parameter, region, tensor.dtype


def _compare(found: FoundOptimizer, held: Mapping[str, FoundTensor], numbers: Mapping[str, int]) -> None:
    """Raise AutoshardError unless masters are the model's weights but for rounding: shapes alone may miss a wrong
    order.
    """
    for name, number in numbers.items():
        master, weight = _beginning(found.masters[number]), _beginning(held[name])
        count = min(len(master), len(weight))
        difference = np.abs(master[:count] - weight[:count])
        if not np.all(difference <= _ROUNDING * np.abs(master[:count]) + 1e-30):
            raise AutoshardError(
                f"{found.path}: the master weights of parameter {number} are not those of {name} in {held[name].path}; "
                "--weights-only takes the weights"
            )


def _beginning(tensor: FoundTensor) -> Array:
    """The first elements of a tensor as FP64; none if the tensor is not row-major."""
    strides = [int(np.prod(tensor.shape[dim + 1 :])) for dim in range(len(tensor.shape))]
    count = min(_COMPARED_ELEMENTS, int(np.prod(tensor.shape))) if list(tensor.strides) == strides else 0
    try:
        values = np.fromfile(tensor.path, element_type(tensor.dtype), count, offset=tensor.offset)
    except OSError as error:
        raise AutoshardError(f"{tensor.path} cannot be read: {error.strerror or error}") from None
    return as_dtype(values, tensor.dtype, "F64").view(np.float64)
