"""Layouts whose graphs the compiler is expected to take, and what a plan says of its graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from autoshard.backends.problem import Draft, Problem
from autoshard.backends.rules import check_strategy
from autoshard.cost.estimate import estimate
from autoshard.cost.stage import LocalShape, local_shape
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.ranking import Timed, describe
from autoshard.plans.search_result import Candidate
from autoshard.precedents.graph_size import StageChoices, largest_stage, regions
from autoshard.precedents.runs import packaged
from autoshard.precedents.will_compile import LIMIT, Judged, Verdict, judge, margin, worst
from autoshard.spec.cluster import Cluster
from autoshard.units import format_seconds

if TYPE_CHECKING:
    from autoshard.planner.grid.arrays import Array
    from autoshard.planner.grid.table import Priced

SAID = 3
"""So many of the largest graphs stand in the note."""
MOST_LOOKED_AT = 50
"""Layouts beyond the fastest ones that are looked at for one that compiles."""


@dataclass(frozen=True)
class Compiling:
    """The verdicts on layouts of a problem whose cluster compiles regions."""

    problem: Problem
    _refused: dict[tuple[LocalShape, int], bool] = field(default_factory=dict, compare=False, repr=False)

    def judged(self, layout: StageChoices) -> tuple[Judged, ...]:
        """The verdict on each distinct graph, the largest first."""
        return tuple(map(judge, regions(*self.problem[:3], layout)))

    def refuses(self, layout: StageChoices) -> bool:
        """Whether the compiler is expected to refuse a graph of the layout."""
        of_stage = largest_stage(self.problem.model, layout) if self.problem.cluster.compiles_stages else 0
        shape = local_shape(layout), of_stage
        if shape not in self._refused:
            self._refused[shape] = any(one.verdict is Verdict.REFUSED for one in self.judged(layout))
        return self._refused[shape]

    def rows(self, priced: Priced) -> Array:
        """By layout of some that are priced together, whether no graph is refused."""
        drafts: tuple[Draft, ...] = tuple(priced.whole.drafts.drafts)
        first, last = (int(priced.draft.min()), int(priced.draft.max())) if len(priced.draft) else (0, -1)
        takes = np.array([not self.refuses(one) for one in drafts[first : last + 1]], bool)
        found: Array = takes[priced.draft - first]
        return found


def compiling(problem: Problem) -> Compiling | None:
    """The verdicts for a problem; None where each pass is one graph, of which `beaten_path` speaks, or none is."""
    return None if problem.cluster.stack is None else Compiling(problem)


def fastest_that_compiles(found: Compiling, fastest: list[Timed], others: Iterator[Timed]) -> Timed | None:
    """The fastest layout without a refused graph, of two lists that are fastest first; None where there is none."""
    own = next((one for one in fastest if not found.refuses(one.strategy)), None)
    other = next((one for one in islice(others, MOST_LOOKED_AT) if not found.refuses(one.strategy)), None)
    if own is None or (other is not None and other.step_time_s < own.step_time_s):
        return other
    return own


def compile_notes(found: Compiling, taken: Timed, left: Timed | None) -> Iterator[str]:
    """Sentences on how near the graphs of a layout come to the compiler's limits, and what makes them smaller.

    taken: the layout of the plan. left: a faster one that was passed over because it is expected not to compile.
    """
    judged = found.judged(taken.strategy)
    known, hardest = packaged(), worst(judged)
    whole = found.problem.cluster.compiles_stages
    of = "a pass through a stage" if whole else "what a rank computes of a block between collectives"
    counts = sum(one.instructions is not None for one in known.compiled)
    listed = "; ".join(map(_said, judged[:SAID]))
    yield (
        f"will it compile: {hardest.verdict.value}. A graph is {of}; "
        f"the largest: {listed}. Instructions by {counts} published counts and matrix tiles alone (the counts identify "
        f"no more; each is missed by {known.instructions.left_out_error:.0%} by the others, the verdicts by up to "
        f"{margin(known):.0%}), against neuronx-cc's {LIMIT / 1e6:.0f} M a graph"
    )
    if hardest.verdict is not Verdict.COMPILES:
        yield f"if the compiler refuses {hardest.region.name}: {_repair(hardest, taken.strategy)}"
    if left is not None:
        slower = 100 * (taken.step_time_s / left.step_time_s - 1)
        why = worst(found.judged(left.strategy))
        yield (
            f"compile: {describe(left.strategy)} is predicted to be faster, the chosen layout takes {slower:.1f} % "
            f"longer, but its graph {_said(why)} is expected to be refused; pins take it all the same"
        )


def whole_stages_note(problem: Problem, whole: Cluster, taken: Candidate) -> tuple[str, ...]:
    """A sentence on what the plan's layout takes where each stage is one graph, if that is allowed, fits and is faster;
    else nothing. whole: the cluster under that stack."""
    other = problem._replace(cluster=whole)
    try:
        check_strategy(*other, taken.strategy)
    except AutoshardError:
        return ()
    found, hardest = estimate(*other[:3], taken.strategy), worst(Compiling(other).judged(taken.strategy))
    saved = 1 - found.step_time_s / taken.estimate.step_time_s
    if saved <= 0 or found.fits_probability < taken.estimate.fits_probability:
        return ()
    note = (
        f"whole stages as graphs, --stack {whole.stack}: {format_seconds(found.step_time_s)} a step for this layout, "
        f"{saved:.1%} less, by constants that are a guess; will it compile: {hardest.verdict.value}, the largest is "
        f"{_said(hardest)}"
    )
    return (note,)


def _said(one: Judged) -> str:
    count = "an unknown number of" if one.instructions is None else f"about {one.instructions / 1e6:.1f} M"
    share = "" if one.instructions is None else f", {one.instructions / LIMIT:.0%} of the limit"
    return f"{one.region.name}, {count} instructions{share} ({one.verdict.value}: {one.because})"


def _repair(one: Judged, strategy: Strategy) -> str:
    """Changes that make a graph smaller, the most useful first."""
    smaller = "a smaller microbatch, " if strategy.microbatch_size > 1 else ""
    if one.region.graph.logits:
        return f"{smaller}more tensor parallelism, or logits in chunks (fewer rows at a time)"
    return f"{smaller}more tensor or context parallelism, or fewer operators a graph"
