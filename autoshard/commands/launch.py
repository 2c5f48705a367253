"""`autoshard launch`: the script or manifest that starts a plan on a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import path, text, whole

if TYPE_CHECKING:
    from autoshard.plans.plan import Plan

SUMMARY = "write or submit the job that starts a plan on a cluster"
USAGE = "autoshard launch PLAN --slurm|--kubernetes [options]"
DESCRIPTION = """\
Write the job that starts a plan: a Slurm batch script or a Kubernetes PyTorchJob, with one torchrun a node, the
rendezvous, and the variables of EFA and the Neuron SDK, each with its reason.

  autoshard launch plan.json --slurm --out job.sh
  autoshard launch plan.json --slurm --precompile --submit
  autoshard launch my_sweep.yaml --slurm --array 16 --submit
  autoshard launch plan.json --kubernetes --image REGISTRY/NAME:TAG | kubectl apply -f -"""


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
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import BACKENDS
    from autoshard.jobs.kubernetes import pytorch_job
    from autoshard.jobs.options import LaunchOptions
    from autoshard.jobs.slurm import sbatch_script

    if values["slurm"] == values["kubernetes"]:
        raise AutoshardError("give one of --slurm and --kubernetes")
    if values["array"] is not None or values["run"]:
        return _array(values)
    plan = load_plan(values["plan"])
    if values["program"] is None:
        check_runs(BACKENDS[plan.backend], plan.training.precision)
    names = ("program", "precompile", "cache", "partition", "time_limit", "image", "claim")
    options = LaunchOptions(values["plan"], **{name: values[name] for name in names})
    job = sbatch_script(plan, options) if values["slurm"] else pytorch_job(plan, options)
    _warn(plan, options.program, values["precompile"], values["compiled_for"])
    return _hand_over(job, values)


def _array(values: Mapping[str, Any]) -> int:
    """The job array of a sweep."""
    from autoshard.jobs.options import LaunchOptions
    from autoshard.jobs.slurm_array import array_script
    from autoshard.sweeps.grid import read_sweep

    if values["array"] is None or not values["slurm"]:
        raise AutoshardError("a sweep is launched with --slurm --array N; --run beside them executes its plans")
    for name in ("program", "precompile", "compiled_for", "cache", "image", "claim"):
        if values[name]:
            raise AutoshardError(f"--{name.replace('_', '-')} is of the job of one plan; leave it out beside --array")
    sweep = read_sweep(Path(values["plan"]))
    options = LaunchOptions(values["plan"], partition=values["partition"], time_limit=values["time_limit"])
    return _hand_over(array_script(sweep.name, len(sweep.points), values["array"], options, values["run"]), values)


def _hand_over(job: str, values: Mapping[str, Any]) -> int:
    """Writes, prints or submits the job, as the options say."""
    from autoshard.files.atomic_file import write_text

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
