"""`autoshard score`: price a layout that somebody wrote, beside the best one, term by term."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format, path
from autoshard.commands.plan_options import OPTIONS, PIN_FIELDS, PINS, WHAT, PlanRequest, request_from
from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.layout.strategy import Strategy
    from autoshard.search.result import Candidate
    from autoshard.search.rules import Problem

SUMMARY = "price a layout that somebody wrote, beside the best one"
USAGE = "autoshard score LAYOUT [options]"
DESCRIPTION = """\
Price a layout with the planner's cost model, beside the fastest one that fits, term by term. A layout that breaks rules
or does not fit is priced all the same where it can be, and what it breaks is said.

  autoshard score plan.json                                     a plan, hand-edited or not
  autoshard score recipes/llama3_70b_trn1_16nodes.yaml          a recipe; what it leaves open is searched
  autoshard score hf_llama3_70B_config.yaml --model llama3-70b  a configuration of NxD Training
  autoshard score train.sh --model llama3-8b --nodes 4          a script with Megatron's arguments
  autoshard score train.toml --nodes 4                          a torchtitan configuration

Options say what the file does not, and overrule what it says."""
PLANS_ONLY = ("operators", "objective", "price_per_node_hour", "tokens", "days")
UNSAID = ("context_parallel", "zero", "axis_order")
"""Pins that a file may leave out and say all of a layout."""
OVERRULES = tuple(option for option in WHAT if option.name not in PLANS_ONLY)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("layout", type=path, metavar="LAYOUT", help="plan.json, YAML, TOML or text with arguments")
    group = parser.add_argument_group("what to train, on what")
    for option in OVERRULES:
        text = option.help.partition(" (default")[0].replace(" (required)", "")
        group.add_argument(option.flag, type=option.parse, metavar=option.metavar, default=None, help=text)
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.commands.score_page import score_page, score_to_dict
    from autoshard.search.score import score

    given = {option.name: values[option.name] for option in OVERRULES if values[option.name] is not None}
    problem, strategy, form, notes = _layout(values["layout"], given)
    found = score(problem, strategy)
    best, why_not = _best(problem)
    notes += (why_not,) if why_not else ()
    if values["format"] == "json":
        say(json.dumps(score_to_dict(problem, found, best, form, notes), indent=1))
    else:
        say(score_page(problem, found, best, form, notes, page_width(), wants_color()).rstrip("\n"))
    return 0


def _best(problem: Problem) -> tuple[Candidate | None, str]:
    from autoshard.search import search

    try:
        return search(*problem[:3], backend=problem.backend, top=0).best, ""
    except AutoshardError as error:
        return None, f"the planner itself has none: {error}"


def _layout(file: str, given: dict[str, Any]) -> tuple[Problem, Strategy, str, tuple[str, ...]]:
    """(problem, strategy, what kind of file, notes)."""
    if file.endswith(".json"):
        return _plan(file, given)
    from autoshard.interop.written_layout import read_written_layout
    from autoshard.search.score import completed

    written = read_written_layout(file)
    options = {**_checked(file, written.options), **given}
    fields = dict(written.fields)
    per_replica = fields.pop("sequences_per_replica", None)
    if "model" not in options:
        raise AutoshardError(f"{file} does not say which model of those built in it is for; --model does")
    request = request_from(options)
    problem, notes = _problem(request)
    pinned = {PIN_FIELDS.get(name, name): value for name, value in request.pins.items()}
    if not written.complete and not fields:
        searched = _completed_by_search(problem, request)
        if searched is not None:
            return problem, searched, written.form, (*notes, *written.notes)
    strategy = completed(problem, {**pinned, **fields})
    if per_replica is not None and "global_batch" not in options:
        training = replace(problem.training, global_batch_size=per_replica * strategy.dp)
        problem = problem._replace(training=training)
    return problem, strategy, written.form, (*notes, *written.notes)


def _checked(file: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Each option as `autoshard plan` reads it."""
    found = {}
    for name, value in options.items():
        if name in ("out", "top", "format"):
            continue
        if name not in OPTIONS:
            raise AutoshardError(f"{file} has {name[:60]}, which is not an option of autoshard plan")
        try:
            found[name] = value if value is None else OPTIONS[name].parse(value)
        except ValueError as error:
            raise AutoshardError(f"{file}: {name}: {error}") from None
    return found


def _problem(request: PlanRequest) -> tuple[Problem, tuple[str, ...]]:
    from autoshard.commands.planning import inputs_of
    from autoshard.search.rules import Problem

    model, training, cluster, notes = inputs_of(request)
    on_trainium = cluster.layout_rules != "none"
    backend = request.backend if request.backend != "auto" else "nxd" if on_trainium else "torch"
    return Problem(model, training, cluster, backend), notes


def _completed_by_search(problem: Problem, request: PlanRequest) -> Strategy | None:
    """The fastest layout with the file's pins; None where all are pinned, or no such layout is legal and fits."""
    from autoshard.commands.planning import pins_of
    from autoshard.search import search

    if all(option.name in request.pins for option in PINS if option.name not in UNSAID):
        return None
    try:
        return search(*problem[:3], pins_of(request), problem.backend, top=0).best.strategy
    except AutoshardError:
        return None


def _plan(file: str, given: dict[str, Any]) -> tuple[Problem, Strategy, str, tuple[str, ...]]:
    """Of a plan only inputs and strategy are read: a hand-edited one has a price, and a note says what is wrong."""
    from autoshard.layout.strategy import Strategy
    from autoshard.layout.validate import in_file, plan_from_dict, problem_from_dict, read_plan_object

    if given:
        raise AutoshardError(f"{file} is a plan, which says all that --{next(iter(given)).replace('_', '-')} could")
    data = read_plan_object(file)
    if not isinstance(data.get("strategy"), dict):
        raise AutoshardError(f"{file}: this is not a plan: it lacks strategy")
    problem, _ = in_file(file, lambda: problem_from_dict(data))
    strategy = in_file(file, lambda: Strategy.from_dict(data["strategy"]))
    try:
        plan_from_dict(data)
    except AutoshardError as error:
        return problem, strategy, "plan", (f"other readers refuse the file: {error}",)
    return problem, strategy, "plan", ()
