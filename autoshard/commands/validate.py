"""`autoshard validate`: checks that a plan is whole and agrees with itself and with the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autoshard.commands.output import load_plan, say
from autoshard.commands.parser import Parser
from autoshard.files.option_values import path

if TYPE_CHECKING:
    from autoshard.plans.plan import Plan

SUMMARY = "check that a plan is whole and agrees with itself"
USAGE = "autoshard validate PLAN"
DESCRIPTION = """\
Check a plan: format, rules of the backend, that everything in it follows from its inputs and its strategy, that nobody
changed it, and, of a plan for nxd, that NxD has a layer for each operator as it is sharded. What the backend does about
what NxD gets wrong is said, and whether the plan has the prices of another version. Exit code 0 when the plan is right,
2 and one error when it is not.

  autoshard validate plan.json"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("plan", type=path, metavar="PLAN", help="plan.json")


def run(values: Mapping[str, Any]) -> int:
    from autoshard.plans.names import short_name

    plan = load_plan(values["plan"])
    where = f"{plan.model.name} on {plan.cluster.nodes} x {plan.cluster.instance}"
    expressed = _expressed(plan)
    say(f"{values['plan']} is valid: {where}, {short_name(plan.strategy)}", *expressed)
    return 0


def _expressed(plan: Plan) -> tuple[str, ...]:
    """Sentences on how the plan's backend executes it. Raises AutoshardError where the backend cannot."""
    from autoshard.backends.backend import imported
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import BACKENDS

    backend = BACKENDS[plan.backend]
    check_runs(backend, plan.training.precision)
    if backend.repairs is None:
        return ()
    repairs = imported(backend.repairs)(plan)
    return (
        f"{backend.label} has a layer for each of its operators",
        *(f"  repaired: {sentence}" for sentence in repairs),
    )
