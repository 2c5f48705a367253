"""The sentences of a search about what it chose: what is proven of it, and what else there would be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import floor

from autoshard.backends.rules import Problem, chunks_are_alike
from autoshard.cost.estimate import estimate
from autoshard.cost.fit_probability import Level
from autoshard.planner.beaten_path import path_notes
from autoshard.planner.candidates import MOST_UNLIKE_CHUNKS
from autoshard.planner.choice import Choice, PassedOver
from autoshard.planner.compiling import compile_notes
from autoshard.planner.priced import Clock, PricedLayouts
from autoshard.planner.ranking import Timed, describe
from autoshard.plans.search_result import (
    LESS_SURE,
    OPTIMAL,
    Candidate,
    PathSummary,
    Pins,
    SearchResult,
    pipelines_not_tried,
    sets_not_tried,
)
from autoshard.schedules import SCHEDULES
from autoshard.units import format_number, slower_text, slower_than

PROVEN = 1e-6
"""Share of a step below which there is no gap."""
WORTH_LESS_SURE = 0.02
"""Share of a step that a layout which fits less surely must save to be told of: for less nobody would risk it. A guess.
"""


def optimality(problem: Problem, pins: Pins, fastest: list[Timed], place: int, gap: float, clock: Clock) -> str:
    """A sentence on what is proven about the chosen layout."""
    behind = fastest[place].step_time_s / fastest[0].step_time_s - 1
    alike = len(problem.blocks.kinds) == 1
    left = pipelines_not_tried(problem.backend, pins.schedule) if alike else _chunks_not_tried(problem, pins)
    left += sets_not_tried(problem.backend, pins)
    but = f" ({'; '.join(left)})" if left else ""
    if gap + behind <= PROVEN:
        return OPTIMAL + but
    stopped = "" if clock.in_time() else f"stopped {clock.why_ended}: "
    words = f"{stopped}within {format_number(100 * (gap + behind), 2)} % of the optimum within this model, proven{but}"
    if behind <= PROVEN:
        return words
    longer = format_number(100 * behind, 2)
    return f"{words}; it takes {longer} % longer than the fastest that was found, which a note explains"


def _chunks_not_tried(problem: Problem, pins: Pins) -> tuple[str, ...]:
    """The choices that a search over blocks of several kinds does not try, in words; cuts and sets by stage it does."""
    one_chunk = 1 in (pins.pp, pins.num_virtual_stages) or (
        pins.schedule is not None and not SCHEDULES[pins.schedule].accepts_chunks(max(2, pins.pp or 2), 2)
    )
    if one_chunk:
        return ()
    if len(problem.model.kinds) == 1:
        return ("several chunks of a rank have as many blocks each",)
    if chunks_are_alike(problem) or pins.num_virtual_stages is not None:
        return ()
    return (f"pipelines have up to {MOST_UNLIKE_CHUNKS} chunks a rank, or a number that divides its blocks",)


def room_notes(choice: Choice, wanted: float, clock: Clock) -> Iterator[str]:
    """Sentences on what the room that is left free costs. wanted: the probability with which the layout was to fit.
    clock: of the search; where it has run out, a layout that fits as surely may not have been looked at."""
    found, fastest, priced = choice.level, choice.fastest[0], choice.layouts
    if found.probability != wanted:
        none = f"no layout fits with {_percent(wanted)} probability"
        if not clock.in_time():
            none = f"no layout that fits with {_percent(wanted)} probability was known {clock.why_ended}"
        yield f"room: {none}; chosen among those that fit with at least {_percent(found.probability)} probability"
    capacity = priced.problem.cluster.device.memory_bytes
    most_s = (1 - WORTH_LESS_SURE) * fastest.step_time_s
    fuller = next(priced.fastest_first(capacity, found.memory_bytes, most_s), None)
    if fuller is None or fuller.step_time_s >= most_s:
        return
    sooner = slower_than(fuller.step_time_s / fastest.step_time_s)
    fits = _percent(estimate(*priced.problem[:3], fuller.strategy).fits_probability)
    yield (
        f"{LESS_SURE} {sooner} all that fit so surely, fits with {fits} probability: {describe(fuller.strategy)}; "
        f"layouts that fit with less than {_percent(found.probability)} are passed over (--fit-probability)"
    )


SURE = 0.99
"""From here on a probability is told with two digits more."""


def _percent(probability: float) -> str:
    """A probability as text, rounded down: what is said is reached."""
    digits = 100 if probability < SURE else 10_000
    return f"{100 * floor(digits * probability + 1e-7) / digits:g} %"


def path_summary(choice: Choice) -> PathSummary | None:
    path, taken, best = choice.path, choice.taken, choice.on_path
    if path is None:
        return None
    other = best if best is not None and best.strategy != taken.strategy else None
    return PathSummary(
        path.path.generation,
        path.path.results,
        path.unknown(taken.strategy),
        None if other is None else other.strategy,
        0.0 if other is None else float(f"{other.step_time_s:.6g}"),
        None if choice.left is None else choice.left.strategy,
    )


def taken_instead(problem: Problem, passed: PassedOver, result: SearchResult, one: Candidate) -> SearchResult:
    """The result of a search with another layout in place of its choice: its sentences are about that one. passed: the
    judges of what the search passed over."""
    path, found = passed.path, result.beaten_path
    taken, on_path = Timed(one.estimate.step_time_s, one.strategy), None
    if path is None or found is None:
        path = None
    elif path.known(one.strategy):
        on_path = taken
    elif not found.unknown:
        on_path = Timed(result.best.estimate.step_time_s, result.best.strategy)
    elif found.best is not None:
        on_path = Timed(found.best_step_time_s, found.best)
    level = Level(one.estimate.fits_probability, one.estimate.fullest.total_bytes)
    priced = PricedLayouts(problem, [])
    choice = Choice(level, [taken], 0, 0.0, priced, path, on_path, graphs=passed.graphs)
    return replace(result, best=one, notes=tuple(choice_notes(choice)), beaten_path=path_summary(choice))


def said_of_megatron(notes: Iterable[str]) -> tuple[str, ...]:
    """The sentences of a search on a layout that then gets other operators than it was chosen with."""
    return tuple(f"with Megatron's operators: {note}" for note in notes)


def choice_notes(choice: Choice) -> Iterator[str]:
    ranked, place = choice.fastest, choice.place
    if choice.path is not None:
        yield from path_notes(choice.path, ranked[place], choice.on_path, choice.left)
    if choice.graphs is not None:
        yield from compile_notes(choice.graphs, ranked[place], choice.not_compiling)
    if place and choice.left is None and choice.not_compiling is None:
        faster = slower_text(ranked[0].step_time_s / ranked[place].step_time_s)
        yield (
            f"toss-up: {describe(ranked[0].strategy)} is predicted {faster}, less than the model can tell; the simpler "
            "one is chosen"
        )
