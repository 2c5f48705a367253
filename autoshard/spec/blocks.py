"""The blocks of a model by their kinds: those of one kind are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, permutations


@dataclass(frozen=True)
class Blocks:
    """The blocks of a model. kind_of: for each block, the first one that is of its kind: 0 everywhere where blocks are
    alike."""

    kind_of: tuple[int, ...]

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The first block of each kind, in the model's order: (0,) where blocks are alike."""
        return tuple(dict.fromkeys(self.kind_of))

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many blocks are of each of the `kinds`."""
        return tuple(count for _, count in self.kind_counts(0, len(self.kind_of)))

    @cached_property
    def in_order(self) -> frozenset[tuple[int, int]]:
        """(kind, other) of all pairs of kinds of which some block of the other one is behind some block of the kind."""
        last = {kind: layer for layer, kind in enumerate(self.kind_of)}
        return frozenset((kind, other) for kind, other in permutations(self.kinds, 2) if kind < last[other])

    @cached_property
    def neighbours(self) -> frozenset[tuple[int, int]]:
        """(kind, other) of all blocks and the ones directly behind them."""
        return frozenset(pairwise(self.kind_of))

    @cached_property
    def threes(self) -> frozenset[tuple[int, int, int]]:
        """The kinds of all three blocks in a row."""
        return frozenset(zip(self.kind_of, self.kind_of[1:], self.kind_of[2:], strict=False))

    @cached_property
    def later_neighbours(self) -> frozenset[tuple[int, int]]:
        """The `neighbours` that have a block of the other kind in front of both somewhere."""
        return frozenset((kind, other) for place, (kind, other) in enumerate(pairwise(self.kind_of)) if other < place)

    def kind_counts(self, first: int, stop: int) -> tuple[tuple[int, int], ...]:
        """(kind, how many of the blocks from `first` to before `stop` are of it) of each kind among them, in the order
        of `kinds`."""
        counts = Counter(self.kind_of[first:stop])
        return tuple((kind, counts[kind]) for kind in self.kinds if kind in counts)

    def kinds_behind(self, first: int, stop: int) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """(kind, `kind_counts` of the blocks behind the last one of that kind) of each kind among the blocks from
        `first` to before `stop`, in the order of `kinds`."""
        last = {kind: layer for layer, kind in enumerate(self.kind_of[first:stop], first)}
        return tuple((kind, self.kind_counts(last[kind] + 1, stop)) for kind in self.kinds if kind in last)


@lru_cache(maxsize=64)
def told_apart(blocks: Blocks, places: tuple[int, ...]) -> Blocks:
    """The blocks with those at some places of kinds of their own."""
    return blocks_of(zip(blocks.kind_of, (place in places for place in range(len(blocks.kind_of))), strict=True))


def blocks_of(said: Iterable[object]) -> Blocks:
    """The blocks of which these things are said, one for each: those of which the same is said are of one kind."""
    firsts: dict[object, int] = {}
    return Blocks(tuple(firsts.setdefault(kind, layer) for layer, kind in enumerate(said)))
