"""Cuts and recompute sets of one layout whose blocks are of several kinds, whatever its schedule: priced as all layouts
are, so that whatever the cost model counts counts here. Steps lead down from good choices; only a bound is proven."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf

import numpy as np

from autoshard.cost.passes import unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_any_cut_at_least_s
from autoshard.planner.grid.kind_cuts import KindCuts
from autoshard.planner.grid.price import Layouts, memory_bytes, step_times_s
from autoshard.planner.grid.whole import Whole
from autoshard.planner.grid.work_bounds import by_work_at_least_s
from autoshard.rows import pieces

MOST_ROUNDS = 40
"""Rounds in which a block is moved or a set changed."""
AT_ONCE = 1 << 15
"""So many stages, of all choices, are priced together: their columns take some tens of MB."""


def kinds_at_least_s(whole: Whole, draft: Array, limit_bytes: float = inf, replayed_s: Array | float = 0.0) -> Array:
    """Seconds of a step, at least, by draft, whatever its cut and the sets of its stages are. Where chunks must have as
    many blocks, there is one cut: its time and its memory are priced as if each stage had the least of all sets.

    replayed_s: what all blocks together replay for one microbatch, at least.
    """
    at_least_s = _by_work_at_least_s(whole, draft, replayed_s)
    return at_least_s if whole.moves_blocks else np.maximum(at_least_s, _evenly_at_least_s(whole, draft, limit_bytes))


def _evenly_at_least_s(whole: Whole, draft: Array, limit_bytes: float) -> Array:
    """Seconds of a step with the even cut, at least, by draft, as if each stage had the least of all sets; infinite
    where that does not fit."""
    family, layers = whole.family, whole.problem.model.num_hidden_layers
    even = even_stage_layers(layers, family.pp * family.num_virtual_stages)
    layouts = whole.layouts(draft, None, KindCuts(np.array([even]), np.zeros(len(draft), dtype=int)))
    fits = memory_bytes(whole.problem, family, layouts) <= limit_bytes
    return np.where(fits, step_times_s(whole.problem, family, layouts), inf)


def _by_work_at_least_s(whole: Whole, draft: Array, replayed_s: Array | float) -> Array:
    problem, family, m = whole.problem, whole.family, whole.count[draft]
    device = problem.cluster.device
    per_parameter = accumulation_s_per_parameter(problem.training.precision, device)
    block, first, last, state = whole.least_parts_of(draft)
    block_s, first_s, last_s = (
        unit_work_s(part, unit, per_parameter)
        for part, unit in ((block, state.block), (first, state.first), (last, state.last))
    )
    block_s = block_s + replayed_s / problem.model.num_hidden_layers
    seconds = by_work_at_least_s(problem, family, m, block_s, (first_s, last_s), whole.hop_s[draft])
    after_s = after_any_cut_at_least_s(whole.kind_counts, whole.states, whole.state[draft])
    found: Array = seconds + after_s
    return found


class KindChoices:
    """All cuts and sets of one draft: (blocks of each virtual stage, then the place of its set)."""

    rounds, turns, lists_all = MOST_ROUNDS, 1, False

    def __init__(self, whole: Whole, draft: int, sets: Sequence[int], limit_bytes: float):
        self._whole, self._draft, self._sets, self._limit_bytes = whole, draft, np.array(sets), limit_bytes
        self._stages = whole.family.pp * whole.family.num_virtual_stages
        self._fewest = np.ones(self._stages, dtype=int)
        if whole.bare_ends:
            self._fewest[[0, -1]] = 0

    @cached_property
    def at_least_s(self) -> float:
        """Seconds that no choice takes less than."""
        return float(kinds_at_least_s(self._whole, np.array([self._draft]), self._limit_bytes)[0])

    def starts(self) -> list[Array]:
        """The fastest of the choices that are priced anyway, with one set for all stages; where none of these fits one
        that steps down in memory lead to, if any."""
        cuts, which = self._whole.cuts(np.full(len(self._sets), self._draft), self._sets)
        of_stages = cuts.of_stages(self._whole.family.pp, self._whole.family.num_virtual_stages).T
        choices = np.hstack([of_stages, np.repeat(which[:, None], self._stages, axis=1)])
        bounds_s = self.bounds_s(choices)
        return [choices[bounds_s.argmin()]] if np.isfinite(bounds_s).any() else self._made_to_fit(choices)

    def _made_to_fit(self, choices: Array) -> list[Array]:
        """A choice that fits, from the one of these that needs least memory, while each step needs less; else none."""
        least_bytes = inf
        for _ in range(self.rounds):
            needed_bytes = self._memory_bytes(self._layouts(choices))
            place = needed_bytes.argmin()
            if needed_bytes[place] <= self._limit_bytes:
                return [choices[place]]
            if needed_bytes[place] >= least_bytes:
                break
            least_bytes, choices = needed_bytes[place], self.neighbours(choices[place], 0)
        return []

    def neighbours(self, choice: Array, turn: int) -> Array:
        """Choices with another set in one stage, or with one block moved from one stage that can spare it to
        another."""
        stages, found = self._stages, []
        for stage in range(stages):
            for place in range(len(self._sets)):
                found.append(choice.copy())
                found[-1][stages + stage] = place
        for source in range(stages) if self._whole.moves_blocks else ():
            for target in range(stages) if choice[source] > self._fewest[source] else ():
                found.append(choice.copy())
                found[-1][source] -= 1
                found[-1][target] += 1
        return np.array(found)

    def all_below(self, limit_s: float) -> tuple[Array, bool] | None:
        """Too many to look at."""
        return None

    def _layouts(self, choices: Array) -> Layouts:
        layers, places = choices[:, : self._stages], choices[:, self._stages :]
        cuts = KindCuts(layers, np.arange(len(layers)))
        return self._whole.layouts(np.full(len(layers), self._draft), self._sets[places.T], cuts)

    def _memory_bytes(self, layouts: Layouts) -> Array:
        """Bytes on the fullest rank, by choice."""
        return memory_bytes(self._whole.problem, self._whole.family, layouts)

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        """Seconds that steps take at least, by choice; infinite where a choice does not fit. below_s: of choices that
        take no less it is not asked whether they fit."""
        some = (choices[rows] for rows in pieces(len(choices), AT_ONCE // self._stages))
        return np.concatenate([self._bounds_s(several, below_s) for several in some])

    def _bounds_s(self, choices: Array, below_s: float) -> Array:
        """`bounds_s` of choices that are few enough to look at together."""
        whole, layouts = self._whole, self._layouts(choices)
        seconds = step_times_s(whole.problem, whole.family, layouts)
        asked = np.flatnonzero(seconds < below_s)
        if len(asked):
            of_asked = layouts if len(asked) == len(seconds) else self._layouts(choices[asked])
            fits = self._memory_bytes(of_asked) <= self._limit_bytes
            seconds[asked[~fits]] = inf
        return seconds

    def simulated_s(self, choices: Array) -> Array:
        """Seconds of a step, by choice; all of them fit."""
        return step_times_s(self._whole.problem, self._whole.family, self._layouts(choices), exact=True)

    def strategy(self, choice: Array) -> Strategy:
        """The layout with this choice."""
        names = [self._whole.sets[self._sets[place]] for place in choice[self._stages :]]
        return self._whole.strategy(self._draft, names, choice[: self._stages].tolist())
