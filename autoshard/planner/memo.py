"""Results of methods that their object keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Self = TypeVar("Self")
Given = ParamSpec("Given")
Found = TypeVar("Found")


def kept_by_object(
    method: Callable[Concatenate[Self, Given], Found],
) -> Callable[Concatenate[Self, Given], Found]:
    """The method, whose results its object keeps as long as it lives; functools.cache would keep the object, too, and
    for ever. It is called with positional, hashable values."""
    name = f"_known_{method.__name__}"

    @wraps(method)
    def found(self: Self, /, *given: Given.args, **named: Given.kwargs) -> Found:
        assert not named, named
        known: dict[object, Found] = self.__dict__.setdefault(name, {})
        if given not in known:
            known[given] = method(self, *given, **named)
        return known[given]

    return found
