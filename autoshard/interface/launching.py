"""The script or manifest that starts a plan, or the points of a sweep, on a cluster."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError
from autoshard.files.atomic_file import write_text
from autoshard.files.fields import check_choice, check_flag, check_integer, own_number, show
from autoshard.interface.reading import read_plan_with_notes

if TYPE_CHECKING:
    from autoshard.jobs.options import LaunchOptions
    from autoshard.plans.plan import Plan

COMMANDS = {"slurm": ("sbatch",), "kubernetes": ("kubectl", "apply", "-f", "-")}
"""Kind of cluster -> the command that takes a job from its standard input."""
OF_ONE_KIND = {"partition": "slurm", "time": "slurm", "image": "kubernetes", "claim": "kubernetes"}
"""Option -> the kind of cluster whose jobs alone have it."""
HOW_A_SWEEP_IS = "a sweep is launched with --slurm --array N; --run beside them executes its plans"
OF_ONE_PLAN = ("program", "precompile", "compiled_for", "cache", "image", "claim")


@dataclass(frozen=True)
class Job:
    """A job for a cluster. text: the script or manifest. on: "slurm" or "kubernetes". notes: sentences on what is to be
    known before it is submitted."""

    text: str
    on: str
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> Path:
        """Writes the job and returns its path. Raises AutoshardError where it cannot be written."""
        write_text(path, self.text, "job")
        return Path(path)

    def submit(self) -> str:
        """Hands the job to sbatch or kubectl and returns what that printed. Raises AutoshardError where it is not on
        this machine, refuses the job, or does not answer in two minutes."""
        command = COMMANDS[self.on]
        try:
            ended = subprocess.run(command, input=self.text, capture_output=True, text=True, timeout=120)
        except FileNotFoundError:
            raise AutoshardError(f"{command[0]} is not on this machine; without --submit the job is printed") from None
        except subprocess.TimeoutExpired:
            raise AutoshardError(f"{command[0]} did not answer in 120 s") from None
        if ended.returncode:
            said = " ".join((ended.stderr or ended.stdout).split())[:300]
            raise AutoshardError(f"{command[0]} refused the job: {said}")
        return ended.stdout


def launch(
    plan: str | Path,
    on: str = "slurm",
    *,
    array: int | None = None,
    run: bool = False,
    program: str | None = None,
    precompile: bool = False,
    compiled_for: str | Path | None = None,
    cache: str | None = None,
    partition: str | None = None,
    time_limit: str | None = None,
    image: str | None = None,
    claim: str | None = None,
) -> Job:
    """The job that starts a plan: one torchrun a node, the rendezvous, the variables of EFA and the Neuron SDK.

    plan: path of plan.json where all nodes see it. on: "slurm", an sbatch script, or "kubernetes", a PyTorchJob of the
    Kubeflow training operator. program: what torchrun starts; None: `autoshard run` of the plan. precompile: only
    compile the graphs of a few steps. compiled_for: the plan that a cache was compiled for; notes say what makes it
    useless. cache: a folder for compiled graphs that nodes share. partition, time_limit: of Slurm, "24:00:00". image,
    claim: of Kubernetes: the container, and the volume claim at /shared.

    array: plan is a sweep file, done by a Slurm job array of so many tasks; run: they execute the plans too.
    Raises AutoshardError for a file that is wrong, and for options that do not go together.

    >>> import autoshard
    >>> file = autoshard.plan("llama3-8b", nodes=4).save("plan.json")
    >>> autoshard.launch(file, time_limit="2:00:00").text.splitlines()[0]
    '#!/usr/bin/env bash'
    """
    check_choice("launch", "on", on, COMMANDS)
    if not isinstance(plan, (str, Path)):
        raise AutoshardError(
            f"plan={show(plan)} of launch must be the path of a file that all nodes see; save of a plan writes one"
        )
    check_flag("launch", "run", run)
    check_flag("launch", "precompile", precompile)
    array = own_number(array)
    if array is not None:
        check_integer("launch", "array", array)
    from autoshard.jobs.options import LaunchOptions

    file = str(plan)
    own = {"program": program, "precompile": precompile, "cache": cache, "image": image, "claim": claim}
    if array is not None or run:
        given = {**own, "compiled_for": compiled_for}
        return _array(file, on, array, run, given, LaunchOptions(file, partition=partition, time_limit=time_limit))

    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import BACKENDS, check_devices
    from autoshard.jobs.kubernetes import pytorch_job
    from autoshard.jobs.slurm import sbatch_script

    _check_kind(on, {"partition": partition, "time": time_limit, "image": image, "claim": claim})
    found, notes = _plan(file)
    if program is None:
        check_devices(found.cluster, found.backend)
        check_runs(BACKENDS[found.backend], found.training.precision)
    options = LaunchOptions(
        file,
        program=program,
        precompile=precompile,
        cache=cache,
        partition=partition,
        time_limit=time_limit,
        image=image,
        claim=claim,
    )
    job = sbatch_script(found, options) if on == "slurm" else pytorch_job(found, options)
    more = _notes(found, options, compiled_for)
    return Job(job, on, (*(f"note: {note}" for note in notes), *more))


def _check_kind(on: str, given: dict[str, str | None]) -> None:
    """Raise AutoshardError for an option of the other kind of cluster. given: those that one kind has alone."""
    for name, kind in OF_ONE_KIND.items():
        if kind != on and given[name] is not None:
            raise AutoshardError(f"--{name} is of a job for {kind}; leave it out of one for {on}")


def _plan(file: str) -> tuple[Plan, tuple[str, ...]]:
    """The plan in a file and notes on it. Raises AutoshardError as `read_plan_with_notes` does; of a YAML file it says
    how a sweep is launched."""
    try:
        return read_plan_with_notes(file)
    except AutoshardError as error:
        if not file.endswith((".yaml", ".yml")):
            raise
        raise AutoshardError(f"{error}; {HOW_A_SWEEP_IS}") from None


def _array(file: str, on: str, tasks: int | None, run: bool, given: dict[str, Any], options: Any) -> Job:
    """The job array of a sweep. given: options of the job of one plan, which must be left out."""
    from autoshard.jobs.slurm_array import array_script
    from autoshard.sweeps.grid import read_sweep

    if tasks is None or on != "slurm":
        raise AutoshardError(HOW_A_SWEEP_IS)
    for name in OF_ONE_PLAN:
        if given[name]:
            raise AutoshardError(f"--{name.replace('_', '-')} is of the job of one plan; leave it out beside --array")
    sweep = read_sweep(Path(file))
    return Job(array_script(sweep.name, len(sweep.points), tasks, options, run), on)


def _notes(plan: Plan, options: LaunchOptions, compiled_for: str | Path | None) -> tuple[str, ...]:
    """Sentences on what the job will not do although one might expect it. Raises AutoshardError for precompile, cache
    and compiled_for where nothing is compiled ahead."""
    from autoshard.jobs.graphs import graph_changes

    program, precompile = options.program, options.precompile
    on_trainium, notes = plan.cluster.platform.is_trainium, []
    if program is None and (on_trainium or plan.cluster.platform.is_cuda):
        on_neuron = ", with torch and with neuronx-distributed", "NeuronCores"
        tested, devices = on_neuron if on_trainium else (" and one GPU", "several GPUs")
        notes.append(
            f"warning: autoshard run was tested on CPU processes{tested}, never on {devices}: begin with a few steps "
            "(--program '-m autoshard run PLAN --steps 2')"
        )
    ahead = {"--precompile": precompile, "--cache": options.cache, "--compiled-for": compiled_for is not None}
    if not on_trainium and (named := [flag for flag, given in ahead.items() if given]):
        raise AutoshardError(f"{named[0]} is for Trainium; {plan.cluster.instance} compiles nothing ahead")
    if precompile and plan.cluster.stack is not None and not plan.cluster.compiles:
        raise AutoshardError(
            f"--precompile: stack={plan.cluster.stack} compiles nothing ahead; plan with --stack neuron-compiled"
        )
    if precompile and program is not None:
        notes.append("warning: --program must stop by itself after a few steps, with checkpoints off")
    if compiled_for is not None:
        before, said = read_plan_with_notes(compiled_for)
        notes += [f"note: {note}" for note in said]
        notes += [f"compiles anew: {change}" for change in graph_changes(before, plan)]
    return tuple(notes)
