"""Whether a plan is right, and whether it would run on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.interface.inputs import check_plan
from autoshard.interface.planned import Plan
from autoshard.interface.reading import read_plan_with_notes
from autoshard.interface.shown import Shown
from autoshard.plans import plan as plans

if TYPE_CHECKING:
    from autoshard.doctor.finding import Finding


@dataclass(frozen=True)
class Validation:
    """A plan that is right. notes: sentences on what differs from what this version would write. executed: sentences on
    how the plan's backend executes it, with what the backend repairs of its library."""

    plan: Plan
    notes: tuple[str, ...]
    executed: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class MachineCheck(Shown):
    """This machine, a finding a line. plan: what is to run here; None: the findings are facts alone."""

    findings: tuple[Finding, ...]
    plan: plans.Plan | None = None

    @property
    def stops(self) -> tuple[Finding, ...]:
        """The findings that stop the plan here."""
        from autoshard.doctor.finding import STOPS

        return tuple(one for one in self.findings if one.level == STOPS)

    def to_list(self) -> list[dict[str, Any]]:
        """The findings as JSON values."""
        return [asdict(one) for one in self.findings]

    def _page(self, width: int, color: bool) -> str:
        from autoshard.doctor.finding import OK

        column = max((len(one.what) for one in self.findings), default=0)
        lines = []
        for one in self.findings:
            level = "" if one.level == OK else one.level
            lines.append(f"{level:<8} {one.what:<{column}}  {one.found}".rstrip())
            if one.advice:
                lines.append(f"{'':<8} {'':<{column}}  {one.advice}")
        if self.plan is not None:
            count = len(self.stops)
            verdict = f"{count} things stop" if count > 1 else "1 thing stops" if count else "nothing stops"
            lines += ["", f"{verdict} {Plan.of(self.plan).title} on this machine"]
        return "".join(f"{line}\n" for line in lines)

    def __repr__(self) -> str:
        return f"<MachineCheck: {len(self.findings)} findings, of which {len(self.stops)} stop a plan>"


def validate(plan: plans.Plan | str | Path) -> Validation:
    """Checks that a plan is whole: it obeys the rules of its backend, everything in it follows from its inputs and its
    strategy, and the backend has what it takes to execute it.

    plan: a plan, or the path of its file, of which it is also checked that nobody changed it. A note says where its
    prices are not those of its strategy, by this cost model. Raises AutoshardError with the first thing that is wrong.

    >>> import autoshard
    >>> autoshard.validate(autoshard.plan("llama3-8b", nodes=4)).executed[0]
    'NxD has a layer for each of its operators'
    """
    from autoshard.backends.backend import imported
    from autoshard.backends.products import check_runs
    from autoshard.backends.registry import BACKENDS

    if isinstance(plan, plans.Plan):
        from autoshard.plans.plan_json import plan_to_json
        from autoshard.plans.prices import other_prices
        from autoshard.plans.validate import plan_from_dict

        found: Plan = Plan.of(plan_from_dict(json.loads(plan_to_json(plan))))
        words = other_prices(found)
        notes: tuple[str, ...] = (
            () if words is None else (f"{words}; they are of another strategy, or of another version",)
        )
    else:
        found, notes = read_plan_with_notes(plan)
    backend = BACKENDS[found.backend]
    check_runs(backend, found.training.precision)
    if backend.repairs is None:
        return Validation(found, notes, ())
    repairs = imported(backend.repairs)(found)
    has_layers = f"{backend.label} has a layer for each of its operators"
    return Validation(found, notes, (has_layers, *(f"repaired: {sentence}" for sentence in repairs)))


def is_price(plan: plans.Plan) -> bool:
    """Whether a plan is a price alone: its backend cannot do what its precision asks for."""
    from autoshard.backends.products import unrunnable
    from autoshard.backends.registry import BACKENDS

    return unrunnable(BACKENDS[plan.backend], plan.training.precision) is not None


def check_machine(plan: plans.Plan | None = None) -> MachineCheck:
    """Looks at this machine: Neuron driver and devices, LNC, EFA, torch and NxD, disk, shared folder.

    plan: what is to run here; then `stops` has what would stop it.

    >>> import autoshard
    >>> autoshard.check_machine().stops
    ()
    """
    from autoshard.doctor.findings import findings
    from autoshard.doctor.machine import look

    if plan is not None:
        check_plan("check_machine", plan)
    return MachineCheck(findings(look(), plan), plan)
