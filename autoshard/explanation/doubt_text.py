"""Pages of two layouts beside each other: `explain --why` and `compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoshard.cost.values import Estimate
from autoshard.explanation.compare import Comparison
from autoshard.explanation.doubt import Doubt, Pair, doubt, pairs
from autoshard.explanation.page import LEAST_SHARE, NARROWEST, WIDEST, Line, heading, paint, table, wrapped
from autoshard.explanation.why import Why
from autoshard.layout.strategy import Strategy
from autoshard.plans.names import recompute_by_stage, short_name
from autoshard.spec.cluster import Cluster
from autoshard.units import format_bytes, format_number, format_seconds, percent, slower_text

RATIO = "second over first"


def pair_lines(
    title: str, found: Sequence[Pair], names: tuple[str, str], shown: Callable[[float], str], width: int
) -> list[Line]:
    """A table of terms with the sum last; terms that hardly differ are counted and summed in one row. names: of the two
    columns. shown: a value as text. width: columns."""
    whole = max(sum(pair.one for pair in found), sum(pair.other for pair in found))
    telling = [pair for pair in found if abs(pair.difference) >= LEAST_SHARE * whole]
    close = [pair for pair in found if pair not in telling and max(pair.one, pair.other) > 0]
    if close:
        label = f"{len(close)} terms that hardly differ" if len(close) > 1 else close[0].name
        telling.append(summed(label, close))
    rows = [pair_cells(pair, shown) for pair in (*telling, summed("sum", found))]
    return table((title, *names, "difference"), rows, width, right=(1, 2, 3))


def summed(name: str, found: Sequence[Pair]) -> Pair:
    """The sums of several terms as one term of this name."""
    return Pair(name, sum(pair.one for pair in found), sum(pair.other for pair in found))


def pair_cells(pair: Pair, shown: Callable[[float], str]) -> tuple[str, str, str, str]:
    """(name, first, second, difference) of a term as text; '-' for a plan that has nothing of it. shown: a value as
    text."""
    one, other = (f"~{shown(value)}" if value else "-" for value in (pair.one, pair.other))
    size = shown(abs(pair.difference))
    sign = "-" if pair.difference < 0 and size != shown(0) else "+"
    return pair.name, one, other, f"{sign}{size}"


def doubt_text(found: Doubt) -> str:
    """A sentence such as '90 %: 12.0 % faster to 16.0 % slower; the first is the faster one with 60.0 %
    probability'."""
    sure = max(found.first_is_faster, 1 - found.first_is_faster)
    likely = "the first" if found.first_is_faster >= 0.5 else "the second"
    interval = f"90 %: {slower_text(found.low)} to {slower_text(found.high)}"
    text = f"{interval}; {likely} is the faster one with {percent(sure)} probability"
    return f"{text}: a toss-up" if found.toss_up else text


def _estimate_text(estimate: Estimate) -> str:
    low, high = format_seconds(estimate.step_time_low_s), format_seconds(estimate.step_time_high_s)
    used = f"~{format_bytes(estimate.fullest.total_bytes)} of {format_bytes(estimate.memory_capacity_bytes)}"
    fits = f"fits with {percent(estimate.fits_probability)} probability" if estimate.fits else "does not fit"
    return f"~{format_seconds(estimate.step_time_s)} (90 %: {low} to {high}); {used}, {fits}"


def _named(label: str, strategy: Strategy, width: int) -> list[Line]:
    lines = heading(label, short_name(strategy), width)
    if strategy.uniform_recompute is None:
        lines += wrapped(f"recompute by stage: {recompute_by_stage(strategy)}", width, " " * 8)
    return lines


