"""The data that constants of a hardware file were fitted to, and how well they meet it: `calibration.fits`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import Checked
from autoshard.files.fields import check_integer, check_not_negative, show


def _check_names(of: str, field: str, value: Any) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise AutoshardError(f"{field}={show(value)} of {of} must be a list of names")


def _matching(pattern: str, wanted: str) -> Checked:
    def check(of: str, field: str, value: Any) -> None:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise AutoshardError(f"{field}={show(value)} of {of} must be {wanted}")

    return Checked(check)


_Number = Annotated[int, Checked(check_integer)]
_Error = Annotated[float, Checked(check_not_negative)]


@dataclass(frozen=True)
class Evidence:
    """One fit. constants: dotted names in the calibration. data, sha256: name and digest of the file of results, or of
    what was measured on a machine. date: as 2026-11-20.

    points: results. groups: of results that are alike, each left out in turn. mean_error, worst_error: of
    |predicted / measured - 1| with the constants; left_out_error: mean of it where a result's group was left out of the
    fit, None where there is no other group.
    """

    constants: Annotated[tuple[str, ...], Checked(_check_names)]
    data: Annotated[str, _matching(".+", "the name of what was fitted to")]
    sha256: Annotated[str, _matching("[0-9a-f]{64}", "64 hexadecimal digits")]
    date: Annotated[str, _matching(r"\d{4}-\d\d-\d\d", "a date such as 2026-11-20")]
    points: _Number
    groups: _Number
    mean_error: _Error
    worst_error: _Error
    left_out_error: _Error | None
