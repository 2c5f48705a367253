"""Read the flags of a script that starts Megatron-LM, as a shell would pass them on; nothing is executed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from itertools import takewhile

from autoshard.errors import AutoshardError

SEVERAL = ("recompute-modules", "cp-comm-type", "num-experts")
"""Flags that take more than one word: all on their line, up to a variable that may be anything."""
MOST_CHARACTERS = 200
"""Of a variable's value; what is longer is no number or name."""
END = ";"
"""A word for whatever ends a command or sends its output elsewhere: ; && | > 2>&1."""
LINE_END = ";;"
"""A word for a line end that is not escaped: a flag's value may stand behind it, a further one does not."""
_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
_KEPT = rf"""{_QUOTED}|\\[^\n]|\$\{{[^{{}}\n"']*\}}|<\w+>|\$\(\([^()\n"']*\)\)"""
"""What stays as it is: quoted texts, escaped characters, values of variables, blanks to fill in, <N>, and sums."""
_COMMENT = r"(?<![^\s;&|])\#[^\n]*"
"""A comment, up to its own line's end, escaped or not."""
_BEGIN = r"(?:(?<!\\\n)^|[;&|{)]+|(?<![^\s;])(?:then|else|do)\b)"
"""Where a command begins."""
_SHOWN = rf"""{_BEGIN}[ \t]*(?:echo|printf)(?=[ \t])(?:{_QUOTED}|\\.|(?<!\s)\#|[^;&|\n'"\\\#])*"""
"""A command that shows a text."""
_OPERATOR = r"(?:(?<!\S)[12])?[<>]+&?|[;&|]+"
"""What ends a command or sends its output elsewhere."""
_WRITTEN = re.compile(
    rf"(?P<kept>{_KEPT})|\\\n|{_COMMENT}|(?P<end>{_SHOWN}|{_OPERATOR})|(?P<line>\n)",
    re.DOTALL | re.MULTILINE,
)
"""What is more than words; a line end that is escaped is nothing."""
_SHOW = ("echo", "printf")
"""Words before a quoted text that is shown, not run: `srun echo "..."`."""
_READS = re.compile(r"^[ \t]*(?:source|\.)[ \t]+(\$\([^\n]*\)[^\s;&|]*|[^\s;&|]+)", re.MULTILINE)
_CONDITION = re.compile(r"^[ \t]*(if|case)\b.*?^[ \t]*(fi|esac)\b", re.DOTALL | re.MULTILINE)
"""A condition and all that it decides about. One inside of another ends the outer one: more is taken as sure then."""
_ASSIGNED = re.compile(
    r"""^[ \t]*(?:(?:export|declare|local|readonly)[ \t]+)?([A-Za-z_]\w*)="""
    r"""("[^"\n]*"|'[^'\n]*'|(?:\$\{[^{}\n]*\}|[^\s;&|()'"`])*)"""
    r"""(?=[ \t]*(?:;|\#|&&|$))""",
    re.MULTILINE,
)
"""A line that gives a variable one word, or a quoted text."""
_COUNTED = re.compile(r"\bfor[ \t]+([A-Za-z_]\w*)")
"""Variables that a loop gives its values."""
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*|[0-9]+)(?::?-([^{}]*))?\})")
"""$NAME, ${NAME} and ${NAME:-default}."""


def files_read(text: str) -> tuple[str, ...]:
    """The files that a script runs as parts of itself, as it names them: `source common.sh`."""
    return tuple(dict.fromkeys(name.strip("\"'") for name in _READS.findall(text)))


def read_script(text: str, wanted: Collection[str]) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
    """(the flags of a script, the variables in values of the wanted ones, those of the wanted ones that a condition of
    the script decides about).

    The flags are by name, without leading dashes -> what follows them, '' for nothing. A variable that the script gives
    one value only, or a default, has it; any other stays as it is written. Conditions are not evaluated: what is in one
    is read. Raises AutoshardError where a quote does not end.
    """
    flags, variables = _flags(text), _variables(text)
    used: dict[str, str] = {}
    filled = {name: _filled(value, variables, used) if name in wanted else value for name, value in flags.items()}
    try:
        sure = _flags(_CONDITION.sub("\n", text))
    except AutoshardError:
        sure = {}
    decided = (name for name, value in flags.items() if name in wanted and sure.get(name) != value)
    return filled, used, tuple(decided) if sure else ()


