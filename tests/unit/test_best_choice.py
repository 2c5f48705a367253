"""The loop over choices of one layout: bound, discard, simulate. Against trying all choices."""

from __future__ import annotations

import random
from itertools import product
from math import inf

import numpy as np
import pytest

from autoshard.backends.rules import Draft
from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.best_choice import best_choice, fastest


class Toy:
    """Three numbers from 0 to 3; random step times, some of them without room, and random bounds below them."""

    rounds, turns, lists_all = 4, 3, True

    def __init__(self, seed: int, most: int, all_are_listed: bool):
        rng = random.Random(seed)
        self.every = [*product(range(4), repeat=3)]
        self.seconds = {choice: rng.uniform(10, 20) if rng.random() < 0.8 else inf for choice in self.every}
        self.bounds = {choice: rng.uniform(9, 1) * 0.1 * seconds for choice, seconds in self.seconds.items()}
        self.best_s = min(self.seconds.values())
        self.simulated: list[tuple[int, ...]] = []
        self.at_least_s = min(self.bounds.values())
        self._most, self._all_are_listed = most, all_are_listed

    def starts(self) -> list[Array]:
        return [np.array(choice) for choice in self.every if self.seconds[choice] < inf][:2]

    def neighbours(self, choice: Array, turn: int) -> Array:
        tried = np.repeat(choice[None], 4, axis=0)
        tried[:, turn] = range(4)
        return tried[[self.seconds[tuple(one)] < inf for one in tried.tolist()]]

    def all_below(self, limit_s: float) -> tuple[Array, bool] | None:
        listed = [choice for choice in self.every if self.bounds[choice] < limit_s]
        return (np.array(listed).reshape(-1, 3), self._all_are_listed) if len(listed) <= self._most else None

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        return np.array([self.bounds[tuple(choice)] for choice in choices.tolist()])

    def simulated_s(self, choices: Array) -> Array:
        self.simulated += map(tuple, choices.tolist())
        assert all(self.seconds[choice] < inf for choice in self.simulated)
        return np.array([self.seconds[tuple(choice)] for choice in choices.tolist()])

    def strategy(self, choice: Array) -> Strategy:
        layers = tuple(int(number) + 1 for number in choice)
        return Strategy(**{**Draft(1, 3, 1, 1, 1)._asdict(), "stage_layers": layers, "recompute": ("none",) * 3})


@pytest.mark.parametrize("limit_share", [1.0, 1.2, inf])
@pytest.mark.parametrize("most", [0, 5, 64])
@pytest.mark.parametrize("seed", range(20))
def test_the_best_choice_is_found_or_bounded(seed: int, most: int, limit_share: float) -> None:
    choices = Toy(seed, most, all_are_listed=seed % 2 == 0)
    limit_s = choices.best_s * limit_share
    found = best_choice(choices, limit_s)
    assert found.at_least_s <= max(choices.best_s, limit_s if limit_s < inf else 0.0)
    if found.strategy is None:
        assert found.step_time_s == inf and (limit_share == 1.0 or most < 64)
        return
    chosen = tuple(blocks - 1 for blocks in found.strategy.stage_layers)
    assert found.step_time_s == choices.seconds[chosen] < limit_s
    assert found.at_least_s <= choices.best_s <= found.step_time_s
    if most == 64:
        assert found.step_time_s == choices.best_s
        assert found.at_least_s == (choices.best_s if seed % 2 == 0 else choices.at_least_s)


def test_nothing_is_simulated_that_a_bound_rules_out() -> None:
    choices = Toy(0, 64, all_are_listed=True)
    found = best_choice(choices, choices.at_least_s)
    assert found.strategy is None and found.at_least_s == choices.at_least_s and not choices.simulated


class Slope:
    """A number from 0 on; a step takes 1 / (number + 1) longer than 10, and at least as long."""

    rounds, turns, lists_all, at_least_s = 40, 1, False, 5.0

    def __init__(self) -> None:
        self.bounded, self.simulated = 0, 0

    def starts(self) -> list[Array]:
        return [np.zeros(1, dtype=int)]

    def neighbours(self, choice: Array, turn: int) -> Array:
        return choice[None] + [[1], [-1]]

    def all_below(self, limit_s: float) -> tuple[Array, bool] | None:
        return None

    def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
        self.bounded += len(choices)
        numbers = choices[:, 0]
        return np.where(numbers >= 0, 10 + 1 / (np.maximum(numbers, 0) + 1.0), inf)

    def simulated_s(self, choices: Array) -> Array:
        self.simulated += len(choices)
        return self.bounds_s(choices) + 1e-3

    def strategy(self, choice: Array) -> Strategy:
        return Strategy(**{**Draft(1, 1, 1, 1, 1)._asdict(), "stage_layers": (1,), "recompute": ("none",)})


def test_a_descent_ends_where_its_last_steps_would_not_lead_below_the_limit() -> None:
    """Steps gain 1/2, 1/6, 1/12, 1/20, 1/30. After the fourth one 36 more like the second would lead far enough; after
    the fifth one 35 like the third would lead from 10.17 to 7.25."""
    far, near = Slope(), Slope()
    assert best_choice(far, 7.0).strategy is None and far.simulated == 1
    assert best_choice(near, 10.05).strategy is not None
    assert far.bounded < 15 < 2 * near.rounds < near.bounded


def test_of_equal_choices_the_first_is_taken_whatever_rounding_favours() -> None:
    class Three:
        def bounds_s(self, choices: Array, below_s: float = inf) -> Array:
            return np.ones(len(choices))

        def simulated_s(self, choices: Array) -> Array:
            return np.array([12.0, 10.0 * (1 + 1e-15), 10.0])[choices[:, 0]]

    seconds, choice = fastest(Three(), np.arange(3)[:, None], (inf, np.zeros(1)))
    assert seconds == pytest.approx(10.0)
    assert choice.tolist() == [1]
