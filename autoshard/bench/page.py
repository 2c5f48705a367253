"""Pages of PlanBench in Markdown, and the curves of searchers as a picture, from what the tracks found alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from autoshard.bench.searchers import CPU_BUDGETS_S, summary
from autoshard.explanation.markdown import markdown_table

Json = dict[str, Any]
OURS = "autoshard"
BETTER = {
    "mean_error": "mean error of rows",
    "error_of_groups": "mean error of groups",
    "error_of_sources": "mean error of sources",
    "median_error": "median error",
    "regret": "mean regret of groups",
    "regret_of_sources": "mean regret of sources",
}
"""Scores of which less is better, with their names."""
WHAT_SPLITS_ARE = {
    "group": "five parts; all results of a model on a cluster are in one part, and predicted without it",
    "source": "each source with at least 8 results is predicted without itself",
    "time": "results published after 2024, predicted from those up to 2024",
}
COLORS = ("#1b6ca8", "#c1440e", "#3a7d44", "#7b4fa3", "#b8860b", "#444444", "#d04a8a", "#2a9d9d")
WIDTH, HEIGHT, MARGIN, GAP, LETTER = 640, 360, 56, 8, 7
"""Of the curves' picture. LETTER: of a name, at 11 units to an em, in any font for pages."""
WRAPPED = 118
"""Columns of a paragraph in a page."""
INTRODUCTION = (
    "Written by `autoshard bench`; the same data and entries give the same bytes. What it costs is in "
    "[planbench_timings.md](planbench_timings.md). A new entry is a plug-in and one command; CONTRIBUTING.md shows how."
)
PREDICTORS = (
    "Every entry learns from the train rows of a split and predicts its test rows; autoshard's constants are fitted "
    "without them too, but its formulas were written by people who had seen all rows. Error: |predicted / measured - "
    "1|, as the mean over rows, over groups (a model on a cluster) and over sources, each of which then has one vote. "
    "Bias: below zero where steps are predicted too short. Fits: runs that are said right, of sources that report runs "
    "out of memory too. Regret: how much longer the layout takes that the entry would pick in each group than the "
    "fastest measured one; of layouts that an entry cannot tell apart, their mean; as the mean over groups and over "
    "sources. Coverage and width (high over low) "
    "are of the 90 % interval, which baselines take from their errors on train rows."
)
PEERS = (
    "Each is asked for its own answer, with the row's model, layout, peak, memory and links in its words; times are "
    "scaled by the middle ratio of the train rows. Calculon and SimuMax keep the efficiencies of their own system "
    "files; llm-analysis and Galvatron, which take theirs or a profile from the user, get the devices' peak and links. "
    "A row that a peer has no words for is counted under no answer, so each is scored on rows of its own."
)
SEARCHERS = (
    "All search the same space (one recompute set, even or balanced cuts) by the same cost model. Regret: how much "
    "slower the best layout is that was priced than the optimum of the space, which is proven: every layout has a "
    "lower bound, and all whose bound is below the optimum were simulated. "
    "The exact search bounds every layout at once, so a budget of layouts says nothing of it; "
    "the page of timings compares it by CPU seconds. "
    "Cells: median regret, and the share of runs that had a layout that fits."
)
REACHED = (
    "Runs that reach the optimum (within 0.1 %), by problem; the last column is the whole search of `autoshard plan`, "
    "which also gives each stage its own blocks and recompute set, and may give away up to 1 % for a simpler layout "
    "and 10 % for one that is known to run."
)
CLOCKS = (
    "The clock of a searcher starts when the space is there; what that takes is in the second table. exact is the "
    "whole search of `autoshard plan`: how many of the problems it has answered by then, with proof."
)


def results_page(results: Json) -> str:
    """The page of what is the same each time: the same results give the same bytes."""
    lines = [
        "# PlanBench",
        "",
        fill(INTRODUCTION, WRAPPED),
        "",
    ]
    if "predictors" in results:
        lines += [*_predictors(results["predictors"]), ""]
    if "searchers" in results:
        lines += [*_searchers(results["searchers"]), ""]
    return "\n".join(lines)


def _predictors(found: Json) -> Iterator[str]:
    yield "## Predictors"
    yield ""
    yield fill(f"{found['rows']:,} published results. {PREDICTORS}", WRAPPED)
    for split, entries in found["splits"].items():
        yield ""
        yield f"### By {split}: {WHAT_SPLITS_ARE.get(split, split)}"
        yield ""
        errors = ("entry", "rows", "no answer", "mean: rows", "groups", "sources", "median", "bias", "fits")
        head = (*errors, "regret: groups", "sources", "out of memory")
        ranked = sorted(entries.items(), key=lambda item: (item[1]["mean_error"] is None, item[1]["mean_error"] or 0.0))
        yield from markdown_table((*head, "coverage", "width"), [_score_cells(name, one) for name, one in ranked])
        yield ""
        yield from _ahead(entries)
    yield ""
    yield "### By group, a source at a time: mean error / regret of the pick"
    yield ""
    sources = found["by_source"]
    names = list(next(iter(sources.values()), {}))
    rows = [
        (source, f"{rows_of:,}", *(f"{_percent(of[name][0])} / {_percent(of[name][1])}" for name in names))
        for source, of in sources.items()
        for rows_of in [max(one[2] for one in of.values())]
    ]
    yield from markdown_table(("source", "rows", *names), rows)
    yield ""
    yield from _better_picks(sources)
    missing = [peer for peer, version in found["peers"].items() if version is None]
    there = [f"{peer} ({version})" for peer, version in found["peers"].items() if version is not None]
    yield ""
    yield fill(
        f"Peers that were run: {', '.join(there) or 'none'}; not run: {', '.join(missing) or 'none'}. {PEERS}", WRAPPED
    )


