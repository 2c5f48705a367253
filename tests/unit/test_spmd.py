"""Sharded equals unsharded for random programs, and executes the collectives that the planner counts."""

from random import Random

import numpy as np
import pytest

from autoshard.graph import partition as partition_module
from autoshard.graph import redistribute, states
from autoshard.graph.partition import partition
from autoshard.graph.redistribute import NoTransition
from tests.cases import some
from tests.spmd.check import check_program, output_gradients, unsharded
from tests.spmd.interpreter import execute
from tests.spmd.random_programs import random_choices, random_graph, random_numbers, unread

MESHES = ({"p": 2, "q": 2}, {"p": 2, "q": 2, "r": 2})
CASES_PER_TEST = 200


def check(seed: int) -> None:
    """A random graph under a random choice for every operator and axis."""
    rng = Random(seed)
    graph = random_graph(rng)
    axes = rng.choice(MESHES)
    choices = random_choices(graph, axes, rng)
    check_program(partition(graph, axes, choices, {}, dict.fromkeys(unread(graph))), seed)


@pytest.mark.parametrize("first", some(range(0, 3000, CASES_PER_TEST), 3))
def test_random_programs_equal_unsharded_ones(first: int) -> None:
    for seed in range(first, first + CASES_PER_TEST):
        check(seed)


def any_axis_may_leave(names: list[str], current: list[str], changing: list[str], dim: str) -> bool:
    return True


def defer_whatever_reads_it(self: object, name: str, stored: states.State, state: states.State) -> bool:
    return all(s == t or (s, t) == ("I", "R") for s, t in zip(stored, state, strict=True))


WRONG_TRANSITIONS = {
    "a partial sum made whole, its gradient taken for one already": (("P", "R"), ("all_reduce", "identity")),
    "replicated and partial gradients confused": (("I", "R"), ("identity", "identity")),
    "a gathered value's gradient not summed": (("split", "R"), ("all_gather", "slice")),
}


@pytest.mark.parametrize("wrong", ["axis order", "tied parameters deferred", *WRONG_TRANSITIONS])
def test_a_broken_rule_is_found(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong == "axis order":
        monkeypatch.setattr(redistribute, "_innermost", any_axis_may_leave)
    elif wrong == "tied parameters deferred":
        monkeypatch.setattr(partition_module._Partitioner, "_may_defer", defer_whatever_reads_it)
    else:
        key, kinds = WRONG_TRANSITIONS[wrong]
        monkeypatch.setitem(states._TRANSITIONS, key, kinds)
    assert any(fails(seed) for seed in range(500))


def fails(seed: int) -> bool:
    try:
        check(seed)
    except (AssertionError, NoTransition):
        return True
    return False


@pytest.mark.parametrize("seed", range(60))
def test_backward_is_the_derivative_of_forward(seed: int) -> None:
    """Hand-written gradients against central differences along a random direction."""
    graph = random_graph(Random(seed))
    given, cotangents = random_numbers(graph, seed), output_gradients(graph, seed)
    rng = np.random.default_rng(seed)
    moving = {name: rng.standard_normal(x.shape) for name, x in given.items() if graph.tensors[name].differentiable}
    run = execute(unsharded(graph), given, cotangents)

    def objective(step: float) -> float:
        moved = {name: x + step * moving[name] if name in moving else x for name, x in given.items()}
        values = execute(unsharded(graph), moved, cotangents).values
        return sum(float((values[name] * cotangents[name]).sum()) for name in cotangents)

    expected = sum(float((run.gradients[name] * direction).sum()) for name, direction in moving.items())
    step = 1e-6
    found = (objective(step) - objective(-step)) / (2 * step)
    terms = sum(float(np.abs(run.gradients[name] * direction).sum()) for name, direction in moving.items())
    assert abs(found - expected) < 1e-6 * terms + 1e-6
