"""Lines of the page on what would flip the choice, what more nodes bring, and what prices decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.explanation.page import Line, hanging, heading, listed, more, span, table
from autoshard.explanation.quantities import CLOSE
from autoshard.units import format_number, format_seconds

if TYPE_CHECKING:
    from autoshard.explanation.answers import DegreeRow, FlipRow, PriceRow, Sensitivity, SizeRow

SIZE_HEADER = ("nodes", "step", "90 %", "tokens/s", "more", "a node", "USD/billion", "layout")
NODES = "what more nodes would bring; a node: tokens/s of each node, against now; USD/billion: for a billion tokens"
FLIPS = (
    "what would change the choice: one quantity changes at a time, and the search runs again{among}. Of the layout "
    "that wins then, only what differs is shown (recompute=by-stage: a set per stage). Link speeds are those that "
    "collectives reach, below the datasheet's"
)


def flips_heading(found: Sensitivity) -> str:
    """A sentence above the flips: what was searched for them."""
    if found.tried is None:
        return FLIPS.format(among="")
    of_all = "for other batches and lengths and the most memory among all"
    return FLIPS.format(among=f" among the {found.tried:,} layouts that promise most ({of_all})")


def sensitivity_lines(found: Sensitivity, width: int, more_to_come: bool = False) -> list[list[Line]]:
    """Lines by section. width: columns. more_to_come: later answers will add lines after these and change none of
    them."""
    sections = [_degrees(found, width), _flips(found, width), _sizes(found, width)]
    if not more_to_come:
        sections += [_price(found, width), _unanswered(found, width)]
    return [section for section in sections if section]


def unanswered_line(found: Sensitivity) -> str:
    """A line that says which answers there was no time for; '' where there was time for all."""
    names = "; ".join(found.unanswered)
    return f"no time was left for: {names}; a longer --time-limit answers these too" if names else ""


def flips_by_quantity(found: Sensitivity) -> dict[str, list[str]]:
    """Quantity and its value now -> its sentences: one for more of it and one for less, or one for both."""
    rows: dict[str, list[FlipRow]] = {}
    for row in found.flips:
        rows.setdefault(f"{row.quantity}: {row.now_text}", []).append(row)
    return {quantity: _sentences(of_one) for quantity, of_one in rows.items()}


def _sentences(rows: list[FlipRow]) -> list[str]:
    if len(rows) > 1 and all(row.value is None for row in rows):
        low, high = sorted(rows, key=lambda one: one.looked_at)
        if high.at:
            return [f"no flip at {listed((*reversed(low.at), *high.at))}"]
        return [f"no flip from {low.looked_at_text} to {high.looked_at_text}"]
    return [_sentence(row) for row in rows]


def _sentence(row: FlipRow) -> str:
    way = "up" if row.more else "down"
    if row.value is None:
        return f"at {listed(row.at)}: no flip" if row.at else f"{way} to {row.looked_at_text}: no flip"
    if row.at:
        start = f"at {row.value_text}"
        start += f" (at {row.holds_text} the choice still holds)" if row.holds != row.now else ""
    elif max(row.value / row.holds, row.holds / row.value) > CLOSE:
        start = f"somewhere from {row.holds_text} {way} to {row.value_text}"
    else:
        start = f"from {row.value_text} {way}"
    if not row.layout:
        return f"{start}: nothing is possible: {row.because}"
    return f"{start}: {row.change or 'another cut of the stages'} ({row.because})"


def size_rows(found: Sensitivity) -> list[tuple[str, ...]]:
    """Table cells under SIZE_HEADER. The cost is in USD for a billion tokens, because tokens are what is paid for."""
    return [_size(one) for one in found.sizes]


def price_lines(found: Sensitivity) -> list[str]:
    """The price of the plan in a sentence, then one sentence for each other instance type."""
    if found.price_usd is None or found.usd_per_billion_tokens is None:
        return ["of a node is not known; give it to `autoshard plan` with --price-per-node-hour"]
    sentence = (
        f"{found.price_usd:,.2f} USD a node and hour: ~{found.usd_per_billion_tokens:,.0f} USD for a billion tokens. "
        "The price changes no layout on these nodes, only which instances are the cheapest"
    )
    if found.prices and found.pinned:
        sentence += f". Other instances are searched without what was given for the plan: {' '.join(found.pinned)}"
    return [sentence, *map(_offer, found.prices)]


def degrees_note(found: Sensitivity) -> str:
    """A line on the plan's pins beside tp, which the search for another tp does not keep; '' where it has none."""
    others = [word for word in found.pinned if not word.startswith("tp=")]
    return f"given for the plan, but searched here: {' '.join(others)}" if others else ""


