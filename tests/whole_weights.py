"""Parameters of a Hugging Face checkpoint to ours and back, whole, by the parts that the model lists.

What `autoshard convert` streams box by box is compared with this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from autoshard.models.weight_names import Part

Array = npt.NDArray[Any]
Dims = Mapping[str, tuple[str, ...]]
"""Our parameters by name, with their dims."""
Sizes = Mapping[str, int]
_PART, _ONE = "part", "1"


def from_checkpoint(
    parts: Sequence[Part], dims: Dims, sizes: Sizes, names: Collection[str], read: Callable[[str], Array]
) -> Iterator[tuple[str, Array]]:
    """Our parameters one by one: (name, whole array).

    names: the checkpoint's tensors. read: a whole tensor by name; one that holds several parameters is read for each.
    """
    for parameter, own in _by(parts, lambda part: part.parameter).items():
        slices = [_to_parameter(part, dims[parameter], sizes, read(_found(part.tensor, names))) for part in own]
        counts = [sizes[dim] for dim, _ in own[0].at]
        assert [tuple(at for _, at in part.at) for part in own] == list(np.ndindex(*counts)), parameter
        outer = [dims[parameter].index(dim) for dim, _ in own[0].at]
        whole = np.stack(slices).reshape((*counts, *slices[0].shape))
        yield parameter, np.moveaxis(whole, range(len(outer)), outer)


def to_checkpoint(
    parts: Sequence[Part], dims: Dims, sizes: Sizes, read: Callable[[str], Array]
) -> Iterator[tuple[str, Array]]:
    """The checkpoint's tensors one by one: (name, whole array). read: one of our parameters, whole, by name."""
    for tensor, own in _by(parts, lambda part: part.tensor).items():
        slices = [_to_tensor(part, dims[part.parameter], sizes, read(part.parameter)) for part in own]
        shape = _shape(own[0], sizes)
        if own[0].span:
            firsts = [part.first for part in own]
            lengths = [prod(_sizes(part, sizes, part.span)) for part in own]
            assert firsts == [sum(lengths[:place]) for place in range(len(own))], tensor
            assert sum(lengths) == own[0].rows, tensor
            whole = np.concatenate([_around_span(part, sizes, one) for part, one in zip(own, slices, strict=True)], 1)
        elif own[0].parts == 1:
            (whole,) = slices
        else:
            assert [part.index for part in own] == list(range(own[0].parts)), tensor
            common = slices[0].shape  # dims of size 1 that only some parts name fall away
            whole = np.stack([one.reshape(common) for one in slices], _flat(own[0]).index(_PART))
        yield tensor, np.ascontiguousarray(whole).reshape(shape)  # which makes a number a row


def _by(parts: Sequence[Part], key: Callable[[Part], str]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(key(part), []).append(part)
    return found


def _found(tensor: str, names: Collection[str]) -> str:
    """OpenAI's GPT-2 files leave out the outermost module's name."""
    return tensor if tensor in names else tensor.removeprefix("transformer.")


def _to_parameter(part: Part, dims: tuple[str, ...], sizes: Sizes, tensor: Array) -> Array:
    assert tensor.shape == _shape(part, sizes), (part, tensor.shape)
    flat = _flat(part)
    if part.span:
        before = prod(_sizes(part, sizes, flat[: flat.index(part.span[0])]))
        length = prod(_sizes(part, sizes, part.span))
        tensor = tensor.reshape(before, part.rows, -1)[:, part.first : part.first + length]
    index = tuple({_PART: part.index, _ONE: 0}.get(dim, slice(None)) for dim in flat)
    own = [dim for dim in flat if dim not in (_PART, _ONE)]
    held: Array = np.asarray(tensor.reshape(_sizes(part, sizes, flat))[index])
    turned: Array = held.transpose([own.index(dim) for dim in _kept(part, dims)])
    return turned


def _to_tensor(part: Part, dims: tuple[str, ...], sizes: Sizes, parameter: Array) -> Array:
    """The tensor with its dims unflattened, without the dim `part`."""
    at = dict(part.at)
    whole: Array = parameter[tuple(at.get(dim, slice(None)) for dim in dims)]
    kept, flat = _kept(part, dims), [dim for dim in _flat(part) if dim != _PART]
    moved: Array = whole.transpose([kept.index(dim) for dim in flat if dim != _ONE])
    unflattened: Array = moved.reshape(_sizes(part, sizes, flat))
    return unflattened


def _shape(part: Part, sizes: Sizes) -> tuple[int, ...]:
    def length(group: tuple[str, ...]) -> int:
        outside = prod(_sizes(part, sizes, [dim for dim in group if dim not in part.span]))
        return outside * (part.rows if set(part.span) & set(group) else 1)

    return tuple(map(length, part.groups))


def _around_span(part: Part, sizes: Sizes, values: Array) -> Array:
    """The values with three dims: all before the dims in brackets, these, and all behind them."""
    flat = _flat(part)
    before = prod(_sizes(part, sizes, flat[: flat.index(part.span[0])]))
    return values.reshape(before, prod(_sizes(part, sizes, part.span)), -1)


def _flat(part: Part) -> tuple[str, ...]:
    return tuple(dim for group in part.groups for dim in group)


def _kept(part: Part, dims: tuple[str, ...]) -> tuple[str, ...]:
    """Dims of our parameter, or of a slice of it."""
    return tuple(dim for dim in dims if dim not in dict(part.at))


def _sizes(part: Part, sizes: Sizes, dims: Sequence[str]) -> tuple[int, ...]:
    own = {**sizes, _PART: part.parts, _ONE: 1}
    return tuple(own[dim] for dim in dims)
