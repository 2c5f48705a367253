"""Parts of a plan that are shown one at a time: its schedule, its operators, and what a run of it measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from autoshard.explanation.grid import schedule_lines
from autoshard.explanation.measured import measured_lines, measured_run
from autoshard.explanation.operators import operator_lines, operator_rows
from autoshard.explanation.page import Line
from autoshard.plans.plan import Plan
from autoshard.plans.timeline import planned_timeline


def part_lines(plan: Plan, name: str, measured: str | None, width: int) -> list[Line]:
    """Lines of one part. name: 'schedule', 'operators' or 'measured'. measured: path of a run.json. width: columns."""
    if name == "schedule":
        return schedule_lines(*planned_timeline(plan), width, plan.strategy.schedule)
    if name == "operators":
        return operator_lines(plan, width)
    assert measured is not None and name == "measured", name
    return measured_lines(measured_run(plan, measured), width)


def part_to_json(plan: Plan, name: str, measured: str | None) -> Any:
    """One part as JSON values, name and measured as in part_lines; a schedule has every action with its start and
    end."""
    if name == "schedule":
        orders, timeline = planned_timeline(plan)
        return [
            [[str(action), start_s, end_s] for action, (start_s, end_s) in zip(order, spans, strict=True)]
            for order, spans in zip(orders, timeline.spans, strict=True)
        ]
    if name == "operators":
        return [asdict(row) for row in operator_rows(plan)]
    assert measured is not None and name == "measured", name
    run = measured_run(plan, measured)
    return {**asdict(run), "rows": [{**asdict(row), "ratio": row.ratio} for row in run.rows]}
