"""Read the flags of a script that starts training, as a shell would pass them on; nothing is executed."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.interop.shell_conditions import decided, unconditional

SEVERAL = ("lora-target-modules", "recompute-modules", "cp-comm-type", "num-experts")
"""Flags that take more than one word: all on their line, up to a variable that may be anything."""
MOST_CHARACTERS = 200
"""Of a variable's value; what is longer is no number or name."""
END = ";"
"""A word for whatever ends a command or sends its output elsewhere: ; && | > 2>&1."""
LINE_END = ";;"
"""A word for a line end that is not escaped: a flag's value may stand behind it, a further one does not."""
_QUOTED = r"""'[^']*'|"(?:\\.|[^"\\])*\""""
_SUM = r"""\$\(\((?:[^()\n"']|\([^()\n"']*\))*\)\)"""
"""Whole numbers and variables with signs between them: $(($BATCH / $DP))."""
_KEPT = rf"""{_QUOTED}|\\[^\n]|\$\{{[^{{}}\n"']*\}}|<\w+>|{_SUM}"""
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
READS = re.compile(r"^[ \t]*(?:source|\.)[ \t]+(\$\([^\n]*\)[^\s;&|]*|[^\s;&|]+)", re.MULTILINE)
_GIVES = r"^[ \t]*(?:(?:export|declare|local|readonly)[ \t]+)?"
_GIVEN = rf"""[A-Za-z_]\w*=(?:"[^"\n]*"|'[^'\n]*'|{_SUM}|(?:\$\{{[^{{}}\n]*\}}|[^\s;&|()'"`])*)"""
"""A variable and one word, a sum, or a quoted text."""
_ENDED = r"(?=[ \t]*(?:;|\#|&&|$))"
_ASSIGNED = re.compile(f"{_GIVES}({_GIVEN.replace('=', ')=(', 1)}){_ENDED}", re.MULTILINE)
"""A line that gives a variable a value."""
_SEVERAL_ASSIGNED = re.compile(rf"{_GIVES}({_GIVEN}(?:[ \t]+{_GIVEN})+){_ENDED}", re.MULTILINE)
"""A line that gives several variables a value each: export TP=8 PP=4."""
_ONE_OF_SEVERAL = re.compile(_GIVEN)
_USUAL = re.compile(r"^[ \t]*:[ \t]+\"?\$\{([A-Za-z_]\w*):?=([^{}\n]*)\}", re.MULTILINE)
"""A line that gives a variable a value where it has none: `: ${NAME:=8}`."""
_COUNTED = re.compile(r"\bfor[ \t]+([A-Za-z_]\w*)")
"""Variables that a loop gives its values."""
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*|[0-9])|\{([A-Za-z_]\w*|[0-9]+)(?::?-([^{}]*))?\})")
"""$NAME, ${NAME} and ${NAME:-default}, of which a number names an argument."""
_SUMMED = re.compile(_SUM)
_NAMED = re.compile(r"(?<![\w${])[A-Za-z_]\w*")
"""A variable of a sum, where it may stand without a $."""
_WORD = r"""("[^"\s]*"|'[^'\s]*'|[^\s"']+)"""
_COMPARED = re.compile(rf"\[\[?[ \t]+{_WORD}[ \t]+(-\w\w|==?|!=)[ \t]+{_WORD}[ \t]+\]\]?")
"""A comparison of two words: [ $TP -gt 1 ], [[ $precision == "bf16SR" ]]."""
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("gt", "ge", "lt", "le", "eq", "ne")
}
_SAME = {"=": True, "==": True, "!=": False}
_PATTERN = "*?[\\"
"""Signs of a pattern, which is more than a word."""
MOST_DIGITS = 12
_SUMS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_OWN_FOLDER = re.compile(r"^[ \t]*([A-Za-z_]\w*)=[^\n]*(?:BASH_SOURCE|dirname[ \t\"-]+\$\{?0)", re.MULTILINE)
"""A line that gives a variable the folder that the script lies in."""
_OWN_ARGUMENTS = re.compile(r"^[ \t]*(?:shift\b|set[ \t]+--|function[ \t]|[\w-]+[ \t]*\([ \t]*\))", re.MULTILINE)
"""A line behind which $1 is no longer the first word that a script is started with, or that begins a function."""
DEEPEST = 8
"""How many conditions may stand inside of each other, and variables in each other's values, to be known."""
LAUNCHED_NODES = ("SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "OMPI_COMM_WORLD_SIZE")
"""Variables that count nodes where a launcher starts one torchrun on each."""


class Script(NamedTuple):
    """A script that was read. flags: by name, without leading dashes -> what follows them, '' for nothing. variables:
    those with one value. used: those in values of the wanted flags, and in conditions that were decided. conditional:
    the wanted flags that another condition decides about."""

    flags: dict[str, str]
    variables: dict[str, str]
    used: dict[str, str]
    conditional: tuple[str, ...]


class Place(NamedTuple):
    """The place that a script is started in. nodes: how many, None where that is not known. folder: the script's, empty
    where that is no matter. arguments: words that it is started with, None where they are not known."""

    nodes: int | None = None
    folder: str = ""
    arguments: tuple[str, ...] | None = None


NOWHERE = Place()


class Values(NamedTuple):
    """A script whose known conditions are decided. text: what is left of it. variables: those with one value, as it is
    written. known: those of them in whose value no other one is left. decided: those that conditions were decided by.
    """

    text: str
    variables: dict[str, str]
    known: dict[str, str]
    decided: dict[str, str]

    def filled(self, value: str, used: dict[str, str]) -> str:
        """A value with its variables replaced, which are added to `used`, and sums computed; as it is where one of them
        has no value."""
        return _filled(value, self.variables, self.known, used)


def values_of(text: str, place: Place = NOWHERE) -> Values:
    """The variables of a script, and what is left of it without what known conditions rule out."""
    text, decided_by = _decided(text, place)
    variables = _variables(text, place)
    return Values(text, variables, _known(variables), decided_by)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a script. Raises AutoshardError where a quote does not end."""
    words: list[str] = []
    for word in _words_of(text):
        if word in (END, LINE_END):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def read_script(text: str, wanted: Collection[str], place: Place = NOWHERE) -> Script:
    """The flags and variables of a script. Sums of variables are computed, and conditions that compare one of them with
    a number decided; what is in any other condition is read.

    A variable that the script gives one value only, or a default, has it, and so have those that a launcher counts
    nodes in and the script keeps its folder in, as far as `place` says them; any other stays as it is written. Raises
    AutoshardError where a quote does not end.
    """
    values = values_of(text, place)
    flags, used = _flags(values.text), dict[str, str]()
    filled = {name: values.filled(value, used) if name in wanted else value for name, value in flags.items()}
    try:
        sure = _flags(unconditional(values.text))
    except AutoshardError:
        sure = {}
    conditional = tuple(name for name, value in flags.items() if name in wanted and sure.get(name) != value)
    return Script(filled, values.known, {**used, **values.decided}, conditional if sure else ())


def told_of(script: Script) -> tuple[str, ...]:
    """A note on the variables that a script gives a value, where it has such."""
    return told_values(script.used)


def told_values(used: Mapping[str, str]) -> tuple[str, ...]:
    """A note on variables, by their names, and the values that a script gives them; none where there are none."""
    said = ", ".join(f"{name}={value}" for name, value in used.items() if value.strip())
    return (f"variables have the values that the script gives them: {said}",) if said else ()


def warned_of(script: Script, text: str) -> Iterator[str]:
    """Sentences on what is not sure in a script: flags in its conditions, and other files that it runs."""
    if found := [f"--{flag} {script.flags[flag]}".strip() for flag in script.conditional if flag in script.flags]:
        yield f"in a condition of the script, taken as if it held: {', '.join(found)}"
    if files := tuple(dict.fromkeys(name.strip("\"'") for name in READS.findall(text))):
        names = ", ".join(files)[:200]
        yield f"the script runs other files as parts of itself, whose flags and variables are not read: {names}"


def _decided(text: str, place: Place) -> tuple[str, dict[str, str]]:
    """(the text without conditions on words that are known, which variables these are): of each, what holds is
    left."""
    used: dict[str, str] = {}
    for _ in range(DEEPEST):
        variables = _variables(text, place)
        known = _known(variables)

        def holds(condition: str, variables: dict[str, str] = variables, known: dict[str, str] = known) -> bool | None:
            return _holds(condition, variables, known, used)

        before, text = text, decided(text, holds)
        if text == before:
            break
    return text, used


def _holds(condition: str, variables: dict[str, str], known: dict[str, str], used: dict[str, str]) -> bool | None:
    """Whether a condition is true, of whose variables those in it are added to `used`; None where nobody knows."""
    if (compared := _COMPARED.fullmatch(condition)) is None:
        return None
    asked: dict[str, str] = {}
    one, other = (_filled(compared[word].strip("\"'"), variables, known, asked) for word in (1, 3))
    comparison = _COMPARE.get(compared[2].lstrip("-"))
    if "$" in one + other or "`" in one + other:
        return None
    if comparison is not None:
        numbers = [int(word) for word in (one, other) if word.isdecimal() and len(word) <= MOST_DIGITS]
        result = comparison(*numbers) if len(numbers) == 2 else None
    elif compared[2] in _SAME and not set(other) & set(_PATTERN):
        result = (one == other) is _SAME[compared[2]]
    else:
        return None
    used.update(asked)
    return result


def _flags(text: str) -> dict[str, str]:
    """The flags by name, without leading dashes -> what follows them, '' for nothing.

    Underscores are dashes, as in torchrun. Quotes around several words, of an array or a variable, are no matter.
    """
    words = [_without_end(word) for word in _words_of(text)]
    flags: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--") and word != "--":
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


def _words_of(text: str) -> list[str]:
    """The words of a script. Raises AutoshardError where a quote does not end."""
    try:
        return _words(f"{text}\n")  # a shell, too, takes an escaped end of the file for nothing
    except ValueError as error:
        raise AutoshardError(f"it is no command line: {error}") from None


def _words(text: str) -> list[str]:
    """The words of a command line. Raises ValueError where a quote does not end."""
    ends = {"end": END, "line": LINE_END}
    text = _SUMMED.sub(lambda found: re.sub(r"\s", "", found[0]), text)
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


def _variables(text: str, place: Place) -> dict[str, str]:
    """The values that a script gives its variables; one that gets several has none, unless `place` says it."""
    found = {name: {"", " "} for name in _COUNTED.findall(text)}
    late = _late_defaults(text)
    usual = [one for one in _USUAL.findall(text) if one not in late]
    for name, value in (*((name, value) for name, value, _ in _assignments(text)), *usual):
        found.setdefault(name, set()).add(value if value[:1] == "'" else value.strip('"'))
    said = dict.fromkeys(_OWN_FOLDER.findall(text), place.folder) if place.folder else {}
    if place.arguments is not None and not _OWN_ARGUMENTS.search(text):
        said |= {str(number): value for number, value in enumerate(place.arguments, 1)}
    if place.nodes is not None:
        launched = {f"${name}" for name in LAUNCHED_NODES}
        counted = (name for name, values in found.items() if values & launched)
        said |= dict.fromkeys((*LAUNCHED_NODES, *counted), str(place.nodes))
    return {name: next(iter(values)).strip("'") for name, values in found.items() if len(values) == 1} | said


def _assignments(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields the variables that lines of a script give a value, the value as it is written, and where the line is."""
    for found in _ASSIGNED.finditer(text):
        yield found[1], found[2], found.start()
    for found in _SEVERAL_ASSIGNED.finditer(text):
        for one in _ONE_OF_SEVERAL.findall(found[1]):
            name, _, value = one.partition("=")
            yield name, value, found.start()


def _late_defaults(text: str) -> set[tuple[str, str]]:
    """Names and values of defaults, `: ${NAME:=8}`, for variables that the script has given a value before, whatever
    its conditions are."""
    sure = unconditional(text)
    first: dict[str, int] = {}
    for name, _, start in _assignments(sure):
        first[name] = min(start, first.get(name, start))
    return {(one[1], one[2]) for one in _USUAL.finditer(sure) if first.get(one[1], one.start()) < one.start()}


def _known(variables: dict[str, str]) -> dict[str, str]:
    """The variables with values that no other one is left in."""
    known: dict[str, str] = {}
    for _ in range(DEEPEST):
        more = {
            name: filled
            for name, value in variables.items()
            if name not in known and "$" not in (filled := _filled(value, variables, known, {}))
        }
        if not more:
            break
        known |= more
    return known


def _filled(value: str, variables: dict[str, str], known: dict[str, str], used: dict[str, str]) -> str:
    """A value with its variables replaced, which are added to `used`, and sums computed; as it is where one of them has
    no value."""
    own: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1] or match[2], (match[3] or "").strip("\"'")
        is_own = match[0] in variables.get(name, "") or variables.get(name) == f"${name}"
        given = default if is_own or name not in variables else known.get(name, "")
        if not given or "$" in given or len(given) > MOST_CHARACTERS:
            return match[0]
        own[name] = given
        return given

    def summed(match: re.Match[str]) -> str:
        terms = _VARIABLE.sub(replaced, _NAMED.sub(lambda name: f"${name[0]}", match[0][3:-2]))
        result = None if "$" in terms else _sum(terms)
        return match[0] if result is None else str(result)

    filled = _VARIABLE.sub(replaced, _SUMMED.sub(summed, value))
    if "$" in filled:
        return value
    used.update({name: given for name, given in own.items() if not name.isdigit()})
    return filled


def _sum(terms: str) -> int | None:
    """The value of whole numbers with + - * / % between them; None for anything else, and for a division by zero."""
    if len(terms) > MOST_CHARACTERS:
        return None
    try:
        return _value(ast.parse(terms.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    """The value of a parsed sum. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return _SUMS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("no sum")
