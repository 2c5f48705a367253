"""Checks of a frozen value's fields by their annotations, which `codec.py` reads them by, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.codec import Parts, hints, limit_words, within
from autoshard.files.fields import LARGEST, check_flag, check_integer, check_number, show

Check = Callable[[str, str, Any], None]
"""(whose field it is, its name, its value), as the checks of `fields.py` are."""


def check_annotated(of: str, value: object) -> None:
    """Check that each number, flag and object of a dataclass is what its annotation says: of its type, within its
    limit. None passes where the annotation has it. Texts and lists are left to checks with words of their own.

    of: whose fields they are, in the AutoshardError raised.
    """
    kind: Any = type(value)
    for name, nullable, check in _checks(kind):
        one = getattr(value, name)
        if one is not None or not nullable:
            check(of, name, one)


@cache
def _checks(kind: Any) -> tuple[tuple[str, bool, Check], ...]:
    """(field, whether it may be None, its check) of each field that has one."""
    found = ((name, said.nullable, _check(said)) for name, said in hints(kind).items())
    return tuple((name, nullable, check) for name, nullable, check in found if check is not None)


def _check(said: Parts) -> Check | None:
    """The check of an annotation; None for texts and lists."""
    kind, limit = said.kind, said.limit
    if kind is int:
        least = 0 if limit.at_least is None else int(limit.at_least)
        most = LARGEST if limit.at_most is None else int(limit.at_most)
        return lambda of, field, value: check_integer(of, field, value, least, most)
    if kind is float:
        fits, words = partial(within, limit=limit), limit_words(limit)
        return lambda of, field, value: check_number(of, field, value, fits, words)
    if kind is bool:
        return check_flag
    words = "null or an object" if said.nullable else "an object"
    return partial(_check_object, kind, words) if is_dataclass(kind) else None


def _check_object(kind: Any, words: str, of: str, field: str, value: object) -> None:
    if not isinstance(value, kind):
        raise AutoshardError(f"{field}={show(value)} of {of} must be {words} with {fields(kind)[0].name}")
