"""The first value in which a model that was read is not the plan's, for the errors that refuse it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from autoshard.files.fields import show


def first_difference(found: dict[str, Any], plans: dict[str, Any], but: Collection[str] = ()) -> str | None:
    """'rope_scaling.factor=8.0, the plan's has 16.0': the first value that is another in the plan's; None without any.

    found, plans: JSON values; an object leaves out what is its default. but: names of fields that may differ.
    """
    for name in plans | found:
        if name not in but and (apart := _apart(found.get(name), plans.get(name), name)) is not None:
            return apart
    return None


def _apart(found: object, plans: object, place: str) -> str | None:
    """The first value inside that differs, with its place; an object beside none is held against an empty one."""
    if found == plans:
        return None
    inner: list[tuple[str, object, object]] = []
    if isinstance(found, dict | None) and isinstance(plans, dict | None):
        one, other = found or {}, plans or {}
        inner = [(f"{place}.{name}", one.get(name), other.get(name)) for name in other | one]
    elif isinstance(found, list) and isinstance(plans, list) and len(found) == len(plans):
        inner = [(f"{place}[{at}]", *both) for at, both in enumerate(zip(found, plans, strict=True))]
    for where, one_value, other_value in inner:
        if (apart := _apart(one_value, other_value, where)) is not None:
            return apart
    return f"{place}={show(found)}, the plan's has {show(plans)}"
