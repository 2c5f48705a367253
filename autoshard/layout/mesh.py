"""The logical mesh: pipeline outside, then the stage's ordered axes, the last one varying fastest over ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod


@dataclass(frozen=True)
class Axis:
    """name: 'dp', 'ep', 'cp', 'tp'; or 'tp1' and 'tp0' where tensor parallelism exceeds the KV heads."""

    name: str
    size: int


@dataclass(frozen=True)
class Mesh:
    """rank = ((pp * axes[0] + i0) * axes[1] + i1) ...: NxD's order [PP, DP, CP, TP].

    The order decides which links an axis crosses: tp neighbours share a chip, dp neighbours are nodes apart.
    """

    pp: int
    axes: tuple[Axis, ...]

    @property
    def stage_size(self) -> int:
        """Ranks of one pipeline stage."""
        return prod(axis.size for axis in self.axes)

    @property
    def world_size(self) -> int:
        """Ranks of the whole mesh."""
        return self.pp * self.stage_size

    @property
    def stage_axes(self) -> dict[str, int]:
        """Axes that split something, as the graph wants them; size-1 axes have no collectives and are left out."""
        return {axis.name: axis.size for axis in self.axes if axis.size > 1}

    def size(self, names: Iterable[str]) -> int:
        """Ranks along the named stage axes together; a name that is none of them counts as 1."""
        wanted = set(names)
        return prod(axis.size for axis in self.axes if axis.name in wanted)

    def coordinates(self, rank: int) -> tuple[int, dict[str, int]]:
        """(pipeline rank, index along every stage axis)."""
        index: dict[str, int] = {}
        pp, rest = divmod(rank, self.stage_size)
        for axis in reversed(self.axes):
            rest, index[axis.name] = divmod(rest, axis.size)
        return pp, {axis.name: index[axis.name] for axis in self.axes}

    def rank(self, pp: int, index: dict[str, int]) -> int:
        """The inverse of `coordinates`; an axis that index leaves out stands at 0."""
        position = pp
        for axis in self.axes:
            position = position * axis.size + index.get(axis.name, 0)
        return position

    def groups(self, names: Iterable[str]) -> list[list[int]]:
        """Ranks that differ only along the named axes ('pp' may be one), each group in mesh order."""
        wanted = set(names)
        sizes = [("pp", self.pp), *((axis.name, axis.size) for axis in self.axes)]
        members: dict[tuple[int, ...], list[int]] = {}
        for rank, position in enumerate(product(*(range(size) for _, size in sizes))):
            key = tuple(i for i, (name, _) in zip(position, sizes, strict=True) if name not in wanted)
            members.setdefault(key, []).append(rank)
        return list(members.values())


def build_mesh(tp: int, pp: int, dp: int, cp: int, ep: int, num_key_value_heads: int, kv_inner: bool = True) -> Mesh:
    """The mesh of a strategy.

    dp counts all replicas; with ep > 1 its inner part is the axis 'ep' and 'dp' is what is left.
    tp beyond the KV heads becomes two axes: tp0 splits the KV heads, tp1 the query heads that share one, and keys and
    values are replicated over tp1. kv_inner puts tp0 innermost: NxD's order on trn1 (rank r holds KV block
    r % num_key_value_heads); on trn2 it is outermost (r // multiplier).
    """
    axes = [Axis("dp", dp // ep)]
    if ep > 1:
        axes.append(Axis("ep", ep))
    axes.append(Axis("cp", cp))
    if tp > num_key_value_heads:
        split, replicated = Axis("tp0", num_key_value_heads), Axis("tp1", tp // num_key_value_heads)
        axes += [replicated, split] if kv_inner else [split, replicated]
    else:
        axes.append(Axis("tp", tp))
    return Mesh(pp, tuple(axes))


TENSOR_PARALLEL_AXES = ("tp", "tp0", "tp1")
DATA_AXES = ("dp", "ep")
"""Axes that split the batch."""
ZERO_AXES = ("dp", "ep", "cp")
"""Axes over which the ranks that sum a gradient share what ZeRO shards (layout/strategy.py)."""
