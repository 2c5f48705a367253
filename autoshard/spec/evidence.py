"""The data that constants of a hardware file were fitted to, and how well they meet it: `calibration.fits`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.files.fields import check_integer, is_finite, show, values_for


@dataclass(frozen=True)
class Evidence:
    """One fit. constants: dotted names in the calibration. data, sha256: name and digest of the file of results, or of
    what was measured on a machine. date: as 2026-11-20.

    points: results. groups: of results that are alike, each left out in turn. mean_error, worst_error: of
    |predicted / measured - 1| with the constants; left_out_error: mean of it where a result's group was left out of the
    fit, None where there is no other group.
    """

    constants: tuple[str, ...]
    data: str
    sha256: str
    date: str
    points: int
    groups: int
    mean_error: float
    worst_error: float
    left_out_error: float | None

    @staticmethod
    def from_dict(data: object, what: str) -> Evidence:
        """The inverse of to_json, in its own words. Errors: a key missing or unknown, a wrong value, each named."""
        values = values_for(Evidence, data, what)
        constants = values.pop("constants")
        if not isinstance(constants, list) or not constants or not all(isinstance(one, str) for one in constants):
            raise AutoshardError(f"constants={show(constants)} of {what} must be a list of names")
        _check_text(what, "data", values["data"], ".+", "the name of what was fitted to")
        _check_text(what, "sha256", values["sha256"], "[0-9a-f]{64}", "64 hexadecimal digits")
        _check_text(what, "date", values["date"], r"\d{4}-\d\d-\d\d", "a date such as 2026-11-20")
        for name in ("points", "groups"):
            check_integer(what, name, values[name])
        for name in ("mean_error", "worst_error", "left_out_error"):
            _check_error(what, name, values[name])
        return Evidence(tuple(constants), **values)


def _check_text(what: str, name: str, value: object, pattern: str, wanted: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise AutoshardError(f"{name}={show(value)} of {what} must be {wanted}")


def _check_error(what: str, name: str, value: object) -> None:
    if value is None and name == "left_out_error":
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_finite(value) or value < 0:
        raise AutoshardError(f"{name}={show(value)} of {what} must be a number of at least 0")
