"""A plan with fields that a person changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.interface.planned import Plan
from autoshard.interface.shown import Shown
from autoshard.plans import plan as plans

if TYPE_CHECKING:
    from autoshard.cost.values import Estimate
    from autoshard.replanning.edit import Edited

MOST_SHOWN = 20
"""How many changed fields a page lists."""


@dataclass(frozen=True, repr=False)
class EditedPlan(Shown):
    """A plan after an edit. plan: the new plan, checked and priced. found: the fields that changed, the estimate
    before, and why the file is refused as it stands, where it was changed by hand."""

    plan: Plan
    found: Edited

    def to_dict(self) -> dict[str, Any]:
        """The changes, with the estimates before and after, as JSON values."""
        from autoshard.files.codec import to_json

        found = self.found
        return {
            "changes": [change._asdict() for change in found.changes],
            "before": None if found.before is None else to_json(found.before),
            "after": to_json(found.plan.estimate),
            "by_hand": found.by_hand or None,
            "notes": list(found.plan.notes),
        }

    def _page(self, width: int, color: bool) -> str:
        from autoshard.explanation.page import paint, table, wrapped
        from autoshard.replanning.edit import shown

        changes = self.found.changes
        rows = [(one.field, shown(one.before), shown(one.after)) for one in changes[:MOST_SHOWN]]
        if len(changes) > MOST_SHOWN:
            rows.append((f"{len(changes) - MOST_SHOWN:,} more", "", ""))
        lines = (
            table(("field", "before", "after"), rows, width, ()) if rows else wrapped("no field changed", width, "  ")
        )
        lines += [((" ", ""),), *table(("", "before", "after"), _prices(self.found), width, ())]
        return paint(lines, width, color)

    def __repr__(self) -> str:
        return f"<EditedPlan, fields that changed: {len(self.found.changes)}, {self.plan!r}>"


def edit_plan(plan: plans.Plan | str | Path, edits: Sequence[str] = ()) -> EditedPlan:
    """The plan with some fields of its inputs, backend or strategy set, and all that follows from them derived again.
    The layout is kept, not searched.

    plan: a plan or the path of its file. edits: such as "strategy.microbatch_size=2"; none: a file that was changed by
    hand, or that another version wrote, becomes a whole plan again. Raises AutoshardError for a field that a person may
    not set, a wrong value, a broken rule, and where nothing changes.

    >>> import autoshard
    >>> plan = autoshard.plan("llama3-8b", nodes=4, tp=8, micro_batch=1, recompute="full")
    >>> autoshard.edit_plan(plan, ["strategy.microbatch_size=2"]).plan.strategy.microbatch_size
    2
    """
    from autoshard.plans.validate import read_plan
    from autoshard.replanning.edit import edited, made_anew

    if not isinstance(plan, (plans.Plan, str, Path)):
        raise AutoshardError(f"plan={show(plan)} of edit_plan must be a plan, or the path of its file")
    if not isinstance(edits, (list, tuple)) or not all(isinstance(edit, str) for edit in edits):
        raise AutoshardError(f"edits={show(edits)} of edit_plan must be texts, such as ['strategy.microbatch_size=2']")
    if edits:
        found = edited(plan if isinstance(plan, plans.Plan) else read_plan(plan), edits)
    elif isinstance(plan, plans.Plan):
        raise AutoshardError("edit_plan of a plan needs edits, such as ['strategy.microbatch_size=2']")
    else:
        found = made_anew(plan)
    return EditedPlan(Plan.of(found.plan), found)


def _prices(found: Edited) -> list[tuple[str, str, str]]:
    from autoshard.explanation.page import more
    from autoshard.units import format_bytes, format_seconds, percent

    before, after = found.before, found.plan.estimate

    def row(name: str, one: Callable[[Estimate], str], tail: str = "") -> tuple[str, str, str]:
        return name, "not said" if before is None else one(before), one(after) + tail

    def step(one: Estimate) -> str:
        return f"~{format_seconds(one.step_time_s)}"

    def memory(one: Estimate) -> str:
        return f"~{format_bytes(one.fullest.total_bytes)} of {format_bytes(one.memory_capacity_bytes)}"

    share = "" if before is None else f" ({more(after.step_time_s / before.step_time_s - 1)})"
    return [
        row("step time", step, share),
        row("memory", memory),
        row("probability to fit", lambda one: percent(one.fits_probability)),
    ]
