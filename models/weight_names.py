"""Where a Hugging Face checkpoint holds a model's parameters: reshapes, transpositions and slices, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Where a tensor of the checkpoint holds one of our parameters, or one expert's slice of it.

    layout: the tensor's dims, each one of ours or several flattened into one, outermost first:
    "(kvhead headdim) embed".
    `part` is a dim over the `parts` parameters that the tensor holds, of which this is number `index`; `1` a dim of
    size 1. expert: the place in our parameter's dim of that name, where the checkpoint has a tensor for each.
    """

    tensor: str
    layout: str
    parameter: str
    index: int = 0
    parts: int = 1
    expert: int | None = None

    @staticmethod
    def same(name: str, layout: str) -> Part:
        """The checkpoint's name is ours."""
        return Part(name, layout, name)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Our dims in each dim of the tensor."""
        groups: list[list[str]] = []
        inside = False
        for word in self.layout.replace("(", " ( ").replace(")", " ) ").split():
            if word in "()":
                inside = word == "("
                if inside:
                    groups.append([])
            elif inside:
                groups[-1].append(word)
            else:
                groups.append([word])
        return tuple(map(tuple, groups))