def _score_cells(name: str, one: Json) -> tuple[str, ...]:
    errors = ("mean_error", "error_of_groups", "error_of_sources", "median_error", "bias", "fits_right")
    percent = [_percent(one[key]) for key in (*errors, "regret", "regret_of_sources")]
    out = "-" if one["picks_out_of_memory"] is None else f"{one['picks_out_of_memory']:.3g}"
    width = "-" if one["width"] is None else f"{one['width']:.3g}"
    return (name, f"{one['rows']:,}", f"{one['unpredicted']:,}", *percent, out, _percent(one["coverage"]), width)


def _ahead(entries: Json) -> Iterator[str]:
    """Who is better than autoshard, and in what."""
    ours = entries.get(OURS)
    if ours is None or ours["mean_error"] is None:
        yield f"{OURS} was left out." if ours is None else f"{OURS} has no answer here."
        return
    said = False
    for key, words in BETTER.items():
        better = [
            (one[key], name)
            for name, one in entries.items()
            if one[key] is not None and ours[key] is not None and one[key] < ours[key]
        ]
        for value, name in sorted(better):
            said, numbers = True, f"{_percent(value)}, ours {_percent(ours[key])}"
            yield f"* **{name} is ahead of {OURS}** in {words}: {numbers}{_on(entries[name]['rows'], ours['rows'])}."
    if not said:
        yield f"Nobody is ahead of {OURS} in {', '.join(BETTER.values())}."


def _on(answered: int, rows: int) -> str:
    """On how many rows an entry is scored, where it has no answer to others."""
    return f"; it answers {answered:,} of {rows:,} rows" if answered < rows else ""


def _better_picks(sources: Json) -> Iterator[str]:
    """Who picks better than autoshard, and from which source's results."""
    asked = [source for source, of in sources.items() if of.get(OURS, (None, None))[1] is not None]
    rows = {source: max(one[2] for one in sources[source].values()) for source in sources}
    all_rows = sum(rows.values())
    for name in sorted({name for source in asked for name in sources[source]} - {OURS}):
        pairs = [(source, sources[source][name][1], sources[source][OURS][1]) for source in asked]
        known = [(source, theirs, ours) for source, theirs, ours in pairs if theirs is not None]
        ahead = [(theirs - ours, source, theirs, ours) for source, theirs, ours in known if theirs < ours]
        behind = sum(theirs > ours for _, theirs, ours in known)
        where = "; ".join(
            f"{source} ({_percent(theirs)}, ours {_percent(ours)}, {rows[source] / all_rows:.0%} of the rows"
            f"{_on(sources[source][name][2], rows[source])})"
            for _, source, theirs, ours in sorted(ahead)
        )
        count = f"{name} picks better than {OURS} in {len(ahead)} of {len(known)} sources, worse in {behind}"
        yield fill(f"* {count}{f': {where}' if where else ''}.", WRAPPED, subsequent_indent="  ")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _searchers(found: Json) -> Iterator[str]:
    problems, budgets = found["problems"], found["budgets"]
    yield "## Searchers"
    yield ""
    runs = f"{found['seeds']} runs of each searcher with at most {found['evaluations']:,} layouts priced"
    yield fill(f"{len(problems)} problems, {runs}. {SEARCHERS}", WRAPPED)
    yield ""
    rows = [("exact (autoshard)", *("-" for _ in budgets[1:]), "0.0 %, proven, all bounded")]
    for name in problems[0]["regret"] if problems else ():
        cells = []
        for place in range(len(budgets)):
            middle, _, share = summary([run[place] for one in problems for run in one["regret"][name]])
            cells.append(f"{'none fits' if middle is None else _percent(middle)}, {share:.0%}")
        rows.append((name, *cells))
    yield from markdown_table(("searcher", *(f"{budget:,} layouts" for budget in budgets)), rows)
    yield ""
    yield "![median regret over the budget](planbench_searchers.svg)"
    yield ""
    if found.get("missing"):
        yield f"Not installed: {', '.join(found['missing'])}."
        yield ""
    yield fill(REACHED, WRAPPED)
    yield ""
    yield from _by_problem(problems)


