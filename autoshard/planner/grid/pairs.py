"""Layouts that wait with each of their recompute sets: a pair is priced, with all cuts that are worth a look, when no
layout is known that is faster than its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from autoshard.backends.problem import Draft
from autoshard.backends.rules import Problem
from autoshard.cost.memory import living_bytes
from autoshard.cost.passes import unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import Unit
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.blocks_bytes import ROUNDING
from autoshard.planner.grid.bounds import after_any_cut_at_least_s, after_at_least_s
from autoshard.planner.grid.least_memory import PartsBytes, least_memory
from autoshard.planner.grid.table import CHUNK
from autoshard.planner.grid.whole import Priced, Whole
from autoshard.planner.grid.work_bounds import by_work_at_least_s
from autoshard.rows import pieces

FIRST, MORE = 1024, 2
"""So many pairs are looked at at first, then up to so many times as many as before."""
LEAST = 128
"""So many of one family are looked at together, if one is: fewer take hardly less time."""
NEAREST, MOST_IN_VAIN = 64, 8
"""So many are priced at once to find the one that needs least, and so many times in vain. Without a limit it were 95
times, and a third of a search, on a problem where none of them did."""


def pairs_at_least_s(whole: Whole) -> Array:
    """Seconds that no cut of a draft with one recompute set for all stages takes less than, in whatever memory, (draft,
    set): an entry for each of the sets that the drafts are priced under."""
    if whole.has_kinds:
        after_s = after_any_cut_at_least_s(whole.kind_counts, whole.states, whole.state)
    else:
        after_s = after_at_least_s(whole.fewest_blocks, whole.states, whole.state)
    every = np.arange(len(whole.count) * whole.num_sets)
    seconds = np.concatenate([_pipelines_at_least_s(whole, every[some]) for some in pieces(len(every), CHUNK)])
    found: Array = (seconds.reshape(-1, whole.num_sets) + after_s[:, None]) * (1 - ROUNDING)
    return found


def _pipelines_at_least_s(whole: Whole, pairs: Array) -> Array:
    """Seconds that no cut of some pairs takes less than, up to the last microbatch."""
    problem, family = whole.problem, whole.family
    draft, recompute = whole.pairs(pairs)
    per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    *parts, state = whole.parts_of(draft, recompute)
    block_s, *ends_s = (unit_work_s(part, unit, per_parameter) for part, unit in zip(parts, state[:3], strict=True))
    hop_s = whole.hop_s[draft] if family.pp > 1 else 0.0
    ends = ends_s[0], ends_s[1]
    forward_s = parts[0].forward_s
    return by_work_at_least_s(problem, family, whole.count[draft], block_s, ends, hop_s=hop_s, forward_s=forward_s)


def pairs_need_bytes(whole: Whole, draft: Array, recompute: Array, limit_bytes: float) -> Array:
    """Bytes that the fullest rank needs at least, whatever the cut is, by pair. draft, recompute: of each. limit_bytes:
    of memory on a rank."""
    problem, family, m = whole.problem, whole.family, whole.count[draft]
    _, first, last, state, blocks = whole.parts_and_kinds(draft, recompute)
    units = [*state.kinds.values()] if state.kinds else [state.block]
    # where a rank has several chunks, what its backward hands over is of one of them alone
    hands_all = float(family.num_virtual_stages == 1)

    def lives(count: float, ends: Sequence[Unit] = (), block: Unit = state.block) -> Array:
        handed_over = hands_all * count * block.handed_over
        living = living_bytes(count, handed_over, block, ends, problem.training.precision, owners=state.owners)
        return np.broadcast_to(sum(living[:3]), m.shape)

    def of_blocks(name: str) -> Array:
        return np.stack([getattr(block, name) for block in blocks])

    parts = PartsBytes(
        np.stack([lives(1.0, block=unit) for unit in units]),
        np.stack([lives(0.0, [end]) for end in (state.first, state.last)]),
        of_blocks("kept_bytes")[..., None],
        of_blocks("replay_bytes")[..., None],
        of_blocks("working_bytes"),
        of_blocks("weights_waiting_bytes"),
        np.max([end.kept_bytes + end.working_bytes for end in ((first, last) if family.pp == 1 else (last,))], axis=0),
        np.stack([first.kept_bytes, last.kept_bytes]),
        np.stack([first.weights_waiting_bytes, last.weights_waiting_bytes]),
        whole.hidden_bytes(draft),
    )
    needed: Array = least_memory(problem, family, m, parts, limit_bytes, limit_bytes * (1 + 2 * ROUNDING)).needed
    return needed * (1 - ROUNDING)


class _Left(NamedTuple):
    """Pairs of one family that wait, by rising bounds. numbers: as `Whole.pairs` has them."""

    whole: Whole
    numbers: Array
    least_s: Array


class _TooLarge(NamedTuple):
    """Pairs of one family none of whose cuts fits. needed_bytes: of each, at least."""

    whole: Whole
    numbers: Array
    needed_bytes: Array


class Pairs:
    """The pairs that wait. Mutable: each is priced once."""

    def __init__(self, problem: Problem, priced: Callable[[Priced], None] = lambda priced: None):
        """priced: called with those that are priced."""
        self.wholes: list[Whole] = []
        """Everything that was added."""
        self._limit_bytes, self._priced, self._at_once = problem.cluster.device.memory_bytes, priced, FIRST
        self._left: list[_Left] = []
        self._too_large: list[_TooLarge] = []

    def add(self, wholes: Iterable[Whole]) -> None:
        """Let all pairs of some families wait."""
        for whole in wholes:
            least_s = pairs_at_least_s(whole).ravel()
            order = np.argsort(least_s, kind="stable")
            self.wholes.append(whole)
            self._left.append(_Left(whole, order, least_s[order]))

    @property
    def next_s(self) -> float:
        """Seconds that those that wait take at least; infinite where none does."""
        return min((float(one.least_s[0]) for one in self._left), default=inf)

    @property
    def left(self) -> tuple[int, Draft | None]:
        """(how many wait, the draft that may be fastest)."""
        if not self._left:
            return 0, None
        first = min(self._left, key=lambda one: float(one.least_s[0]))
        return sum(len(one.numbers) for one in self._left), _draft(first.whole, first.numbers[0])

    @property
    def too_large(self) -> tuple[int, Draft | None, float]:
        """(how many do not fit whatever the cut is, and are not priced; the draft that may need least; its bytes)."""
        if not self._too_large:
            return 0, None, inf
        first = min(self._too_large, key=lambda one: float(one.needed_bytes.min()))
        place = int(first.needed_bytes.argmin())
        draft = _draft(first.whole, first.numbers[place])
        return sum(len(one.numbers) for one in self._too_large), draft, float(first.needed_bytes[place])

    def price_more(self, below_s: float) -> list[Priced]:
        """Price some more of what may take no more than below_s, those with the lowest bounds first, as far as some cut
        may fit."""
        if not self._left:  # what was bounded last all holds too much
            return []
        every = np.concatenate([one.least_s for one in self._left])
        count = min(self._at_once, len(every)) - 1
        most_s = min(below_s, max(float(np.partition(every, count)[count]), self.next_s))
        self._at_once *= MORE
        found = list[Priced]()
        for place, (whole, numbers, least_s) in enumerate(self._left):
            if least_s[0] <= most_s:
                end = max(int(np.searchsorted(least_s, most_s, side="right")), LEAST)
                self._left[place] = _Left(whole, numbers[end:], least_s[end:])
                found += self._price(whole, np.sort(numbers[:end]))
        self._left = [one for one in self._left if len(one.numbers)]
        return found

    def price_nearest(self, known_bytes: Callable[[], float]) -> None:
        """Price those that do not fit as far as they may need less than what is known to, which is asked again when
        some are priced; where MOST_IN_VAIN times none of them did, the bound has to do."""
        least_bytes, in_vain = known_bytes(), 0
        while self.too_large[2] < least_bytes and in_vain < MOST_IN_VAIN:
            every = np.concatenate([one.needed_bytes for one in self._too_large])
            count = min(NEAREST, len(every))
            most_bytes = np.partition(every, count - 1)[count - 1]
            for place, (whole, numbers, needed_bytes) in enumerate(self._too_large):
                near = needed_bytes <= most_bytes
                if near.any():
                    self._priced(whole.price(*whole.pairs(numbers[near])))
                self._too_large[place] = _TooLarge(whole, numbers[~near], needed_bytes[~near])
            self._too_large = [one for one in self._too_large if len(one.numbers)]
            before_bytes, least_bytes = least_bytes, known_bytes()
            in_vain = 0 if least_bytes < before_bytes else in_vain + 1

    def _price(self, whole: Whole, numbers: Array) -> list[Priced]:
        found = list[Priced]()
        for rows in pieces(len(numbers), CHUNK):
            some = numbers[rows]
            needed = pairs_need_bytes(whole, *whole.pairs(some), self._limit_bytes)
            fit = needed <= self._limit_bytes
            if not fit.all():
                self._too_large.append(_TooLarge(whole, some[~fit], needed[~fit]))
            if fit.any():
                found.append(whole.price(*whole.pairs(some[fit])))
        for one in found:
            self._priced(one)
        return found


def _draft(whole: Whole, number: int) -> Draft:
    return whole.drafts.drafts[int(whole.pairs(np.array(number))[0])]
