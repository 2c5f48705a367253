"""The cost model's price of a layout that somebody wrote, whether or not the planner would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.backends.rules import (
    LAYOUT_RULES,
    UNLIKE,
    Draft,
    Problem,
    all_broken,
    check_sets,
    every_stage_has_blocks,
)
from autoshard.cost.estimate import Estimate, estimate
from autoshard.errors import AutoshardError
from autoshard.graph.redistribute import NoTransition
from autoshard.layout.mesh import AXIS_ORDER, devices_objection, parse_axis_order, tensor_ranks_apart
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.planner.candidates import with_kernel
from autoshard.plans.search_result import Pins
from autoshard.schedules import usual_schedule

_UNPRICEABLE_REASONS = (
    "the degrees do not fill the cluster",
    "stages do not hold the model",
    "experts with context parallelism",
    "etp is no part of tp",
)
UNPRICEABLE = (*(rule.reason for rule in LAYOUT_RULES if rule.reason != UNLIKE), *_UNPRICEABLE_REASONS)
"""Reasons: a layout that breaks one of these has no order of work, or no operators, to put a price on, or its price
would be that of other devices or of fewer sequences than a step has."""


@dataclass(frozen=True)
class Score:
    """A layout and its price. broken: every rule that the layout breaks, in words; fitting in memory is not among them.

    estimate: None where the layout cannot be priced.
    """

    strategy: Strategy
    broken: tuple[str, ...]
    estimate: Estimate | None


def score(problem: Problem, strategy: Strategy, operators: OperatorChoices = ()) -> Score:
    """The price of a layout, as far as it has one, and the rules that it breaks. operators: choices that differ from
    Megatron's. Raises AutoshardError for a recompute set that names what a block has not."""
    check_sets(problem, strategy.recompute)
    broken = all_broken(problem, strategy)
    words = tuple(dict.fromkeys(wrong for _, wrong in broken))
    if any(reason in UNPRICEABLE for reason, _ in broken):
        return Score(strategy, words, None)
    try:
        cost = estimate(problem.model, problem.training, problem.cluster, strategy, operators=operators)
    except NoTransition as error:
        return Score(strategy, (*words, str(error)), None)
    return Score(strategy, words, cost)


MOST_STAGES = 10_000
"""More than any model has blocks, and few enough to list."""


def _even(problem: Problem, pp: int, vpp: int) -> tuple[int, ...]:
    """Blocks of each stage of an even cut. Raises AutoshardError for so many stages that nobody can mean them."""
    too_many = every_stage_has_blocks(problem, Draft(1, pp, 1, 1, 1, num_virtual_stages=vpp))
    if pp * vpp > MOST_STAGES and too_many is not None:
        raise AutoshardError(too_many)
    return even_stage_layers(problem.model.num_hidden_layers, pp * vpp)


def completed(problem: Problem, fields: Mapping[str, Any]) -> Strategy:
    """The strategy with the given fields. Absent degrees are 1, ep the least that etp leaves; other absent fields are
    none, even, the default order or the first kernel that the rules allow.

    Raises AutoshardError where the degrees do not divide the cluster, and for more than MOST_STAGES stages.
    """
    degrees = {name: fields.get(name, 1) for name in ("tp", "pp", "cp", "ep")}
    etp = None if fields.get("etp") == degrees["tp"] else fields.get("etp")
    if etp is not None and "ep" not in fields:
        degrees["ep"] = degrees["cp"] * tensor_ranks_apart(degrees["tp"], etp)
    model_parallel = degrees["tp"] * degrees["pp"] * degrees["cp"]
    world = problem.cluster.world_size
    of = f"{problem.cluster.nodes} x {problem.cluster.instance}"
    wrong = devices_objection(degrees["tp"], degrees["pp"], degrees["cp"], world, of)
    if "dp" not in fields and wrong is not None:
        raise AutoshardError(wrong)
    vpp = fields.get("num_virtual_stages", 1)
    draft = Draft(
        **degrees,
        dp=fields.get("dp", world // model_parallel),
        microbatch_size=fields.get("microbatch_size", 1),
        num_virtual_stages=vpp,
        schedule=fields.get("schedule", usual_schedule(vpp)),
        sequence_parallel=fields.get("sequence_parallel", degrees["tp"] > 1),
        zero=fields.get("zero", 1),
        axis_order=parse_axis_order(fields.get("axis_order", "-".join(AXIS_ORDER))),
        etp=etp,
        dp_replicate=fields.get("dp_replicate", 1),
        stage_layers=fields["stage_layers"] if "stage_layers" in fields else _even(problem, degrees["pp"], vpp),
    )
    pins = Pins(attention_kernel=fields.get("attention_kernel"), context_parallel=fields.get("context_parallel"))
    whole = with_kernel(problem, pins, draft)
    return Strategy(**whole._asdict(), recompute=fields.get("recompute", "none"))
