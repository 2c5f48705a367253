"""`autoshard score`: price a layout that somebody wrote, beside the best one, term by term."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path
from autoshard.planner.options import WHAT
from autoshard.planner.written import Written, read_written

if TYPE_CHECKING:
    from autoshard.backends.rules import Problem
    from autoshard.plans.search_result import Candidate

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
    from autoshard.planner.score import score

    given = {option.name: values[option.name] for option in OVERRULES if values[option.name] is not None}
    file = values["layout"]
    written = _plan(file, given) if file.endswith(".json") else read_written(file, given)
    problem = written.problem
    priced = score(problem, written.strategy)
    best, why_not = _best(problem)
    if why_not:
        written = replace(written, notes=(*written.notes, why_not))
    if values["format"] == "json":
        say(json.dumps(score_to_dict(written, priced, best), indent=1))
    else:
        say(score_page(written, priced, best, page_width(), wants_color()).rstrip("\n"))
    return 0


def _best(problem: Problem) -> tuple[Candidate | None, str]:
    from autoshard.planner.search import search

    try:
        return search(*problem[:3], backend=problem.backend, top=0).best, ""
    except AutoshardError as error:
        return None, f"the planner itself has none: {error}"


def _plan(file: str, given: dict[str, Any]) -> Written:
    """The layout that a plan file says. Only its inputs and strategy are read, so a hand-edited plan has a price too,
    and a note says what is wrong with the file."""
    from autoshard.layout.strategy import read_strategy
    from autoshard.plans.validate import in_file, plan_from_dict, problem_from_dict, read_plan_object

    if given:
        raise AutoshardError(f"{file} is a plan, which says all that --{next(iter(given)).replace('_', '-')} could")
    data = read_plan_object(file)
    if not isinstance(data.get("strategy"), dict):
        raise AutoshardError(f"{file}: this is not a plan: it lacks strategy")
    problem, _ = in_file(file, lambda: problem_from_dict(data))
    strategy = in_file(file, lambda: read_strategy(data["strategy"], "strategy"))
    try:
        plan_from_dict(data)
    except AutoshardError as error:
        return Written(problem, strategy, "plan", notes=(f"other readers refuse the file: {error}",))
    return Written(problem, strategy, "plan")
