"""`autoshard score`: price a layout that somebody wrote, beside the best one, term by term."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format, path
from autoshard.commands.plan_options import WHAT
from autoshard.commands.written import Written, read_written
from autoshard.errors import AutoshardError

if TYPE_CHECKING:
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
    file = values["layout"]
    written = _plan(file, given) if file.endswith(".json") else read_written(file, given)
    problem = written.problem
    found = score(problem, written.strategy)
    best, why_not = _best(problem)
    if why_not:
        written = replace(written, notes=(*written.notes, why_not))
    if values["format"] == "json":
        say(json.dumps(score_to_dict(written, found, best), indent=1))
    else:
        say(score_page(written, found, best, page_width(), wants_color()).rstrip("\n"))
    return 0


def _best(problem: Problem) -> tuple[Candidate | None, str]:
    from autoshard.search import search

    try:
        return search(*problem[:3], backend=problem.backend, top=0).best, ""
    except AutoshardError as error:
        return None, f"the planner itself has none: {error}"


def _plan(file: str, given: dict[str, Any]) -> Written:
    """Of a plan only inputs and strategy are read, so that a hand-edited one has a price."""
    from autoshard.interop.json_file import read_json
    from autoshard.layout.strategy import Strategy
    from autoshard.layout.validate import MAX_PLAN_BYTES
    from autoshard.search.rules import Problem
    from autoshard.spec.cluster import Cluster
    from autoshard.spec.model import ModelSpec
    from autoshard.spec.training import TrainingSpec

    if given:
        raise AutoshardError(f"{file} is a plan, which says all that --{next(iter(given)).replace('_', '-')} could")
    data = read_json(file, "plan", int(MAX_PLAN_BYTES))
    inputs, strategy, backend = (
        (data.get(name) if isinstance(data, dict) else None) for name in ("inputs", "strategy", "backend")
    )
    if not isinstance(inputs, dict) or not isinstance(strategy, dict) or backend not in ("nxd", "torch"):
        raise AutoshardError(f"{file} is no plan: it must have inputs, strategy and a backend, nxd or torch")
    try:
        problem = Problem(
            ModelSpec.from_dict(inputs.get("model"), "inputs.model"),
            TrainingSpec.from_dict(inputs.get("training"), "inputs.training"),
            Cluster.from_dict(inputs.get("cluster"), "inputs.cluster"),
            backend,
        )
        return Written(problem, Strategy.from_dict(strategy), "plan")
    except AutoshardError as error:
        raise AutoshardError(f"{file}: {error}") from None
