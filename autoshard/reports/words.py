"""A plan in sentences for somebody who has never seen one, and the words that its page uses."""

from __future__ import annotations

from autoshard.explanation.describe import Description
from autoshard.explanation.glossary import SECTIONS
from autoshard.explanation.page import listed, span
from autoshard.plans.plan import Plan
from autoshard.units import counted, format_bytes, format_count, format_seconds, percent

SHOWN = (
    *("device", "rank", "step", "tp", "pp", "dp", "cp", "ep", "vpp", "mbs", "recompute", "zero", "collective"),
    *("pipeline bubble", "MFU", "90 %", "Pareto front"),
)
"""Terms of the glossary that the page of a report explains."""


def in_words(plan: Plan, d: Description) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(sentences on what the plan does and how sure that is, the words that its page uses with their meaning)."""
    strategy, blocks = plan.strategy, plan.model.num_hidden_layers
    parts = [
        (strategy.tp, f"each matrix over {strategy.tp:,} devices"),
        (strategy.pp, f"the {blocks} blocks over {strategy.pp:,} groups of devices in a row"),
        (strategy.cp, f"each sequence over {strategy.cp:,} devices"),
        (strategy.dp, f"the batch over {strategy.dp:,} copies"),
        (strategy.ep, f"the experts over {strategy.ep:,} devices"),
    ]
    split = [words for size, words in parts if size > 1]
    how = f"It splits {listed(split)}." if split else "One device holds all of it."
    times = span(d.step_time_low_s, d.step_time_high_s, format_seconds)
    first = (
        f"This page is a plan for training {d.model}, a model of {format_count(d.num_parameters)} parameters, on "
        f"{d.cluster}, which has {counted(d.num_devices, 'device')}. {how}"
    )
    second = (
        f"One training step is predicted to take {format_seconds(d.step_time_s)}; with 90 % probability it takes "
        f"{times}. The fullest device needs {format_bytes(d.memory_bytes)} of its "
        f"{format_bytes(d.memory_capacity_bytes)}; the plan fits with {percent(d.fits_probability)} probability."
    )
    meaning = {term: text for terms in SECTIONS.values() for term, text in terms.items()}
    return (first, second, _choice(d)), tuple((term, meaning[term]) for term in SHOWN)


def _choice(d: Description) -> str:
    if d.considered is None:
        return "A person chose this layout; nothing else was searched."
    close = sum(one.toss_up for one in d.runners_up)
    faster = sum(one.chosen_is_faster < 0.5 for one in d.runners_up if not one.toss_up)
    words = [f"It was chosen among {d.considered:,} layouts, of which {d.fitting:,} fit."]
    if faster:
        words.append(f"{_of(faster, len(d.runners_up))} likely to be faster.")
    if close:
        so_close = _of(close, len(d.runners_up))
        words.append(f"{so_close} so close that only a measurement can tell which is faster.")
    if d.runners_up and not faster and not close:
        words.append("None of the runners-up is likely to be faster.")
    return " ".join(words)


def _of(some: int, runners_up: int) -> str:
    """So many of so many, with the verb: 'All 5 runners-up are', '1 of the 5 runners-up is', 'The runner-up is'."""
    if some == runners_up:
        return "The runner-up is" if some == 1 else f"All {some} runners-up are"
    return f"{some} of the {runners_up} runners-up {'is' if some == 1 else 'are'}"
