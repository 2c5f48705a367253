"""Dataclasses to plain JSON values and back, by the annotations of their fields. Reading executes nothing.

An annotation may say more of a field, `Annotated[T, ...]`: a Limit of its values, a Form of its own in JSON, a check
with words of its own, or that the key may be missing. `autoshard/plans/schema.py` writes the schema of plan.json from
the same annotations.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.strict import Reader

T = TypeVar("T")
Read = Callable[[Any, str], Any]
"""(plain JSON value, what errors call its place) -> value."""
LONGEST_TEXT = 2_000


@dataclass(frozen=True)
class Limit:
    """The values that a field can have. choices: the only ones; items: the fewest entries of a list or an object;
    most_items: the most entries of a list."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    items: int = 0
    most_items: int | None = None
    printable: bool = False

    @cached_property
    def ends(self) -> tuple[float, float, tuple[float | None, float | None]]:
        """(least, most, those that are not among them); no infinity, and nothing that a float cannot hold."""
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        largest = sys.float_info.max
        return -largest if low is None else low, largest if high is None else high, (self.above, self.below)


@dataclass(frozen=True)
class Form:
    """How a field stands in JSON where that is not as its type says. schema: of that form, as JSON Schema."""

    write: Callable[[Any], Any]
    read: Read
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Checked:
    """A check of what JSON holds for a field, before it is read. check: of (whose field it is, its name, the value), as
    the checks of `autoshard/files/fields.py` are; it raises AutoshardError in words of its own."""

    check: Callable[[str, str, Any], None]


class Absence(Enum):
    """A key that may be missing; the field then has its default."""

    READ = "old files lack it"
    WRITTEN = "left out where the value is the default"


Positive = Annotated[float, Limit(above=0)]
NotNegative = Annotated[float, Limit(at_least=0)]
Share = Annotated[float, Limit(at_least=0, at_most=1)]
Count = Annotated[int, Limit(at_least=1)]
Several = Annotated[int, Limit(at_least=2)]
Whole = Annotated[int, Limit(at_least=0)]
Text = Annotated[str, Limit(printable=True)]


class Parts(NamedTuple):
    """An annotation taken apart."""

    kind: Any
    nullable: bool
    limit: Limit
    form: Form | None
    checked: Checked | None
    absence: Absence | None


@cache
def hints(kind: Any) -> dict[str, Parts]:
    """By field, in order, what a dataclass or named tuple says of it."""
    found = get_type_hints(kind, include_extras=True)
    return {name: parts(found[name]) for name in found if name in _names(kind)}


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else kind._fields


def parts(hint: Any) -> Parts:
    """`Annotated[float, Limit(above=0)] | None` -> float, nullable, that limit, and nothing else."""
    nullable, marks = False, []
    while True:
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            marks += more
        elif get_origin(hint) in (Union, types.UnionType):
            others = [one for one in get_args(hint) if one is not types.NoneType]
            assert len(others) == 1, f"{hint} is a choice of types, of which JSON does not tell one"
            hint, nullable = others[0], True
        else:
            break
    limit = next((one for one in marks if isinstance(one, Limit)), Limit())
    form = next((one for one in marks if isinstance(one, Form)), None)
    checked = next((one for one in marks if isinstance(one, Checked)), None)
    absence = next((one for one in marks if isinstance(one, Absence)), None)
    return Parts(hint, nullable, limit, form, checked, absence)


