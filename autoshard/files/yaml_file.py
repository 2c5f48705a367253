"""Read a YAML file that may hold anything: plain values, bounded in size and depth even if aliases repeat them."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.files.text_file import MAX_DEPTH, MAX_DIGITS, given_twice, printable, read_text

MAX_WRITTEN_OUT = 1_000_000
"""Values and their characters where every alias stands for what it repeats: as many as the largest file may have."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE, _EQUALS = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"
"""The tags of << and = as keys."""


def read_yaml(path: str | Path, what: str, max_bytes: int) -> object:
    """The value in a YAML file in UTF-8. what: names the file's role in errors, such as "sweep".

    Raises AutoshardError, one line with the file, and line and column where there are some, for: no such file, no
    regular file, too large, not UTF-8, not YAML or more than plain values, several documents, nesting deeper than 100,
    a number of more than 300 digits, a key twice in one object, an alias inside what it repeats, aliases that repeat
    more than MAX_WRITTEN_OUT.
    """
    where = f"{what} {printable(path)}"
    return parse_yaml(read_text(path, where, max_bytes, "YAML"), where)


def parse_yaml(text: str, where: str) -> object:
    """The value in a YAML text. where: what errors call the text. Raises AutoshardError as `read_yaml`."""
    try:
        loader = _BoundedLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        words = "" if isinstance(error, _RefusedError) else "not YAML: "
        raise AutoshardError(f"{where}{place}: {words}{' '.join(problem.split())[:200]}") from None


class _RefusedError(yaml.MarkedYAMLError):
    """The text is YAML, but has something that is not read: too deep, too long, a key twice, a recursive alias or a
    second document.
    """


class _BoundedLoader(yaml.SafeLoader):
    """A YAML loader that counts depth and size while nodes are made, before they become values.

    A node that an alias repeats is made once, and counted every time.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._written_out = 0
        self._sizes: dict[str, int] = {}
        """Anchor -> what its node adds to _written_out."""

    def compose_document(self) -> yaml.Node | None:
        node = super().compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            _refuse(event, "a second document begins; a file of one is read")
        return node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            return self._compose_alias(event, parent, index)
        if self._depth == MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            _refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        before = self._written_out
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._written_out += 1
        if isinstance(node, yaml.ScalarNode):
            self._written_out += len(node.value)
            if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
                _refuse(event, f"a number of {len(node.value):,} characters; {MAX_DIGITS} are read")
        if event.anchor is not None:
            self._sizes[event.anchor] = self._written_out - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set[Hashable]()  # those that are written here: a merge gives others, which these replace
        for written, _ in node.value:
            if isinstance(written, yaml.ScalarNode) and written.tag != _MERGE:
                key = written.value if written.tag == _EQUALS else self.construct_object(written)
                if isinstance(key, Hashable):
                    if key in keys:
                        _refuse(written, given_twice(show(key)))
                    keys.add(key)
        return node

    def _compose_alias(self, event: yaml.AliasEvent, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        anchor = str(event.anchor)
        if anchor in self.anchors and anchor not in self._sizes:
            _refuse(event, f"*{anchor[:60]} is inside of what it repeats")
        self._written_out += self._sizes.get(anchor, 0)
        if self._written_out > MAX_WRITTEN_OUT:
            _refuse(
                event, f"aliases repeat more than {MAX_WRITTEN_OUT:,} values and characters; write out what is meant"
            )
        return super().compose_node(parent, index)


def _refuse(event: Any, problem: str) -> NoReturn:
    raise _RefusedError(None, None, problem, event.start_mark)