def _flags(text: str) -> dict[str, str]:
    """The flags by name, without leading dashes -> what follows them, '' for nothing.

    Underscores are dashes, as in torchrun. Quotes around several words, of an array or a variable, are no matter.
    """
    try:
        words = [_without_end(word) for word in _words(text)]
    except ValueError as error:
        raise AutoshardError(f"it is no command line: {error}") from None
    flags: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("_", "-")
            flags[name] = value or _behind(words, index + 1, name in SEVERAL)
    return flags


def _behind(words: list[str], index: int, several: bool) -> str:
    """The value of the flag before words[index], '' for none. several: whether it may be more than one word."""
    while index < len(words) and words[index] == LINE_END:
        index += 1
    if index == len(words) or not _is_value(words[index]):
        return ""
    if not several:
        return words[index]
    others = takewhile(
        lambda word: _is_value(word) and word != LINE_END and not word.startswith("$"),
        map(words.__getitem__, range(index + 1, len(words))),
    )
    return " ".join((words[index], *others))


def _without_end(word: str) -> str:
    """A word without the bracket that ends an array: `--swiglu)`; `$(nproc)` has its own."""
    return word[:-1] if len(word) > 1 and word.endswith(")") and word.count("(") < word.count(")") else word


def _is_value(word: str) -> bool:
    """Whether a word behind a flag is its value, not the next flag or where a command or an array ends or begins."""
    return not word.startswith("--") and word not in (")", END) and not word.endswith("=(")


def _words(text: str) -> list[str]:
    """The words of a command line. Raises ValueError where a quote does not end."""
    ends = {"end": END, "line": LINE_END}
    quoted = shlex.split(_WRITTEN.sub(lambda found: found["kept"] or f" {ends.get(found.lastgroup or '', '')} ", text))
    words, before = [], ""
    for one in quoted:
        words += _unquoted(one, before)
        before = before if one == LINE_END else one
    return words


def _unquoted(word: str, before: str) -> list[str]:
    """The words in one that a shell takes as a whole: '--fp8-format hybrid', 'ARGS=--bf16 --swiglu' or a command.

    before: the word before it, of which it may be the value.
    """
    if before in _SHOW and len(word.split()) > 1:
        return []
    text = re.sub(r"^(\w+\+?=)?\(?", "", word)
    flags = re.findall(r"(?<!\S)--\S+", text)
    if not flags or text.split() == flags[:1]:
        return [text.strip() if flags else word]
    begins_with_one = text.split()[0] == flags[0]
    is_value = begins_with_one and "=" in flags[0] and len(flags) == 1  # '--name=some words'
    is_value |= not begins_with_one and re.fullmatch("-e|--[^=]+", before) is not None
    if text == word and is_value:
        return [word]
    try:
        return _words(text)
    except ValueError:
        return text.split()


def _variables(text: str) -> dict[str, str]:
    """The values that a script gives its variables; one that gets several has none."""
    found = {name: {"", " "} for name in _COUNTED.findall(text)}
    for name, value in _ASSIGNED.findall(text):
        found.setdefault(name, set()).add(value if value[:1] == "'" else value.strip('"'))
    return {name: next(iter(values)).strip("'") for name, values in found.items() if len(values) == 1}


def _filled(value: str, variables: dict[str, str], used: dict[str, str], depth: int = 0) -> str:
    """A value with its variables replaced, which are added to `used`; as it is where one of them has no value."""
    if "$" not in value or depth > len(variables) or "$(" in value:
        return value
    own: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], (match[3] or "").strip("\"'")
        known = variables.get(name, default)
        given = default if match[0] in known or known == f"${name}" else _filled(known, variables, {}, depth + 1)
        if not given or "$" in given or len(given) > MOST_CHARACTERS:
            return match[0]
        own[name] = given
        return given

    filled = _VARIABLE.sub(replaced, value)
    if "$" in filled:
        return value
    used.update({name: given for name, given in own.items() if not name.isdigit()})
    return filled
