"""The page and JSON of `plan --pareto`: the fastest step for each number of nodes."""

from __future__ import annotations

from typing import Any

from autoshard.explanation.page import heading, paint, table, wrapped
from autoshard.files.codec import to_json
from autoshard.planner.objectives import usd_per_billion_tokens
from autoshard.planner.planning import Answer
from autoshard.plans.names import short_name
from autoshard.units import format_number, format_seconds

HEADER = ("nodes", "step", "tokens/s", "of linear", "USD a billion tokens", "layout")


def frontier_page(points: tuple[Answer, ...], width: int, color: bool) -> str:
    """The page as text, which ends with a newline. Its 'linear' column takes the tokens/s of each node at the first
    point as 100 %."""
    width = max(60, min(width, 120))
    first = points[0]
    name = f"{first.problem.model.name} on {first.problem.cluster.instance}"
    rows = []
    for point in points:
        estimate, cost = point.result.best.estimate, usd_per_billion_tokens(point)
        rows.append(
            (
                f"{point.problem.cluster.nodes:,}",
                f"~{format_seconds(estimate.step_time_s)}",
                f"~{format_number(estimate.tokens_per_s)}",
                f"{_tokens_per_node_s(point) / _tokens_per_node_s(first):.0%}",
                "?" if cost is None else f"~{cost:,.2f}",
                short_name(point.result.best.strategy),
            )
        )
    lines = heading("Pareto", name, width)
    lines += table(HEADER, rows, width, right=range(5))
    lines += wrapped("Sizes that are no faster than a smaller one, or where no layout fits, are left out.", width, "  ")
    return paint(lines, width, color)


def frontier_to_list(points: tuple[Answer, ...]) -> list[dict[str, Any]]:
    """One JSON object for each point of the frontier."""
    return [
        {
            "nodes": one.problem.cluster.nodes,
            "lnc": one.problem.cluster.lnc,
            "step_time_s": one.result.best.estimate.step_time_s,
            "tokens_per_s": one.result.best.estimate.tokens_per_s,
            "usd_per_billion_tokens": usd_per_billion_tokens(one),
            "strategy": to_json(one.result.best.strategy),
        }
        for one in points
    ]


def _tokens_per_node_s(one: Answer) -> float:
    return one.result.best.estimate.tokens_per_s / one.problem.cluster.nodes
