"""`autoshard import`: makes a plan from another framework's configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import autoshard
from autoshard.commands.output import next_command, say
from autoshard.commands.parser import Parser, add_overruling
from autoshard.files.option_values import path
from autoshard.planner.options import LEFT_OPEN, NOT_OF_A_GIVEN, WHAT

SUMMARY = "read another framework's configuration into a plan"
USAGE = "autoshard import FILE [options]"
DESCRIPTION = """\
Read a configuration of NxD Training, NeMo 1, Accelerate, axolotl, LLaMA-Factory or SageMaker HyperPod (YAML), DeepSpeed
(JSON) or torchtitan (TOML, or file.py:name of a registry), or a script with arguments of Megatron-LM, NxD's examples or
Optimum Neuron, or with overrides of NeMo, NxD Training or HyperPod, into a plan that can be explained, audited and run.
Nothing in a file is executed. What a plan does not hold is listed on stderr, not dropped, with a warning for what
changes the step and a note of what may. The model is the one that the file describes; one that --model names must have
the file's sizes.

  autoshard import hf_llama3_70B_config.yaml
  autoshard import run_llama2_70B_tp_pp.sh --nodes 16
  autoshard import train.sh --model llama3-8b --instance trn1.32xlarge --nodes 4
  autoshard import fsdp.yaml --model llama3-8b --instance h100-80gb --micro-batch 2 --recompute full

Options say what the file does not, and overrule what it says. The layout must obey the rules and is estimated, not
searched: `autoshard score` prices one that breaks rules."""
OVERRULES = (*(option for option in WHAT if option.name not in NOT_OF_A_GIVEN), *LEFT_OPEN)


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "layout", type=path, metavar="FILE", help="YAML, JSON, TOML, FILE.py:NAME or a text with arguments"
    )
    add_overruling(parser, OVERRULES)
    parser.add_argument(
        "-o", "--out", type=path, metavar="FILE", default="plan.json", help="where the plan goes (default: plan.json)"
    )


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.import_plan(values["layout"], **{option.name: values[option.name] for option in OVERRULES})
    plan = found.plan
    plan.save(values["out"])
    for name, keys in groupby(found.left_out, key=lambda key: key.partition(".")[0] if "." in key else ""):
        listed = ", ".join(key.removeprefix(f"{name}.") for key in keys)
        sys.stderr.write(f"not in a plan: {f'{name}: ' if name else ''}{listed}\n")
    for note in plan.notes:
        sys.stderr.write(f"{'' if note in found.warnings else 'note: '}{note}\n")
    say(f"wrote {values['out']}: {plan.title}, {plan.short_layout}", next_command("explain", values["out"]))
    return 0
