"""Draws a schedule as a grid of text: a row for each pipeline rank, time from left to right.

    rank 0  F0--F1--F2--F3--........B0------F4--B1------

An action starts with its letter (F forward, B backward, I and W the two halves of a backward) and its microbatch; `.`
is waiting. A grid that is too wide loses its middle: the start and end of a step show how the pipeline fills and
drains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from autoshard.explanation.page import Line, heading, wrapped
from autoshard.schedules import Order, Timeline
from autoshard.units import format_seconds

NARROWEST_ACTION, NARROWEST_WITH_CHUNK = 3, 5
"""Columns that a short action gets (nine of ten actions take at least as long): a letter and two digits, and behind
them a point and a digit where ranks have several chunks."""
BEGIN_SHARE = 0.6
"""Share of the columns that shows the start of the step, where the middle is cut out."""
STYLES = {"F": "green", "B": "cyan", "I": "cyan", "W": "magenta", ".": "dim"}
CUT = " ~ "


@dataclass(frozen=True)
class Grid:
    """A drawn schedule. seconds_per_column: its scale. columns: of the whole step. rows: for each rank its text and one
    style letter for each column."""

    seconds_per_column: float
    columns: int
    rows: tuple[tuple[str, str], ...]


def grid(orders: Sequence[Order], timeline: Timeline, columns: int) -> Grid:
    """The schedule drawn wide enough that short actions can be told apart, and at least `columns` wide."""
    lengths = sorted(end - start for spans in timeline.spans for start, end in spans)
    short_s = lengths[len(lengths) // 10]
    chunks = any(action.chunk for order in orders for action in order)
    scale = min(short_s / (NARROWEST_WITH_CHUNK if chunks else NARROWEST_ACTION), timeline.total_s / columns)
    if timeline.total_s / scale <= columns + 1:
        scale = timeline.total_s / columns
    total = max(1, round(timeline.total_s / scale))
    rows = tuple(_row(order, spans, scale, total, chunks) for order, spans in zip(orders, timeline.spans, strict=True))
    return Grid(scale, total, rows)


def _row(order: Order, spans: Sequence[tuple[float, float]], scale: float, total: int, chunks: bool) -> tuple[str, str]:
    text, style = ["."] * total, ["."] * total
    for action, (start_s, end_s) in zip(order, spans, strict=True):
        first = min(round(start_s / scale), total - 1)
        width = max(1, min(round(end_s / scale), total) - first)
        whole = f"{action.kind}{action.microbatch}" + (f".{action.chunk}" if chunks else "")
        label = next((one for one in (whole, whole.partition(".")[0]) if len(one) <= width), action.kind)
        text[first : first + width] = label.ljust(width, "-")
        style[first : first + width] = action.kind * width
    return "".join(text), "".join(style)


def schedule_lines(orders: Sequence[Order], timeline: Timeline, width: int, what: str) -> list[Line]:
    """Lines of the grid under a heading, with a note where the middle is cut out. Of deep pipelines, ranks that only
    wait in what is left share a line. width: columns. what: the schedule in words."""
    label = len(f"  rank {len(orders) - 1}  ")
    columns = width - label
    drawn = grid(orders, timeline, columns)
    count = sum(map(len, orders))
    numbers = (
        f"{what}; {count:,} actions on {len(orders)} rank{'s' if len(orders) > 1 else ''} in "
        f"~{format_seconds(timeline.total_s)}; a rank waits ~{timeline.bubble_fraction:.1%} of it, on average; "
        f"a column is {format_seconds(drawn.seconds_per_column)}"
    )
    cut = drawn.columns > columns
    begin = int((columns - len(CUT)) * BEGIN_SHARE) if cut else drawn.columns
    end = drawn.columns - (columns - len(CUT) - begin) if cut else drawn.columns
    lines = heading("Time", numbers, width)
    middle: tuple[tuple[str, str], ...] = ((CUT, "dim"),) if cut else ()

    def only_waits(rank: int) -> bool:
        text, _ = drawn.rows[rank]
        return not (text[:begin] + text[end:]).strip(".")

    for waits, group in groupby(range(len(orders)), only_waits):
        ranks = [*group]
        if waits and len(ranks) > 1:
            lines += wrapped(
                f"rank {ranks[0]} to rank {ranks[-1]} wait in both parts and run in the middle", width, "  "
            )
            continue
        for rank in ranks:
            name, (text, style) = f"  rank {rank}".ljust(label), drawn.rows[rank]
            parts = (*_spans(text[:begin], style[:begin]), *middle, *_spans(text[end:], style[end:]))
            lines.append(((name, "dim"), *parts))
    note = "F forward, B backward, with the microbatch"
    if any(action.chunk for order in orders for action in order):
        note += ", then a point and the chunk where there is room"
    if any(action.kind == "W" for order in orders for action in order):
        note += "; I is backward without weight gradients, W computes those"
    lines += wrapped(f"{note}; . is waiting.", width, "  ")
    if cut:
        left_out = (end - begin) * drawn.seconds_per_column
        lines += wrapped(
            f"cut at {width} columns: ~ stands for {format_seconds(left_out)} of the middle, where the pattern "
            "repeats; `autoshard trace` has all of it.",
            width,
            "  ",
        )
    return lines


def _spans(text: str, style: str) -> tuple[tuple[str, str], ...]:
    """The text as (piece, style name), one piece for each run of equal style letters."""
    pieces, start = [], 0
    for position in range(1, len(text) + 1):
        if position == len(text) or style[position] != style[start]:
            pieces.append((text[start:position], STYLES[style[start]]))
            start = position
    return tuple(pieces)
