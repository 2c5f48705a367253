"""Expressions of single numbers in numpy: the value, and its slope in each input, by the chain rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard.graph.pointwise import Expression, parse
from tests.spmd.collectives import Array

_SLOPES: dict[str, Callable[..., tuple[Any, tuple[Any, ...]]]] = {
    "add": lambda x, y: (x + y, (1.0, 1.0)),
    "mul": lambda x, y: (x * y, (y, x)),
    "relu": lambda x: (np.maximum(x, 0), (x > 0,)),
    "square": lambda x: (x * x, (2 * x,)),
    "tanh": lambda x: (np.tanh(x), (1 - np.tanh(x) ** 2,)),
}
"""Function -> its value and its slopes in its operands: those that traced models of the tests have."""


def pointwise(text: str, inputs: tuple[Array, ...]) -> tuple[Array, tuple[Any, ...]]:
    return _evaluate(parse(text), inputs)


def _evaluate(expression: Expression, inputs: tuple[Array, ...]) -> tuple[Any, tuple[Any, ...]]:
    if isinstance(expression, tuple):
        function, *operands = expression
        found = [_evaluate(one, inputs) for one in operands]  # type: ignore[arg-type]
        value, slopes = _SLOPES[str(function)](*(one for one, _ in found))
        chained = [sum(s * own[i] for s, (_, own) in zip(slopes, found, strict=True)) for i in range(len(inputs))]
        return value, tuple(chained)
    if isinstance(expression, str):
        place = int(expression[1:])
        return inputs[place], tuple(float(i == place) for i in range(len(inputs)))
    return expression, (0.0,) * len(inputs)
