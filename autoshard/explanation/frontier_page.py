"""The page and JSON of `plan --pareto`: the fastest step for each number of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard.explanation.page import heading, paint, table, wrapped
from autoshard.files.codec import to_json
from autoshard.planner.answer import Answer
from autoshard.planner.objectives import usd_per_billion_tokens
from autoshard.plans.names import short_name
from autoshard.units import format_number, format_seconds, percent

HEADER = ("nodes", "step", "tokens/s", "of linear", "fits", "USD a billion tokens")
UNSAID = (None, "megatron")
"""Choices that go without saying where all points have them."""


def frontier_page(points: tuple[Answer, ...], width: int, color: bool) -> str:
    """The page as text, which ends with a newline. Its 'linear' column takes the tokens/s of each node at the first
    point as 100 %. Choices beside the layout are columns where they differ; those that all points share are above."""
    width = max(60, min(width, 120))
    first = points[0]
    every = [_chosen(point) for point in points]
    columns = [name for name, value in every[0].items() if any(one[name] != value for one in every)]
    unsaid = () if first.problem.cluster.platform.is_trainium else ("lnc",)
    shared = [
        f"{name} {value}" for name, value in every[0].items() if name not in (*columns, *unsaid) and value not in UNSAID
    ]
    name = f"{first.problem.model.name} on {first.problem.cluster.instance}: {', '.join(shared)}"
    rows = []
    for point, chosen in zip(points, every, strict=True):
        estimate, cost = point.result.best.estimate, usd_per_billion_tokens(point)
        rows.append(
            (
                f"{point.problem.cluster.nodes:,}",
                f"~{format_seconds(estimate.step_time_s)}",
                f"~{format_number(estimate.tokens_per_s)}",
                f"{_tokens_per_node_s(point) / _tokens_per_node_s(first):.0%}",
                percent(estimate.fits_probability),
                "?" if cost is None else f"~{cost:,.2f}",
                *("-" if chosen[name] is None else str(chosen[name]) for name in columns),
                short_name(point.result.best.strategy),
            )
        )
    lines = heading("Pareto", name, width)
    lines += table((*HEADER, *columns, "layout"), rows, width, right=range(len(HEADER)))
    lines += wrapped("Sizes that are no faster than a smaller one, or where no layout fits, are left out.", width, "  ")
    for note in _given(points):
        lines += wrapped(note, width, "  ")
    return paint(lines, width, color)


def frontier_to_list(points: tuple[Answer, ...]) -> list[dict[str, Any]]:
    """One JSON object for each point of the frontier."""
    return [
        {
            "nodes": one.problem.cluster.nodes,
            **_chosen(one),
            "step_time_s": one.result.best.estimate.step_time_s,
            "tokens_per_s": one.result.best.estimate.tokens_per_s,
            "fits_probability": one.result.best.estimate.fits_probability,
            "usd_per_billion_tokens": usd_per_billion_tokens(one),
            "strategy": to_json(one.result.best.strategy),
            "notes": list(one.given),
        }
        for one in points
    ]


def _chosen(one: Answer) -> dict[str, Any]:
    """Option -> value of what may be searched beside the layout; operators: whose they are in the end."""
    return {**one.problem.chosen, "operators": "megatron" if one.operators is None else "solver"}


def _given(points: tuple[Answer, ...]) -> Iterator[str]:
    """The notes on inputs and backends, each once, with the numbers of nodes that it is about unless that is all."""
    for note in dict.fromkeys(note for one in points for note in one.given):
        nodes = [f"{one.problem.cluster.nodes:,}" for one in points if note in one.given]
        yield note if len(nodes) == len(points) else f"nodes {', '.join(nodes)}: {note}"


def _tokens_per_node_s(one: Answer) -> float:
    return one.result.best.estimate.tokens_per_s / one.problem.cluster.nodes
