"""The `calibration` section of a hardware file: its constants by name, and what was fitted written into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from statistics import mean
from typing import Any

from autoshard.files.codec import to_json
from autoshard.spec.evidence import Evidence

Leaf = tuple[str, ...]
"""Name of a constant: ("matmul_efficiency",) or ("link_efficiency_by_chips", "16")."""
Errors = tuple[Sequence[float], Sequence[float] | None]
"""|predicted / measured - 1| of every result: as fitted, and with its group left out."""


def leaves(section: Mapping[str, Any]) -> Iterator[Leaf]:
    """Every constant, in the order of the file."""
    for name, value in section.items():
        if isinstance(value, dict) and "value" in value:
            yield (name,)
        elif isinstance(value, dict):
            yield from ((name, *rest) for rest in leaves(value))


def leaf_entry(section: Mapping[str, Any], leaf: Leaf) -> Any:
    """Its object of value and source."""
    for name in leaf:
        section = section[name]
    return section


def evidence(constants: Iterable[Leaf], data: str, sha256: str, groups: int, errors: Errors) -> Evidence:
    """Of constants that were fitted today to data of that name and digest."""
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
    """As 64 hexadecimal digits."""
    return sha256(data).hexdigest()


def today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


def set_fitted(content: dict[str, Any], values: Mapping[Leaf, tuple[float, str]], of: Evidence) -> None:
    """Writes constants, each with what it means, into a hardware file; older fits lose those that are fitted anew."""
    calibration = content["calibration"]
    for leaf, (value, meaning) in values.items():
        leaf_entry(calibration, leaf).update(value=value, source=f"fitted to {of.data}; {meaning}")
    older = [{**one, "constants": _still(calibration, one, of)} for one in calibration.pop("fits", [])]
    about = calibration.pop("about")
    fits = sorted([*(one for one in older if one["constants"]), to_json(of)], key=lambda one: one["data"])
    content["calibration"] = {"about": about, "fits": fits, **calibration}


def _still(calibration: Mapping[str, Any], fit: Mapping[str, Any], newer: Evidence) -> list[str]:
    """Constants of an older fit that are still what it found."""
    sources = {".".join(leaf): str(leaf_entry(calibration, leaf)["source"]) for leaf in leaves(calibration)}
    kept = [name for name in fit["constants"] if sources.get(name, "").startswith(f"fitted to {fit['data']};")]
    return [name for name in kept if name not in newer.constants]
