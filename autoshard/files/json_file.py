"""Read a JSON file that may hold anything: bounded in size and depth, strict. Each error gives line and column."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from autoshard.errors import AutoshardError
from autoshard.files.fields import SHOWN_CHARACTERS, show
from autoshard.files.text_file import MAX_DEPTH, MAX_DIGITS, decode, given_twice, is_too_deep, printable, read_bytes

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half a character beyond U+FFFF, with its other half or alone."""
INFINITY = "Infinity"
_WORDS = ("true", "false", "null")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)


class _RejectedError(ValueError):
    """Raised inside json.loads, which knows no places; `_fail_at_offence` then finds the place."""


def read_json(path: str | Path, what: str, max_bytes: int, has_infinity: bool = False) -> object:
    """The value in a UTF-8 JSON file (RFC 8259; a byte order mark is allowed).

    what: names the file's role in errors, such as "plan" or "model config".
    max_bytes: a larger file is refused before it is read.
    has_infinity: whether the word Infinity is a number, as Python writes it and RFC 8259 does not have it.
    Raises AutoshardError, one line with the file, and line and column where there are some, for: no such file, a
    directory, too large, not UTF-8, cut off, not JSON, NaN or a number out of range, a key twice in one object, half
    of a surrogate pair, nesting deeper than 100.
    """
    where = f"{what} {printable(path)}"
    return parse_json(read_bytes(path, where, max_bytes, "JSON"), where, has_infinity)


def parse_json(data: bytes, where: str, has_infinity: bool = False) -> object:
    """The value in the UTF-8 bytes of a JSON text.

    where: what errors call the text. has_infinity: as `read_json`, which raises AutoshardError for the same.
    """
    text, words = decode(data, where), (*_WORDS, INFINITY) if has_infinity else _WORDS
    try:
        value = json.loads(
            text,
            parse_constant=_infinite if has_infinity else _reject,
            parse_float=_finite,
            parse_int=_bounded_integer,
            object_pairs_hook=_without_duplicates,
        )
    except json.JSONDecodeError as error:
        _fail_to_parse(where, text, error)
    except (_RejectedError, RecursionError):
        _fail_at_offence(where, text, words)
    if is_too_deep(value) or lone_surrogate(text, value):
        _fail_at_offence(where, text, words)
    return value


def lone_surrogate(text: str, value: object) -> str:
    """An objection to the first escape such as \\ud83d that lacks its other half; "" if there is no such escape.

    A string with half a character has no UTF-8 bytes: no file, terminal or tokenizer takes it.
    text: the JSON text. value: the parsed value of that text.
    """
    if _HALF.search(text) is None:
        return ""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        return f"{half} is half of a character, a lone surrogate; write both halves, or \\ufffd"
    return ""


def _reject(_: str) -> NoReturn:
    raise _RejectedError


def _infinite(text: str) -> float:
    return math.inf if text == INFINITY else _reject(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _reject(text)


def _bounded_integer(text: str) -> int:
    return int(text) if len(text) <= MAX_DIGITS else _reject(text)


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    return value if len(value) == len(pairs) else _reject("")


def _fail_to_parse(where: str, text: str, error: json.JSONDecodeError) -> NoReturn:
    if not text.strip():
        raise AutoshardError(f"{where} is empty") from None
    place = f"{where}, line {error.lineno}, column {error.colno}"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        raise AutoshardError(f"{place}: the JSON ends too early; the file was cut off") from None
    raise AutoshardError(f"{place}: not JSON: {error.msg[0].lower()}{error.msg[1:]}") from None


def _fail_at_offence(where: str, text: str, words: tuple[str, ...]) -> NoReturn:
    offset, offence = next(_offences(text, words))
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    raise AutoshardError(f"{where}, line {line}, column {column}: {offence}") from None


def _offences(text: str, words: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(offset in the text, objection) of everything that `read_json` refuses beyond wrong syntax, in the order of the
    text. words: those that are values.
    """
    open_keys: list[set[str] | None] = []  # one for each open bracket: the keys so far, or None in a list
    previous = ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in ("{", "["):
            open_keys.append(set() if token == "{" else None)
            if len(open_keys) > MAX_DEPTH:
                yield match.start(), f"nested deeper than {MAX_DEPTH} levels"
        elif token in ("}", "]"):
            open_keys.pop()
        elif token.startswith('"'):
            if _HALF.search(token) and (half := lone_surrogate(token, json.loads(token))):
                yield match.start(), half
            keys = open_keys[-1] if open_keys else None
            if keys is not None and previous in ("{", ","):
                key = json.loads(token)
                if key in keys:
                    yield match.start(), given_twice(show(key))
                keys.add(key)
        elif token not in (",", ":", *words) and not _is_number_in_range(token):
            yield match.start(), f"{_shortened(token)} is not a finite number of a usable size"
        previous = token


def _is_number_in_range(token: str) -> bool:
    try:
        return math.isfinite(float(token)) and len(token) <= MAX_DIGITS
    except ValueError:
        return False


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
