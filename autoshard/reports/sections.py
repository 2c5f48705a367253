"""The parts of a page, each from a view to HTML, in the order in which people ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard.cost.values import Term
from autoshard.explanation.describe import Description
from autoshard.explanation.doubt import Pair
from autoshard.explanation.doubt_text import pair_cells, summed
from autoshard.explanation.measured import quantity_text
from autoshard.explanation.operators import Move, OperatorRow, by_block
from autoshard.explanation.page import LEAST_SHARE, more, span
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
from autoshard.reports.html import Html, bar, bullets, code, element, table
from autoshard.reports.machine import axes, drawn
from autoshard.reports.pipeline import TOGETHER, bubble_table, packed
from autoshard.reports.view import Rows, View
from autoshard.reports.words import in_words
from autoshard.units import GB, TFLOPS, counted, format_bytes, format_count, format_number, format_seconds, percent

COLORS = 10
"""Colours that terms have, `c0` to `c9` in page.css; the last one is for the rest."""
HELP = "Arrow keys move over it, Escape lets go."
ZOOM = f"Clicked once, wheel, + and - zoom; dragging moves, 0 shows all. {HELP}"
MANY = 100
"""Spans of a row that do not stand side by side on every screen."""


def body(view: View) -> tuple[Html, dict[str, Any]]:
    """(the sections of a plan, what pictures.js draws in them)."""
    parts = (_chosen, _measured, machine, pipeline, memory, _step, _search, _runners_up, _flips, _block, _dropped)
    html = [element("h1", f"{view.description.model} on {view.description.cluster}"), *(part(view) for part in parts)]
    return Html("".join(html)), pictures(view)


def pictures(view: View) -> dict[str, Any]:
    """The values that pictures.js draws, by the `data-picture` of its canvas."""
    values: dict[str, Any] = {"machine": drawn(view.plan), "timeline": packed("predicted", view.rows)}
    if view.measured_rows:
        values["measured"] = packed("measured", view.measured_rows)
    if view.found is not None:
        d = view.description
        strategy = view.plan.strategy
        chosen = {"step_time_s": d.step_time_s, "memory_bytes": d.memory_bytes, "layout": d.layout}
        chosen |= {"fits_with": percent(d.fits_probability)}
        chosen |= {"tp": strategy.tp, "pp": strategy.pp, "dp": strategy.dp, "cp": strategy.cp}
        capacity = {"capacity_bytes": d.memory_capacity_bytes}
        values["candidates"] = {**view.found.packed(), **capacity, "chosen": chosen}
    return values


def section(title: str, lead: str, *children: Html) -> Html:
    """A part of the page; nothing where it has no children with text."""
    if not any(children):
        return Html("")
    anchor = title.lower().replace(" ", "-").replace("?", "").replace(",", "")
    lines = [element("p", lead, class_="lead")] if lead else []
    return element("section", element("h2", title, id=anchor), lines, *children, aria_labelledby=anchor)


def picture(name: str, label: str, keys: str = HELP, controls: Html | None = None) -> Html:
    """A canvas that pictures.js draws. label: what it shows, for those who do not see it."""
    canvas = element(
        "canvas", data_picture=name, tabindex=0, role="application", aria_label=f"{label}. {keys}", class_="picture"
    )
    told = element("p", class_="told", aria_live="polite")
    return element("figure", controls, canvas, element("figcaption", told, element("small", keys)))


def _chosen(view: View) -> Html:
    d = view.description
    used = d.memory_bytes / d.memory_capacity_bytes
    slow, fast = d.step_time_s / d.step_time_high_s, d.step_time_s / d.step_time_low_s
    sizes = span(d.memory_low_bytes, d.memory_high_bytes, format_bytes)
    rates = f"{format_number(d.tokens_per_s * slow)} to {format_number(d.tokens_per_s * fast)}"
    peak = f"{d.peak_flops_per_s / TFLOPS:g} TFLOP/s {d.peak_dtype} a {d.device}"
    cards = (
        (
            "One step",
            f"~{format_seconds(d.step_time_s)}",
            f"90 %: {span(d.step_time_low_s, d.step_time_high_s, format_seconds)}",
        ),
        ("Tokens a second", f"~{format_number(d.tokens_per_s)}", f"90 %: {rates}"),
        (
            "MFU",
            f"~{d.mfu:.1%}",
            f"of {peak}; 90 %: {d.mfu * slow:.1%} to {d.mfu * fast:.1%}",
        ),
        (
            "Memory",
            f"~{format_bytes(d.memory_bytes)}",
            f"{used:.0%} of {format_bytes(d.memory_capacity_bytes)} on the fullest {d.device}; 90 %: {sizes}",
        ),
        ("Fits", percent(d.fits_probability), "probability that every device has room"),
    )
    shown = [
        element("div", element("dt", name), element("dd", element("strong", value), element("span", sure)))
        for name, value, sure in cards
    ]
    batch = f"{counted(d.global_batch_size, 'sequence')} of {d.sequence_length:,} tokens a step"
    problem = (
        f"{format_count(d.num_parameters)} parameters, {counted(d.num_devices, d.device)}, {batch}, "
        f"{d.precision}, backend {d.backend}. Layout: "
    )
    facts = table("How the layout works", ("", "what"), d.facts)
    words, known = in_words(view.plan, d)
    return section(
        "What was chosen",
        "",
        element("div", [element("p", sentence) for sentence in words], class_="words"),
        element("dl", shown, class_="cards"),
        element("p", problem, code(d.layout)),
        element("h3", "How sure that is"),
        bullets(d.advice),
        element("p", d.caveat),
        _notes(d),
        element("details", element("summary", "The layout line by line"), facts),
        element("details", element("summary", "Words that this page uses"), table("Words", ("word", "meaning"), known)),
    )


def _notes(d: Description) -> Html:
    return Html("") if not d.notes else Html(element("h3", "Notes") + bullets(d.notes))


def _measured(view: View) -> Html:
    run = view.run
    if run is None:
        return Html("")
    where = "within" if run.within else "outside"
    lead = (
        f"{run.steps:,} steps were run; 80 % of them took {format_seconds(run.step_p10_s)} to "
        f"{format_seconds(run.step_p90_s)}; the median is {where} the predicted 90 % interval. Of two bars the "
        "upper one is predicted."
    )
    rows = []
    for one in run.rows:
        whole = max(one.predicted, one.actual) or 1.0
        ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
        bars = Html(bar(one.predicted / whole) + bar(one.actual / whole, 1))
        rows.append((one.name, f"~{quantity_text(one, one.predicted)}", quantity_text(one, one.actual), ratio, bars))
    header = ("", "predicted", "measured", "ratio", "predicted over measured")
    return section("What was measured", lead, table("Predicted and measured", header, rows, (1, 2, 3)))


def machine(view: View) -> Html:
    """The mesh drawn on nodes and chips, with a table of its axes."""
    cluster, found = view.plan.cluster, axes(view.plan)
    first = drawn(view.plan)["shown"]
    part = "" if first == cluster.nodes else f" The first {first:,} of {cluster.nodes:,} nodes are drawn."
    lead = (
        f"Each square is one device of {cluster.world_size:,}; squares that touch share a chip, a frame is a node. "
        f"Pointing at one marks the ranks that it talks to.{part}"
    )
    rows = [
        (
            one.name,
            f"{one.size:,}",
            " or ".join(f"{ranks:,}" for ranks in one.apart),
            f"{one.nodes:,}",
            one.link,
            f"{one.bandwidth_bytes_per_s / GB:,.4g} GB/s",
            one.what,
        )
        for one in found
    ]
    header = (
        "axis",
        "ranks of a group",
        "ranks apart",
        "nodes of a group",
        "slowest link",
        "a direction",
        "what is sent",
    )
    devices = f"{counted(cluster.world_size, 'device')} in {counted(cluster.nodes, 'node')}"
    choice = _select("Colour by", "color", [one.name for one in found] or ["pp"])
    return section(
        "The mesh on the machine",
        lead,
        picture("machine", devices, controls=choice),
        table("Axes of the mesh, outermost first", header, rows, (1, 2, 3, 5)) if rows else Html(""),
    )


def _select(label: str, name: str, options: Sequence[str], first: str | None = None) -> Html:
    given = [*([element("option", first, value="")] if first else []), *(element("option", one) for one in options)]
    return element("label", f"{label} ", element("select", given, data_choice=name), class_="choice")


def pipeline(view: View) -> Html:
    """The timeline of a step, predicted and measured, with a table of bubbles."""
    total_s = view.description.step_time_s
    rows = [
        (
            name,
            f"~{format_seconds(busy_s)}",
            _waited(first_s),
            _waited(waits_s),
            f"{waits_s / total_s:.1%}",
            bar(waits_s / total_s),
        )
        for name, busy_s, first_s, waits_s in bubble_table(view.rows)
    ]
    lead = (
        "What each pipeline rank does in one step, from left to right. Hatched stretches are bubbles: the rank waits "
        "for another one. After the pipeline come sums of gradients and the optimizer."
    )
    if any(len(row) > MANY for _, row in view.rows):
        lead += (
            " Where actions are too narrow to stand side by side, they stand one above the other, as high as their "
            "shares of the time; zooming in parts them."
        )
    header = ("", "work", "waits at the start", "waits in all", "of the step", "")
    label = f"Timeline of {len(view.rows)} pipeline ranks over {format_seconds(total_s)}"
    shown = [picture("timeline", label, ZOOM), _legend(view.rows)]
    if view.measured_rows:
        shown.append(element("h3", "As it was measured"))
        shown += [picture("measured", "Timeline of the measured ranks", ZOOM), _legend(view.measured_rows)]
    return section(
        "The pipeline on a clock", lead, *shown, table("Work and bubbles by rank", header, rows, (1, 2, 3, 4))
    )


def _legend(rows: Rows) -> Html:
    """The colours of a timeline's spans, as packed() numbers what they are; a span of several actions has theirs."""
    kinds = packed("", rows)["kinds"]
    keys = [
        element("li", element("span", class_=f"key c{i % COLORS}"), kind)
        for i, kind in enumerate(kinds)
        if kind != TOGETHER
    ]
    return element("ul", [*keys, element("li", element("span", class_="key bubble"), "bubble")], class_="legend")


