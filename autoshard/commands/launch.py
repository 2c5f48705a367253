"""`autoshard launch`: the script or manifest that starts a plan on a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text, whole

SUMMARY = "write or submit the job that starts a plan on a cluster"
USAGE = "autoshard launch PLAN --slurm|--kubernetes [options]"
DESCRIPTION = """\
Write the job that starts a plan: a Slurm batch script or a Kubernetes PyTorchJob, with one torchrun a node, the
rendezvous, and the variables of EFA and the Neuron SDK, each with its reason.

  autoshard launch plan.json --slurm --out job.sh
  autoshard launch plan.json --slurm --precompile --submit
  autoshard launch my_sweep.yaml --slurm --array 16 --submit
  autoshard launch plan.json --kubernetes --image REGISTRY/NAME:TAG | kubectl apply -f -"""

OPTIONS = (
    "array",
    "run",
    "program",
    "precompile",
    "compiled_for",
    "cache",
    "partition",
    "time_limit",
    "image",
    "claim",
)
"""Options that are those of `autoshard.launch`, by the same names."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "plan", type=path, metavar="PLAN", help="plan.json (of --array: a sweep file) where all nodes see it"
    )
    parser.add_argument("--slurm", action="store_true", help="an sbatch script")
    parser.add_argument("--kubernetes", action="store_true", help="a PyTorchJob of the Kubeflow training operator")
    parser.add_argument(
        "--array", type=whole(), metavar="N", help="PLAN is a sweep file: a job array of N tasks that do its points"
    )
    parser.add_argument("--run", action="store_true", help="of --array: execute the plans too, each on its task's node")
    parser.add_argument("--precompile", action="store_true", help="only compile the graphs of a few steps")
    parser.add_argument(
        "--compiled-for", type=path, metavar="PLAN", help="warn of what makes graphs of this plan's cache useless"
    )
    parser.add_argument("--submit", action="store_true", help="hand it to sbatch or kubectl")
    parser.add_argument("-o", "--out", type=path, metavar="FILE", help="where it goes (default: stdout)")
    job = parser.add_argument_group("job")
    job.add_argument(
        "--program", type=text, metavar="COMMAND", help="what torchrun starts (default: autoshard run of the plan)"
    )
    job.add_argument("--cache", type=text, metavar="FOLDER", help="compiled graphs, on a file system that nodes share")
    job.add_argument("--partition", type=text, metavar="NAME", help="of Slurm")
    job.add_argument("--time", dest="time_limit", type=text, metavar="TIME", help="of Slurm, such as 24:00:00")
    job.add_argument("--image", type=text, metavar="IMAGE", help="of Kubernetes: the container (required there)")
    job.add_argument("--claim", type=text, metavar="NAME", help="of Kubernetes: volume claim mounted at /shared")


def run(values: Mapping[str, Any]) -> int:
    if values["slurm"] == values["kubernetes"]:
        raise AutoshardError("give one of --slurm and --kubernetes")
    job = autoshard.launch(
        values["plan"], "slurm" if values["slurm"] else "kubernetes", **{name: values[name] for name in OPTIONS}
    )
    sys.stderr.write("".join(f"{note}\n" for note in job.notes))
    if values["out"] is not None:
        say(f"wrote {job.save(values['out'])}")
    elif not values["submit"]:
        sys.stdout.write(job.text)
    if values["submit"]:
        sys.stdout.write(job.submit())
    return 0
