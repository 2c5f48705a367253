"""`autoshard score`: price a layout that somebody wrote, beside the best one, term by term."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import page_width, say, wants_color
from autoshard.commands.parser import Parser, add_format, add_overruling
from autoshard.files.option_values import path
from autoshard.planner.options import LEFT_OPEN, OF_A_SEARCH, WHAT

SUMMARY = "price a layout that somebody wrote, beside the best one"
USAGE = "autoshard score LAYOUT [options]"
DESCRIPTION = """\
Price a layout with the planner's cost model, beside the fastest one that fits, term by term. A layout that breaks rules
or does not fit is priced all the same where it can be, and what it breaks is said.

  autoshard score plan.json                                     a plan, hand-edited or not
  autoshard score recipes/llama3_70b_trn1_16nodes.yaml          a recipe; what it leaves open is searched
  autoshard score hf_llama3_70B_config.yaml --model llama3-70b  a configuration of NxD Training
  autoshard score train.sh --model llama3-8b --nodes 4          a script of Megatron, NxD's examples, Optimum Neuron
  autoshard score train.toml --nodes 4                          a torchtitan configuration
  autoshard score "tp=8 pp=16" --model llama3-70b --nodes 16    words; what they leave open is 1, none or even

Options say what a file does not, and overrule what it says; a plan says all of it: autoshard replan changes a plan."""
OVERRULES = (*(option for option in WHAT if option.name not in OF_A_SEARCH), *LEFT_OPEN)


def add_arguments(parser: Parser) -> None:
    parser.add_argument("layout", type=path, metavar="LAYOUT", help="plan.json, YAML, TOML or text with arguments")
    add_overruling(parser, OVERRULES)
    add_format(parser, "text", "json")


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.score(values["layout"], **{option.name: values[option.name] for option in OVERRULES})
    if values["format"] == "json":
        say(json.dumps(found.to_dict(), indent=1))
    else:
        say(found.page(page_width(), wants_color()).rstrip("\n"))
    return 0