def _waited(seconds: float) -> str:
    """Differences of times that are equal are rounding alone."""
    return f"~{format_seconds(seconds)}" if seconds > 1e-9 else "0 s"


def _by_size(view: View) -> list[str]:
    """Names of the memory's terms, the largest of any rank first."""
    most: dict[str, float] = {}
    for stage in view.plan.estimate.memory:
        for term in stage.terms:
            most[term.name] = max(most.get(term.name, 0.0), term.value)
    return [name for name, value in sorted(most.items(), key=lambda one: -one[1]) if value]


def memory(view: View) -> Html:
    """Stacks of memory by pipeline rank against capacity, with the same numbers as a table."""
    d, stages = view.description, view.plan.estimate.memory
    names = _by_size(view)
    color = {name: min(index, COLORS - 1) for index, name in enumerate(names)}
    low, high = d.memory_low_bytes / d.memory_bytes, d.memory_high_bytes / d.memory_bytes
    whole = 1.02 * max(d.memory_capacity_bytes, d.memory_bytes * high)
    measured = {} if view.run is None else {one.name: one.actual for one in view.run.rows if one.unit == "bytes"}
    stacks = []
    for stage in stages:
        total, rank = stage.total_bytes, stage.pipeline_rank
        sizes = {term.name: term for term in stage.terms if term.value}
        pieces = [_piece(sizes[name], color[name], whole) for name in names if name in sizes]
        left, width = 100 * total * low / whole, 100 * total * (high - low) / whole
        pieces.append(element("i", class_="interval", style=f"left:{left:.2f}%;width:{width:.2f}%"))
        pieces.append(element("i", class_="limit", style=f"left:{100 * d.memory_capacity_bytes / whole:.2f}%"))
        if (peak := measured.get(f"peak memory, pipeline rank {rank}")) is not None:
            pieces.append(element("i", class_="peak", style=f"left:{min(100.0, 100 * peak / whole):.2f}%"))
        label = element("span", f"rank {rank}", class_="name")
        stacks.append(
            element(
                "div",
                label,
                element("div", pieces, class_="stack"),
                element("span", f"{total / GB:.1f} GB", class_="sum"),
            )
        )
    legend = [element("li", element("span", class_=f"key c{color[name]}"), name) for name in names]
    legend.append(
        element("li", element("span", class_="key limit"), f"capacity, {format_bytes(d.memory_capacity_bytes)}")
    )
    legend.append(element("li", element("span", class_="key interval"), "90 % interval"))
    if measured:
        legend.append(element("li", element("span", class_="key peak"), "measured peak"))
    rows = [
        (
            f"pipeline rank {stage.pipeline_rank}",
            f"{stage.total_bytes / GB:.2f}",
            f"{stage.total_bytes * low / GB:.2f}-{stage.total_bytes * high / GB:.2f}",
            *(_gigabytes(stage.terms, name) for name in names),
        )
        for stage in stages
    ]
    lead = (
        "The worst moment of a step on one device of each pipeline rank, against "
        f"{format_bytes(d.memory_capacity_bytes)} that it has."
    )
    return section(
        "Memory of each stage",
        lead,
        element("div", stacks, class_="stacks", aria_hidden="true"),
        element("ul", legend, class_="legend"),
        table("Memory by pipeline rank, GB", ("", "all", "90 %", *names), rows, range(1, 3 + len(names))),
    )


