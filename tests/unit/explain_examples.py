"""What tests of explain share: plans of the recipes with estimates by hand, and answers by hand.

Nothing here changes with the cost model or the search: texts made of it are exact.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import yaml

from autoshard.backends.rules import Problem
from autoshard.explanation.answers import DegreeRow, FlipRow, PriceRow, Sensitivity, SizeRow
from autoshard.layout.strategy import Strategy
from autoshard.planner.inputs import inputs_of
from autoshard.planner.options import request_from
from autoshard.planner.request import PIN_FIELDS
from autoshard.planner.score import completed
from autoshard.plans.plan import Plan, SearchSummary, make_plan
from autoshard.plans.search_result import Candidate, Pins, Rejection
from tests.unit.plan_examples import by_hand

RECIPES = Path(__file__).parent.parent.parent / "recipes"
RECIPE_NAMES = tuple(sorted(file.stem for file in RECIPES.glob("*.yaml")))


@lru_cache
def recipe_plan(name: str) -> Plan:
    """The recipe's layout; the same with more and with less recompute are its runners-up."""
    request = request_from(yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8")))
    model, training, cluster, notes = inputs_of(request)
    backend = "nxd" if model.num_local_experts == 0 else "torch"
    problem = Problem(model, training, cluster, backend)
    chosen = completed(problem, {PIN_FIELDS.get(pin, pin): value for pin, value in request.pins.items()})
    sets = [one for one in ("none", "core_attention", "core_attention+mlp", "full") if one != chosen.recompute_name]
    others = tuple(_estimated(problem, replace(chosen, recompute=(one,) * len(chosen.stage_layers))) for one in sets)
    rejections = (
        Rejection("does not fit in memory", 321, "tp=8 pp=1 needs 21.9 GB of 17.2 GB, 4.72 GB too much"),
        Rejection("more stages than blocks", 12, "pp=128 x vpp=1 is 128 stages"),
    )
    return make_plan(
        *problem,
        chosen,
        _estimated(problem, chosen).estimate,
        SearchSummary(400, 67, rejections=rejections),
        others,
        notes,
        Pins(tp=chosen.tp, microbatch_size=chosen.microbatch_size),
    )


def _estimated(problem: Problem, strategy: Strategy) -> Candidate:
    return Candidate(strategy, by_hand(problem.model, problem.training, problem.cluster, strategy))


def answers_by_hand() -> Sensitivity:
    """One of each kind of answer."""
    link, network, memory = "links in a node, each device", "network, each adapter", "memory, each device"
    return Sensitivity(
        True,
        "tp=8 pp=8 dp=8 mbs=1 recompute=none",
        (
            DegreeRow(1, "", 0.0, 0.0, 0.0, 0.0, False, "", "the smallest looked at needs 21.9 GB a device"),
            DegreeRow(2, "tp=2 pp=8 dp=32 mbs=1 recompute=full", 200.0, 0.05, -0.04, 0.15, True,
                      "+10.0 s recompute", ""),
            DegreeRow(4, "", 0.0, 0.0, 0.0, 0.0, False, "", "degrees that are: 1, 2, 8, 32", False),
            DegreeRow(16, "", 0.0, 0.0, 0.0, 0.0, False, "", "degrees that are: 1, 2, 8, 32", False),
        ),
        (
            FlipRow(link, True, 1e11, 4e11, 1.21e11, 1.2e11, "100 GB/s", "400 GB/s", "121 GB/s", "120 GB/s",
                    "tp=16 pp=4 dp=8 mbs=1 recompute=none", "tp=16 pp=4", "saves 3.10 s recompute"),
            FlipRow(link, False, 1e11, 2.5e10, None, 2.5e10, "100 GB/s", "25.0 GB/s", "", "25.0 GB/s", "", "", ""),
            FlipRow(network, True, 1.3e10, 5.2e10, None, 5.2e10, "13.0 GB/s", "52.0 GB/s", "", "52.0 GB/s", "", "", ""),
            FlipRow(network, False, 1.3e10, 3.25e9, None, 3.25e9, "13.0 GB/s", "3.25 GB/s", "", "3.25 GB/s",
                    "", "", ""),
            FlipRow(memory, True, 1.7e10, 3.4e10, 2.0e10, 1.8e10, "17.0 GB", "34.0 GB", "20.0 GB", "18.0 GB",
                    "tp=8 pp=4 dp=16 mbs=1 recompute=none", "pp=4 dp=16", "saves 2.00 s pipeline bubble"),
            FlipRow(memory, False, 1.7e10, 8.5e9, 9e9, 9.05e9, "17.0 GB", "8.50 GB", "9.00 GB", "9.05 GB",
                    "", "", "no layout fits"),
        ),
        (
            SizeRow(16, 197.0, 164.0, 235.0, 42611.0, 0.0, 1.0, 2243.0, "tp=8 pp=8 dp=8 mbs=1 recompute=none", ""),
            SizeRow(17, 190.0, 158.0, 226.0, 44231.0, 0.038, 0.97, 2295.0, "tp=8 pp=17 dp=4 mbs=1 recompute=none", ""),
            SizeRow(32, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, "", "no layout is legal"),
        ),
        21.5,
        2356.0,
        (
            PriceRow("trn1n.32xlarge", 16, 206.0, 24.78, 21.61, 24.65, "tp=8 pp=8 dp=8 mbs=1 recompute=none"),
            PriceRow("trn2.48xlarge", 1, 233.0, None, 76.38, None, "tp=16 pp=4 dp=1 mbs=1 recompute=none"),
        ),
    )  # fmt: skip