def degree_lines(found: Sensitivity) -> list[str]:
    """A sentence for each other legal tp; degrees that break the same rule share a sentence."""
    lines = [_degree(one) for one in found.degrees if one.legal]
    by_refusal: dict[str, list[DegreeRow]] = {}
    for degree in found.degrees:
        if not degree.legal:
            by_refusal.setdefault(degree.refusal.replace(f"tp={degree.tp} ", "tp "), []).append(degree)
    for refused in by_refusal.values():
        names = ", ".join(f"tp={row.tp}" for row in refused)
        lines.append(f"{names}: not legal here: {refused[0].refusal}")
    return lines


def _degree(one: DegreeRow) -> str:
    if one.refusal:
        return f"tp={one.tp}: does not fit: {one.refusal}"
    order = ", a toss-up" if one.toss_up else ""
    slower = f"{more(one.slower)} (90 %: {more(one.slower_low)} to {more(one.slower_high)}){order}"
    but = f", {one.but}" if one.but else ""
    return f"tp={one.tp}: {slower}; {one.layout}{but}: {one.loses}"


def _degrees(found: Sensitivity, width: int) -> list[Line]:
    if not found.degrees:
        return []
    text = "another tp? The fastest layout with each, against the chosen one; --why answers for any layout"
    note = degrees_note(found)
    lines = heading("Why not", f"{text}; {note}" if note else text, width)
    return lines + [line for one in degree_lines(found) for line in hanging("  - ", one, width)]


def _flips(found: Sensitivity, width: int) -> list[Line]:
    if not found.flips and found.agrees is not False:
        return []
    if not found.agrees:
        text = f"none are shown: today's planner chooses another layout for the same inputs: {found.now}"
        return heading("Flips", text, width)
    lines = heading("Flips", flips_heading(found), width)
    for quantity, sentences in flips_by_quantity(found).items():
        if len(sentences) == 1:
            lines += hanging("  ", f"{quantity}; {sentences[0]}", width, indent=4)
            continue
        lines.append(((f"  {quantity}", ""),))
        for sentence in sentences:
            lines += hanging("    ", sentence, width, indent=6)
    return lines


def _sizes(found: Sensitivity, width: int) -> list[Line]:
    if not found.sizes:
        return []
    return [*heading("Nodes", NODES, width), *table(SIZE_HEADER, size_rows(found), width, right=range(7))]


def _size(one: SizeRow) -> tuple[str, ...]:
    if one.refusal:
        return (f"{one.nodes:,}", "-", "-", "-", "-", "-", "-", one.refusal)
    cost = "?" if one.usd_per_billion_tokens is None else f"~{one.usd_per_billion_tokens:,.0f}"
    between = span(one.step_time_low_s, one.step_time_high_s, format_seconds)
    step, speed = f"~{format_seconds(one.step_time_s)}", f"~{format_number(one.tokens_per_s)}"
    faster = more(one.more) if one.more else "now"
    idle = "; faster if the extra nodes stay idle" if one.more < 0 else ""
    return (f"{one.nodes:,}", step, between, speed, faster, f"{one.of_linear:.0%}", cost, f"{one.layout}{idle}")


def _price(found: Sensitivity, width: int) -> list[Line]:
    first, *others = price_lines(found)
    return [*heading("Price", first, width), *(line for one in others for line in hanging("  - ", one, width))]


def _unanswered(found: Sensitivity, width: int) -> list[Line]:
    text = unanswered_line(found)
    return heading("Not yet", text, width) if text else []


def _offer(one: PriceRow) -> str:
    text = (
        f"{one.instance}, {one.nodes:,} node{'s' if one.nodes > 1 else ''}: ~{format_seconds(one.step_time_s)} a step "
        f"({one.layout}); a token costs the same as here at ~{one.break_even_usd:,.2f} USD a node and hour"
    )
    if one.price_usd is None or one.own_break_even_usd is None:
        return f"{text}. The price of its nodes is not known"
    order = "more" if one.price_usd > one.break_even_usd else "less"
    return (
        f"{text}. It costs {one.price_usd:,.2f}, so a token costs {order} there; both cost the same where a node "
        f"here costs ~{one.own_break_even_usd:,.2f}"
    )