def _piece(term: Term, color: int, whole: float) -> Html:
    style = f"width:{100 * term.value / whole:.3f}%"
    return element("b", class_=f"c{color}", style=style, title=f"{term.name}: {format_bytes(term.value)}")


def _gigabytes(terms: Sequence[Term], name: str) -> str:
    return f"{sum(term.value for term in terms if term.name == name) / GB:.2f}"


def _step(view: View) -> Html:
    d = view.description
    terms = sorted((term for term in d.time_terms if term.value), key=lambda term: -term.value)
    most = max((term.share for term in terms), default=1.0)
    rows = [
        (term.name, f"~{format_seconds(term.value)}", f"{term.share:.1%}", bar(term.share / most)) for term in terms
    ]
    lead = f"One step is ~{format_seconds(d.step_time_s)}. Time that something else hides is in none of its terms."
    return section("Where the time goes", lead, table("Terms of a step", ("term", "time", "share", ""), rows, (1, 2)))


def _search(view: View) -> Html:
    d, found = view.description, view.found
    said = (
        "" if d.considered is None else f"{d.considered:,} layouts were considered, {d.fitting:,} fit: {d.optimality}."
    )
    if found is None:
        return section("All candidates", said, element("p", "The layouts are not drawn in a quick report."))
    lead = (
        f"{said} Each mark is a priced layout, {len(found.columns['tp']):,} of {found.total:,}: those that none beats "
        "in both time and memory (the line), the fastest of each kind, one for each place. An open mark's time is a "
        "lower bound: the search needed no more to rule it out; the dotted line takes bounds for times. The star is "
        "the plan."
    )
    controls = element(
        "div",
        _select("Colour by", "color", ("tp", "pp", "cp", "ep", "recompute", "schedule")),
        *(_select(name, name, _values(found.columns[name]), "all") for name in ("tp", "pp", "cp", "ep", "recompute")),
        element(
            "label",
            element("input", type="checkbox", data_choice="unfit"),
            " also those that do not fit",
            class_="choice",
        ),
        class_="choices",
    )
    columns = found.columns
    more = {"schedule": "schedule", "zero": "zero", "context": "context_parallel", "order": "axis_order"}
    more |= {"sp": "sequence_parallel", "attention": "attention_kernel"}
    front = list(found.front)
    differ = {word: name for word, name in more.items() if len(set(columns[name][front].tolist())) > 1}
    names = ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size", "recompute", *differ.values())
    rows = [
        (
            ("at least " if columns["step_time_is_bound"][place] else "")
            + format_seconds(columns["step_time_s"][place]),
            f"{format_bytes(columns['memory_bytes'][place])}, {percent(columns['fits_probability'][place])}",
            *(
                "" if name == "context_parallel" and columns["cp"][place] == 1 else str(columns[name][place])
                for name in names
            ),
        )
        for place in front
    ]
    header = ("step", "memory, fits", "tp", "pp", "dp", "cp", "ep", "vpp", "mbs", "recompute", *differ)
    return section(
        "All candidates",
        lead,
        picture("candidates", f"{found.total:,} priced layouts by step time and memory", ZOOM, controls),
        element(
            "details",
            element("summary", f"The Pareto front: {len(rows)} layouts"),
            table("Pareto front, the fastest first", header, rows, range(9)),
        ),
    )


