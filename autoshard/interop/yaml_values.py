"""The fields of a YAML file that OmegaConf reads: references are followed, and what nobody asks for is known."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.yaml_file import parse_yaml
from autoshard.interop.written_layout import MISSING, check_value, number, whole_number

REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
"""${model.encoder_seq_length}; with a dot before it one of the same object, with two one of the object around that."""
COMPUTED = re.compile(r"\$\{(multiply|sum|divide_ceil|divide_floor):(.*)\}")
"""${multiply:4, ${.hidden_size}} and the like [NeMo core/config/hydra_runner.py, NeMo-Framework-Launcher main.py]."""
OPERAND = re.compile(r"(?:[^,{}]|\{(?:[^{}]|\{[^{}]*\})*\})+")
"""One of the two things that are computed with, which may be references or computed themselves."""
MOST = 10**12
"""Of numbers that are computed with, as of any whole number that a file may have."""
VARIABLE = re.compile(r"\$\{(?:oc\.)?env:\s*(\w+)\s*,\s*(.*?)\s*\}")
"""${oc.env:NAME,default} or the older ${env:NAME,default} [OmegaConf]."""
DECODED = re.compile(r"\$\{oc\.decode:\s*(\$\{.*\})\s*\}")
"""${oc.decode:${...}}, which reads the text of a variable as YAML [OmegaConf]."""
MOST_REFERENCES = 10
"""A chain of more references is taken for a circle."""


class Values:
    """The fields of a configuration by dotted path; it notes which of them were asked for.

    follows: paths that count as asked for. root: what references may put before a path, with its dot.
    """

    def __init__(self, data: Mapping[str, Any], follows: Collection[str] = (), root: str = ""):
        self._data = data
        self._root = root
        self._asked = set(follows)
        self.defaults: dict[str, Any] = {}
        """Variable of the environment -> the default that the file gives it, of those that were asked for."""

    def left_out(self) -> tuple[str, ...]:
        """Paths of the fields that nobody asked for, in the order of the file."""
        return tuple(path for path in _paths(self._data) if path not in self._asked)

    def get(self, path: str, depth: int = 0) -> Any:
        """The value at a dotted path, references followed; None where there is none. depth: references so far.

        Raises AutoshardError where a part of the path holds no fields, and for references that go round.
        """
        self._asked.add(path)
        node: Any = self._data
        place = ""
        for part in path.split("."):
            if not isinstance(node, Mapping):
                raise AutoshardError(f"{place} is {str(node)[:40]!r}; it must hold named fields, such as {part}")
            if node.get(part) is None:
                return None
            node, place = node[part], f"{place}.{part}" if place else part
        return self._followed(node, path, depth) if isinstance(node, str) else node

    def _followed(self, text: str, path: str, depth: int) -> Any:
        """The value that a text stands for: what it refers to, a variable's default, or the text, also where the file
        does not hold what it refers to. path: where it stands. depth: as of `get`."""
        if depth > MOST_REFERENCES:
            raise AutoshardError(f"{path} refers to itself")
        if decoded := DECODED.fullmatch(text):
            value = self._followed(decoded[1], path, depth + 1)
            return text if value == decoded[1] else value
        if variable := VARIABLE.fullmatch(text):
            default = parse_yaml(variable[2], path)
            value = self._followed(default, path, depth + 1) if isinstance(default, str) else default
            self.defaults[variable[1]] = value
            return value
        if computed := COMPUTED.fullmatch(text):
            number_of_two = self._computed(computed[1], OPERAND.findall(computed[2]), path, depth)
            return text if number_of_two is None else number_of_two
        if reference := REFERENCE.fullmatch(text):
            above = path.split(".")[: -len(reference[1])] if reference[1] else []
            name = reference[2] if above else reference[2].removeprefix(self._root)
            value = self.get(".".join([*above, name]), depth + 1)
            return text if value is None and not self.has(".".join([*above, name])) else value
        return text

    def _computed(self, operation: str, operands: list[str], path: str, depth: int) -> int | float | None:
        """The number that comes of two; None where one of them is none, or too large to be meant."""
        numbers = []
        for operand in operands:
            value = parse_yaml(operand, path) if "$" not in operand else operand.strip()
            value = self._followed(value, path, depth + 1) if isinstance(value, str) else value
            if not isinstance(value, int | float) or isinstance(value, bool) or not -MOST <= value <= MOST:
                return None
            numbers.append(value)
        if len(numbers) != 2 or (operation.startswith("divide") and not numbers[1]):
            return None
        one, other = numbers
        match operation:
            case "multiply":
                return one * other
            case "sum":
                return one + other
            case "divide_floor":
                return int(one // other)
        return -int(-one // other)

    def peek(self, path: str) -> Any:
        """The value at a path, which still counts as left out unless somebody else asks for it."""
        asked = set(self._asked)
        value = self.get(path)
        self._asked = asked
        return value

    def has(self, path: str) -> bool:
        """Whether the file says it, if only as null."""
        parent, _, name = path.rpartition(".")
        node = self.peek(parent) if parent else self._data
        return isinstance(node, Mapping) and name in node

    def flag(self, path: str) -> bool | None:
        """True or False, which 1 and 0 are too; a text is neither, though Python would take 'False' for true."""
        value = self.get(path)
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        if value is not None:
            check_value(path, value)
            raise AutoshardError(f"{path} is {str(value)[:40]!r}; it must be True or False")
        return value

    def number(self, path: str) -> float | None:
        return number(path, self.get(path))

    def whole(self, path: str) -> int | None:
        value = self.get(path)
        return None if value is None else whole_number(path, value)

    def whole_or_variable(self, path: str) -> int | str | None:
        """A whole number, or what stands for one that the file does not hold, such as ${oc.env:GBS} or ???: an option
        that says it overrules it."""
        value = self.get(path)
        return value if isinstance(value, str) and value.startswith(("$", MISSING)) else self.whole(path)


def length_note(values: Values, of_data: str, of_model: str) -> tuple[str, ...]:
    """A sentence where two fields say unlike lengths of a sequence and the data's counts; none where they agree.

    of_data, of_model: the paths of both.
    """
    lengths = values.whole_or_variable(of_data), values.whole_or_variable(of_model)
    if lengths[0] == lengths[1] or not all(isinstance(length, int) for length in lengths):
        return ()
    return (f"sequences of {lengths[0]:,} tokens, as {of_data} says, not {of_model}",)


def _paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
