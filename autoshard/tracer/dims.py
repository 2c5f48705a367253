"""Dims without names: while operators are read, dims are found equal, or found to be several flattened into one."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


class Mismatch(Exception):
    """Two sizes that must be equal for an operator are not, or do not divide."""


class Dim:
    """One dim; after `unify` it may stand for another, or for several whose sizes multiply to its size.

    size 0: not known from the trace, because a torch axis counts something else (slots of experts).
    """

    def __init__(self, size: int, name: str = ""):
        self.size = size
        self.name = name
        """A name that it must have, such as 'seq'."""
        self._stands_for: tuple[Dim, ...] | None = None

    def resolved(self) -> tuple[Dim, ...]:
        """The atomic dims that this dim is made of, outermost first."""
        if self._stands_for is None:
            return (self,)
        found = tuple(one for part in self._stands_for for one in part.resolved())
        self._stands_for = found
        return found

    def becomes(self, parts: Sequence[Dim]) -> None:
        assert self._stands_for is None and self not in parts
        if self.name and len(parts) != 1:
            raise Mismatch(f"dim {self.name} is taken apart")
        if len(parts) == 1 and self.name:
            if parts[0].name and parts[0].name != self.name:
                raise Mismatch(f"dim {self.name} meets dim {parts[0].name}")
            parts[0].name = self.name
        self._stands_for = tuple(parts)

    def __repr__(self) -> str:
        return f"{self.name or 'dim'}={self.size}"


Dims = tuple[Dim, ...]


def resolve(dims: Sequence[Dim]) -> Dims:
    return tuple(one for dim in dims for one in dim.resolved())


def size_of(dims: Sequence[Dim]) -> int:
    return prod(dim.size for dim in resolve(dims))


def same(left: Sequence[Dim], right: Sequence[Dim]) -> bool:
    """Whether two axes have the same dims in the same order; those of size 1 do not matter."""
    return [dim for dim in resolve(left) if dim.size != 1] == [dim for dim in resolve(right) if dim.size != 1]


def unify(left: Sequence[Dim], right: Sequence[Dim]) -> None:
    """Make two lists of dims one axis: from the left, equal sizes become one dim, a larger one is split.

    Raises Mismatch where they do not fit.
    """
    one, other = resolve(left), resolve(right)
    while one and other:
        a, b = one[0], other[0]
        if a.size > b.size:
            split(a, b.size)
        elif a.size < b.size:
            split(b, a.size)
        else:
            if a is not b:
                if a.size != 1 and (a in other or b in one):
                    raise Mismatch(f"it combines numbers with themselves in another order: {list(left)}, {list(right)}")
                keep, give = (b, a) if b.name and not a.name else (a, b)
                give.becomes((keep,))
            one, other = one[1:], other[1:]
        one, other = resolve(one), resolve(other)  # what a split or a join changed may come again
    rest = [dim for dim in (*one, *other) if dim.size != 1]
    if rest:
        raise Mismatch(f"{list(left)} is not {list(right)}")


def split(dim: Dim, outer: int) -> None:
    """Split an atomic dim into (a dim of size `outer`, the rest)."""
    if outer < 1 or dim.size % outer:
        raise Mismatch(f"{dim} does not divide into {outer}")
    dim.becomes((Dim(outer), Dim(dim.size // outer)))


def reshape(axes: Sequence[Sequence[Dim]], shape: Sequence[int]) -> tuple[Dims, ...]:
    """The dims of each axis after a reshape: the same elements in the same order. shape: size of each new axis.

    Dims of size 1 stay with the axis that they were in. Raises Mismatch where a dim would have to be cut across.
    """
    left = [(dim, i) for i, axis in enumerate(axes) for dim in resolve(axis)]
    found = [_take(left, size) for size in shape]
    if any(dim.size != 1 for dim, _ in left):
        raise Mismatch(f"{[list(axis) for axis in axes]} has more elements than {list(shape)}")
    if left and found:
        found[-1] = (*found[-1], *(dim for dim, _ in left))
    return tuple(found)


def _take(left: list[tuple[Dim, int]], size: int) -> Dims:
    """Take the outermost dims whose sizes multiply to `size` off the list, and return them; one is split if need be."""
    found: list[Dim] = []
    done = 1
    origin: int | None = None
    while left:
        dim, axis = left[0]
        if done == size:
            alone = origin is None and all(one.size == 1 for one, i in left if i == axis)
            if dim.size != 1 or not (axis == origin or alone):
                break
        elif size % (done * dim.size):
            needed = size // done
            if size % done or dim.size % needed:
                raise Mismatch(f"{dim} does not divide where an axis of {size} ends")
            split(dim, needed)
            left[:1] = [(part, axis) for part in dim.resolved()]
            continue
        found.append(dim)
        origin = axis
        done *= dim.size
        del left[0]
    if done != size:
        raise Mismatch(f"an axis of {size} has no dims to be made of")
    return tuple(found)
