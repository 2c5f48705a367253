"""`autoshard bench`: PlanBench, predictors against measured results and searchers against the proven optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import autoshard
from autoshard.commands.output import say
from autoshard.commands.parser import Parser
from autoshard.files.option_values import one_of, path, text, whole
from autoshard.interface.benching import DATA, OUT, TRACKS

SUMMARY = "compare predictors with measured results, and searchers with the optimum"
USAGE = "autoshard bench [predictors|searchers] [options]"
DESCRIPTION = """\
Run PlanBench and write its results: how well cost models predict published step times and memory, and how near
searchers come to the proven optimum after so many layouts. Entries of plug-ins take part. The rows and problems are in
benchmarks/data of autoshard's repository. Peers (llm-analysis, Calculon, SimuMax, Galvatron) take part where they are
installed, or a checkout is on PYTHONPATH. Five minutes of a core for the predictors, three for the searchers.

  autoshard bench
  autoshard bench searchers --problems 3 --evaluations 100
  autoshard bench predictors --entries autoshard,regression --out mine"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "track",
        type=one_of(*TRACKS),
        metavar="TRACK",
        nargs="?",
        default=None,
        help=" or ".join(TRACKS) + " (default: both)",
    )
    parser.add_argument("--entries", type=text, metavar="NAMES", help="these alone, joined by commas (default: all)")
    parser.add_argument(
        "--evaluations",
        type=whole(),
        metavar="N",
        default=None,
        help="layouts that a searcher may price, at least 10 (default: 300)",
    )
    parser.add_argument("--seeds", type=whole(), metavar="N", default=None, help="runs of each searcher (default: 2)")
    parser.add_argument("--problems", type=whole(), metavar="N", default=None, help="only the first N (default: all)")
    parser.add_argument("--data", type=path, metavar="DIR", default=DATA, help=f"rows and problems (default: {DATA})")
    parser.add_argument("-o", "--out", type=path, metavar="DIR", default=OUT, help=f"results (default: {OUT})")


def run(values: Mapping[str, Any]) -> int:
    names = ("data", "out", "evaluations", "seeds", "problems")
    entries = tuple(values["entries"].split(",")) if values["entries"] else ()
    written = autoshard.planbench(
        values["track"], entries=entries, quiet=False, **{name: values[name] for name in names}
    )
    say("wrote " + ", ".join(map(str, written)))
    return 0
