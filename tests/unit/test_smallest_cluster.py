"""Numbers of nodes that are looked at for a larger cluster that would do: by hand, and against all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autoshard.backends.problem import Problem
from autoshard.models.registry import load_model
from autoshard.planner import smallest_cluster
from autoshard.planner.smallest_cluster import Attempt, larger_clusters
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision

Does = Callable[[int], bool]
FITS: Any = "a layout that fits"


def nodes_that_do(monkeypatch: pytest.MonkeyPatch, nodes: int, mostly: Does, with_all: Does) -> int | None:
    """The nodes of the larger cluster that is found; None where none does. mostly: whether one of the layouts that
    mostly hold least fits on so many nodes. with_all: whether any layout does."""

    def frugal(problem: Problem, pins: Pins, count: int) -> Attempt:
        return Attempt(count, (), FITS if mostly(count) else None)

    def of_all(problem: Problem, pins: Pins, one: Attempt) -> Attempt:
        return one if one.strategy is not None or not with_all(one.nodes) else one._replace(strategy=FITS)

    monkeypatch.setattr(smallest_cluster, "_frugal_attempt", frugal)
    monkeypatch.setattr(smallest_cluster, "_of_all", of_all)
    monkeypatch.setattr(smallest_cluster, "_fastest", lambda *_: None)
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", nodes), "torch")
    *others, found = larger_clusters(problem, Pins())
    assert all(one.strategy is None for one in others)
    return found.nodes if found.strategy is not None else None


@pytest.mark.parametrize("nodes", range(1, 7))
def test_where_more_nodes_do_whenever_fewer_do_the_fewest_are_found(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 32 nodes none is skipped."""
    for mostly in range(2, 33, 3):
        for least in range(2, mostly + 1, 2):
            found = nodes_that_do(monkeypatch, nodes, lambda count: count >= mostly, lambda count: count >= least)  # noqa: B023
            assert found == max(nodes + 1, least)


def test_a_round_number_is_looked_at_where_the_numbers_around_it_do_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 11 to 15 nodes halving looks at 13, 15 and 14; 12 has the most factors of two."""
    assert nodes_that_do(monkeypatch, 5, lambda count: count == 12 or count >= 16, lambda count: False) == 12
    assert nodes_that_do(monkeypatch, 5, lambda count: count == 11 or count >= 16, lambda count: False) == 16


def test_of_many_nodes_some_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 to 256 in steps of 8: of numbers from 201 on 208 is the first. More layouts are looked at of the most nodes
    that do not do, 200, and where none of these fits of no others."""
    assert nodes_that_do(monkeypatch, 1, lambda count: count >= 201, lambda count: False) == 208
    assert nodes_that_do(monkeypatch, 1, lambda count: count >= 201, lambda count: 150 <= count != 200) == 208
    assert nodes_that_do(monkeypatch, 1, lambda count: count >= 201, lambda count: count >= 150) == 152


def test_where_none_of_them_does_all_are_looked_at_with_more_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nodes_that_do(monkeypatch, 3, lambda count: False, lambda count: False) is None
    assert nodes_that_do(monkeypatch, 3, lambda count: False, lambda count: count >= 7) == 7