def to_json(value: object) -> Any:
    """Plain JSON values: fields by name and in order, tuples as lists. Raises AssertionError for what has no JSON."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind in (tuple, list):
        return [to_json(one) for one in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    assert is_dataclass(kind) or hasattr(kind, "_fields"), f"{value!r} has no form in JSON"
    found = {}
    for name, write, left_out in _writers(kind):
        one = getattr(value, name)
        if left_out is _LACKING or one != left_out:
            found[name] = one if type(one) in _PLAIN else write(one)
    return found


_PLAIN = frozenset((str, int, float, bool, types.NoneType))


@cache
def _writers(kind: Any) -> tuple[tuple[str, Callable[[Any], Any], Any], ...]:
    """(field, how it is written where it is no plain value, the value that is left out or _LACKING)."""
    defaults = {one.name: one.default for one in fields(kind)} if is_dataclass(kind) else kind._field_defaults
    return tuple(
        (
            name,
            one.form.write if one.form else to_json,
            defaults[name] if one.absence is Absence.WRITTEN else _LACKING,
        )
        for name, one in hints(kind).items()
    )


def from_json(kind: type[T], data: object, where: str) -> T:
    """The inverse of to_json for a dataclass or named tuple.

    where: what errors call the data. Plain values of a class with a `__post_init__` are checked there, in its words.
    Raises AutoshardError, naming the place, the value and what is known, for a key missing or unknown and a value of
    another type or beyond its limit.
    """
    known: Any = kind
    return cast(T, _read_object(known)(data, where))


def read_value(hint: Any, data: object, where: str) -> Any:
    """from_json for any annotation, such as `tuple[Stage, ...]` or `Positive | None`."""
    return reader_of(hint)(data, where)


@cache
def reader_of(hint: Any) -> Read:
    """read_value for one annotation and many values."""
    return _reader(parts(hint), checked_later=False)


@cache
def _read_object(kind: Any) -> Read:
    checks_itself = hasattr(kind, "__post_init__")
    readers = {name: _reader(found, checks_itself) for name, found in hints(kind).items()}
    may_lack = dict.fromkeys((name for name, found in hints(kind).items() if found.absence), _LACKING)

    to_convert = {name: reader for name, reader in readers.items() if reader is not _as_it_is}

    def read(data: object, where: str) -> object:
        if type(data) is dict and data.keys() == readers.keys():
            values = dict(data)
        else:
            reader = Reader({**may_lack, **data} if may_lack and isinstance(data, dict) else data, where)
            values = {name: reader.any(name) for name in readers}
            reader.finish()
            values = {name: value for name, value in values.items() if value is not _LACKING}
        for name, convert in to_convert.items():
            if name in values:
                values[name] = convert(values[name], f"{where}.{name}")
        return kind(**values)

    return read


_LACKING = object()


def _reader(found: Parts, checked_later: bool) -> Read:
    read = found.form.read if found.form else _plain_reader(found.kind, found.limit, checked_later)
    if found.checked is not None:
        read = _checked_first(found.checked, read)
    if read is _as_it_is:
        return read
    return (lambda value, where: None if value is None else read(value, where)) if found.nullable else read


def _checked_first(checked: Checked, read: Read) -> Read:
    def checked_and_read(value: Any, where: str) -> Any:
        of, _, name = where.rpartition(".")
        checked.check(of, name, value)
        return read(value, where)

    return checked_and_read


def _plain_reader(kind: Any, limit: Limit, checked_later: bool) -> Read:
    """The reader of a type without marks. checked_later: what is neither list nor object passes as it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return _as_it_is if checked_later else lambda value, where: _SCALARS[kind](value, where, limit)
    if kind is Any:
        return _as_it_is
    if origin is Literal:
        return lambda value, where: _choice(value, where, arguments)
    if origin is tuple:
        every = arguments[1:] == (...,)
        readers = [_reader(parts(one), checked_later) for one in (arguments[:1] if every else arguments)]
        return lambda value, where: _list(value, where, readers, every, limit)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read = _reader(parts(arguments[1]), checked_later)
        return lambda value, where: _object(value, where, read)
    return lambda value, where: _read_object(kind)(value, where)


def _as_it_is(value: Any, where: str) -> Any:
    return value


def _number(value: object, where: str, limit: Limit) -> float:
    if type(value) not in (int, float) or not within(cast(float, value), limit):
        raise AutoshardError(f"{where} is {show(value)}; it must be a finite number{limit_words(limit)}")
    return float(cast(float, value))


def _whole(value: object, where: str, limit: Limit) -> int:
    if type(value) is not int or not within(value, limit):
        raise AutoshardError(f"{where} is {show(value)}; it must be a whole number{limit_words(limit)}")
    return value


def _flag(value: object, where: str, limit: Limit) -> bool:
    if type(value) is not bool:
        raise AutoshardError(f"{where} is {show(value)}; it must be true or false")
    return value


def _text(value: object, where: str, limit: Limit) -> str:
    if not isinstance(value, str):
        raise AutoshardError(f"{where} is {show(value)}; it must be a text")
    if limit.printable and not (value.isprintable() and 1 <= len(value) <= LONGEST_TEXT):
        raise AutoshardError(f"{where} is {show(value)}; it must be 1 to {LONGEST_TEXT:,} printable characters")
    return value


_SCALARS: dict[Any, Callable[[object, str, Limit], Any]] = {float: _number, int: _whole, bool: _flag, str: _text}


def _choice(value: object, where: str, choices: tuple[Any, ...]) -> object:
    if value not in choices:
        raise AutoshardError(f"{where} is {show(value)}; it must be one of: {', '.join(map(str, choices))}")
    return value


def _list(value: object, where: str, readers: list[Read], every: bool, limit: Limit) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise AutoshardError(f"{where} is {show(value)}; it must be a list{_at_most_items(limit)}")
    if limit.most_items is not None and len(value) > limit.most_items:
        raise AutoshardError(f"{where} is {show(value)}; it must be a list{_at_most_items(limit)}")
    if not every and len(value) != len(readers):
        raise AutoshardError(f"{where} is {show(value)}; it must be a list of {len(readers)}")
    found = readers * len(value) if every else readers
    return tuple(read(one, f"{where}[{i}]") for i, (read, one) in enumerate(zip(found, value, strict=True)))


def _object(value: object, where: str, read: Read) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise AutoshardError(f"{where} is {show(value)}; it must be an object")
    return {name: read(one, f"{where}.{name}") for name, one in value.items()}


def within(value: float, limit: Limit) -> bool:
    """Whether a number is one that a limit allows."""
    low, high, without = limit.ends
    return low <= value <= high and value not in without


def _at_most_items(limit: Limit) -> str:
    return "" if limit.most_items is None else f" of at most {limit.most_items:,} entries"


def limit_words(limit: Limit) -> str:
    """' above 0', ' of at least 0', ' above 0 and at most 1': what follows the name of such a number."""
    ends = {"of at least": limit.at_least, "above": limit.above, "at most": limit.at_most, "below": limit.below}
    said = " and ".join(f"{words} {end:g}" for words, end in ends.items() if end is not None)
    return said and f" {said}"
