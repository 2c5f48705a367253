"""`autoshard migrate`: a configuration of NxD Training and its checkpoint, ready to go on on native PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import one_of, path, whole
from autoshard.planner.options import MOST_NODES
from autoshard.spec.sdk import release
from autoshard.spec.stack import STACKS

if TYPE_CHECKING:
    from autoshard.migration.migrate import Migration

SUMMARY = "from NxD Training and its checkpoint to native PyTorch"
USAGE = "autoshard migrate CONF [--checkpoint DIR] [options]"
DESCRIPTION = """\
Read a configuration of NxD Training and a checkpoint that it saved, and write a folder to go on from: a plan for
native PyTorch on trn2 (or for torch on another instance), the checkpoint cut for it with the optimizer's state, a
Slurm script, and a page that says what changed and what that does to time and memory.

  autoshard migrate hf_llama3_70B_config.yaml --checkpoint nxdt_run/checkpoints/step=1000.ckpt
  autoshard migrate conf.yaml --instance trn1.32xlarge -o on_trn1

Nothing in a file is executed. Model, batch, sequence length and precision stay; the layout is searched."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("conf", type=path, metavar="CONF", help="YAML of NxD Training")
    parser.add_argument("--checkpoint", type=path, metavar="DIR", help="what it saved: folders model and optim")
    parser.add_argument("--model", type=path, metavar="MODEL", help="name or config.json, where CONF does not say it")
    parser.add_argument("--weights-only", action="store_true", help="leave out the optimizer's state")
    parser.add_argument(
        "-o", "--out", type=path, metavar="FOLDER", default="migrated", help="folder to make (default: migrated)"
    )
    target = parser.add_argument_group("where it goes")
    target.add_argument(
        "--instance", type=path, metavar="TYPE", default="trn2.48xlarge", help="(default: trn2.48xlarge)"
    )
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
    from autoshard.files.atomic_file import write_text
    from autoshard.jobs.options import LaunchOptions, quoted
    from autoshard.jobs.slurm import sbatch_script
    from autoshard.migration.migrate import Target, migrate
    from autoshard.migration.page import CHECKPOINT, JOB, PAGE, PLAN, page, run_words
    from autoshard.plans.names import layout_name
    from autoshard.plans.plan_json import write_plan

    target = Target(values["instance"], values["nodes"], values["lnc"], values["sdk"], values["stack"])
    given = {} if values["model"] is None else {"model": values["model"]}
    folder, checkpoint = Path(values["out"]), values["checkpoint"]
    if checkpoint is not None and not Path(checkpoint).is_dir():
        raise AutoshardError(f"checkpoint={checkpoint} is not a folder; NxD's has model/ and optim/ in it")
    from autoshard.conversion.folder import check_free, new_folder

    check_free(folder)
    found = migrate(values["conf"], given, target)
    with new_folder(folder) as written:
        position, begins = "", None
        if checkpoint is not None:
            weights_only = values["weights_only"]
            position, begins = _converted(Path(checkpoint), written / CHECKPOINT, found, weights_only)
        program = quoted(run_words(found, folder, begins))
        write_plan(found.after, written / PLAN)
        write_text(written / JOB, sbatch_script(found.after, LaunchOptions(str(folder / PLAN), program)), "job")
        write_text(written / PAGE, page(found, folder, position), "page")
    after, ratio = found.after, found.after.estimate.step_time_s / found.before.estimate.step_time_s
    where = f"{after.model.name} on {after.cluster.nodes} x {after.cluster.instance}"
    say(f"wrote {folder}: {where}, {layout_name(after.strategy)}, {ratio:.2f} times the step time")
    say(*([position] if position else []), f"next: read {folder / PAGE}, then sbatch {folder / JOB}")
    return 0


def _converted(source: Path, target: Path, migration: Migration, weights_only: bool) -> tuple[str, str]:
    """Writes the checkpoint for the new plan. Returns sentences on what it holds and where in the data it is, and the
    option of `autoshard run` that takes it."""
    from autoshard.conversion.convert import Conversion, convert, open_source
    from autoshard.migration.migrate import consumed_samples

    def silent(count: int) -> None:
        """Shows nothing."""

    weights = open_source(source, migration.before.model, training=not weights_only)
    done = convert(weights, target, Conversion("plan", migration.after), silent, silent)
    if done.step is None:
        told = f"Weights of {done.model} alone: no optimizer's state was saved there, or --weights-only left it out."
        return told, "--weights"
    batch, seen = migration.before.training.global_batch_size, consumed_samples(source)
    told = (
        f"{seen:,}, as its folder's name says"
        if seen is not None
        else f"{done.step * batch:,}, {done.step:,} x {batch:,}"
    )
    sentences = (
        f"Weights of {done.model} and AdamW's state after step {done.step:,}: training goes on with the next one. "
        f"Sequences that it has seen: {told}."
    )
    return sentences, "--resume"