def why_page(found: Why, cluster: Cluster, width: int, color: bool) -> str:
    """The page of `explain --why` as text, which ends with a newline. width: columns of the terminal."""
    width = max(NARROWEST, min(width, WIDEST))
    lines: list[Line] = [((f"Why not {found.asked}?", "bold"),)]
    chosen = found.chosen
    if found.is_the_choice:
        lines += wrapped(f"It is the choice: its best completion is {short_name(chosen.strategy)}.", width, "  ")
        return paint(lines, width, color)
    if found.refusal:
        lines += wrapped(f"Because {found.refusal}.", width, "  ")
    if found.best is None:
        return paint(lines, width, color)
    other = found.best
    lines += [(), *_named("Chosen", chosen.strategy, width)]
    lines += wrapped(_estimate_text(chosen.estimate), width, " " * 8)
    name = "Nearest" if found.refusal else "Asked"
    lines += _named(name, other.strategy, width)
    lines += wrapped(_estimate_text(other.estimate), width, " " * 8)
    ratio = other.estimate.step_time_s / chosen.estimate.step_time_s
    sure = (
        doubt_text(doubt(cluster, chosen, other))
        .replace("the first", "the chosen one")
        .replace("the second", "the asked one")
    )
    lines += wrapped(f"{slower_text(ratio)} ({sure})", width, " " * 8)
    lines += [line for note in found.notes for line in wrapped(note, width, " " * 8)]
    names = ("chosen", name.lower())
    lines += [
        (),
        *pair_lines("step", pairs(chosen.estimate.time_terms, other.estimate.time_terms), names, format_seconds, width),
    ]
    both = pairs(chosen.estimate.fullest.terms, other.estimate.fullest.terms)
    lines += [(), *pair_lines("fullest device", both, names, format_bytes, width)]
    return paint(lines, width, color)


def compare_page(found: Comparison, names: tuple[str, str], width: int, color: bool) -> str:
    """The page of `compare` as text, differences first; it ends with a newline. names: of the two files. width:
    columns."""
    width = max(NARROWEST, min(width, WIDEST))
    lines: list[Line] = [((f"{names[0]} beside {names[1]}", "bold"),)]
    lines += wrapped(verdict(found), width, "  ")
    lines.append(())
    if found.different:
        lines += heading("Differ", "", width)
        for what, first, second in found.different:
            lines.append(((f"  {what}", "dim"),))
            lines += [*wrapped(f"< {first}", width, "    "), *wrapped(f"> {second}", width, "    ")]
        lines.append(())
    short = ("first", "second")
    lines += pair_lines("step", found.time, short, format_seconds, width)
    lines.append(())
    lines += pair_lines("fullest device", found.memory, short, format_bytes, width)
    lines += [(), *table(("", *short, RATIO), number_rows(found), width, right=(1, 2, 3))]
    if found.same:
        lines += [(), *heading("Same", "", width)]
        lines += [line for what, text in found.same for line in wrapped(f"{what}: {text}", width, "  ")]
    return paint(lines, width, color)


def verdict(found: Comparison) -> str:
    """Which of two compared plans is faster and how sure that is, in a sentence."""
    ratio = found.other.step_time_s / found.one.step_time_s
    first, second = (format_seconds(one.step_time_s) for one in (found.one, found.other))
    text = f"the second takes ~{second} a step, the first ~{first}: "
    if found.doubt is None:
        times = format_number(ratio)
        return text + f"{'' if times == '1' else f'{times} times '}as long, but the inputs differ"
    if found.doubt.low == found.doubt.high:
        return text + slower_text(ratio)
    return text + f"{slower_text(ratio)} ({doubt_text(found.doubt)})"


def number_rows(found: Comparison) -> list[tuple[str, str, str, str]]:
    """(name, first, second, second over first) of what the two plans are predicted to reach, as text."""
    one, other = found.one, found.other
    rows: list[tuple[str, float, float, Callable[[float], str]]] = [
        ("step, low end of 90 %", one.step_time_low_s, other.step_time_low_s, format_seconds),
        ("step, high end of 90 %", one.step_time_high_s, other.step_time_high_s, format_seconds),
        ("tokens/s", one.tokens_per_s, other.tokens_per_s, format_number),
        ("MFU", one.mfu, other.mfu, lambda value: f"{value:.1%}"),
        ("memory, fullest device", one.memory_bytes, other.memory_bytes, format_bytes),
        ("capacity", one.memory_capacity_bytes, other.memory_capacity_bytes, format_bytes),
        ("probability to fit", one.fits_probability, other.fits_probability, percent),
    ]
    # over what shows as nothing a ratio would say nothing
    return [(name, shown(a), shown(b), "-" if shown(a) == shown(0) else f"{b / a:.2f}") for name, a, b, shown in rows]
