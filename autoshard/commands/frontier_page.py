"""The frontier of nodes against time, as a page and as JSON."""

from __future__ import annotations

from typing import Any

from autoshard.explanation.page import heading, paint, table, wrapped
from autoshard.files.codec import to_json
from autoshard.planner.objectives import usd_per_billion_tokens
from autoshard.planner.planning import Answer
from autoshard.plans.names import short_name
from autoshard.units import format_seconds

HEADER = ("nodes", "step", "tokens/s", "of linear", "USD a billion tokens", "layout")


def frontier_page(points: tuple[Answer, ...], width: int, color: bool) -> str:
    """Ends with a newline. Linear: the first point's tokens a second for each node."""
    width = max(60, min(width, 120))
    first = points[0]
    name = f"{first.problem.model.name} on {first.problem.cluster.instance}"
    rows = []
    for one in points:
        estimate, cost = one.result.best.estimate, usd_per_billion_tokens(one)
        rows.append(
            (
                f"{one.problem.cluster.nodes:,}",
                f"~{format_seconds(estimate.step_time_s)}",
                f"~{estimate.tokens_per_s:,.0f}",
                f"{_tokens_per_node_s(one) / _tokens_per_node_s(first):.0%}",
                "?" if cost is None else f"~{cost:,.2f}",
                short_name(one.result.best.strategy),
            )
        )
    lines = heading("Pareto", name, width)
    lines += table(HEADER, rows, width, right=range(5))
    lines += wrapped("Sizes that are no faster than a smaller one, or that hold no layout, are left out.", width, "  ")
    return paint(lines, width, color)


def frontier_to_list(points: tuple[Answer, ...]) -> list[dict[str, Any]]:
    """Plain JSON values."""
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
