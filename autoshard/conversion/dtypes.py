"""Element types by safetensors' names, and the conversions between them. numpy has no bfloat16, so it is bits here."""

from __future__ import annotations

import numpy as np

from autoshard.checkpoint.tensor_file import ELEMENT_BYTES
from autoshard.conversion.regions import Array
from autoshard.errors import AutoshardError

INTEGERS = {"I32": 4, "I64": 8}
"""Dtype of a table of whole numbers, which are floating-point numbers in a plan -> bytes of an element."""
TABLE = "I64"
"""The dtype of a table of whole numbers in checkpoints for transformers."""
WIDTHS = {**ELEMENT_BYTES, **INTEGERS}
CONFIG_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
"""Safetensors' name of a dtype -> its name in config.json and plans."""
BY_CONFIG_NAME = {name: dtype for dtype, name in CONFIG_NAMES.items()}
_NUMPY: dict[str, type[np.generic]] = {
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "I32": np.int32,
    "I64": np.int64,
}


def element_type(dtype: str) -> str:
    """numpy's name of the unsigned integer with the width of a dtype."""
    return f"u{WIDTHS[dtype]}"


def holds(wide: str, narrow: str) -> bool:
    """Whether a dtype has every floating-point number of another one; of tables of whole numbers `as_dtype` says it."""
    return wide == narrow or narrow in INTEGERS or WIDTHS[wide] > WIDTHS[narrow]


def as_dtype(values: Array, have: str, want: str) -> Array:
    """The elements as bits of the dtype `want`, from bits of the dtype `have`: rounded to the nearest, ties to even.

    Raises AutoshardError where a finite value becomes infinite, and a whole number of a table, or what becomes one,
    another number.
    """
    if have == want:
        return values
    wide = _from_bfloat16(values) if have == "BF16" else values.view(_NUMPY[have])
    with np.errstate(over="ignore", invalid="ignore"):
        converted = _to_bfloat16(wide) if want == "BF16" else wide.astype(_NUMPY[want])
        if {have, want} & INTEGERS.keys():
            back = converted if want != "BF16" else _from_bfloat16(converted)
            if not np.array_equal(back.astype(wide.dtype), wide):
                raise AutoshardError(f"whole numbers of a table that {want} does not hold")
            return converted.view(element_type(want))
    finite = np.isfinite(converted) if want != "BF16" else (converted & 0x7F80) != 0x7F80
    if not np.array_equal(finite, np.isfinite(wide)):
        raise AutoshardError(f"values beyond what {CONFIG_NAMES[want]} holds")
    return converted.view(element_type(want))


def _from_bfloat16(bits: Array) -> Array:
    found: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return found


def _to_bfloat16(values: Array) -> Array:
    # F64 goes through F32 rounded to odd: rounding twice to the nearest would be wrong for some ties
    single = values.astype(np.float32)
    bits = single.view(np.uint32)
    if values.dtype == np.float64:
        with np.errstate(invalid="ignore"):
            inexact = single.astype(np.float64) != values
            away = np.abs(single.astype(np.float64)) > np.abs(values)
        bits = np.where(inexact & np.isfinite(values), (bits - away.astype(np.uint32)) | np.uint32(1), bits)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # only the bits of a NaN can overflow
    nan = np.isnan(values)
    rounded[nan] = (bits[nan] >> 16) | 0x40
    return rounded
