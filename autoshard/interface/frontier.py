"""The fastest step for each number of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autoshard.explanation.frontier_page import frontier_page, frontier_to_list
from autoshard.interface.shown import Shown
from autoshard.interface.watch import watched
from autoshard.planner.answer import Answer
from autoshard.planner.objectives import frontier
from autoshard.planner.request import PlanRequest


@dataclass(frozen=True, repr=False)
class Frontier(Shown):
    """Answers by rising number of nodes, of which none with fewer nodes is as fast."""

    points: tuple[Answer, ...]

    def to_list(self) -> list[dict[str, Any]]:
        """A dict for each point: nodes; precision, lnc, backend, stack and operators that were chosen; step_time_s,
        tokens_per_s, fits_probability, usd_per_billion_tokens, strategy; notes, on the inputs and the backend."""
        return frontier_to_list(self.points)

    def _page(self, width: int, color: bool) -> str:
        return frontier_page(self.points, width, color)


def frontier_of(request: PlanRequest) -> Frontier:
    """The frontier up to the request's nodes, or to those that are done at Ctrl-C."""
    with watched("searching the frontier"):
        return Frontier(frontier(request))
