"""Reads a pickle of plain data, and nothing else: no name of the file is looked up, nothing of it is called.

Python's own reader of opcodes takes the file apart; the machine below knows those that build dicts, lists, tuples,
texts, numbers, truth values and None. Every other opcode is an error before anything of it happens.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from autoshard.errors import AutoshardError

MAX_BYTES = 512_000_000
MAX_OPCODES = 20_000_000
"""A guess: a dump of 100,000 allocations with stacks of 40 frames has some 5 million. An empty dict, the largest value
that an opcode makes beside texts, takes 64 bytes: at most some 1.3 GB, and 15 s."""
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK: Any = object()


def read_data(data: bytes, what: str) -> Any:
    """The value in a pickle. what: names the file in errors.

    Containers may be shared: whoever reads the value must not follow it deeper than its own form says. Raises
    AutoshardError for a damaged file, and for one that holds anything but plain data.
    """
    if len(data) > MAX_BYTES:
        raise AutoshardError(f"{what} has {len(data):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        return _value(data, what)
    except AutoshardError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError, OverflowError, EOFError):
        raise AutoshardError(f"{what} is no pickle, or a damaged one") from None


def _value(data: bytes, what: str) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    opcodes: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]] = pickletools.genops(BytesIO(data))
    for number, (opcode, argument, place) in enumerate(opcodes):
        name = opcode.name
        if number > MAX_OPCODES:
            raise AutoshardError(f"{what} has more than {MAX_OPCODES:,} opcodes")
        if name in _VALUES:
            stack.append(argument)
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MEMOIZE":
            memo[len(memo)] = _top(stack)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = _top(stack)
        elif name == "MARK":
            stack.append(_MARK)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "SETITEMS":
            _put(stack, _since_mark(stack))
        elif name == "SETITEM":
            _put(stack, _popped(stack, 2))
        elif name == "APPENDS":
            items = _since_mark(stack)
            _list(stack).extend(items)
        elif name == "APPEND":
            items = _popped(stack, 1)
            _list(stack).extend(items)
        elif name == "TUPLE":
            stack.append(tuple(_since_mark(stack)))
        elif name in _TUPLES:
            stack.append(tuple(_popped(stack, _TUPLES[name])))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "STOP":
            (value,) = _popped(stack, len(stack))
            return value
        elif name not in ("PROTO", "FRAME"):
            raise AutoshardError(
                f"{what} is refused: its opcode {name} at byte {place:,} makes something else than dicts, lists, "
                "texts and numbers, and a dump of memory has nothing to run"
            )
    raise ValueError("no end")


def _top(stack: list[Any]) -> Any:
    if stack[-1] is _MARK:
        raise ValueError("a mark is no value")
    return stack[-1]


def _popped(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count or any(one is _MARK for one in stack[-count:]):
        raise ValueError("too little on the stack")
    values = stack[-count:]
    del stack[-count:]
    return values


def _since_mark(stack: list[Any]) -> list[Any]:
    place = len(stack) - 1
    while stack[place] is not _MARK:
        place -= 1
        if place < 0:
            raise ValueError("no mark")
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _put(stack: list[Any], items: list[Any]) -> None:
    target = stack[-1]
    if type(target) is not dict or len(items) % 2 or any(type(key) is not str for key in items[::2]):
        raise ValueError("a dict has texts as keys")
    target.update(zip(items[::2], items[1::2], strict=True))


def _list(stack: list[Any]) -> list[Any]:
    target = stack[-1]
    if type(target) is not list:
        raise ValueError("not a list")
    return target
