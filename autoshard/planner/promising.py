"""The layouts of a problem that are worth a look when one of its numbers changes: few, and of every kind.

Taken is the fastest of each mesh, size of microbatch, number of chunks and schedule, by what it takes with the best cut
and recompute set that all stages share: a search may pass over a faster schedule that is not known to run. They need
not hold the fastest of another problem: who looks at these alone has to say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from autoshard.backends.problem import Draft
from autoshard.layout.strategy import Strategy
from autoshard.planner.bounded import Bounded
from autoshard.planner.priced import PricedLayouts

MANY = 600
"""Of so many layouts, but for recompute sets, all are worth a look."""
WAYS = 1_000
"""So many ways to use a mesh are looked at for this, beside those that the search looked at."""
BOUNDED, OF_MESH = 600, 5
"""Layouts that are priced for this, those with the lowest bounds: of all, and of each mesh."""
FASTEST, SLOWER = 16, 2.0
"""So many of the fastest are taken whatever their kind, and none that takes so many times as long as the first."""
MEMORIES = (1.0, 0.5)
"""Shares of a device's memory with which each layout is looked at."""


def promising(priced: PricedLayouts) -> frozenset[Draft] | None:
    """The promising ones of layouts that a search has priced or bounded, some of which are priced for it, without the
    order of their axes; None where all are."""
    waiting, capacity = priced.waiting, priced.problem.cluster.device.memory_bytes
    assert waiting is not None
    next(priced.fastest_first(capacity), None)  # the first are bounded and priced
    left = sum(len(one.schedules) for one in waiting.left)
    if left + sum(len(whole.drafts.drafts) for whole in priced.wholes) <= MANY:
        return None
    waiting.bound_more(WAYS)
    waiting.price_these([*_lowest(waiting.bounded)])
    return frozenset(any_order(draft) for share in MEMORIES for draft in _fastest(priced, share * capacity))


def any_order(draft: Draft) -> Draft:
    """The layout without the order of its axes."""
    return draft._replace(axis_order=())


def drafts_of(strategies: Iterable[Strategy]) -> Iterator[Draft]:
    """The layouts without the order of their axes, their cuts and what they recompute."""
    for one in strategies:
        yield Draft.of(one)._replace(stage_layers=(), axis_order=())


def _lowest(bounded: list[Bounded]) -> Iterator[Bounded]:
    """The layouts with the lowest bounds, of all and of each mesh. bounded: by rising bounds."""
    of_mesh: Counter[tuple[int, ...]] = Counter()
    for place, one in enumerate(bounded):
        mesh = one.layouts.way[:5]
        of_mesh[mesh] += 1
        if place < BOUNDED or of_mesh[mesh] <= OF_MESH:
            yield one


def _fastest(priced: PricedLayouts, limit_bytes: float) -> Iterator[Draft]:
    """The fastest of all and of each kind, among those that need no more than the limit."""
    step_s: dict[Draft, float] = {}
    for chunk in priced.chunks:
        drafts = chunk.whole.drafts.drafts
        least_s = np.full(len(drafts), np.inf)
        fits = chunk.memory_bytes <= limit_bytes
        np.minimum.at(least_s, chunk.draft[fits], chunk.step_time_s[fits])
        step_s.update((drafts[place], float(least_s[place])) for place in np.flatnonzero(np.isfinite(least_s)).tolist())
    known: set[tuple[object, ...]] = set()
    for place, draft in enumerate(sorted(step_s, key=step_s.__getitem__)):
        if place == 0:
            most_s = SLOWER * step_s[draft]
        if step_s[draft] > most_s:
            return
        kind = (*draft[:5], draft.microbatch_size, draft.num_virtual_stages, draft.schedule)
        if place < FASTEST or kind not in known:
            known.add(kind)
            yield draft
