"""Dtypes of gradients and moments in place of those that a precision has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.spec.training import EIGHT_BITS, PRECISIONS, Precision

FIELDS = {
    "gradient_accumulation": "gradient_accumulation_dtype",
    "gradient_reduce": "gradient_reduce_dtype",
    "moments": "optimizer_dtype",
}
"""As a text names them -> fields of Precision."""
GRADIENTS = ("gradient_accumulation", "gradient_reduce")
"""Those of gradients, which NxD has in one dtype."""
MOMENTS = "moments"
STATE_DTYPES = ("float32", "bfloat16")
DTYPES_OF = {name: (*STATE_DTYPES, *(EIGHT_BITS if name == MOMENTS else ())) for name in FIELDS}
"""By name, the dtypes that a text may give."""


def parse_state_dtypes(text: str) -> dict[str, str]:
    """'gradient_reduce=bfloat16,moments=bfloat16' as a dict, in the order of FIELDS. Raises AutoshardError for anything
    else."""
    pairs = [part.partition("=") for part in text.split(",")]
    found = {name.strip(): dtype.strip() for name, _, dtype in pairs}
    if len(found) < len(pairs) or not all(dtype in DTYPES_OF.get(name, ()) for name, dtype in found.items()):
        some = ", ".join(f"{name}={STATE_DTYPES[-1]}" for name in FIELDS)
        raise AutoshardError(
            f"state_dtypes={show(text)} must be some of {some} joined by commas; the dtypes are "
            f"{' and '.join(STATE_DTYPES)}, of {MOMENTS} {' and '.join(EIGHT_BITS)} too"
        )
    return {name: found[name] for name in FIELDS if name in found}


def text_of(dtypes: Mapping[str, str]) -> str:
    """The text that `parse_state_dtypes` reads."""
    return ",".join(f"{name}={dtype}" for name, dtype in dtypes.items())


def apart_from_masters(precision: Precision) -> dict[str, str]:
    """Dtypes of gradients and moments that differ from that of the weights as the optimizer keeps them, by FIELDS."""
    found = {name: str(getattr(precision, field)) for name, field in FIELDS.items()}
    return {name: dtype for name, dtype in found.items() if dtype != precision.kept_dtype}


def takes_state_dtypes(precision: Precision) -> bool:
    """Whether gradients and moments may have dtypes of their own: where the optimizer keeps its own copy of weights.
    Moments may be of eight bits beside any."""
    return precision.master_dtype is not None


def taken_state_dtypes(precision: Precision, text: str) -> str | None:
    """The part of a text that the precision takes; None for none. text: as `parse_state_dtypes` reads it."""
    found = parse_state_dtypes(text)
    if not takes_state_dtypes(precision):
        found = {name: dtype for name, dtype in found.items() if dtype in EIGHT_BITS}
    return text_of(found) or None


def with_state_dtypes(precision: Precision, text: str | None) -> Precision:
    """The precision with these dtypes, named after what differs. text: as `parse_state_dtypes` reads it; None changes
    nothing. Raises AutoshardError for a precision whose dtypes are all one but those of moments in eight bits."""
    if text is None:
        return precision
    dtypes = parse_state_dtypes(text)
    if not takes_state_dtypes(precision) and not {*dtypes.values()} <= {*EIGHT_BITS}:
        have = [name for name, one in PRECISIONS.items() if takes_state_dtypes(one)]
        raise AutoshardError(
            f"state_dtypes={text}: precision {precision.name} keeps all in {precision.kept_dtype}; "
            f"{', '.join(have)} take others, and all take {MOMENTS}={f' or {MOMENTS}='.join(EIGHT_BITS)}"
        )
    fields: dict[str, Any] = {FIELDS[name]: dtype for name, dtype in dtypes.items()}
    found = replace(precision, **fields)
    apart = text_of(apart_from_masters(found))
    return replace(found, name=precision.name.partition(" with ")[0] + (f" with {apart}" if apart else ""))
