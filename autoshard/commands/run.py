"""`autoshard run`: execute a plan, or rehearse it on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.commands.parser import Parser, number, one_of, path, text, whole
from autoshard.runtime.learning_rate import SCHEDULES
from autoshard.runtime.options import BACKENDS, DEVICES, RunOptions

SUMMARY = "execute a plan, or rehearse it on this machine"
USAGE = "autoshard run PLAN [options]"
DESCRIPTION = """\
Execute a plan. At the plan's world size (torchrun, Slurm) it runs as planned. On anything smaller it rehearses: the
same schedule, recompute and ZeRO-1 on a shrunken mesh and model, compared with one process.
Exit code 0 when they agree, 1 when they do not.

  autoshard run plan.json
  autoshard run plan.json --processes 4 --steps 10
  torchrun --nnodes 16 --nproc-per-node 32 $(command -v autoshard) run plan.json --data corpus/"""

DEFAULTS = RunOptions()


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")
    training = parser.add_argument_group("training")
    training.add_argument(
        "--steps",
        type=whole(),
        metavar="N",
        default=DEFAULTS.steps,
        help=f"optimizer steps (default: {DEFAULTS.steps})",
    )
    training.add_argument(
        "--learning-rate",
        type=number,
        metavar="X",
        default=DEFAULTS.learning_rate,
        help=f"its peak (default: {DEFAULTS.learning_rate})",
    )
    training.add_argument(
        "--warmup-steps",
        type=whole(0),
        metavar="N",
        default=DEFAULTS.warmup_steps,
        help=f"steps up to that peak (default: {DEFAULTS.warmup_steps})",
    )
    training.add_argument(
        "--lr-schedule",
        type=one_of(*SCHEDULES),
        metavar="NAME",
        default=DEFAULTS.lr_schedule,
        help=f"how it goes on from there: {', '.join(SCHEDULES)} (default: {DEFAULTS.lr_schedule})",
    )
    training.add_argument(
        "--seed",
        type=whole(0),
        metavar="N",
        default=DEFAULTS.seed,
        help=f"of weights and data (default: {DEFAULTS.seed})",
    )
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
    training.add_argument("--tokenizer", type=path, metavar="FILE", help="tokenizer.json (default: bytes)")
    training.add_argument(
        "--weights",
        type=path,
        metavar="FOLDER",
        help="start from these: of autoshard convert, Hugging Face, NxD or a checkpoint (default: random)",
    )
    evaluation = parser.add_argument_group("evaluation")
    evaluation.add_argument(
        "--eval-data", type=path, metavar="PATH", help="data to measure a loss on and not to learn from, as --data"
    )
    evaluation.add_argument(
        "--eval-fraction", type=number, metavar="X", help="hold out the last part of --data instead, such as 0.01"
    )
    evaluation.add_argument(
        "--eval-every", type=whole(), metavar="N", help="measure after every N steps (default: at the end)"
    )
    evaluation.add_argument(
        "--eval-batches",
        type=whole(),
        metavar="N",
        default=DEFAULTS.eval_batches,
        help=f"global batches that are measured, at most (default: {DEFAULTS.eval_batches})",
    )
    saving = parser.add_argument_group("checkpoints")
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
    saving.add_argument(
        "--keep",
        type=whole(),
        metavar="N",
        default=DEFAULTS.keep,
        help=f"the newest N checkpoints stay (default: {DEFAULTS.keep})",
    )
    saving.add_argument(
        "--keep-every", type=whole(), metavar="N", help="those of every N-th step stay too (default: none)"
    )
    saving.add_argument(
        "--resume",
        type=path,
        metavar="WHAT",
        default=DEFAULTS.resume,
        help="auto: go on from the newest complete checkpoint in --checkpoint-dir; never; or a checkpoint's place, "
        f"made by any plan of the model (default: {DEFAULTS.resume})",
    )
    saving.add_argument(
        "--checkpoint-sync", action="store_true", help="wait for the disk (default: write while training goes on)"
    )
    machine = parser.add_argument_group("machine")
    machine.add_argument(
        "--processes",
        type=whole(),
        metavar="N",
        default=DEFAULTS.processes,
        help=f"at most so many in a rehearsal (default: {DEFAULTS.processes})",
    )
    machine.add_argument(
        "--device",
        type=one_of(*DEVICES),
        metavar="NAME",
        default="auto",
        help="auto, cpu, cuda or neuron, the native device (default: auto)",
    )
    machine.add_argument(
        "--backend",
        type=one_of(*BACKENDS),
        metavar="NAME",
        default="auto",
        help="what executes the plan: torch, or nxd, which is neuronx-distributed (default: nxd on Trainium for plans "
        "made for it, else torch)",
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
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output",
        type=path,
        metavar="FOLDER",
        default=str(DEFAULTS.output),
        help=f"gets a folder for each run: metrics.jsonl, TensorBoard (default: {DEFAULTS.output})",
    )
    output.add_argument(
        "--profile", action="store_true", help="write trace.json: three steps of every rank beside the planned ones"
    )
    output.add_argument("--wandb", action="store_true", help="log to Weights & Biases too (offline without an account)")
    output.add_argument(
        "--wandb-project",
        type=text,
        metavar="NAME",
        default=DEFAULTS.wandb_project,
        help=f"(default: {DEFAULTS.wandb_project})",
    )


def run(values: Mapping[str, Any]) -> int:
    options = run_options(values)
    from autoshard.layout.validate import read_plan
    from autoshard.runtime.run import run_plan

    return run_plan(read_plan(values["plan"]), options)


def run_options(values: Mapping[str, Any]) -> RunOptions:
    """Raises AutoshardError for a path that does not exist."""
    paths = ("weights", "data", "tokenizer", "output", "eval_data")
    given: dict[str, Any] = {name: values[name] for name in RunOptions.__dataclass_fields__}
    given.update({name: Path(given[name]) for name in paths if given[name] is not None})
    return RunOptions(**given)