def capital(sentence: str) -> str:
    """The sentence with a large first letter."""
    return sentence[:1].upper() + sentence[1:]


def _values(column: Any) -> list[str]:
    return [str(value) for value in sorted(set(column.tolist()))]


def _runners_up(view: View) -> Html:
    rows = []
    for one in view.description.runners_up:
        terms = [
            f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))} {name}" for name, seconds in one.differences
        ]
        rows.append(
            (
                code(one.layout),
                f"~{format_seconds(one.step_time_s)}",
                f"{more(one.slower)} ({more(one.slower_low)} to {more(one.slower_high)})",
                order_text(one),
                f"{format_bytes(one.memory_bytes)}, {percent(one.fits_probability)}",
                "; ".join(terms),
            )
        )
    header = ("layout", "step", "against the plan (90 %)", "order", "memory, fits", "terms that differ")
    lead = "The next fastest layouts that fit, one of each kind, and the terms in which they differ from the plan."
    return section("Runners-up", lead, table("Runners-up", header, rows, (1,)) if rows else Html(""))


def _flips(view: View) -> Html:
    found = view.description.sensitivity
    if found is None:
        return Html("")
    flips = [
        element("li", element("strong", quantity), " ", "; ".join(sentences))
        for quantity, sentences in flips_by_quantity(found).items()
    ]
    parts = [
        *([element("p", capital(note))] if (note := degrees_note(found)) else []),
        bullets(degree_lines(found)),
        *(
            [element("h3", "What flips the choice"), element("p", capital(flips_heading(found))), element("ul", flips)]
            if flips
            else []
        ),
    ]
    if found.agrees is False:
        parts.append(element("p", f"Today's planner chooses another layout for the same inputs: {found.now}"))
    if found.sizes:
        parts += [element("h3", "More nodes"), table(f"More nodes: {NODES}", SIZE_HEADER, size_rows(found), range(7))]
    parts += [element("h3", "Prices"), bullets(price_lines(found)), element("p", capital(unanswered_line(found)))]
    return section("What would change the choice", "Each answer is another search.", *parts)


