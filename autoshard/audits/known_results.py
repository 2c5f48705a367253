"""Results of operators on fake tensors depend on the forms of their arguments alone, so torch is asked once for each.

Torch keeps such results too, but takes most of a millisecond to find one again, and an audit runs a hundred thousand
operators. Here that is a twentieth of a millisecond. A form is a tensor's shape, strides, type and device; for an
operator that is told an offset, its offset too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_VALUES = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments and results that are known by their value."""
_SEQUENCES = (list, tuple, torch.Size)
_NOT_BY_FORM = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
"""Tags of operators whose results depend on more than the forms of their arguments, or that change those."""
_NAMESPACES = ("aten", "_c10d_functional")
"""Those of torch's own operators; collectives give what their arguments tell, also of sizes of groups."""
_MOST_KNOWN = 50_000
"""Forms that a process keeps: some 50 MB, of more audits than one needs."""


class _Made(NamedTuple):
    """The form of a tensor that an operator made, and what Python keeps of one.

    storage_of: index of the tensor argument that it is a view of, or None. offset: from where that one begins.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    storage_of: int | None
    attributes: dict[str, Any]


class _Result(NamedTuple):
    """The kind of value that an operator returned, and the forms of the tensors in it.

    made: forms of new tensors; empty where it wrote into `out`, or without one into its first argument, and returned
    that. sequence: list or tuple, where it returned tensors in one; None where it returned one alone. value: what it
    returned, where that is no tensor.
    """

    made: tuple[_Made, ...]
    sequence: type | None = None
    value: Any = None


_KNOWN: dict[tuple[Any, ...], _Result | None] = {}
"""By operator and form of its arguments, for all audits of a process; None where torch must be asked each time."""


class KnownResults:
    """Results of operators on fake tensors of one mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """func(*args, **kwargs), from torch or as torch made it of arguments of the same form.

        Where it writes into `out` that is returned, which fake collectives do not do.
        """
        return kwargs.get("out", self._found(func, args, kwargs))

    def _found(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors: list[FakeTensor] = []
        form = [func, *kwargs]
        by_offset = _asks_for_offset(func)
        is_told = _add_form(form, args, tensors, by_offset) and _add_form(form, kwargs.values(), tensors, by_offset)
        if not is_told:
            return func(*args, **kwargs)
        key = tuple(form)
        if key not in _KNOWN:
            out = func(*args, **kwargs)
            if len(_KNOWN) == _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = _result(func, out, tensors, kwargs)
            return out
        known = _KNOWN[key]
        if known is None:
            return func(*args, **kwargs)
        if known.value is not None:
            return known.value
        if not known.made:
            return tensors[0]
        made = [_make(one, tensors, self._mode) for one in known.made]
        return made[0] if known.sequence is None else known.sequence(made)


@cache
def _asks_for_offset(func: Any) -> bool:
    """Whether an operator counts the offset of its result from the beginning of the memory, not of its argument."""
    return any(one.name == "storage_offset" for one in func._schema.arguments)


def _add_form(form: list[Any], values: Iterable[Any], tensors: list[FakeTensor], by_offset: bool) -> bool:
    """Add to `form` what results depend on of arguments, and to `tensors` those among them -> whether that is all."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor and value.constant is None:
            tensors.append(value)
            offset = value.storage_offset() if by_offset else None
            form.append((value.shape, value.stride(), offset, value.dtype, value.fake_device))
        elif kind in _VALUES:
            form += (kind, value)
        elif kind in _SEQUENCES:
            form.append(len(value))
            if not _add_form(form, value, tensors, by_offset):
                return False
        else:
            return False
    return True


def _result(func: Any, out: Any, tensors: list[FakeTensor], kwargs: dict[str, Any]) -> _Result | None:
    """The result `out` of an operator, to be made again; None where it must be asked for."""
    if func.namespace not in _NAMESPACES or _NOT_BY_FORM.intersection(func.tags):
        return None
    if func._schema.is_mutable:
        arguments = func._schema.arguments
        written = [one.name for one in arguments if one.alias_info is not None and one.alias_info.is_write]
        into_first = written == [arguments[0].name] and out is tensors[0]
        return _Result(()) if into_first or (written == ["out"] and "out" in kwargs) else None
    if type(out) in _VALUES:
        return None if out is None else _Result((), value=out)
    sequence = type(out) if isinstance(out, (tuple, list)) else None
    outs = (out,) if sequence is None else out
    if any(type(one) is not FakeTensor for one in outs):
        return None
    storages = [one.untyped_storage()._cdata for one in tensors]
    made = [_form_made(one, tensors, storages) for one in outs]
    found = tuple(one for one in made if one is not None)
    return _Result(found, sequence) if sequence in (None, tuple, list) and len(found) == len(made) > 0 else None


def _form_made(out: FakeTensor, tensors: list[FakeTensor], storages: list[int]) -> _Made | None:
    """The form of one result of arguments with these storages; None where it is not a tensor like others, may lie in
    any of several arguments, counts its offset in other elements, or has more memory than it fills."""
    if out.constant is not None or out.layout is not torch.strided:
        return None
    own = out.untyped_storage()._cdata
    sources = [i for i, storage in enumerate(storages) if storage == own]
    if len(sources) > 1 or any(out is one for one in tensors):
        return None
    source, offset = None, int(out.storage_offset())
    if sources:
        (source,) = sources
        if out.itemsize != tensors[source].itemsize:
            return None
        offset -= int(tensors[source].storage_offset())
    attributes = {name: value for name, value in vars(out).items() if name != "fake_mode"}
    form = _Made(out.shape, out.stride(), offset, out.dtype, out.fake_device, source, attributes)
    if source is None:
        again = _make(form, tensors, out.fake_mode)
        return form if again.untyped_storage().nbytes() == out.untyped_storage().nbytes() else None
    return form


def _make(form: _Made, tensors: list[FakeTensor], mode: FakeTensorMode) -> FakeTensor:
    """A new tensor of a form: as FakeTensor.__new__ makes one, whose checks and defaults take longer than all else."""
    with torch._C._DisableTorchDispatch():
        made = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        if form.storage_of is not None:
            source = tensors[form.storage_of]
            offset = int(source.storage_offset()) + form.offset
            made.set_(source.untyped_storage(), offset, form.shape, form.stride)
    fake: FakeTensor = torch.Tensor._make_subclass(
        FakeTensor, made, dispatch_device=True, device_for_backend_keys=form.device
    )
    torch._C._set_throw_on_mutable_data_ptr(fake)
    vars(fake).update(form.attributes, fake_mode=mode)
    return fake
