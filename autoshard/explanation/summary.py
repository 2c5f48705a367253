"""The first screen of a plan: what was chosen, how fast, whether it fits and how sure that is."""

from __future__ import annotations

from autoshard.explanation.describe import Description, Share
from autoshard.explanation.page import NARROWEST, WIDEST, Line, hanging, paint, span, wrapped
from autoshard.plans.search_result import LESS_SURE
from autoshard.spec.stack import NATIVE_DEVICES
from autoshard.units import format_bytes, format_number, format_seconds, percent

SURE_TO_FIT = 0.9
MOST_FACT = 90
"""Characters of a fact; a longer one is cut at a word, and the whole page has it."""
UNTRIED = "beaten path: nobody"
"""Begins the note on a layout with something that nobody is known to have run."""
ADAPTERS = "adapters"
FACTS = ("mesh", "recompute", ADAPTERS)


def summary(d: Description, width: int, color: bool) -> str:
    """The page, at most 20 lines on 80 columns. width: columns of the terminal."""
    width = max(NARROWEST, min(width, WIDEST))
    head = f"{d.model} on {d.cluster}: {d.num_devices:,} x {d.device}, backend {d.backend}"
    lines: list[Line] = wrapped(head, width, "", "bold")
    lines += [(), *_part("Chosen", d.layout, width)]
    facts = dict(d.facts)
    if ADAPTERS in facts:  # which layers have any; how much of the model is learned stands behind that
        facts[ADAPTERS] = facts[ADAPTERS].partition("; ")[0]
    for name in filter(facts.__contains__, FACTS):
        lines += hanging(" " * 10, f"{name}: {_cut(facts[name])}", width)
    lines += _part("Fast?", _fast(d), width)
    lines += hanging(" " * 10, f"most of it: {_largest(d.time_terms)}", width)
    lines += _part("Fits?", _fits(d), width)
    lines += _part("Sure?", _sure(d), width)
    return paint(lines, width, color)


def _part(name: str, text: str, width: int) -> list[Line]:
    (_, first), *rest = hanging(f"  {name:<8}", text, width)
    return [((f"  {name:<8}", "bold cyan"), first), *rest]


def _cut(text: str) -> str:
    if len(text) <= MOST_FACT:
        return text
    begin = text[: MOST_FACT - 4].rpartition(" ")[0].rstrip(",;")
    return begin + " ..." + ")" * (begin.count("(") - begin.count(")"))


def _claim(optimality: str) -> str:
    """The words for what a search has proven, few of them: what it has not tried stands in brackets behind that, on the
    whole page."""
    claim, untried, _ = optimality.partition(" (")
    if not untried or len(optimality) <= MOST_FACT or "within this model" not in claim:
        return _cut(optimality)
    return f"{claim.partition(': no layout is faster')[0]}, but for what the whole page names"


def _fast(d: Description) -> str:
    seconds = span(d.step_time_low_s, d.step_time_high_s, format_seconds)
    rate = format_number(d.tokens_per_s)
    return (
        f"~{format_seconds(d.step_time_s)} a step (90 %: {seconds}), ~{rate} tokens/s, ~{d.mfu:.1%} of the devices' "
        "peak (MFU)"
    )


def _largest(terms: tuple[Share, ...]) -> str:
    top = sorted(terms, key=lambda term: -term.share)[:3]
    return ", ".join(f"{term.name} {term.share:.0%}" for term in top)


def _fits(d: Description) -> str:
    steps = ((SURE_TO_FIT, "yes, with"), (0.5, "likely, with"), (1 - SURE_TO_FIT, "hardly, with"), (0, "no, only with"))
    answer = next(words for least, words in steps if d.fits_probability >= least)
    memory = f"~{format_bytes(d.memory_bytes)} of {format_bytes(d.memory_capacity_bytes)} on the fullest {d.device}"
    less_sure = next((note.split(": ")[1] for note in d.notes if note.startswith(LESS_SURE)), None)
    faster = "" if less_sure is None else f"; {less_sure} (--fit-probability)"
    return f"{answer} {percent(d.fits_probability)} probability: {memory}{faster}"


def _sure(d: Description) -> str:
    """A sentence: what the search has proven of the choice, how many layouts may be as fast, what cannot run at all."""
    apart = next((f"; {note.partition(':')[0]}" for note in d.notes if note.startswith(NATIVE_DEVICES)), "")
    if d.considered is None:
        return f"this layout was given, not searched{apart}"
    said = f"chosen from {d.considered:,} layouts: {_claim(d.optimality or '')}"
    ties = sum(one.toss_up for one in d.runners_up)
    if ties:
        count = len(d.runners_up)
        some = "the next one" if count == 1 else f"{'all' if ties == count else ties} of the next {count}"
        said += f"; {some} may be as fast"
    if any(note.startswith(UNTRIED) for note in d.notes):
        said += "; nobody is known to have run all of it, so it may not compile"
    said += apart
    count = len(d.notes)
    return said + (f" ({count} note{'s' if count > 1 else ''} on the whole page)" if count else "")
