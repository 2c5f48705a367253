"""The dtypes of gradients and moments that a file has in 16 or 8 bits, as an option of `autoshard plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.spec.state_dtypes import FIELDS, GRADIENTS, MOMENTS, parse_state_dtypes, text_of

SUMMED, SENT = GRADIENTS
HALVES = ("bf16", "fp16", "bfloat16", "float16", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "16")
"""What frameworks call numbers of 16 bits."""


def is_half(dtype: object) -> bool:
    """Whether a file's name of a dtype is one of 16 bits."""
    return str(dtype).lower().removeprefix("torch.") in HALVES


def state_dtypes_option(*narrow: str) -> dict[str, Any]:
    """The option for what a file has in half precision, names of FIELDS; nothing for none. 16 bits are priced as
    bfloat16."""
    dtypes = {name: "bfloat16" for name in FIELDS if name in narrow}
    return {"state_dtypes": text_of(dtypes)} if dtypes else {}


def moments_option(options: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """The option with moments in a dtype, beside what other options say of gradients; nothing for None."""
    if dtype is None:
        return {}
    text = options.get("state_dtypes")
    found = {**(parse_state_dtypes(text) if text else {}), MOMENTS: dtype}
    return {"state_dtypes": text_of({name: found[name] for name in FIELDS if name in found})}
