"""Checks of a frozen value's fields by their annotations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Limit, Positive


@dataclass(frozen=True)
class Wheel:
    radius_m: Positive


@dataclass(frozen=True)
class Cart:
    wheels: Annotated[int, Limit(at_least=2, at_most=8)] = 4
    load: Annotated[float, Limit(at_least=0, at_most=1)] = 0.5
    has_roof: bool = False
    wheel: Wheel | None = None
    horses: Annotated[Count | None, Absence.WRITTEN] = None
    driver: str = ""
    seats: tuple[int, ...] = ()


@pytest.mark.parametrize(
    "fields", [{}, {"load": 1}, {"horses": 10**9}, {"wheel": Wheel(0.3)}, {"driver": 3, "seats": [""]}]
)
def test_what_an_annotation_allows_passes(fields: dict[str, Any]) -> None:
    """Texts and lists are left to others."""
    check_annotated("a cart", Cart(**fields))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"wheels": 1}, "wheels=1 of a cart must be a whole number from 2 to 8"),
        ({"wheels": None}, "wheels=None of a cart must be a whole number from 2 to 8"),
        ({"wheels": 4.0}, "wheels=4.0 of a cart must be a whole number from 2 to 8"),
        ({"horses": 0}, "horses=0 of a cart must be a whole number from 1 to 1,000,000,000"),
        ({"horses": True}, "horses=True of a cart must be a whole number from 1 to 1,000,000,000"),
        ({"load": 1.5}, "load=1.5 of a cart must be a finite number of at least 0 and at most 1"),
        ({"load": float("nan")}, "load=nan of a cart must be a finite number of at least 0 and at most 1"),
        ({"load": "1"}, "load='1' of a cart must be a finite number of at least 0 and at most 1, without quotes"),
        ({"has_roof": 1}, "has_roof=1 of a cart must be true or false"),
        ({"wheel": 3}, "wheel=3 of a cart must be null or an object with radius_m"),
    ],
)
def test_what_it_does_not_is_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(AutoshardError) as raised:
        check_annotated("a cart", Cart(**fields))
    assert str(raised.value) == text
