"""Layouts whose graphs the compiler is expected to take, and what a plan says of its graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING

from autoshard.backends.problem import Problem
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.layouts import MeshDrafts, Scheduled
from autoshard.planner.ranking import Timed, describe, in_order
from autoshard.plans.plan import operator_templates
from autoshard.plans.search_result import Candidate, Pins
from autoshard.precedents.graph_size import StageChoices, head_regions, largest_stage, regions
from autoshard.precedents.runs import packaged
from autoshard.precedents.will_compile import (
    LIKELY,
    LIMIT,
    OPERATOR_LIMIT,
    Judged,
    Verdict,
    judge,
    margin,
    operator_instructions,
    operator_verdict,
    worst,
)
from autoshard.spec.stack import STACKS
from autoshard.units import format_seconds, percent, slower_than

if TYPE_CHECKING:
    from autoshard.planner.grid.whole import Priced

SAID = 3
"""So many of the largest graphs stand in the note."""
LAUNCHES = 18
"""Collectives of a block and microbatch at most, forward and backward together, where nothing is recomputed and
weights are whole: four of tensor parallelism forward and six backward where ranks share the sequence, four more where
norms of queries and keys span ranks (OLMo 2), and the four transfers of a stage of one block."""
REGIONS_STAY = 0.17
"""Share of a step that whole stages must save to be chosen. Of the software stacks with results, the slowdowns of work
that are fitted have a standard deviation of 8.0 % (benchmarks/data/fitted.json, compute_slowdown): two that were never
measured differ by less than 1.645 sqrt(2) times that, a factor of 1.20, in nine cases of ten. A guess for these two."""
_OF_GRAPHS = attrgetter("tp", "cp", "ep", "etp", "sequence_parallel", "attention_kernel", "context_parallel")
"""What the graphs between collectives follow from, but for the size of a microbatch."""


@dataclass(frozen=True)
class Compiling:
    """The verdicts on layouts of a problem whose cluster compiles regions."""

    problem: Problem
    _refused: dict[tuple[object, ...], tuple[int, float]] = field(default_factory=dict, compare=False, repr=False)
    """Sizes of microbatches, the largest that is known to be taken and the smallest that is known to be refused."""

    def judged(self, layout: StageChoices) -> tuple[Judged, ...]:
        """The verdict on each distinct graph, the largest first."""
        return tuple(map(judge, regions(*self.problem[:3], layout)))

    def refuses(self, layout: StageChoices) -> bool:
        """Whether the compiler is expected to refuse a graph of the layout."""
        of_stage = largest_stage(self.problem.model, layout) if self.problem.cluster.compiles_stages else 0
        key, size = (*_OF_GRAPHS(layout), of_stage), layout.microbatch_size
        taken, refused = self._refused.get(key, (0, inf))
        if taken < size < refused:  # graphs of more sequences are larger, and no larger one is taken
            if any(
                judge(one).verdict is Verdict.REFUSED
                for several in (head_regions, regions)
                for one in several(*self.problem[:3], layout)
            ):
                refused = size
            else:
                taken = size
            self._refused[key] = taken, refused
        return size >= refused

    def parted(self, layouts: MeshDrafts) -> tuple[list[Scheduled], list[Scheduled]]:
        """The schedules of some layouts with which no graph is refused, and the others."""
        way, whole = layouts.way, self.problem.cluster.compiles_stages
        taken, refused = (0, inf) if whole else self._refused.get((*_OF_GRAPHS(way), 0), (0, inf))
        found: tuple[list[Scheduled], list[Scheduled]] = [], []
        for schedule in layouts.schedules:
            size = schedule[2]
            is_refused = self.refuses(way.scheduled(*schedule)) if taken < size < refused else size >= refused
            found[is_refused].append(schedule)
        return found

    def takes(self, priced: Priced, row: int) -> bool:
        """Whether no graph is refused of one of the layouts that are priced together."""
        return not self.refuses(priced.whole.drafts.drafts[priced.draft[row]])


def compiling(problem: Problem) -> Compiling | None:
    """The verdicts for a problem; None where each pass is one graph, of which `beaten_path` speaks, or none is."""
    return None if problem.cluster.stack is None else Compiling(problem)


def fastest_that_compiles(
    found: Compiling, fastest: list[Timed], others: Callable[[float], Iterator[Timed]]
) -> Timed | None:
    """The fastest layout without a refused graph; None where there is none. fastest: some, fastest first. others:
    those without that may take less than so many seconds, alike."""
    own = next((one for one in fastest if not found.refuses(one.strategy)), None)
    other = next(in_order(others(inf if own is None else own.step_time_s)), None)
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
        yield f"if the compiler refuses {hardest.region.name}: {_repair(found.problem, hardest, taken.strategy)}"
    yield from _largest_operator(found.problem, judged, taken.strategy)
    if left is not None and left.step_time_s < taken.step_time_s:
        faster = slower_than(left.step_time_s / taken.step_time_s)
        yield (
            f"compile: {describe(left.strategy)} is predicted {faster} the chosen layout, but "
            f"{refused_graph(found, left.strategy)}; pins take it all the same"
        )


def refused_graph(found: Compiling, strategy: Strategy) -> str:
    """The graph of a layout that the compiler is expected to refuse, in words."""
    return f"its graph {_said(worst(found.judged(strategy)))} is expected to be refused"


def launches_at_most_s(problem: Problem, pins: Pins) -> float:
    """Seconds of a step in which regions are started, at most, in any layout that whole stages take, too: what whole
    stages may save over regions.

    A rank runs the most blocks and microbatches at the largest degree of tensor parallelism and one sequence in a
    microbatch. In a pipeline it also waits while one microbatch runs all blocks elsewhere. The embedding and the head
    count as a block each.
    """
    model, training, cluster, _ = problem
    assert cluster.stack is not None, cluster
    degrees = cluster.tp_degrees or ()
    tp = pins.tp or max((one for one in degrees if one <= cluster.world_size), default=cluster.world_size)
    own = training.global_batch_size * tp / cluster.world_size / (pins.microbatch_size or 1)
    awaited = 0 if pins.pp == 1 else 1
    return (model.num_hidden_layers + 2) * (own + awaited) * LAUNCHES * STACKS[cluster.stack].region_launch_s


def no_way_pays(problem: Problem, share: float) -> str:
    """The sentence where whole stages are not looked at. share: of a step, the launches of regions at most."""
    return (
        f"ways of compiling: regions between collectives, --stack {problem.cluster.stack}; to start them takes "
        f"{share:.1%} of a step at most, and two software stacks differ by up to {REGIONS_STAY:.0%}: whole stages as "
        "graphs are not looked at"
    )


def whole_stages(
    problem: Problem, best: Candidate, whole: Problem, other: Candidate, fit_probability: float
) -> tuple[bool, str]:
    """Whether whole stages as graphs are chosen over regions between collectives, and a sentence on both.

    best, other: the chosen layouts of the two problems, which differ in the stack. fit_probability: with which a layout
    is to fit. Whole stages are chosen where they are faster beyond what two software stacks differ by, fit as surely as
    is wanted or as regions do, and are no less likely to compile.
    """
    judged = [worst(Compiling(one).judged(of.strategy)) for one, of in ((problem, best), (whole, other))]
    saved = 1 - other.estimate.step_time_s / best.estimate.step_time_s
    times = [format_seconds(one.estimate.step_time_s) for one in (best, other)]
    said = (
        f"ways of compiling: regions between collectives, --stack {problem.cluster.stack}, {times[0]} a step; whole "
        f"stages as graphs, --stack {whole.cluster.stack}, {times[1]} with {describe(other.strategy)}"
    )
    doubt = f"by constants of both that are guesses, and two software stacks differ by up to {REGIONS_STAY:.0%}"
    if saved <= 0:
        return False, f"{said}: regions are chosen, {doubt}"
    if saved < REGIONS_STAY:
        return False, f"{said}: {saved:.1%} less {doubt}: a toss-up, regions stay"
    fits = other.estimate.fits_probability
    if fits < min(fit_probability, best.estimate.fits_probability):
        return False, f"{said}: {saved:.1%} less, but they fit with {percent(fits)} probability: regions are chosen"
    if LIKELY.index(judged[1].verdict) < LIKELY.index(judged[0].verdict):
        return False, f"{said}: {saved:.1%} less, but will it compile: {judged[1].verdict.value}, {_said(judged[1])}"
    return True, f"{said}: whole stages are chosen for {saved:.1%} less, {doubt}"


def _said(one: Judged) -> str:
    count = "an unknown number of" if one.instructions is None else f"about {one.instructions / 1e6:.1f} M"
    share = "" if one.instructions is None else f", {one.instructions / LIMIT:.0%} of the limit"
    return f"{one.region.name}, {count} instructions{share} ({one.verdict.value}: {one.because})"


def _largest_operator(problem: Problem, judged: tuple[Judged, ...], strategy: Strategy) -> Iterator[str]:
    """A sentence on the largest matrix product against the compiler's limit of one operator."""
    one = max(judged, key=lambda one: one.region.operator_tiles)
    tiles = one.region.operator_tiles
    if not tiles:
        return
    least, most = operator_instructions(tiles)
    verdict = operator_verdict(tiles)
    compiles = verdict is Verdict.COMPILES
    repair = "" if compiles else f"; if the compiler refuses it: {_repair(problem, one, strategy)}"
    yield (
        f"largest operator: {one.region.operator}, {tiles:,.0f} matrix tiles, {least / 1e3:,.0f} to {most / 1e3:,.0f} "
        f"K instructions by the two public products (16,384^3 compiles, 32,768^3 is refused), against neuronx-cc's "
        f"{OPERATOR_LIMIT / 1e3:,.0f} K an operator: {verdict.value}{repair}"
    )


def _repair(problem: Problem, one: Judged, strategy: Strategy) -> str:
    """Changes that make a graph smaller, the most useful first."""
    smaller = "a smaller microbatch, " if strategy.microbatch_size > 1 else ""
    if one.region.graph.logits:
        chunks = ", or more chunks of logits (--loss-chunks)" if _takes_chunks(problem, strategy) else ""
        return f"{smaller}more tensor parallelism{chunks}"
    return f"{smaller}more tensor or context parallelism, or fewer operators a graph"


def _takes_chunks(problem: Problem, strategy: Strategy) -> bool:
    """Whether the model's head takes more chunks of logits than it has."""
    more = 2 * problem.training.loss_chunks
    try:
        operator_templates(problem.model, replace(problem.training, loss_chunks=more), strategy)
    except AutoshardError:  # of `with_chunked_loss`, such as of logits with a bias, or more chunks than tokens
        return False
    return True
