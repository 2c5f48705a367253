"""Lines of the page on what would flip the choice, what more nodes bring, and what prices decide."""

from __future__ import annotations

from autoshard.explain.flips import FURTHEST
from autoshard.explain.page import Line, hanging, heading, table
from autoshard.explain.sensitivity import FlipRow, PriceRow, Sensitivity, SizeRow
from autoshard.units import format_seconds


def sensitivity_lines(found: Sensitivity, width: int) -> list[list[Line]]:
    """Sections."""
    sections = [_flips(found, width), _sizes(found, width), _price(found, width)]
    return [section for section in sections if section]


def _flips(found: Sensitivity, width: int) -> list[Line]:
    if not found.agrees:
        text = f"the planner of today has another choice for the same inputs, so nothing is said of flips: {found.now}"
        return heading("Flips", text, width)
    text = f"where the choice changes: each quantity alone, from 1/{FURTHEST:g} to {FURTHEST:g} times, searched again"
    rows = [
        (f"{row.quantity}: {row.now_text}", f"from {row.value_text} {_way(row)}", _to(row))
        for row in found.flips
        if row.value is not None
    ]
    lines = heading("Flips", text, width)
    if rows:
        lines += table(("quantity and now", "flips", "to, because"), rows, width, right=())
    kept = [f"{row.quantity}, {_way(row)} to {row.looked_at_text}" for row in found.flips if row.value is None]
    if kept:
        lines += hanging("  no flip: ", "; ".join(kept), width, indent=4)
    return lines


def _way(row: FlipRow) -> str:
    return "up" if row.more else "down"


def _to(row: FlipRow) -> str:
    if not row.layout:
        return f"nothing: {row.because}"
    return f"{row.change or 'another cut of the stages'}: {row.because}"


def _sizes(found: Sensitivity, width: int) -> list[Line]:
    if not found.sizes:
        return []
    header = ("nodes", "step", "90 %", "tokens/s", "of linear", "USD a billion tokens", "layout")
    rows = [_size(one) for one in found.sizes]
    text = "what more nodes would bring; of linear: tokens a second for each node, against this plan's"
    return [*heading("Nodes", text, width), *table(header, rows, width, right=range(6))]


def _size(one: SizeRow) -> tuple[str, ...]:
    if one.refusal:
        return (f"{one.nodes:,}", "-", "-", "-", "-", "-", one.refusal)
    cost = "?" if one.usd_per_billion_tokens is None else f"~{one.usd_per_billion_tokens:,.0f}"
    between = f"{format_seconds(one.step_time_low_s)} to {format_seconds(one.step_time_high_s)}"
    speed = f"~{one.tokens_per_s:,.0f}"
    return (
        f"{one.nodes:,}",
        f"~{format_seconds(one.step_time_s)}",
        between,
        speed,
        f"{one.of_linear:.0%}",
        cost,
        one.layout,
    )


def _price(found: Sensitivity, width: int) -> list[Line]:
    if found.price_usd is None or found.usd_per_billion_tokens is None:
        return heading(
            "Price", "of a node is not known here: --price-per-node-hour of `autoshard plan` gives it", width
        )
    text = (
        f"{found.price_usd:,.2f} USD a node and hour: ~{found.usd_per_billion_tokens:,.0f} USD for a billion tokens. "
        "It flips no layout on these nodes, but which instances are cheapest for a token"
    )
    lines = heading("Price", text, width)
    for one in found.prices:
        lines += hanging("  - ", _offer(one), width)
    return lines


def _offer(one: PriceRow) -> str:
    text = (
        f"{one.instance}, {one.nodes:,} node{'s' if one.nodes > 1 else ''}: ~{format_seconds(one.step_time_s)} a step "
        f"({one.layout}); cheaper below ~{one.break_even_usd:,.2f} USD a node and hour"
    )
    if one.price_usd is None or one.own_break_even_usd is None:
        return f"{text}; what it costs is not known here"
    return (
        f"{text}, and costs {one.price_usd:,.2f}; or where a node here costs more than ~{one.own_break_even_usd:,.2f}"
    )
