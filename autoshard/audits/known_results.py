"""Results of operators on fake tensors depend on the forms of their arguments alone, so torch is asked once for each.

Torch keeps such results too, but takes most of a millisecond to find one again, and an audit runs a hundred thousand
operators. Here that is a tenth of a millisecond. A form is a tensor's shape, strides, offset, type and device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

_VALUES = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that are known by their value."""
_SEQUENCES = (list, tuple, torch.Size)
_NOT_BY_FORM = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
"""Tags of operators whose results depend on more than the forms of their arguments, or that change those."""


class _Made(NamedTuple):
    """The form of a tensor that an operator made. storage_of: index of the tensor argument that it is a view of, or
    None."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    storage_of: int | None


class _Result(NamedTuple):
    """Tensors that an operator returned. made: their forms; empty where it wrote into its first argument and returned
    that. sequence: list or tuple, where it returned them in one; None where it returned one tensor alone."""

    made: tuple[_Made, ...]
    sequence: type | None = None


class KnownResults:
    """Results of the operators of one FakeTensorMode."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], _Result | None] = {}
        """By operator and form of its arguments; None where torch must be asked each time."""

    def of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """func(*args, **kwargs), from torch or as torch made it of arguments of the same form."""
        tensors: list[FakeTensor] = []
        form = [func, *kwargs]
        if not (_add_form(form, args, tensors) and _add_form(form, kwargs.values(), tensors) and tensors):
            return func(*args, **kwargs)
        key = tuple(form)
        if key not in self._known:
            out = func(*args, **kwargs)
            self._known[key] = _result(func, out, tensors)
            return out
        known = self._known[key]
        if known is None:
            return func(*args, **kwargs)
        if not known.made:
            return tensors[0]
        made = [_make(one, tensors) for one in known.made]
        return made[0] if known.sequence is None else known.sequence(made)


def _add_form(form: list[Any], values: Iterable[Any], tensors: list[FakeTensor]) -> bool:
    """Add to `form` what results depend on of arguments, and to `tensors` those among them -> whether that is all."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor and value.constant is None:
            tensors.append(value)
            form.append((value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device))
        elif kind in _VALUES:
            form += (kind, value)
        elif kind in _SEQUENCES:
            form.append(len(value))
            if not _add_form(form, value, tensors):
                return False
        else:
            return False
    return True


def _result(func: Any, out: Any, tensors: list[FakeTensor]) -> _Result | None:
    """The result `out` of an operator, to be made again; None where it must be asked for."""
    if func.namespace != "aten" or _NOT_BY_FORM.intersection(func.tags):
        return None
    if func._schema.is_mutable:
        written = [one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments]
        return _Result(()) if out is tensors[0] and written[0] and not any(written[1:]) else None
    sequence = type(out) if isinstance(out, (tuple, list)) else None
    made = [_form_made(one, tensors) for one in ((out,) if sequence is None else out)]
    found = tuple(one for one in made if one is not None)
    return _Result(found, sequence) if sequence in (None, tuple, list) and len(found) == len(made) > 0 else None


def _form_made(out: Any, tensors: list[FakeTensor]) -> _Made | None:
    """The form of one result; None where it is not a tensor like others, may lie in any of several arguments, or has
    more memory than it fills."""
    if type(out) is not FakeTensor or out.constant is not None or out.layout is not torch.strided:
        return None
    storages = [one.untyped_storage()._cdata for one in tensors]
    sources = [i for i, storage in enumerate(storages) if storage == out.untyped_storage()._cdata]
    if len(sources) > 1 or any(out is one for one in tensors):
        return None
    source = sources[0] if sources else None
    form = _Made(out.shape, out.stride(), int(out.storage_offset()), out.dtype, out.fake_device, source)
    if source is None and _make(form, tensors).untyped_storage().nbytes() != out.untyped_storage().nbytes():
        return None
    return form


def _make(form: _Made, tensors: list[FakeTensor]) -> FakeTensor:
    """A new tensor of a form. FakeTensorMode makes one so of a result that it kept."""
    mode = tensors[0].fake_mode
    with in_kernel_invocation_manager(mode):
        made = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta")
        if form.storage_of is not None:
            made.set_(tensors[form.storage_of].untyped_storage(), form.offset, form.shape, form.stride)
    return FakeTensor(mode, made, form.device)
