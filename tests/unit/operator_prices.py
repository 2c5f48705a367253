"""Prices out of thin air, for tests of the operator solver."""

from __future__ import annotations

import random
from functools import cache
from math import prod

from autoshard.graph.partition import OperatorStep, Program
from autoshard.planner.operators.prices import MemoryRow, Prices


def random_prices(rng: random.Random, memory: tuple[MemoryRow, ...] = ()) -> Prices:
    """Any numbers: what is right for one hardware must be right for all."""
    seed = rng.random()

    @cache
    def number(*key: object) -> float:
        return random.Random(f"{seed} {key}").uniform(0.0, 1.0)

    def operator_s(program: Program, step: OperatorStep) -> tuple[float, float]:
        size = prod(program.axes.values())
        choice = tuple(sorted(step.choice.items()))
        return number(step.operator.name, choice) / size, 2 * number(step.operator.name, choice, 1)

    def collective_s(kind: str, axes: tuple[str, ...], size: int) -> float:
        return 0.1 * number(kind, axes) + size / 2048 * number(kind, axes, "bandwidth")

    def parameter_s(axes: tuple[str, ...]) -> float:
        return number("parameter", axes) / 500

    return Prices(operator_s, collective_s, parameter_s, memory)
