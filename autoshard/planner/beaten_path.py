"""Layouts whose every feature is known to have run: which they are, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import exp
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from autoshard.backends.problem import Draft, Problem
from autoshard.cost.interval import CHOICE_WORDS, difference_factors, surprise, toss_up, unlike_measured
from autoshard.cost.local_shape import local_shape
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.planner.ranking import Timed, describe
from autoshard.plans.search_result import Pins
from autoshard.precedents.graph_size import GraphSize, graph_size, size_of
from autoshard.precedents.runs import INSIDE, BeatenPath, beaten_path, packaged, pipeline_place
from autoshard.units import slower_text, slower_than

if TYPE_CHECKING:
    from autoshard.planner.grid.arrays import Array
    from autoshard.planner.grid.whole import Priced

OFF = "off the beaten path"
MOST_LOOKED_AT = 50
"""Layouts with known degrees whose graphs are looked at."""
GIVEN_AWAY = 0.10
"""Share of the expected step that is given away for a layout on the path, at most. On GPU results with features left
out of the fit, picks that keep to the others gain on average up to here, and lose where a whole toss-up may be given
away (`benchmarks.path_surprise`)."""
PINNED = {
    "tp": "tp",
    "cp": "cp",
    "ep": "ep",
    "num_virtual_stages": "num_virtual_stages",
    "microbatch_size": "microbatch_size",
    "recompute": "recompute",
    "pp": "pipeline",
}
"""By pin, the feature that it decides."""


@dataclass(frozen=True)
class Precedent:
    """The beaten path of a problem. excused: features that the user pinned, which are not held against a layout."""

    problem: Problem
    path: BeatenPath
    excused: frozenset[str] = frozenset()
    _fits: dict[tuple[object, ...], bool] = field(default_factory=dict, compare=False, repr=False)

    def unknown(self, strategy: Strategy) -> tuple[str, ...]:
        """The features of a layout that nobody is known to have run, in words; none of those that are pinned."""
        s, words = strategy, []
        for name, word in CHOICE_WORDS.items():
            if not self._has(name, value := getattr(s, name)):
                words.append(f"{word}={value}")
        if not self._has("pipeline", place := self._place(s)):
            words.append("a pipeline inside a node" if place == INSIDE else f"pipeline: {place}")
        sets = [one for one in dict.fromkeys(s.recompute) if not self._has("recompute", one)]
        if sets:
            more = f" and {len(sets) - 1} more" if len(sets) > 1 else ""
            words.append(f"recompute={min(sets, key=len)}{more}")
        if beyond := self.graph(s).beyond(self.path.largest_graph):
            words.append(f"a graph of {' and '.join(beyond)}")
        return tuple(words)

    def known(self, strategy: Strategy) -> bool:
        """Whether nothing of a layout is unknown."""
        return not self.unknown(strategy)

    def graph(self, strategy: Strategy) -> GraphSize:
        """The largest graph of a layout."""
        return graph_size(*self.problem[:3], strategy)

    def draft_is_known(self, draft: Draft) -> bool:
        """Whether nothing of a draft is unknown, whatever it recomputes, where its blocks are cut evenly."""
        degrees = ("tp", "cp", "ep", "microbatch_size", "num_virtual_stages")
        if not all(self._has(name, getattr(draft, name)) for name in degrees):
            return False
        if not self._has("pipeline", self._place(draft)):
            return False
        shape, layers = local_shape(draft), self.problem.model.num_hidden_layers
        stages = even_stage_layers(layers, draft.pp * draft.num_virtual_stages)
        key = (shape, len(stages))
        if key not in self._fits:
            size = size_of(*self.problem[:3], shape, draft.pp, stages)
            self._fits[key] = not size.beyond(self.path.largest_graph)
        return self._fits[key]

    def set_is_known(self, recompute: str) -> bool:
        """Whether a recompute set has run."""
        return self._has("recompute", recompute)

    def rows(self, priced: Priced) -> Array:
        """By layout of some that are priced together, whether its draft and its set are known."""
        whole = priced.whole
        sets = np.array([self.set_is_known(one) for one in whole.sets])
        first, last = (int(priced.draft.min()), int(priced.draft.max())) if len(priced.draft) else (0, -1)
        drafts = np.array([self.draft_is_known(one) for one in whole.drafts.drafts[first : last + 1]], bool)
        found: Array = drafts[priced.draft - first] & sets[priced.recompute]
        return found

    def _has(self, name: str, value: int | str) -> bool:
        return name in self.excused or value in self._values[name]

    @cached_property
    def _values(self) -> dict[str, frozenset[int | str]]:
        return self.path.values

    def _place(self, layout: Strategy | Draft) -> str:
        return pipeline_place(layout, self.problem.cluster.devices_per_node)


def precedent(problem: Problem, pins: Pins) -> Precedent | None:
    """The beaten path of a problem; None where nothing is published for its devices and backend, and for nodes of one
    chip: the runs are those of nodes with several.

    Where the path is the rule, a pin excuses nothing.
    """
    cluster = problem.cluster
    path = beaten_path(cluster.platform.name, problem.backend)
    if path is None or cluster.devices_per_node == cluster.devices_per_chip:
        return None
    excused = () if pins.beaten_path else (PINNED[name] for name in pins.fixed if name in PINNED)
    return Precedent(problem, path, frozenset(excused))


def check_path(problem: Problem, pins: Pins) -> None:
    """Raises AutoshardError where the path is to be the rule and there is none, or a pin leaves it."""
    if not pins.beaten_path:
        return
    found = precedent(problem, pins)
    if found is None:
        paths = ", ".join(one.name for one in packaged().paths)
        raise AutoshardError(
            f"beaten_path: no published runs of {problem.cluster.instance} with backend {problem.backend} are known; "
            f"there are some of: {paths}"
        )
    for name, feature in PINNED.items():
        value = getattr(pins, name)
        known = found.path.values[feature]
        if name != "pp" and value is not None and value not in known:
            every = ", ".join(map(str, sorted(known)))
            raise AutoshardError(f"{name}={value} is off the beaten path of {found.path.name}, which has: {every}")


def best_on_path(found: Precedent, fastest: Sequence[Timed], others: Iterator[Timed]) -> Timed | None:
    """The fastest layout on the path, of two lists that are fastest first; None where there is none."""
    best = next((one for one in fastest if found.known(one.strategy)), None)
    other = next((one for one in islice(others, MOST_LOOKED_AT) if found.known(one.strategy)), None)
    if best is None or (other is not None and other.step_time_s < best.step_time_s):
        return other
    return best


def new_choices(problem: Problem, strategy: Strategy, found: Precedent | None = None) -> tuple[str, ...]:
    """The choices of a layout that no result has or, where there is a path, that nobody is known to have run. found:
    the path of the problem, if that is known."""
    path = found or precedent(problem, Pins())
    run = () if path is None else path.unknown(strategy)
    return tuple(dict.fromkeys((*unlike_measured(problem.cluster, strategy), *run)))


def longer(found: Precedent, strategy: Strategy) -> float:
    """How many times longer than predicted a pick is expected to take for what is new of it."""
    return exp(surprise(new_choices(found.problem, strategy, found)) - surprise(()))


def expected_fastest(found: Precedent, chosen: Timed, others: Iterable[Timed]) -> Timed:
    """The layout off the path that is expected to take least: the chosen one, or another of which less is new."""
    most = longer(found, chosen.strategy)
    expected = [
        (more * one.step_time_s, one)
        for one in others
        if (more := longer(found, one.strategy)) < most and not found.known(one.strategy)
    ]
    return min([(most * chosen.step_time_s, chosen), *expected], key=itemgetter(0))[1]


def wins(found: Precedent, chosen: Timed, best: Timed | None) -> bool:
    """Whether the best layout on the path is taken in place of the chosen one: where it is expected to be as fast, and
    where either may be the faster one and it gives away no more than GIVEN_AWAY of what is expected."""
    if best is None or best.strategy == chosen.strategy or found.known(chosen.strategy):
        return False
    chosen_s, best_s = (one.step_time_s * longer(found, one.strategy) for one in (chosen, best))
    if best_s > (1 + GIVEN_AWAY) * chosen_s:
        return False
    return best_s <= chosen_s or toss_up(found.problem.cluster, chosen.strategy, chosen_s, best.strategy, best_s)


def off_path(found: Precedent, unknown: Sequence[str]) -> str:
    """A sentence without its end on what follows from unknown features of a layout. unknown: these, in words."""
    return (
        f"nobody is known to have run {', '.join(unknown)} on {found.path.name}: it may not compile, or not be as fast "
        "as predicted"
    )


def path_notes(found: Precedent, taken: Timed, best: Timed | None, left: Timed | None) -> Iterator[str]:
    """Sentences on what of a layout is off the path, the best layout on it, and what to do about a large graph.

    taken: the layout of the plan. best: on the path. left: the faster one that was passed over for it, if one was.
    """
    where, cluster = found.path.name, found.problem.cluster
    unknown = found.unknown(taken.strategy)
    if left is not None and not unknown:
        slower = slower_than(taken.step_time_s / left.step_time_s)
        features, more = ", ".join(found.unknown(left.strategy)), longer(found, left.strategy) - 1
        yield (
            f"beaten path: the chosen layout has only features of {found.path.results} published results on {where}; "
            f"it is predicted {slower} {describe(left.strategy)}, less than the model can tell, of "
            f"which nobody is known to have run {features}: such picks are expected to take {100 * more:.1f} % longer "
            f"than predicted, and up to {100 * GIVEN_AWAY:.0f} % more are given away; pins take it all the same"
        )
        return
    if not unknown:
        return
    beside = f"{'with what is pinned ' if found.excused else ''}no layout of known features fits as surely"
    if best is not None:
        low, high = difference_factors(cluster, taken.strategy, best.strategy)
        ratio = best.step_time_s / taken.step_time_s
        expected = ratio * longer(found, best.strategy) / longer(found, taken.strategy)
        too_much = expected > 1 + GIVEN_AWAY
        but = f", more than the {100 * GIVEN_AWAY:.0f} % that are given away for it" if too_much else ""
        beside = (
            f"the best layout on the path, {describe(best.strategy)}, is predicted {slower_text(ratio)} "
            f"(90 %: {100 * (low * ratio - 1):+.1f}% to {100 * (high * ratio - 1):+.1f}%){but}; "
            "--beaten-path takes it"
        )
    yield f"beaten path: {off_path(found, unknown)}; {beside}"
    if left is not None:
        ratio = left.step_time_s / taken.step_time_s
        expected = ratio * longer(found, left.strategy) / longer(found, taken.strategy)
        yield (
            f"beaten path: {describe(left.strategy)} is predicted {slower_text(ratio)}, but nobody is "
            f"known to have run {', '.join(found.unknown(left.strategy))}: it is expected to take "
            f"{100 * (expected - 1):.1f} % longer than the chosen layout; pins take it all the same"
        )
    size = found.graph(taken.strategy)
    if size.beyond(found.path.largest_graph):
        yield _large_graph(found, size)


def _large_graph(found: Precedent, size: GraphSize) -> str:
    most, known = found.path.largest_graph, packaged().instructions
    count, pairs = known.instructions(size), [one for one in packaged().compiled if one.instructions is not None]
    about = "an unknown number of instructions"
    if count is not None:
        about = (
            f"about {count / 1e6:.1f} M instructions by {len(pairs)} published counts, each missed by "
            f"{known.left_out_error:.0%} by the others"
        )
    return (
        f"largest graph: {round(size.operators):,} operators, {round(size.tiles):,} matrix tiles, "
        f"{round(size.logits):,} logits, {about}; the largest known to compile on {found.path.generation} have "
        f"{round(most.operators):,}, {round(most.tiles):,} and {round(most.logits):,}. If the compiler refuses: a "
        "smaller microbatch, more tensor parallelism or more stages make it smaller"
    )
