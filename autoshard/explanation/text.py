"""Renders a description as a page of text: plain by default, coloured for a terminal, from 60 columns up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from autoshard.explanation.describe import Description, RunnerUp, Share
from autoshard.explanation.page import (
    LEAST_SHARE,
    NARROWEST,
    WIDEST,
    Line,
    hanging,
    heading,
    more,
    paint,
    span,
    table,
    wrap,
    wrapped,
)
from autoshard.explanation.sensitivity_text import sensitivity_lines
from autoshard.units import GB, TFLOPS, counted, format_bytes, format_count, format_number, format_seconds, percent

if TYPE_CHECKING:
    from autoshard.explanation.answers import Sensitivity

BAR_WIDTH = 40
"""Columns of a bar that stands for the whole; fewer where the largest term would not fit on the page."""
NEARLY_FULL = 0.9


def render(description: Description, width: int = 100, color: bool = False) -> str:
    """The page, which ends with a newline. width: columns of the terminal."""
    answers = description.sensitivity
    return "".join(pieces(description, [answers] if answers else [], width, color))


def pieces(d: Description, answers: Iterable[Sensitivity], width: int, color: bool) -> Iterator[str]:
    """Yields the page in pieces of whole lines as it becomes known, first all that needs no answer.

    answers: each has all of the one before it and more. The description's own sensitivity is not looked at.
    """
    width = max(NARROWEST, min(width, WIDEST))
    start = (_title, _layout, _step, _memory, _search, _runners_up, _sure)
    yield paint(_joined([section(d, width) for section in start])[1:], width, color)
    shown, last = 0, None
    for last in answers:
        lines = _joined(sensitivity_lines(last, width, more_to_come=True))
        yield paint(lines[shown:], width, color)
        shown = len(lines)
    lines = _joined(sensitivity_lines(last, width) if last else [])[shown:]
    caveat: list[Line] = [((line, "dim"),) for line in wrap(d.caveat, width)]
    yield paint([*lines, *_joined([_notes(d, width), caveat])], width, color)


def _joined(sections: Sequence[list[Line]]) -> list[Line]:
    """The sections that are not empty, each after an empty line."""
    return [line for section in sections if section for line in ((), *section)]


def _title(d: Description, width: int) -> list[Line]:
    batch = f"{counted(d.global_batch_size, 'sequence')} of {d.sequence_length:,} tokens"
    facts = (
        f"{format_count(d.num_parameters)} parameters, {counted(d.num_devices, d.device)}; "
        f"{batch} = {format_count(d.tokens_per_step)} tokens a step; {d.precision}; backend {d.backend}"
    )
    return [*wrapped(f"{d.model} on {d.cluster}", width, "", "bold"), *wrapped(facts, width, "  ")]


def _layout(d: Description, width: int) -> list[Line]:
    lines = heading("Layout", d.layout, width)
    for label, text in d.facts:
        lines += hanging(f"  {label:<14}", text, width)
    return lines


def _step(d: Description, width: int) -> list[Line]:
    slow, fast = d.step_time_s / d.step_time_high_s, d.step_time_s / d.step_time_low_s
    rates = f"{format_number(d.tokens_per_s * slow)}-{format_number(d.tokens_per_s * fast)}"
    numbers = (
        f"~{format_seconds(d.step_time_s)} (90 %: {span(d.step_time_low_s, d.step_time_high_s, format_seconds)}), "
        f"~{format_number(d.tokens_per_s)} tokens/s ({rates}), "
        f"MFU ~{d.mfu:.1%} ({d.mfu * slow:.1%}-{d.mfu * fast:.1%}) of {d.peak_flops_per_s / TFLOPS:g} TFLOP/s "
        f"{d.peak_dtype} a {d.device}"
    )
    return [*heading("Step", numbers, width), *_terms(d.time_terms, d.step_time_s, format_seconds, "green", width)]


def _memory(d: Description, width: int) -> list[Line]:
    used = d.memory_bytes / d.memory_capacity_bytes
    style = "red" if used > 1 else "yellow" if used > NEARLY_FULL else "green"
    full = f"{format_bytes(d.memory_bytes)} of {format_bytes(d.memory_capacity_bytes)} ({used:.0%})"
    numbers = f"~{full} (90 %: {span(d.memory_low_bytes, d.memory_high_bytes, format_bytes)}) on the fullest {d.device}"
    if len(d.memory_by_rank) > 1:
        numbers += f", on pipeline rank {d.fullest_pipeline_rank}"
    numbers += f"; fits with {percent(d.fits_probability)} probability"
    lines = heading("Memory", numbers, width)
    lines += _terms(d.memory_terms, d.memory_capacity_bytes, format_bytes, style, width)
    if len(d.memory_by_rank) > 1:
        each = " ".join(f"{size / GB:.1f}" for size in d.memory_by_rank)
        lines += hanging("  by pipeline rank, GB: ", each, width, "dim", indent=4)
    return lines


def _terms(
    terms: Sequence[Share], whole: float, formatted: Callable[[float], str], style: str, width: int
) -> list[Line]:
    """Lines of terms, largest first: name, value, share of the whole and a bar. Terms too small to show are summed
    up."""
    shown = sorted((term for term in terms if term.share >= LEAST_SHARE), key=lambda term: -term.value)
    small = [term for term in terms if 0 < term.share < LEAST_SHARE]
    if small:
        rest = sum(term.value for term in small)
        shown.append(Share(small[0].name if len(small) == 1 else f"{len(small)} smaller terms", rest, rest / whole))
    name_width = max((len(term.name) for term in shown), default=0)
    values = [f"~{formatted(term.value)}" for term in shown]
    value_width = max(map(len, values), default=0)
    texts = [
        f"  {term.name:<{name_width}}  {value:>{value_width}}  {term.share:>6.1%}  "
        for term, value in zip(shown, values, strict=True)
    ]
    full = min([BAR_WIDTH, *((width - len(texts[0])) / term.share for term in shown[:1])])
    return [((text, ""), ("#" * round(term.share * full), style)) for text, term in zip(texts, shown, strict=True)]


def _search(d: Description, width: int) -> list[Line]:
    if d.considered is None:
        return []
    count = f"{counted(d.considered, 'layout')} considered, {d.fitting or 0:,} fit"
    lines = heading("Search", f"{count}; given, so not searched: {d.given}" if d.given else count, width)
    lines += wrapped(d.optimality or "", width, "  ")
    rows = [(f"{one.count:,}", one.reason, one.example) for one in d.rejections]
    if rows:
        lines += table(("dropped", "because", "nearest"), rows, width, right=(0,))
    return lines


def _runners_up(d: Description, width: int) -> list[Line]:
    if not d.runners_up:
        return []
    lines = heading("Runners-up", "the next fastest layouts that fit, one of each kind", width)
    for runner_up in d.runners_up:
        lines += [((f"  {line}", "bold"),) for line in wrap(runner_up.layout, width - 2)]
        lines += (
            hanging("    recompute by stage: ", runner_up.recompute, width, indent=6) if runner_up.recompute else []
        )
        lines += wrapped(_numbers(runner_up), width, "    ")
        lines += hanging("    against the chosen one: ", runner_up.loses, width, indent=6)
    return lines


def _sure(d: Description, width: int) -> list[Line]:
    lines = heading("How sure", "are the numbers and their order?", width)
    return lines + [line for sentence in d.advice for line in hanging("  - ", sentence, width)]


def _numbers(one: RunnerUp) -> str:
    """A runner-up's step time, its memory, and how sure the order is."""
    seconds = span(one.step_time_low_s, one.step_time_high_s, format_seconds)
    slower = f"{more(one.slower)} (90 %: {more(one.slower_low)} to {more(one.slower_high)})"
    memory = f"~{format_bytes(one.memory_bytes)}, fits with {percent(one.fits_probability)} probability"
    return f"~{format_seconds(one.step_time_s)} (90 %: {seconds}), {slower}: {order_text(one)}; {memory}"


def order_text(one: RunnerUp) -> str:
    """How sure it is that a runner-up is slower: 'a toss-up' or 'slower with 98.6 % probability'."""
    if one.toss_up:
        return "a toss-up"
    if one.chosen_is_faster >= 0.5:
        return f"slower with {percent(one.chosen_is_faster)} probability"
    return f"faster with {percent(1 - one.chosen_is_faster)} probability"


def _notes(d: Description, width: int) -> list[Line]:
    if not d.notes:
        return []
    lines = heading("Notes", "", width)
    for note in d.notes:
        lines += hanging("  - ", note, width)
    return lines
