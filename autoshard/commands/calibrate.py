"""`autoshard calibrate`: measure this machine, or take results, and write a hardware file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autoshard
from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.errors import AutoshardError
from autoshard.files.option_values import one_of, path, text, whole
from autoshard.interface.limits import SHAPES

REWRITES = ("hardware",)
SUMMARY = "measure this machine, or take results, and write a hardware file"
USAGE = "autoshard calibrate [options]"
DESCRIPTION = """\
Fit the cost model's constants and write a hardware file for `autoshard plan --hardware`.

With --device: to matrix products by shape, attention, other operators, memory and collectives, measured on this
machine. A few minutes; best on a machine that does nothing else.

  autoshard calibrate --device cpu -o my.json
  autoshard plan --model llama3-8b --hardware my.json
  autoshard calibrate --device cuda --plot fit.png

With --results: to step times of training runs, one row of a CSV file each, from what the packaged file says on.
Columns: instance nodes model layers hidden heads ffn vocab seq_len global_batch precision tp pp dp micro_batch sp zero1
recompute flash_attn, and step_time_s or seq_per_s; where they apply also id kv_heads vpp cp ep lnc sdk
stack.

  autoshard calibrate --results my_runs.csv --instance trn1.32xlarge -o my.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--device",
        type=one_of("cpu", "cuda", "neuron"),
        metavar="NAME",
        help="measure cpu (one process a core), cuda or neuron (default: cpu)",
    )
    parser.add_argument(
        "--results", type=path, metavar="FILE", nargs="+", help="fit to the step times of training runs in CSV files"
    )
    parser.add_argument(
        "--collectives", type=path, metavar="FILE", help="fit to the times of collectives in a CSV file"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=path,
        metavar="FILE",
        default="hardware.json",
        help="(default: hardware.json); of --results a folder: all that autoshard packages, from scratch",
    )
    parser.add_argument(
        "--instance",
        type=text,
        metavar="TYPE",
        help="packaged hardware file whose datasheet numbers hold (default: cpu, or what a GPU's name or all rows say)",
    )
    parser.add_argument(
        "--hardware",
        type=path,
        metavar="FILE",
        help="of --results: hardware file of your own in place of a packaged one",
    )
    parser.add_argument(
        "--processes", type=whole(), metavar="N", help="ranks of the collectives (default: all devices, at most 8)"
    )
    parser.add_argument(
        "--shapes",
        type=whole(),
        metavar="N",
        help=f"programs whose operators are timed, at most {SHAPES}; fewer are faster, less sure (default: {SHAPES})",
    )
    parser.add_argument(
        "--plot", type=path, metavar="FILE", help="picture of measured against fitted (.png, .svg, .pdf)"
    )
    parser.add_argument(
        "--details",
        type=path,
        metavar="DIR",
        help="of --results into a folder: also every constant of every stack, and what each group changes in them",
    )


def run(values: Mapping[str, Any]) -> int:
    measuring = ("device", "processes", "shapes", "plot")
    fitting = ("results", "collectives", "hardware", "details")
    if values["results"] is None and values["collectives"] is None:
        _none_of(values, fitting, "needs --results or --collectives")
    else:
        _none_of(values, measuring, "is of measuring this machine, which --results and --collectives do not")
        if Path(values["out"]).is_dir():
            return _fit_published(values)
        _none_of(values, ("details",), "needs a folder as -o")
    names = ("device", "results", "collectives", "out", "instance", "hardware", "processes", "plot")
    found = autoshard.calibrate(**{name: values[name] for name in names}, shapes=values["shapes"] or SHAPES)
    sys.stdout.write(found.page())
    return 0


def _none_of(values: Mapping[str, Any], names: tuple[str, ...], why: str) -> None:
    if given := [f"--{name}" for name in names if values[name] is not None]:
        raise AutoshardError(f"{given[0]} {why}")


def _fit_published(values: Mapping[str, Any]) -> int:
    """All that autoshard packages, from scratch: for its maintainers."""
    out, results = values["out"], values["results"] or ()
    _none_of(values, ("instance", "hardware"), f"needs a file as -o; {out} is a folder")

    from autoshard.interface.calibrating import fit_packaged

    say(*fit_packaged(results, values["collectives"], out, values["details"]))
    return 0
