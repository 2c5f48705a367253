"""`autoshard migrate`: a configuration of NxD Training and its checkpoint, ready to go on on native PyTorch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.files.option_values import one_of, path, text, whole
from autoshard.migration.target import INSTANCE
from autoshard.planner.options import MOST_NODES
from autoshard.spec.sdk import release
from autoshard.spec.stack import STACKS

SUMMARY = "from NxD Training and its checkpoint to native PyTorch"
USAGE = "autoshard migrate CONF [--checkpoint DIR] [options]"
DESCRIPTION = """\
Read a configuration of NxD Training and a checkpoint that it saved, and write a folder to go on from: a plan for
native PyTorch on trn2 (or for torch on another instance), the checkpoint cut for it with the optimizer's state, a
Slurm script, and a page that says what changed and what that does to time and memory.

  autoshard migrate hf_llama3_70B_config.yaml --checkpoint nxdt_run/checkpoints/step=1000.ckpt
  autoshard migrate conf.yaml --instance trn1.32xlarge -o on_trn1

Nothing in a file is executed. Model, batch, sequence length and precision stay; the layout is searched."""

OPTIONS = ("checkpoint", "model", "weights_only", "instance", "nodes", "lnc", "sdk", "stack")
"""Options that are those of `autoshard.migrate`, by the same names."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("conf", type=path, metavar="CONF", help="YAML of NxD Training")
    parser.add_argument("--checkpoint", type=path, metavar="DIR", help="what it saved: folders model and optim")
    parser.add_argument("--model", type=path, metavar="MODEL", help="name or config.json, where CONF does not say it")
    parser.add_argument("--weights-only", action="store_true", help="leave out the optimizer's state")
    parser.add_argument(
        "-o", "--out", type=path, metavar="FOLDER", default="migrated", help="folder to make (default: migrated)"
    )
    target = parser.add_argument_group("where it goes")
    target.add_argument("--instance", type=text, metavar="TYPE", default=INSTANCE, help=f"(default: {INSTANCE})")
    target.add_argument(
        "--nodes",
        type=whole(at_most=MOST_NODES),
        metavar="N",
        help="instances (default: as many as have the same peak)",
    )
    target.add_argument("--lnc", type=whole(), metavar="N", help="physical cores in a logical one")
    target.add_argument(
        "--sdk", type=release, metavar="RELEASE", help="release of the Neuron SDK (default: the newest)"
    )
    target.add_argument(
        "--stack", type=one_of("auto", *STACKS), metavar="NAME", default="auto", help=f"{', '.join(STACKS)}"
    )


def run(values: Mapping[str, Any]) -> int:
    found = autoshard.migrate(values["conf"], values["out"], **{name: values[name] for name in OPTIONS})
    ratio = found.plan.step_time_s / found.before.step_time_s
    say(f"wrote {found.folder}: {found.plan.title}, {found.plan.short_layout}, {ratio:.2f} times the step time")
    job = shlex.join(("sbatch", str(found.job_file)))
    say(*([found.position] if found.position else []), f"next: read {found.page_file}, then {job}")
    return 0
