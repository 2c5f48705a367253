"""Describe where a Hugging Face checkpoint holds a parameter: reshapes, transpositions and slices, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Part:
    """One of our parameters, or a slice of it, in a tensor of a Hugging Face checkpoint.

    layout: the tensor's dims, each one of ours or several flattened into one, outermost first:
    "(kvhead headdim) embed".
    `part` is a dim over the `parts` parameters that the tensor holds, of which this is number `index`; `1` a dim of
    size 1. at: (dim of our parameter, index in it) of a slice, where the checkpoint has a tensor for each expert, or
    for each head.
    Dims in brackets are rows from `first` on of the `rows` that the tensor has there, where parameters of several sizes
    lie one behind the other: "([kvhead headdim]) embed". whole_numbers: whether checkpoints hold integers, which our
    parameter has as floating-point numbers.
    """

    tensor: str
    layout: str
    parameter: str
    index: int = 0
    parts: int = 1
    at: tuple[tuple[str, int], ...] = ()
    first: int = 0
    rows: int = 1
    whole_numbers: bool = False

    @staticmethod
    def same(name: str, layout: str) -> Part:
        """The part for a parameter whose name in the checkpoint is ours. layout: the tensor's dims."""
        return Part(name, layout, name)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The layout parsed: for each dim of the tensor, our dims that are flattened into it."""
        groups: list[list[str]] = []
        inside = False
        for word in re.sub(r"[\[\]]", "", self.layout).replace("(", " ( ").replace(")", " ) ").split():
            if word in "()":
                inside = word == "("
                if inside:
                    groups.append([])
            elif inside:
                groups[-1].append(word)
            else:
                groups.append([word])
        return tuple(map(tuple, groups))

    @property
    def turned(self) -> Part:
        """The part in a tensor that has its last two dims the other way round."""
        *outer, rows, columns = re.findall(r"\([^)]*\)|\S+", self.layout)
        return replace(self, layout=" ".join([*outer, columns, rows]))

    @property
    def span(self) -> tuple[str, ...]:
        """The dims in brackets; empty where the parameter is whole in its place."""
        found = re.search(r"\[([^\]]*)\]", self.layout)
        return tuple(found[1].split()) if found else ()
