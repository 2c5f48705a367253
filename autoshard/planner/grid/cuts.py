"""How many blocks each pipeline stage gets, for many layouts at once: five numbers say it all.

A cut gives stage 0 `first` blocks, the last one `last`, those between `base`, and `extra` of them from `begin` on one
more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.layout.strategy import even_cut
from autoshard.planner.grid.arrays import Array

SLACK = 1e-9
"""Blocks by which two stages count as equally fast."""


class Cuts(NamedTuple):
    """The cuts of many layouts, an entry for each: blocks of stages, as the five numbers above."""

    first: Array
    last: Array
    base: Array
    begin: Array
    extra: Array

    def layers(self, pp: int) -> Array:
        """How many blocks each stage has, (stage, layout). pp: stages."""
        stage = np.arange(pp)[:, None]
        layers = self.base + ((self.begin <= stage) & (stage < self.begin + self.extra))
        layers[-1] = self.last
        layers[0] = self.first
        return layers

    def of_stages(self, pp: int, vpp: int) -> Array:
        """Blocks by (virtual stage, layout); (1, layout) with several chunks a rank, which all have as many."""
        return self.layers(pp) if vpp == 1 else self.base[None]

    def written_once(self, pp: int) -> Cuts:
        """The same cuts, with equal numbers where two are equal."""
        begin, end = np.maximum(self.begin, 1), np.minimum(self.begin + self.extra, pp - 1)
        extra = np.maximum(end - begin, 0)
        base = np.where(pp <= 2, 0, self.base + ((extra > 0) & (extra == pp - 2)))
        extra = np.where(extra == pp - 2, 0, extra)
        return Cuts(self.first, self.last, base, np.where(extra == 0, 1, begin), extra)

    @property
    def most_between(self) -> Array:
        """The most blocks of a stage that is neither first nor last, by layout."""
        return self.base + (self.extra > 0)

    def take(self, rows: Array) -> Cuts:
        return Cuts(*(column[rows] for column in self))


def even_cuts(num_layers: int, pp: int, count: int) -> Cuts:
    """The cut of layout.strategy.even_stage_layers, `count` times."""
    base, begin, extra = even_cut(num_layers, pp)
    at_ends = [base + (begin <= stage < begin + extra) for stage in (0, pp - 1)]
    cuts = Cuts(*(np.full(count, number) for number in (*at_ends, base, begin, extra)))
    return cuts.written_once(pp)


def balanced_cuts(num_layers: int, pp: int, embedding: Array, head: Array, early: bool, bare: bool = False) -> Cuts:
    """The cuts whose slowest stage is fastest; pp is at least 2.

    All stages are filled up to one level. Then the stage that is fastest with one more block gets one, and so on.

    embedding, head: work of the ends of the model, by layout, in blocks. early: of equal stages those in front get
    more, which shortens the way through the pipeline; else those behind, which hold fewer microbatches. bare: whether
    the first stage and the last may have no blocks.
    """
    between, fewest = pp - 2, 0 if bare else 1

    def filled(level: Array) -> tuple[Array, Array]:
        first, last = (np.maximum(fewest, np.floor(level - end + SLACK)) for end in (embedding, head))
        return first, last

    base = np.floor((num_layers + embedding + head) / pp) + 1
    first, last = filled(base)
    while (over := (between * base + first + last > num_layers) & (base > 1)).any():
        base = base - over
        first, last = filled(base)
    rest = num_layers - between * base - first - last
    next_first, next_last = first + 1 + embedding, last + 1 + head
    first_may, last_may = next_first <= base + 1 + SLACK, next_last <= base + 1 + SLACK
    last_is_faster = next_last <= next_first + SLACK
    first_gets = first_may & (rest >= 1 + (last_may & last_is_faster))
    if not early:  # stages between come before one that is no faster in front of them
        first_gets &= (next_first < base + 1 - SLACK) | (rest > between + last_may)
    last_gets = last_may & (rest >= 1 + (first_gets & ~last_is_faster))
    first, last, rest = first + first_gets, last + last_gets, rest - first_gets - last_gets
    begin = np.ones_like(rest) if early else pp - 1 - rest
    return Cuts(*(column.astype(int) for column in (first, last, base, begin, rest))).written_once(pp)
