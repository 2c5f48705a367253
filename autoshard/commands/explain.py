"""`autoshard explain`: what a plan does, why it was chosen, what would change the choice, and why not another."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import load_plan, page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.files.option_values import number, path, text

if TYPE_CHECKING:
    from autoshard.explanation.answers import Sensitivity
    from autoshard.explanation.page import Line
    from autoshard.plans.plan import Plan

TIME_LIMIT_S = 60.0
"""Default of --time-limit, seconds. Most plans are answered in less; plans for torch on many devices, where most
layouts are legal, are not."""
SUMMARY = "what a plan does, why it was chosen and what would change the choice"
USAGE = "autoshard explain PLAN [--why LAYOUT] [--schedule] [--operators] [--measured FILE] [options]"
DESCRIPTION = """\
Print what a plan does, why it was chosen over others, and what would change the choice: the layouts are searched again
at other bandwidths, memories, peaks, batches, sequence lengths, nodes and prices. The page is printed first; these
answers follow as they are found, which takes some seconds, and minutes for torch on many devices (--time-limit).

  autoshard explain plan.json
  autoshard explain plan.json --why "tp=8 pp=16"
  autoshard explain plan.json --schedule --operators
  autoshard explain plan.json --format json | jq .step_time_s"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    parser.add_argument(
        "--why", type=text, metavar="LAYOUT", help="why not this layout, named in part: 'tp=8 pp=16'; term by term"
    )
    parser.add_argument("--schedule", action="store_true", help="only the schedule: pipeline ranks against time")
    parser.add_argument(
        "--operators", action="store_true", help="only one block: each operator's sharding, its collectives, seconds"
    )
    parser.add_argument(
        "--measured", type=path, metavar="FILE", help="only what a run measured (run.json) beside what was predicted"
    )
    parser.add_argument("--quick", action="store_true", help="leave out what would change the choice")
    parser.add_argument(
        "--time-limit",
        type=number,
        default=TIME_LIMIT_S,
        metavar="SECONDS",
        help=f"how long to look for what would change the choice (default: {TIME_LIMIT_S:g})",
    )
    add_format(parser, "text", "json", "markdown")


def run(values: Mapping[str, Any]) -> int:
    plan, form = load_plan(values["plan"]), values["format"]
    if values["why"]:
        _show_why(plan, values["why"], form)
    elif values["schedule"] or values["operators"] or values["measured"]:
        _show_parts(plan, values, form)
    else:
        _show_page(plan, values["time_limit"], values["quick"], form)
    return 0


def _show_page(plan: Plan, limit_s: float, quick: bool, form: str) -> None:
    from autoshard.explanation.describe import describe

    if form == "text":
        from autoshard.explanation.text import pieces

        for piece in pieces(describe(plan), [] if quick else _answers(plan, limit_s), page_width(), wants_color()):
            sys.stdout.write(piece)
            sys.stdout.flush()
        return
    answers = [] if quick else [*_answers(plan, limit_s)]
    description = describe(plan, answers[-1] if answers else None)
    if form == "json":
        say(json.dumps(description.to_dict(), indent=1))
    else:
        from autoshard.explanation.markdown import render_markdown

        sys.stdout.write(render_markdown(description))


def _answers(plan: Plan, limit_s: float) -> Iterator[Sensitivity]:
    """Yields what would change the choice, each time with more answers, for at most limit_s seconds. On a terminal a
    line shows the progress in between."""
    from autoshard.explanation.sensitivity import answers_so_far
    from autoshard.planner.priced import Clock

    shown = sys.stderr.isatty()

    def on_answer(done: int, total: int) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[Kwhat would change the choice: {done} of {total} answers")
            sys.stderr.flush()

    def clear() -> None:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    try:
        for answers in answers_so_far(plan, Clock(limit_s), on_answer):
            clear()
            yield answers
    finally:
        clear()


def _show_why(plan: Plan, asked: str, form: str) -> None:
    from autoshard.explanation.why import why
    from autoshard.plans.layout_syntax import read_partial

    answer = why(plan, asked, read_partial(asked))
    if form == "json":
        say(json.dumps(answer.to_dict(plan.cluster), indent=1))
        return
    from autoshard.explanation.doubt_text import why_page

    _write(why_page(answer, plan.cluster, page_width(), form == "text" and wants_color()), form)


def _show_parts(plan: Plan, values: Mapping[str, Any], form: str) -> None:
    parts = [name for name in ("schedule", "operators", "measured") if values[name]]
    if form == "json":
        from autoshard.explanation.parts import part_to_json

        say(json.dumps({name: part_to_json(plan, name, values["measured"]) for name in parts}, indent=1))
        return
    from autoshard.explanation.page import NARROWEST, WIDEST, paint
    from autoshard.explanation.parts import part_lines

    width = max(NARROWEST, min(page_width(), WIDEST))
    lines: list[Line] = []
    for name in parts:
        lines += [*([()] if lines else []), *part_lines(plan, name, values["measured"], width)]
    _write(paint(lines, width, form == "text" and wants_color()), form)


def _write(page: str, form: str) -> None:
    """Prints a page in the given form; in Markdown it is put in a code block, because its columns matter."""
    sys.stdout.write(f"```text\n{page}```\n" if form == "markdown" else page)
