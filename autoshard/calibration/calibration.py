"""Reads and writes the `calibration` section of a hardware file: its constants by name, and what was fitted into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from statistics import mean
from typing import Any

from autoshard.files.codec import to_json
from autoshard.spec.evidence import Evidence

Leaf = tuple[str, ...]
"""The name of a constant as keys: ("matmul_efficiency",) or ("link_efficiency_by_chips", "16")."""
Errors = tuple[Sequence[float], Sequence[float] | None]
"""(|predicted / measured - 1| of every result with the fitted constants, the same with its group left out of the
fit)."""


def leaves(section: Mapping[str, Any]) -> Iterator[Leaf]:
    """Yields the names of all constants, in the order of the file."""
    for name, value in section.items():
        if isinstance(value, dict) and "value" in value:
            yield (name,)
        elif isinstance(value, dict):
            yield from ((name, *rest) for rest in leaves(value))


def leaf_entry(section: Mapping[str, Any], leaf: Leaf) -> Any:
    """The object (value and source) of one constant."""
    for name in leaf:
        section = section[name]
    return section


def evidence(constants: Iterable[Leaf], data: str, sha256: str, groups: int, errors: Errors) -> Evidence:
    """A record of today's fit: the constants, the name and digest of the data, how many groups it has, and the
    errors."""
    fitted, left_out = errors
    return Evidence(
        tuple(".".join(leaf) for leaf in constants),
        data,
        sha256,
        today(),
        len(fitted),
        groups,
        round(mean(fitted), 4),
        round(max(fitted), 4),
        None if left_out is None else round(mean(left_out), 4),
    )


def digest(data: bytes) -> str:
    """SHA-256 of the data as 64 hexadecimal digits."""
    return sha256(data).hexdigest()


def today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def set_fitted(content: dict[str, Any], values: Mapping[Leaf, tuple[float, str]], of: Evidence) -> None:
    """Writes constants into a hardware file's content, each with what it means; older fits lose constants that are
    fitted anew.

    values: (value, meaning) by name. of: the record of this fit.
    """
    calibration = content["calibration"]
    for leaf, (value, meaning) in values.items():
        leaf_entry(calibration, leaf).update(value=value, source=f"fitted to {of.data}; {meaning}")
    older = [{**one, "constants": _still(calibration, one, of)} for one in calibration.pop("fits", [])]
    about = calibration.pop("about")
    fits = sorted([*(one for one in older if one["constants"]), to_json(of)], key=lambda one: one["data"])
    content["calibration"] = {"about": about, "fits": fits, **calibration}


def _still(calibration: Mapping[str, Any], fit: Mapping[str, Any], newer: Evidence) -> list[str]:
    """The constants of an older fit that are still as it found them."""
    sources = {".".join(leaf): str(leaf_entry(calibration, leaf)["source"]) for leaf in leaves(calibration)}
    kept = [name for name in fit["constants"] if sources.get(name, "").startswith(f"fitted to {fit['data']};")]
    return [name for name in kept if name not in newer.constants]
