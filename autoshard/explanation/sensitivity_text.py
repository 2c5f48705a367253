"""Lines of the page on what would flip the choice, what more nodes bring, and what prices decide."""

from __future__ import annotations

from autoshard.explanation.answers import DegreeRow, FlipRow, PriceRow, Sensitivity, SizeRow
from autoshard.explanation.page import Line, hanging, heading, more, span, table
from autoshard.units import format_seconds

CLOSE = 1.03
"""A flip that is known to this factor is given as one number."""
SIZE_HEADER = ("nodes", "step", "90 %", "tokens/s", "more", "a node", "USD/billion", "layout")
NODES = "what more of them would bring; a node: what each does of what one does now; USD for a billion tokens"
FLIPS = (
    "what would change the choice: one quantity at a time, searched again; of the layout that wins then, only what "
    "differs is named (recompute=by-stage: a set for each stage); links are as fast as collectives find them, less "
    "than a datasheet says"
)


def sensitivity_lines(found: Sensitivity, width: int, more_to_come: bool = False) -> list[list[Line]]:
    """Sections. more_to_come: lines of later answers will stand behind these, none of which changes."""
    sections = [_degrees(found, width), _flips(found, width), _sizes(found, width)]
    if not more_to_come:
        sections += [_price(found, width), _unanswered(found, width)]
    return [section for section in sections if section]


def unanswered_line(found: Sensitivity) -> str:
    """What there was no time for; '' where there was."""
    names = "; ".join(found.unanswered)
    return f"no time was left for: {names}; a longer --time-limit looks at them too" if names else ""


def flips_by_quantity(found: Sensitivity) -> dict[str, list[str]]:
    """Quantity with what it is now -> a sentence for more of it and one for less, or one for both."""
    rows: dict[str, list[FlipRow]] = {}
    for row in found.flips:
        rows.setdefault(f"{row.quantity}: {row.now_text}", []).append(row)
    return {quantity: _sentences(several) for quantity, several in rows.items()}


def _sentences(rows: list[FlipRow]) -> list[str]:
    if len(rows) > 1 and all(row.value is None for row in rows):
        ends = [row.looked_at_text for row in sorted(rows, key=lambda one: one.looked_at)]
        return [f"no flip from {ends[0]} to {ends[-1]}"]
    return [_sentence(row) for row in rows]


def _sentence(row: FlipRow) -> str:
    way = "up" if row.more else "down"
    if row.value is None:
        return f"{way} to {row.looked_at_text}: no flip"
    start = f"from {row.value_text} {way}"
    if row.holds != row.now and max(row.value / row.holds, row.holds / row.value) > CLOSE:
        start += f" (at {row.holds_text} the choice still holds)"
    if not row.layout:
        return f"{start}: nothing is possible: {row.because}"
    return f"{start}: {row.change or 'another cut of the stages'} ({row.because})"


def size_rows(found: Sensitivity) -> list[tuple[str, ...]]:
    """Cells under SIZE_HEADER. Tokens are what is paid for: USD for a billion of them."""
    return [_size(one) for one in found.sizes]


def price_lines(found: Sensitivity) -> list[str]:
    """What the plan costs, then one sentence for each other instance type."""
    if found.price_usd is None or found.usd_per_billion_tokens is None:
        return ["of a node is not known here; --price-per-node-hour of `autoshard plan` gives it"]
    own = (
        f"{found.price_usd:,.2f} USD a node and hour: ~{found.usd_per_billion_tokens:,.0f} USD for a billion tokens. "
        "The price changes no layout on these nodes, only which instances are the cheapest"
    )
    return [own, *map(_offer, found.prices)]


def degree_lines(found: Sensitivity) -> list[str]:
    """A sentence for each other tp; for those that are not legal one of each rule that they break."""
    lines = [_degree(one) for one in found.degrees if one.legal]
    alike: dict[str, list[DegreeRow]] = {}
    for one in found.degrees:
        if not one.legal:
            alike.setdefault(one.refusal.replace(f"tp={one.tp} ", "tp "), []).append(one)
    for several in alike.values():
        names = ", ".join(f"tp={one.tp}" for one in several)
        lines.append(f"{names}: not legal here: {several[0].refusal}")
    return lines


def _degree(one: DegreeRow) -> str:
    if one.refusal:
        return f"tp={one.tp}: does not fit: {one.refusal}"
    order = ", a toss-up" if one.toss_up else ""
    slower = f"{more(one.slower)} (90 %: {more(one.slower_low)} to {more(one.slower_high)}){order}"
    return f"tp={one.tp}: {slower}; {one.layout}: {one.loses}"


def _degrees(found: Sensitivity, width: int) -> list[Line]:
    if not found.degrees:
        return []
    text = "another tp? The fastest layout with each, against the chosen one; --why asks for any other"
    lines = heading("Why not", text, width)
    return lines + [line for one in degree_lines(found) for line in hanging("  - ", one, width)]


def _flips(found: Sensitivity, width: int) -> list[Line]:
    if not found.flips and found.agrees is not False:
        return []
    if not found.agrees:
        text = f"the planner of today has another choice for the same inputs, so nothing is said of flips: {found.now}"
        return heading("Flips", text, width)
    lines = heading("Flips", FLIPS, width)
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
    step, speed = f"~{format_seconds(one.step_time_s)}", f"~{one.tokens_per_s:,.0f}"
    faster = more(one.more) if one.more else "now"
    idle = "; faster if the further nodes stay idle" if one.more < 0 else ""
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
        f"({one.layout}); a token costs as much as here at ~{one.break_even_usd:,.2f} USD a node and hour"
    )
    if one.price_usd is None or one.own_break_even_usd is None:
        return f"{text}; what a node costs is not known here"
    order = "more" if one.price_usd > one.break_even_usd else "less"
    return (
        f"{text}. It costs {one.price_usd:,.2f}, so a token costs {order} there; that turns where a node here costs "
        f"~{one.own_break_even_usd:,.2f}"
    )
