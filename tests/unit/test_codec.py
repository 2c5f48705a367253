"""Dataclasses to JSON and back by their annotations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as some

from autoshard.errors import AutoshardError
from autoshard.files.codec import (
    Absence,
    Checked,
    Count,
    Form,
    Limit,
    Positive,
    Share,
    Text,
    Whole,
    from_json,
    read_value,
    to_json,
)
from autoshard.files.fields import check_integer


class Pair(NamedTuple):
    left: int
    right: str


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"]
    share: Share = 1.0


@dataclass(frozen=True)
class Outer:
    name: Text
    ranks: Count
    step_time_s: Positive | None
    flag: bool
    sizes: tuple[Whole, ...]
    ends: tuple[int, str]
    inner: Inner
    others: tuple[Inner, ...]
    pair: Pair
    by_name: Mapping[str, float]
    words: Annotated[tuple[str, ...], Form(" ".join, lambda data, where: tuple(data.split()), {"type": "string"})]
    old: Annotated[int, Absence.READ] = 7
    rare: Annotated[tuple[int, ...], Absence.WRITTEN] = ()
    usual: Annotated[float, Absence.WRITTEN] = 1.0


VALUE = Outer("x", 2, 0.5, True, (0, 1), (3, "z"), Inner("a"), (Inner("b", 0.5),), Pair(1, "y"), {"q": 1.0}, ("u", "v"))
JSON: dict[str, Any] = {
    "name": "x",
    "ranks": 2,
    "step_time_s": 0.5,
    "flag": True,
    "sizes": [0, 1],
    "ends": [3, "z"],
    "inner": {"kind": "a", "share": 1.0},
    "others": [{"kind": "b", "share": 0.5}],
    "pair": {"left": 1, "right": "y"},
    "by_name": {"q": 1.0},
    "words": "u v",
    "old": 7,
}


def test_there_and_back() -> None:
    assert to_json(VALUE) == JSON
    assert list(to_json(VALUE)) == list(JSON)
    assert from_json(Outer, json.loads(json.dumps(JSON)), "file") == VALUE


def test_a_key_that_may_be_missing_is_its_default() -> None:
    assert from_json(Outer, {name: value for name, value in JSON.items() if name != "old"}, "file") == VALUE
    assert from_json(Outer, {**JSON, "rare": [1]}, "file").rare == (1,)
    unusual = from_json(Outer, {**JSON, "usual": 0.0}, "file")
    assert to_json(unusual) == {**JSON, "usual": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "file.name is ''; it must be 1 to 2,000 printable characters"),
        ({"name": 3}, "file.name is 3; it must be a text"),
        ({"ranks": 0}, "file.ranks is 0; it must be a whole number of at least 1"),
        ({"ranks": True}, "file.ranks is True; it must be a whole number of at least 1"),
        ({"ranks": 2.0}, "file.ranks is 2.0; it must be a whole number of at least 1"),
        ({"step_time_s": 0}, "file.step_time_s is 0; it must be a finite number above 0"),
        ({"step_time_s": float("nan")}, "file.step_time_s is nan; it must be a finite number above 0"),
        ({"step_time_s": 10**400},
         "file.step_time_s is a number of more than 60 digits; it must be a finite number above 0"),
        ({"flag": 1}, "file.flag is 1; it must be true or false"),
        ({"sizes": {}}, "file.sizes is an object of 0; it must be a list"),
        ({"sizes": [0, -1]}, "file.sizes[1] is -1; it must be a whole number of at least 0"),
        ({"ends": [3]}, "file.ends is a list of 1; it must be a list of 2"),
        ({"inner": []}, "file.inner must be an object with named fields, not a list"),
        ({"inner": {"kind": "c", "share": 1}}, "file.inner.kind is 'c'; it must be one of: a, b"),
        ({"inner": {"kind": "a"}}, "file.inner lacks share"),
        ({"others": [{"kind": "a", "share": 2}]},
         "file.others[0].share is 2; it must be a finite number of at least 0 and at most 1"),
        ({"inner": {"kind": "a", "share": 1, "x": 1}},
         "file.inner has a field that is not known: 'x'; known: kind, share"),
        ({"by_name": [1]}, "file.by_name is a list of 1; it must be an object"),
        ({"by_name": {"q": "1"}}, "file.by_name.q is '1'; it must be a finite number"),
    ],
    ids=str,
)  # fmt: skip
def test_one_line_names_the_place_the_value_and_what_is_known(change: dict[str, Any], message: str) -> None:
    with pytest.raises(AutoshardError) as caught:
        from_json(Outer, {**JSON, **change}, "file")
    assert str(caught.value) == message


PLAIN = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(some.sampled_from(sorted(JSON)), PLAIN)
def test_anything_is_read_or_refused_in_one_line(name: str, value: object) -> None:
    if name == "words":
        return
    text = ""
    try:
        from_json(Outer, {**JSON, name: value}, "file")
    except AutoshardError as error:
        text = str(error)
    assert "\n" not in text and text.startswith("file" if text else "")


def test_any_annotation() -> None:
    assert read_value(tuple[Positive, ...], [1, 2], "list") == (1.0, 2.0)


@dataclass(frozen=True)
class Told:
    points: Annotated[int, Checked(check_integer)]
    error: Annotated[float, Checked(check_integer)] | None
    few: Annotated[tuple[int, ...], Limit(most_items=2)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": 0}, "points=0 of the fit must be a whole number from 1 to 1,000,000,000"),
        ({"error": 0.5}, "error=0.5 of the fit must be a whole number from 1 to 1,000,000,000"),
        ({"few": [1, 2, 3]}, "the fit.few is a list of 3; it must be a list of at most 2 entries"),
        ({"few": 1}, "the fit.few is 1; it must be a list of at most 2 entries"),
    ],
    ids=str,
)
def test_a_check_has_words_of_its_own(change: dict[str, Any], message: str) -> None:
    assert from_json(Told, {"points": 1, "error": None, "few": [1, 2]}, "the fit") == Told(1, None, (1, 2))
    with pytest.raises(AutoshardError) as caught:
        from_json(Told, {"points": 1, "error": None, "few": [], **change}, "the fit")
    assert str(caught.value) == message
