"""A score as a page of text and as JSON: the layout, what it breaks, and each term beside the best layout's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.cost.values import Estimate, Term
from autoshard.explanation.describe import stages_in_words
from autoshard.explanation.doubt import Pair
from autoshard.explanation.doubt_text import pair_cells
from autoshard.explanation.page import LEAST_SHARE, Line, hanging, heading, paint, table, wrapped
from autoshard.files.codec import to_json
from autoshard.layout.strategy import Strategy
from autoshard.planner.score import Score
from autoshard.planner.written import Written
from autoshard.plans.names import recompute_by_stage, short_name
from autoshard.plans.rounding import rounded
from autoshard.plans.search_result import Candidate
from autoshard.units import format_bytes, format_number, format_seconds, percent

NO_PRICE = (
    "It has no price: what it breaks leaves no valid schedule of all sequences on all devices, or operators that it "
    "cannot shard."
)


def score_page(written: Written, score: Score, best: Candidate | None, width: int, color: bool) -> str:
    """The page of a score as text, which ends with a newline. width: columns of the terminal."""
    width = max(60, min(width, 120))
    problem = written.problem
    where = f"{problem.model.name} on {problem.cluster.nodes} x {problem.cluster.instance}, {written.form}"
    lines: list[Line] = [((where, "bold"),), ()]
    cuts = {one.strategy.stage_layers for one in (score, best) if one is not None}
    tell_cut = len(cuts) == 2 and len({len(cut) for cut in cuts}) == 1
    lines += _layout("Layout", score.strategy, tell_cut, width)
    for wrong in score.broken:
        lines += hanging("  breaks  ", wrong, width, "red")
    if not score.broken:
        lines += wrapped(f"obeys every rule of backend {problem.backend}", width, "  ")
    if best is not None:
        lines += _layout("Best", best.strategy, tell_cut, width)
    lines.append(())
    if score.estimate is None:
        lines += wrapped(NO_PRICE, width, "")
    else:
        lines += _compared(score.estimate, None if best is None else best.estimate, width)
    for warning in written.warnings:
        lines += hanging("warning ", warning, width, "yellow")
    for note in written.notes:
        lines += hanging("note    ", note, width)
    if written.unpriced:
        lines += hanging("note    ", written.unpriced, width)
    return paint(lines, width, color)


def _layout(name: str, strategy: Strategy, tell_cut: bool, width: int) -> list[Line]:
    """The lines on one of two layouts: its name and what it recomputes.

    tell_cut: whether to say how many layers each stage has: the two layouts have other cuts into as many stages.
    """
    lines = heading(name, short_name(strategy), width)
    if tell_cut:
        lines += hanging("  stages ", stages_in_words(strategy), width, indent=4)
    if strategy.uniform_recompute is None:
        lines += hanging("  recompute by stage: ", recompute_by_stage(strategy), width, indent=4)
    return lines


def _compared(own: Estimate, best: Estimate | None, width: int) -> list[Line]:
    lines = heading("Step", _verdict(own, best), width)
    other = None if best is None else best.time_terms
    lines += _terms("term", own.time_terms, other, own.step_time_s, format_seconds, width)
    lines.append(())
    full, capacity = own.fullest, own.memory_capacity_bytes
    fits = (
        f"fits with {percent(own.fits_probability)} probability"
        if own.fits
        else f"does not fit, {format_bytes(full.total_bytes - capacity)} too much"
    )
    if best is not None:
        fits += f"; the best fits with {percent(best.fits_probability)}"
    lines += heading("Memory", f"~{format_bytes(full.total_bytes)} of {format_bytes(capacity)} a device: {fits}", width)
    other = None if best is None else best.fullest.terms
    lines += _terms("fullest device", full.terms, other, full.total_bytes, format_bytes, width)
    lines.append(())
    return lines


def _verdict(own: Estimate, best: Estimate | None) -> str:
    text = f"~{format_seconds(own.step_time_s)}, ~{format_number(own.tokens_per_s)} tokens/s, MFU ~{own.mfu:.1%}"
    if best is None:
        return text
    more = own.step_time_s / best.step_time_s - 1
    if abs(more) < LEAST_SHARE:
        return f"{text}; as fast as the best"
    text += f"; the best takes ~{format_seconds(best.step_time_s)}, so this one is {abs(more):.1%} "
    if more > 0:
        return f"{text}slower"
    if own.fits_probability >= min(FIT_PROBABILITY, best.fits_probability):
        return f"{text}faster"
    if not own.fits:
        return f"{text}faster, but does not fit"
    return f"{text}faster, but the best is of those that fit with {percent(FIT_PROBABILITY)} probability"


def _terms(
    title: str,
    own: tuple[Term, ...],
    best: tuple[Term, ...] | None,
    whole: float,
    formatted: Callable[[float], str],
    width: int,
) -> list[Line]:
    """A table of terms, largest first, beside the best layout's. Terms that are next to nothing in both are left out.
    whole: the sum, in the unit of the terms."""
    others = {term.name: term.value for term in best or ()}
    rows = []
    for term in sorted(own, key=lambda one: -one.value):
        other = others.get(term.name, 0.0)
        if max(term.value, other) < LEAST_SHARE * whole:
            continue
        name, bests, this, difference = pair_cells(Pair(term.name, other, term.value), formatted)
        rows.append((name, this) if best is None else (name, this, bests, difference))
    header = [title, "this"] + (["best", "difference"] if best is not None else [])
    return table(header, rows, width, right=range(1, len(header)))


def score_to_dict(written: Written, score: Score, best: Candidate | None) -> dict[str, Any]:
    """The score as JSON values."""
    return {
        "form": written.form,
        "model": written.problem.model.name,
        "backend": written.problem.backend,
        "strategy": to_json(score.strategy),
        "broken": list(score.broken),
        "fits": None if score.estimate is None else score.estimate.fits,
        "estimate": None if score.estimate is None else to_json(rounded(score.estimate)),
        "best": None
        if best is None
        else {"strategy": to_json(best.strategy), "estimate": to_json(rounded(best.estimate))},
        "notes": list(written.notes),
        "warnings": list(written.warnings),
        "not_priced": list(written.not_priced),
    }