def _block(view: View) -> Html:
    blocks = by_block(view.plan)
    which = "One block" if len(blocks) == 1 else f"One block of each of {len(blocks)} kinds"
    lead = (
        f"{which} on one rank for one microbatch, without recompute. seq/tp: the dim seq is split over the axis tp; "
        "partial/tp: still to be summed over tp. Collectives stand below the operator that issues them."
    )
    header = ("operator", "forward", "backward", "bytes", "sharding", "on a rank")
    tables = [
        table(f"Operators of {one}", header, [cells for row in rows for cells in _operator(row)], (1, 2, 3))
        for one, rows in blocks
    ]
    return section("A block, operator by operator", lead, *tables)


def _operator(row: OperatorRow) -> list[tuple[str, ...]]:
    held = " ".join(f"{dim} {size:,}" for dim, size in row.local)
    moved = row.kind == "redistribute"
    seconds = ("", "") if moved else (f"~{format_seconds(row.forward_s)}", f"~{format_seconds(row.backward_s)}")
    name = f"to {row.name}" if moved else row.name
    return [(name, *seconds, "", row.sharding or "whole", held), *map(_move, row.moves)]


def _move(move: Move) -> tuple[str, ...]:
    spent = f"~{format_seconds(move.seconds)}"
    there, back = (spent, "") if move.direction == "forward" else ("", spent)
    return (f"    {move.kind}", there, back, format_bytes(move.bytes), f"over {' x '.join(move.axes)}", "")


def _dropped(view: View) -> Html:
    rows = [(one.reason, f"{one.count:,}", one.example) for one in view.description.rejections]
    lead = "Why every other layout was dropped, and the one of each reason that came nearest."
    header = ("reason", "layouts", "nearest")
    return section("What was dropped", lead, table("Dropped layouts", header, rows, (1,)) if rows else Html(""))


def term_pairs(pairs: Sequence[Pair], shown: Callable[[float], str], caption: str) -> Html:
    """Two plans' terms side by side with their difference, the sum last; those that round to nothing are summed in one
    row."""
    whole = max([*(max(pair.one, pair.other) for pair in pairs), 1e-12])
    told = [pair for pair in pairs if max(pair.one, pair.other) > LEAST_SHARE * whole]
    small = [pair for pair in pairs if pair not in told and max(pair.one, pair.other) > 0]
    if small:
        told.append(summed(f"{len(small)} smaller terms", small) if len(small) > 1 else small[0])
    rows = [(*pair_cells(pair, shown), Html(bar(pair.one / whole) + bar(pair.other / whole, 1))) for pair in told]
    rows.append((*pair_cells(summed("sum", pairs), shown), Html("")))
    return table(caption, ("term", "first", "second", "difference", "first over second"), rows, (1, 2, 3))
