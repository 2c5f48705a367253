"""The dtypes of gradients and moments that a file has in half precision, as an option of `autoshard plan`."""

from __future__ import annotations

from typing import Any

from autoshard.spec.state_dtypes import FIELDS, GRADIENTS, text_of

SUMMED, SENT = GRADIENTS
MOMENTS = "moments"
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
