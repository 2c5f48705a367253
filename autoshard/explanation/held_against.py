"""Names what the planner holds against a layout beside its time: what nobody has run, what may not compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from autoshard.backends.rules import Problem
from autoshard.layout.strategy import Strategy
from autoshard.planner.beaten_path import OFF, off_path
from autoshard.planner.choice import passed_over
from autoshard.planner.compiling import refused_graph
from autoshard.plans.search_result import Pins


class Against(NamedTuple):
    """One thing that is held against a layout. words: in a few words. sentence: what it is about."""

    words: str
    sentence: str


def held_against(problem: Problem, strategy: Strategy) -> Iterator[Against]:
    """All that is held against a layout, also where it was asked for."""
    path, graphs = passed_over(problem, Pins())
    if path is not None and (unknown := path.unknown(strategy)):
        yield Against(OFF, off_path(path, unknown))
    if graphs is not None and graphs.refuses(strategy):
        yield Against("expected not to compile", refused_graph(graphs, strategy))
