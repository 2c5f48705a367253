"""Lines of the page on what would flip the choice, what more nodes bring, and what prices decide."""

from __future__ import annotations

from autoshard.explain.answers import DegreeRow, FlipRow, PriceRow, Sensitivity, SizeRow
from autoshard.explain.page import Line, hanging, heading, span, table
from autoshard.units import format_seconds

CLOSE = 1.03
"""A flip that is known to this factor is given as one number."""
SIZE_HEADER = ("nodes", "step", "90 %", "tokens/s", "of linear", "USD a billion tokens", "layout")


def sensitivity_lines(found: Sensitivity, width: int) -> list[list[Line]]:
    """Sections."""
    sections = [_degrees(found, width), _flips(found, width), _sizes(found, width), _price(found, width)]
    return [section for section in sections if section]


def flips_by_quantity(found: Sensitivity) -> dict[str, list[str]]:
    """Quantity with what it is now -> a sentence for more of it and one for less."""
    sentences: dict[str, list[str]] = {}
    for row in found.flips:
        sentences.setdefault(f"{row.quantity}: {row.now_text}", []).append(_sentence(row))
    return sentences


def _sentence(row: FlipRow) -> str:
    way = "up" if row.more else "down"
    if row.value is None:
        return f"{way} to {row.looked_at_text}: no flip"
    start = f"from {row.value_text} {way}"
    if row.holds != row.now and max(row.value / row.holds, row.holds / row.value) > CLOSE:
        start += f" (it holds {'up' if row.more else 'down'} to {row.holds_text})"
    if not row.layout:
        return f"{start}: nothing is possible: {row.because}"
    return f"{start}: {row.change or 'another cut of the stages'} ({row.because})"


def size_rows(found: Sensitivity) -> list[tuple[str, ...]]:
    """Cells under SIZE_HEADER."""
    return [_size(one) for one in found.sizes]


def price_lines(found: Sensitivity) -> list[str]:
    """What the plan costs, then one sentence for each other instance type."""
    if found.price_usd is None or found.usd_per_billion_tokens is None:
        return ["of a node is not known here; --price-per-node-hour of `autoshard plan` gives it"]
    own = (
        f"{found.price_usd:,.2f} USD a node and hour: ~{found.usd_per_billion_tokens:,.0f} USD for a billion tokens. "
        "It flips no layout on these nodes, but which instances are cheapest for a token"
    )
    return [own, *map(_offer, found.prices)]


def degree_lines(found: Sensitivity) -> list[str]:
    """A sentence for each other tp."""
    return [_degree(one) for one in found.degrees]


def _degree(one: DegreeRow) -> str:
    if one.refusal:
        return f"tp={one.tp}: {one.refusal}"
    order = ", a toss-up" if one.toss_up else ""
    return f"tp={one.tp}: {one.slower:+.1%}{order} ({one.layout}): {one.loses}"


def _degrees(found: Sensitivity, width: int) -> list[Line]:
    if not found.degrees:
        return []
    lines = heading("Other tp", "the best layout with each other tp, against the chosen one; --why asks for any", width)
    return lines + [line for one in degree_lines(found) for line in hanging("  - ", one, width)]


def _flips(found: Sensitivity, width: int) -> list[Line]:
    if not found.agrees:
        text = f"the planner of today has another choice for the same inputs, so nothing is said of flips: {found.now}"
        return heading("Flips", text, width)
    text = "where the choice changes, each quantity alone and searched again; only what changes in the layout is named"
    lines = heading("Flips", text, width)
    for quantity, sentences in flips_by_quantity(found).items():
        lines.append(((f"  {quantity}", ""),))
        for sentence in sentences:
            lines += hanging("    ", sentence, width, indent=6)
    return lines


def _sizes(found: Sensitivity, width: int) -> list[Line]:
    if not found.sizes:
        return []
    text = "what more of them would bring; of linear: tokens a second for each node, against this plan's"
    return [*heading("Nodes", text, width), *table(SIZE_HEADER, size_rows(found), width, right=range(6))]


def _size(one: SizeRow) -> tuple[str, ...]:
    if one.refusal:
        return (f"{one.nodes:,}", "-", "-", "-", "-", "-", one.refusal)
    cost = "?" if one.usd_per_billion_tokens is None else f"~{one.usd_per_billion_tokens:,.0f}"
    between = span(one.step_time_low_s, one.step_time_high_s, format_seconds)
    step, speed = f"~{format_seconds(one.step_time_s)}", f"~{one.tokens_per_s:,.0f}"
    return (f"{one.nodes:,}", step, between, speed, f"{one.of_linear:.0%}", cost, one.layout)


def _price(found: Sensitivity, width: int) -> list[Line]:
    first, *others = price_lines(found)
    return [*heading("Price", first, width), *(line for one in others for line in hanging("  - ", one, width))]


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
