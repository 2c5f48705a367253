"""`autoshard launch`: the script or manifest that starts a plan on a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text

if TYPE_CHECKING:
    from autoshard.plans.plan import Plan

SUMMARY = "write or submit the job that starts a plan on a cluster"
USAGE = "autoshard launch PLAN --slurm|--kubernetes [options]"
DESCRIPTION = """\
Write the job that starts a plan: a Slurm batch script or a Kubernetes PyTorchJob, with one torchrun a node, the
rendezvous, and the variables of EFA and the Neuron SDK, each with its reason.

  autoshard launch plan.json --slurm --out job.sh
  autoshard launch plan.json --slurm --precompile --submit
  autoshard launch plan.json --kubernetes --image REGISTRY/NAME:TAG | kubectl apply -f -"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json, at a path that all nodes share")
    parser.add_argument("--slurm", action="store_true", help="an sbatch script")
    parser.add_argument("--kubernetes", action="store_true", help="a PyTorchJob of the Kubeflow training operator")
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
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import BACKENDS
    from autoshard.files.atomic_file import write_text
    from autoshard.jobs.kubernetes import pytorch_job
    from autoshard.jobs.options import LaunchOptions
    from autoshard.jobs.slurm import sbatch_script

    if values["slurm"] == values["kubernetes"]:
        raise AutoshardError("give one of --slurm and --kubernetes")
    plan = load_plan(values["plan"])
    if values["program"] is None:
        check_runs(BACKENDS[plan.backend], plan.training.precision)
    names = ("program", "precompile", "cache", "partition", "time_limit", "image", "claim")
    options = LaunchOptions(values["plan"], **{name: values[name] for name in names})
    job = sbatch_script(plan, options) if values["slurm"] else pytorch_job(plan, options)
    _warn(plan, options.program, values["precompile"], values["compiled_for"])
    if values["out"] is not None:
        write_text(values["out"], job, "job")
        say(f"wrote {values['out']}")
    elif not values["submit"]:
        sys.stdout.write(job)
    if values["submit"]:
        return _submit(job, ("sbatch",) if values["slurm"] else ("kubectl", "apply", "-f", "-"))
    return 0


def _warn(plan: Plan, program: str | None, precompile: bool, compiled_for: str | None) -> None:
    """Warns on stderr of what the job will not do although one might expect it. Raises AutoshardError for --precompile
    where it cannot be done."""
    from autoshard.jobs.graphs import graph_changes

    on_trainium = plan.cluster.platform.is_trainium
    if on_trainium and program is None:
        sys.stderr.write(
            "warning: autoshard run was tested on CPU processes, with torch and with neuronx-distributed, never on "
            "NeuronCores: begin with a few steps (--program '-m autoshard run PLAN --steps 2')\n"
        )
    if precompile and not on_trainium:
        raise AutoshardError(f"--precompile is for Trainium; {plan.cluster.instance} compiles nothing ahead")
    if precompile and program is not None:
        sys.stderr.write("warning: --program must stop by itself after a few steps, with checkpoints off\n")
    if compiled_for is not None:
        for change in graph_changes(load_plan(compiled_for), plan):
            sys.stderr.write(f"compiles anew: {change}\n")


def _submit(job: str, command: tuple[str, ...]) -> int:
    """Pipes the job into the command that submits it and returns its exit code; what the command prints goes to
    stdout."""
    try:
        ended = subprocess.run(command, input=job, capture_output=True, text=True, timeout=120)
    except FileNotFoundError:
        raise AutoshardError(f"{command[0]} is not on this machine; without --submit the job is printed") from None
    except subprocess.TimeoutExpired:
        raise AutoshardError(f"{command[0]} did not answer in 120 s") from None
    if ended.returncode:
        said = " ".join((ended.stderr or ended.stdout).split())[:300]
        raise AutoshardError(f"{command[0]} refused the job: {said}")
    sys.stdout.write(ended.stdout)
    return 0
