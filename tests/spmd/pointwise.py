"""Expressions of single numbers in numpy: the value, and its slope in each input, by the chain rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autoshard.graph.pointwise import Expression, parse
from tests.spmd.collectives import Array


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _rise(x: Array) -> Any:
    return np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))


def _slope_of_rise(x: Array) -> Any:
    return (2 / np.pi) ** 0.5 * (1 + 3 * 0.044715 * x**2)


_SLOPES: dict[str, Callable[..., tuple[Any, tuple[Any, ...]]]] = {
    "add": lambda x, y: (x + y, (1.0, 1.0)),
    "sub": lambda x, y: (x - y, (1.0, -1.0)),
    "mul": lambda x, y: (x * y, (y, x)),
    "relu": lambda x: (np.maximum(x, 0), (x > 0,)),
    "square": lambda x: (x * x, (2 * x,)),
    "div": lambda x, y: (x / y, (1 / y, -x / y**2)),
    "sigmoid": lambda x: (_sigmoid(x), (_sigmoid(x) * (1 - _sigmoid(x)),)),
    "silu": lambda x: (x * _sigmoid(x), (_sigmoid(x) * (1 + x * (1 - _sigmoid(x))),)),
    "gelu": lambda x: (x * (1 + _rise(x)) / 2, ((1 + _rise(x)) / 2 + x / 2 * (1 - _rise(x) ** 2) * _slope_of_rise(x),)),
    "minimum": lambda x, y: (np.minimum(x, y), (x < y, x >= y)),
    "maximum": lambda x, y: (np.maximum(x, y), (x > y, x <= y)),
    "neg": lambda x: (-x, (-1.0,)),
    "sqrt": lambda x: (np.sqrt(x), (0.5 / np.sqrt(x),)),
    "sign": lambda x: (np.sign(x), (0.0,)),
    "softplus": lambda x: (np.logaddexp(0, x), (_sigmoid(x),)),
    "elu": lambda x: (np.where(x > 0, x, np.expm1(np.minimum(x, 0))), (np.where(x > 0, 1, np.exp(np.minimum(x, 0))),)),
    "tanh": lambda x: (np.tanh(x), (1 - np.tanh(x) ** 2,)),
}
"""Function -> its value and its slopes in its operands: those that models of the tests have. gelu is the tanh
approximation."""


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
