"""`autoshard run`: execute a plan, or rehearse it on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import autoshard
from autoshard.commands.output import load_plan
from autoshard.commands.parser import Group, Parser
from autoshard.files.option_values import number, one_of, path, text, whole
from autoshard.runtime.learning_rate import SCHEDULES
from autoshard.runtime.options import DEVICES, RunOptions, backend_names

if TYPE_CHECKING:
    from autoshard.interface.planned import Plan

SUMMARY = "execute a plan, or rehearse it on this machine"
USAGE = "autoshard run PLAN [options]"
DESCRIPTION = """\
Execute a plan. At the plan's world size (torchrun, Slurm, or GPUs of this machine) it runs as planned. On anything
smaller it rehearses: the same schedule, recompute and ZeRO on a shrunken mesh and model, compared with one process.
Exit code 0 when they agree, 1 when they do not.

  autoshard run plan.json
  autoshard run plan.json --processes 4 --steps 10
  torchrun --nnodes 16 --nproc-per-node 32 $(command -v autoshard) run plan.json --data corpus/"""

DEFAULTS = RunOptions()


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    training = parser.add_argument_group("training")
    _add_steps(training)
    _add_data(training)
    _add_evaluation(parser.add_argument_group("evaluation"))
    saving = parser.add_argument_group("checkpoints")
    _add_saving(saving)
    _add_resuming(saving)
    _add_machine(parser.add_argument_group("machine"))
    _add_output(parser.add_argument_group("output"))


def _add(group: Group, flag: str, kind: Callable[[Any], Any], metavar: str, meaning: str) -> None:
    """Adds an option that takes a value; its default is that of the RunOptions field with the same name."""
    default = getattr(DEFAULTS, flag.removeprefix("--").replace("-", "_"))
    if isinstance(default, Path):
        default = str(default)
    group.add_argument(
        flag, type=kind, metavar=metavar, default=default, help=f"{meaning} (default: {default})".lstrip()
    )


def _add_steps(training: Group) -> None:
    _add(training, "--steps", whole(), "N", "optimizer steps")
    _add(training, "--learning-rate", number, "X", "its peak")
    _add(training, "--warmup-steps", whole(0), "N", "steps up to that peak")
    _add(training, "--lr-schedule", one_of(*SCHEDULES), "NAME", f"how it goes on from there: {', '.join(SCHEDULES)}")
    _add(training, "--seed", whole(0), "N", "of weights and data")


def _add_data(training: Group) -> None:
    training.add_argument(
        "--data",
        type=path,
        metavar="PATH",
        help="file or folder: text, JSONL, Parquet, Arrow, a saved dataset; conversations where rows have messages "
        "(default: English text of this machine)",
    )
    training.add_argument(
        "--text-field",
        type=text,
        metavar="NAME",
        help="column of --data that holds the text (default: text)",
    )
    training.add_argument(
        "--no-packing",
        dest="packing",
        action="store_false",
        help="each conversation of --data gets a row of its own",
    )
    training.add_argument(
        "--document-mask",
        action="store_true",
        help="documents that share a row do not see each other, and learned positions start anew in each (default: "
        "attention is causal over the row, and so are the plan's prices)",
    )
    training.add_argument("--tokenizer", type=path, metavar="FILE", help="tokenizer.json (default: bytes)")
    training.add_argument(
        "--weights",
        type=path,
        metavar="FOLDER",
        help="start from these: of autoshard convert, Hugging Face, NxD or a checkpoint (default: random)",
    )
    training.add_argument(
        "--adapter",
        type=path,
        metavar="FOLDER",
        help="start from these adapters, of PEFT or a checkpoint, beside --weights (default: new ones, where the plan "
        "has some)",
    )


def _add_evaluation(evaluation: Group) -> None:
    evaluation.add_argument(
        "--eval-data", type=path, metavar="PATH", help="data to measure a loss on and not to learn from, as --data"
    )
    evaluation.add_argument(
        "--eval-fraction", type=number, metavar="X", help="hold out the last part of --data instead, such as 0.01"
    )
    evaluation.add_argument(
        "--eval-every", type=whole(), metavar="N", help="measure after every N steps (default: at the end)"
    )
    _add(evaluation, "--eval-batches", whole(), "N", "global batches that are measured, at most")


def _add_saving(saving: Group) -> None:
    saving.add_argument(
        "--checkpoint-every",
        type=whole(),
        metavar="N",
        help="save the state after every N steps and at the end (default: never)",
    )
    saving.add_argument(
        "--checkpoint-dir",
        type=path,
        metavar="PLACE",
        help="a folder that all ranks share, or s3://BUCKET/PREFIX (default: checkpoints/MODEL in --output)",
    )
    _add(saving, "--keep", whole(), "N", "the newest N checkpoints stay")
    saving.add_argument(
        "--keep-every", type=whole(), metavar="N", help="those of every N-th step stay too (default: none)"
    )


def _add_resuming(saving: Group) -> None:
    saving.add_argument(
        "--resume",
        type=path,
        metavar="WHAT",
        help="auto: go on from the newest complete checkpoint in --checkpoint-dir; never; or a checkpoint's place, "
        "made by any plan of the model (default: auto with --checkpoint-every or --checkpoint-dir, else never)",
    )
    saving.add_argument(
        "--checkpoint-sync", action="store_true", help="wait for the disk (default: write while training goes on)"
    )


def _add_machine(machine: Group) -> None:
    _add(machine, "--processes", whole(), "N", "at most so many in a rehearsal")
    _add(machine, "--device", one_of(*DEVICES), "NAME", "auto, cpu, cuda or neuron, the native device")
    machine.add_argument(
        "--backend",
        type=one_of(*backend_names()),
        metavar="NAME",
        default="auto",
        help="what executes the plan: torch, or nxd, which is neuronx-distributed (default: nxd on Trainium for plans "
        "made for it, else torch)",
    )
    machine.add_argument(
        "--compile",
        action="store_true",
        default=None,
        help="compile what ranks compute between collectives (torch.compile): the first step takes longer, others less "
        "(default: on device neuron)",
    )
    machine.add_argument(
        "--no-compile", dest="compile", action="store_false", default=None, help="compile nothing, on no device"
    )
    machine.add_argument(
        "--debug-nan",
        action="store_true",
        help="look at what each operator computes and name the first that is not finite (slow)",
    )
    machine.add_argument(
        "--timeout",
        dest="timeout_s",
        type=number,
        metavar="SECONDS",
        help="end the run when a rank is silent for so long (default: never)",
    )


def _add_output(output: Group) -> None:
    _add(output, "--output", path, "FOLDER", "gets a folder for each run: metrics.jsonl, TensorBoard")
    output.add_argument(
        "--profile", action="store_true", help="write trace.json: three steps of every rank beside the planned ones"
    )
    output.add_argument("--wandb", action="store_true", help="log to Weights & Biases too (offline without an account)")
    _add(output, "--wandb-project", text, "NAME", "")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.interface.beginning import run_read

    options = {name: values[name] for name in RunOptions.__dataclass_fields__}
    return run_read(values["plan"], _read, options)


def _read(file: str, is_one_of_many: bool) -> Plan:
    return autoshard.read_plan(file) if is_one_of_many else load_plan(file)  # many would say the same about the plan