def _by_problem(problems: Sequence[Json]) -> Iterator[str]:
    names = list(problems[0]["regret"]) if problems else []
    rows = []
    for one in problems:
        reached = []
        for name in names:
            last = [run[-1] for run in one["regret"][name]]
            reached.append(f"{sum(end is not None and end < 1e-3 for end in last)} of {len(last)}")
        gain = 1 - one["planned_s"] / one["optimum_s"]
        optimum, planned = f"{one['optimum_s']:.4g} s", f"{one['planned_s']:.4g} s ({100 * gain:+.1f} %)"
        where = f"{one['model']} on {one['instance']}"
        rows.append((one["name"], where, f"{one['layouts']:,}", *reached, optimum, planned))
    yield from markdown_table(("problem", "model", "layouts", *names, "optimum", "autoshard plan"), rows)


def timings_page(timings: Json) -> str:
    """The page of CPU seconds, which differ from run to run."""
    lines = ["# What PlanBench costs", "", "CPU seconds of one run on one machine; they differ from run to run.", ""]
    if "predictors" in timings:
        found = timings["predictors"]["cpu_s_a_prediction"]
        names = list(dict.fromkeys(name for entries in found.values() for name in entries))
        rows = [(name, *(f"{1e3 * found[split].get(name, 0.0):.3f}" for split in found)) for name in names]
        lines += ["## Predictors: milliseconds a prediction, learning included", ""]
        lines += ["A peer is asked for a row once: what that takes is under the first split.", ""]
        lines += [*markdown_table(("entry", *found), rows), ""]
    if "searchers" in timings:
        lines += [*_searcher_times(timings["searchers"]["problems"]), ""]
    return "\n".join(lines)


def _searcher_times(problems: Sequence[Json]) -> Iterator[str]:
    yield "## Searchers: median regret after so many CPU seconds"
    yield ""
    yield fill(CLOCKS, WRAPPED)
    yield ""
    rows = [
        (
            "exact (autoshard)",
            *(f"{sum(one['exact_s'] <= most for one in problems)} of {len(problems)}" for most in CPU_BUDGETS_S),
        )
    ]
    for name in problems[0]["searchers"] if problems else ():
        cells = []
        for place in range(len(CPU_BUDGETS_S)):
            middle, _, _ = summary([run["regret"][place] for one in problems for run in one["searchers"][name]])
            cells.append("none fits" if middle is None else _percent(middle))
        rows.append((name, *cells))
    yield from markdown_table(("searcher", *(f"{budget_s:g} s" for budget_s in CPU_BUDGETS_S)), rows)
    yield ""
    names = list(problems[0]["searchers"]) if problems else []
    costs = [
        (
            one["name"],
            f"{one['exact_s']:.2f}",
            f"{one['space_s']:.2f}",
            *(
                f"{sum(run['cpu_s'] for run in one['searchers'][name]) / len(one['searchers'][name]):.2f}"
                for name in names
            ),
        )
        for one in problems
    ]
    yield from markdown_table(("problem", "exact", "space", *names), costs)


def curves_svg(found: Json) -> str:
    """Median regret over the budget of each searcher, as an SVG; per cent, layouts on a scale of powers of ten."""
    budgets, problems = found["budgets"], found["problems"]
    names = list(problems[0]["regret"]) if problems else []
    curves = {
        name: [
            summary([run[place] for one in problems for run in one["regret"][name]])[0] for place in range(len(budgets))
        ]
        for name in names
    }
    highest = max([value for curve in curves.values() for value in curve if value is not None], default=0.01) or 0.01
    labels = [name.partition(" ")[0] for name in names]
    right = WIDTH - 2 * GAP - LETTER * max(map(len, labels), default=0)

    def x(place: int) -> float:
        return MARGIN + (right - MARGIN) * place / max(1, len(budgets) - 1)

    def y(regret: float) -> float:
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * regret / highest

    text = '<text x="{:.1f}" y="{:.1f}" font-size="11" text-anchor="{}" fill="{}">{}</text>'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{right}" fill="none" stroke="#888888"/>',
        text.format((MARGIN + right) / 2, HEIGHT - 12, "middle", "#222222", "layouts priced"),
        text.format(MARGIN, MARGIN - 24, "start", "#222222", "median regret against the proven optimum"),
    ]
    lines += [
        text.format(x(place), HEIGHT - MARGIN + 16, "middle", "#222222", f"{budget:,}")
        for place, budget in enumerate(budgets)
    ]
    lines += [
        text.format(MARGIN - 6, y(highest * part / 4) + 4, "end", "#222222", f"{100 * highest * part / 4:.0f} %")
        for part in range(5)
    ]
    for place, (label, curve) in enumerate(zip(labels, curves.values(), strict=True)):
        color = COLORS[place % len(COLORS)]
        points = [(x(at), y(value)) for at, value in enumerate(curve) if value is not None]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines.append(text.format(right + GAP, MARGIN + 16 * place, "start", color, label))
    return "\n".join([*lines, "</svg>", ""])
