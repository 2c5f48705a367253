"""The plan of a configuration that somebody else wrote: its layout as it stands, priced and checked, not searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError
from autoshard.planner.written import Written

if TYPE_CHECKING:
    from autoshard.backends.rules import Problem
    from autoshard.plans.plan import Plan


def plan_of(file: str, written: Written) -> Plan:
    """The plan for a configuration that was read from `file`. Raises AutoshardError where the layout breaks a rule."""
    from autoshard.cost.estimate import estimate
    from autoshard.plans.plan import make_plan

    problem, strategy = written.problem, written.strategy
    try:
        problem, backend_notes = _with_backend(problem, written.asked, strategy)
    except AutoshardError as error:
        if written.own_cut and str(error).startswith("stage_layers="):
            raise AutoshardError(f"{error}; {written.own_cut}") from None
        raise
    cost = estimate(problem.model, problem.training, problem.cluster, strategy)
    notes = (f"imported: {written.form}", *written.notes, *warned(written), *backend_notes)
    if written.unpriced:
        notes += (written.unpriced,)
    if not cost.fits:
        notes += ("by the estimate it does not fit into memory",)
    return make_plan(problem.model, problem.training, problem.cluster, problem.backend, strategy, cost, notes=notes)


def warned(written: Written) -> tuple[str, ...]:
    """The reader's warnings, as notes of a plan."""
    return tuple(f"warning: {text}" for text in written.warnings)


def _with_backend(problem: Problem, asked: str, strategy: Any) -> tuple[Problem, tuple[str, ...]]:
    """The problem with its backend, and notes on that. The backend is the one that was asked for; else the platform's
    usual one where its rules allow the layout; else the one that runs anywhere, with a note that says why."""
    from autoshard.backends.registry import ANYWHERE, as_run_by
    from autoshard.backends.rules import check_strategy, warnings
    from autoshard.planner.inputs import release_notes

    notes: tuple[str, ...] = ()
    try:
        check_strategy(*problem, strategy)
    except AutoshardError as error:
        if asked != "auto" or problem.backend == ANYWHERE.name:
            raise
        notes = (f"backend {ANYWHERE.name}, because {problem.backend} does not allow the layout: {error}",)
        cluster = as_run_by(problem.cluster, ANYWHERE.name)
        notes += release_notes(problem.cluster, cluster)
        problem = problem._replace(cluster=cluster, backend=ANYWHERE.name)
        check_strategy(*problem, strategy)
    return problem, (*notes, *warnings(problem, strategy))
