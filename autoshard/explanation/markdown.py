"""Renders a description as Markdown, for issues and wikis: the same sections and numbers as the page of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autoshard.explanation.answers import Sensitivity
from autoshard.explanation.compare import Comparison
from autoshard.explanation.describe import Description, Share
from autoshard.explanation.doubt_text import RATIO, number_rows, pair_cells, summed, verdict
from autoshard.explanation.page import more, span
from autoshard.explanation.sensitivity_text import (
    NODES,
    SIZE_HEADER,
    degree_lines,
    degrees_note,
    flips_by_quantity,
    flips_heading,
    price_lines,
    size_rows,
    unanswered_line,
)
from autoshard.explanation.text import order_text
from autoshard.units import GB, TFLOPS, counted, format_bytes, format_count, format_number, format_seconds, percent


def render_markdown(d: Description) -> str:
    """The description as Markdown, which ends with a newline."""
    sections = [_title(d), _layout(d), _step(d), _memory(d), _search(d), _runners_up(d), _sure(d)]
    if d.sensitivity is not None:
        sections.append(_sensitivity(d.sensitivity))
    sections.append(_notes(d))
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


def comparison_markdown(found: Comparison, names: tuple[str, str]) -> str:
    """The comparison of two plans as Markdown. names: what the two are called."""
    one, other = names
    lines = [verdict(found), "", "## What differs", "", *markdown_table(("", one, other), found.different)]
    for title, pairs, text in (("Step", found.time, format_seconds), ("Memory", found.memory, format_bytes)):
        told = (*(pair for pair in pairs if pair.one or pair.other), summed("sum", pairs))
        rows = [pair_cells(pair, text)[:3] for pair in told]
        lines += ["", f"## {title}", "", *markdown_table(("term", one, other), rows)]
    lines += ["", "## Numbers", "", *markdown_table(("", one, other, RATIO), number_rows(found))]
    return "\n".join(lines) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; pipes in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _title(d: Description) -> Iterator[str]:
    yield f"# {d.model} on {d.cluster}"
    yield ""
    batch = f"{counted(d.global_batch_size, 'sequence')} of {d.sequence_length:,} tokens"
    yield (
        f"{format_count(d.num_parameters)} parameters, {d.num_devices:,} x {d.device}; {batch} = "
        f"{format_count(d.tokens_per_step)} tokens a step; {d.precision}; backend {d.backend}"
    )


def _layout(d: Description) -> Iterator[str]:
    yield f"## Layout `{d.layout}`"
    yield ""
    yield from markdown_table(("", ""), d.facts)


def _step(d: Description) -> Iterator[str]:
    between = span(d.step_time_low_s, d.step_time_high_s, format_seconds)
    yield f"## Step ~{format_seconds(d.step_time_s)}"
    yield ""
    yield (
        f"90 %: {between}; ~{format_number(d.tokens_per_s)} tokens/s; MFU ~{d.mfu:.1%} of "
        f"{d.peak_flops_per_s / TFLOPS:g} TFLOP/s {d.peak_dtype} a {d.device}"
    )
    yield ""
    yield from _terms(d.time_terms, format_seconds)


def _memory(d: Description) -> Iterator[str]:
    between = span(d.memory_low_bytes, d.memory_high_bytes, format_bytes)
    yield f"## Memory ~{format_bytes(d.memory_bytes)} of {format_bytes(d.memory_capacity_bytes)}"
    yield ""
    yield (
        f"On the fullest {d.device}, pipeline rank {d.fullest_pipeline_rank}; 90 %: {between}; fits with "
        f"{percent(d.fits_probability)} probability. By pipeline rank, GB: "
        + " ".join(f"{size / GB:.1f}" for size in d.memory_by_rank)
    )
    yield ""
    yield from _terms(d.memory_terms, format_bytes)


def _terms(terms: Sequence[Share], shown: Callable[[float], str]) -> list[str]:
    rows = [
        (one.name, f"~{shown(one.value)}", f"{one.share:.1%}")
        for one in sorted(terms, key=lambda term: -term.value)
        if one.value > 0
    ]
    return markdown_table(("term", "value", "share"), rows)


def _search(d: Description) -> Iterator[str]:
    if d.considered is None:
        return
    yield f"## Search: {counted(d.considered, 'layout')} considered, {d.fitting or 0:,} fit"
    yield ""
    if d.given:
        yield f"Given, so not searched: `{d.given}`"
        yield ""
    yield d.optimality or ""
    if d.rejections:
        yield ""
        rows = [(f"{one.count:,}", one.reason, one.example) for one in d.rejections]
        yield from markdown_table(("dropped", "because", "nearest"), rows)


def _runners_up(d: Description) -> Iterator[str]:
    if not d.runners_up:
        return
    yield "## Runners-up"
    yield ""
    rows = []
    for runner_up in d.runners_up:
        seconds = span(runner_up.step_time_low_s, runner_up.step_time_high_s, format_seconds)
        slower = f"{more(runner_up.slower_low)} to {more(runner_up.slower_high)}"
        rows.append(
            (
                f"`{runner_up.layout}`" + (f" (by stage: {runner_up.recompute})" if runner_up.recompute else ""),
                f"~{format_seconds(runner_up.step_time_s)} ({seconds})",
                f"{more(runner_up.slower)} ({slower}), {order_text(runner_up)}",
                f"~{format_bytes(runner_up.memory_bytes)}, fits with {percent(runner_up.fits_probability)} probability",
                runner_up.loses,
            )
        )
    yield from markdown_table(("layout", "step (90 %)", "slower (90 %)", "memory", "against the chosen one"), rows)


def _sure(d: Description) -> Iterator[str]:
    yield "## How sure"
    yield ""
    yield from (f"* {sentence}" for sentence in d.advice)


def _sensitivity(found: Sensitivity) -> Iterator[str]:
    if found.degrees:
        yield "## Why not another tp"
        yield ""
        if note := degrees_note(found):
            yield f"{note[0].upper()}{note[1:]}"
            yield ""
        yield from (f"* {line}" for line in degree_lines(found))
        yield ""
    if found.flips or found.agrees is False:
        yield "## Flips"
        yield ""
        yield flips_heading(found)
        yield ""
    if found.agrees is False:
        yield f"None are shown: today's planner chooses another layout for the same inputs: {found.now}"
    else:
        for quantity, sentences in flips_by_quantity(found).items():
            yield f"* {quantity}"
            yield from (f"  * {sentence}" for sentence in sentences)
    if found.sizes:
        yield ""
        yield "## Nodes"
        yield ""
        yield NODES
        yield ""
        yield from markdown_table(SIZE_HEADER, size_rows(found))
    yield ""
    first, *others = price_lines(found)
    yield "## Price"
    yield ""
    yield first
    yield ""
    yield from (f"* {line}" for line in others)
    if text := unanswered_line(found):
        yield ""
        yield f"Not yet: {text}"


def _notes(d: Description) -> Iterator[str]:
    yield "## Notes"
    yield ""
    yield from (f"* {note}" for note in (*d.notes, d.caveat))
