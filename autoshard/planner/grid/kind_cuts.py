"""Cuts of models whose blocks are of several kinds: a stage is what its own range of blocks is.

Candidates for pricing by the thousand are the even cut and those that balance the work of ranks and of stages; which of
all cuts is best is for the refinement to say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem, chunks_are_alike, ends_may_be_bare
from autoshard.layout.strategy import even_stage_layers
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.ranks import RankState
from autoshard.spec.blocks import Blocks

STEPS = 16
"""Parts of the mean block: layouts whose parts of the model agree to such a part get the same balanced cut."""


class KindCuts(NamedTuple):
    """The cuts of many layouts. different: blocks, (cut, virtual stage). which: by layout, its cut."""

    different: Array
    which: Array

    def of_stages(self, pp: int, vpp: int) -> Array:
        """Blocks by (virtual stage, layout)."""
        return self.different[self.which].T

    def kinds(self, blocks: Blocks) -> Array:
        """Blocks of each kind, (kind, virtual stage, layout)."""
        found: Array = kinds_of_stages(blocks, self.different.T)[..., self.which]
        return found

    def behind(self, blocks: Blocks, stages: slice) -> Array:
        """`kinds_behind` of some virtual stages, (kind, kind, stage, layout)."""
        layers = self.different.T
        ends = layers.cumsum(0)[stages]
        found: Array = kinds_behind(blocks, ends - layers[stages], ends)[..., self.which]
        return found

    def take(self, rows: Array) -> KindCuts:
        return self._replace(which=self.which[rows])

    def after_s(self, blocks: Blocks, pp: int, states: Sequence[RankState], places: Array) -> Array:
        """Seconds that follow the pipeline, by layout. states: of all meshes. places: by layout, that of its mesh."""
        if len(self.different) > 1 and (places == places[0]).all():  # cuts of one layout: most are new
            counts = kinds_of_stages(blocks, self.different.T)
            of_cuts = states[places[0]].after_cuts_s(counts.reshape(len(counts), -1, pp, len(self.different)).sum(1))
            return of_cuts[self.which]
        contents = [ranks_contents(blocks, tuple(cut), pp) for cut in self.different.tolist()]
        codes, inverse = np.unique(places * len(contents) + self.which, return_inverse=True)
        both = (divmod(code, len(contents)) for code in codes.tolist())
        seconds = [states[place].after_ranks_s(contents[cut]) for place, cut in both]
        return np.array(seconds)[inverse]


def kinds_of_stages(blocks: Blocks, layers: Array) -> Array:
    """How many blocks of each kind stages have, (kind, stage, ...). layers: of all stages, (stage, ...)."""
    ends, before = layers.cumsum(0), blocks_before(blocks)
    found: Array = before[:, ends] - before[:, ends - layers]
    return found


def kinds_behind(blocks: Blocks, begin: Array, end: Array) -> Array:
    """How many blocks of each kind are behind the last block of another kind in ranges of blocks, (that kind, kind,
    ...); all blocks of the range where that kind is not among them. begin, end: of the ranges, (...)."""
    before = blocks_before(blocks)
    last = np.array([np.maximum(behind[end], begin) for behind in _behind_last(blocks)])
    found: Array = before[:, end] - before[:, last].swapaxes(0, 1)
    return found


@lru_cache(maxsize=32)
def most_behind(blocks: Blocks) -> Array:
    """How many blocks of each kind are behind the last block of another kind at most, in any range of blocks, (that
    kind, kind)."""
    places, end = np.arange(len(blocks.kind_of)), len(blocks.kind_of)
    of_kinds = [places[np.array(blocks.kind_of) == kind] for kind in blocks.kinds]
    found: Array = np.array(
        [
            kinds_behind(blocks, of_kind, np.append(of_kind[1:], end))[kind].max(1)
            for kind, of_kind in enumerate(of_kinds)
        ]
    )
    return found


@lru_cache(maxsize=32)
def _behind_last(blocks: Blocks) -> Array:
    """The place behind the last block of each kind before each block, 0 for none, (kind, block); the last entry is for
    the model's end."""
    is_kind = np.array(blocks.kind_of)[None] == np.array(blocks.kinds)[:, None]
    places = np.maximum.accumulate(is_kind * np.arange(1, len(blocks.kind_of) + 1), axis=1)
    return np.hstack([np.zeros((len(blocks.kinds), 1), dtype=int), places])


@lru_cache(maxsize=32)
def blocks_before(blocks: Blocks) -> Array:
    """How many blocks of each kind come before each block, (kind, block); the last entry counts all."""
    is_kind = np.array(blocks.kind_of)[None] == np.array(blocks.kinds)[:, None]
    return np.hstack([np.zeros((len(blocks.kinds), 1), dtype=int), is_kind.cumsum(1)])


@lru_cache(maxsize=4096)
def ranks_contents(blocks: Blocks, cut: tuple[int, ...], pp: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """(blocks of each kind, rank) of each pipeline rank; of ranks between the ends that are alike the first one. cut:
    blocks of each virtual stage."""
    of_stages = kinds_of_stages(blocks, np.array(cut)).reshape(len(blocks.kinds), -1, pp)
    of_ranks = map(tuple, of_stages.sum(1).T.tolist())
    alike: dict[object, tuple[tuple[int, ...], int]] = {}
    for rank, counts in enumerate(of_ranks):
        alike.setdefault((counts, rank == 0, rank == pp - 1), (counts, rank))
    return tuple(alike.values())


def candidate_cuts(
    problem: Problem, pp: int, vpp: int, work_s: tuple[Sequence[Array], Array, Array]
) -> tuple[KindCuts, Array]:
    """(cuts, the layout that each belongs to): the even cut of all layouts, then of each those that balance ranks and,
    with several chunks a rank, stages, which wait for each other too.

    work_s: by layout, of a block of each kind, of the end on the first rank, of that on the last one.
    """
    blocks, stages, (blocks_s, first_s, last_s) = problem.blocks, pp * vpp, work_s
    count = len(first_s)
    even = even_stage_layers(len(blocks.kind_of), stages)
    everything = np.arange(count)
    if stages == 1 or (vpp > 1 and chunks_are_alike(problem)):
        return KindCuts(np.array([even]), np.zeros(count, dtype=int)), everything
    mean_s = np.array(blocks.counts) @ np.stack(blocks_s) / len(blocks.kind_of)
    shares = np.rint(STEPS * np.stack([*blocks_s, first_s, last_s]) / mean_s).astype(int)
    different, which = np.unique(shares, axis=1, return_inverse=True)
    bare, found = ends_may_be_bare(problem, pp, vpp), [even]
    for ranks in dict.fromkeys((pp, stages)):  # ranks, then stages as if each were one
        cut_of = partial(balanced_cut, blocks, ranks, stages // ranks, bare)
        found += [cut_of(tuple(column)) for column in different.T.tolist()]
    cuts, place = np.unique(found, axis=0, return_inverse=True)
    balanced = place.ravel()[1:].reshape(-1, different.shape[1])[:, which.ravel()]
    several, layouts = [np.full(count, place.ravel()[0])], [everything]
    for number, of_each in enumerate(balanced):
        differs = np.flatnonzero((of_each != several[0]) & (balanced[:number] != of_each).all(0))
        several.append(of_each[differs])
        layouts.append(differs)
    return KindCuts(cuts, np.concatenate(several)), np.concatenate(layouts)


@lru_cache(maxsize=4096)
def balanced_cut(blocks: Blocks, pp: int, vpp: int, bare: bool, work: tuple[int, ...]) -> tuple[int, ...]:
    """Blocks of each virtual stage, so that the slowest rank is fastest, and its chunks are as alike as blocks allow;
    stages behind are filled first, as they hold fewer microbatches. bare: whether the first and the last stage may have
    no block. work: of a block of each kind, of the end on the first stage, of that on the last one."""
    *kinds, first, last = work
    of_kind = dict(zip(blocks.kinds, kinds, strict=True))
    of_blocks = [of_kind[kind] for kind in blocks.kind_of][::-1]
    before = [0, *accumulate(of_blocks)]
    # ranks have the mean at least, ends of the model left out; filled up to a block more than that, they hold all
    mean = -(-before[-1] // pp)
    largest = max(of_blocks)
    low, high = max(largest, mean) - 1, mean + largest + first + last
    others = first, last, largest
    found: tuple[int, ...] | None = None
    while high - low > 1:
        middle = (low + high) // 2
        cut = _filled(before, pp, vpp, bare, middle, *others)
        low, high, found = (middle, high, found) if cut is None else (low, middle, cut)
    found = found or _filled(before, pp, vpp, bare, high, *others)
    assert found is not None, "all blocks fit the last limit"
    return found


def _filled(
    before: Sequence[int], pp: int, vpp: int, bare: bool, most: int, first: int, last: int, largest: int
) -> tuple[int, ...] | None:
    """Blocks of each stage, one at least but for `bare` ends, where no rank with more than that works more than `most`;
    None where there is no such cut. before: work of all blocks before each one and of all together, the last block
    first. largest: work of the block with most."""
    cut, place, count = [], 0, len(before) - 1
    left, fewest_of_ends = [most] * pp, 0 if bare else 1
    ends = {0: first, pp * vpp - 1: last}
    for stage in range(pp * vpp - 1, -1, -1):  # the inner loop of all balanced cuts
        chunk, rank = divmod(stage, pp)
        begin, end, in_front = place, ends.get(stage, 0), stage - 1 + fewest_of_ends if stage else 0
        share = (left[rank] + chunk * largest) // (chunk + 1)  # rounded up to blocks: this chunk holds least
        place = bisect_right(before, before[begin] + share - end, begin) - 1
        place = min(max(place, begin + (fewest_of_ends if stage in ends else 1)), count - in_front)
        left[rank] -= before[place] - before[begin] + end
        cut.append(place - begin)
    return tuple(reversed(cut)) if place == count else None
