"""Functions of single numbers as data: "(mul (sigmoid x0) x1)". Nothing in them is ever executed as code.

An expression is an input `x0`, `x1`, ..., a number, or one of FUNCTIONS with as many expressions as it takes.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache

from autoshard.errors import AutoshardError

FUNCTIONS = {
    "add": 2,
    "sub": 2,
    "mul": 2,
    "div": 2,
    "pow": 2,
    "maximum": 2,
    "minimum": 2,
    "neg": 1,
    "exp": 1,
    "log": 1,
    "log1p": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "abs": 1,
    "sign": 1,
    "sin": 1,
    "cos": 1,
    "tanh": 1,
    "sigmoid": 1,
    "relu": 1,
    "silu": 1,
    "gelu": 1,
    "gelu_erf": 1,
    "erf": 1,
    "softplus": 1,
    "elu": 1,
    "square": 1,
}
"""Name -> operands. gelu is the tanh approximation, gelu_erf the exact one; elu and softplus have torch's defaults."""
LONGEST = 4_000
DEEPEST = 60

Expression = str | float | tuple[object, ...]
"""'x0', a number, or (function, expression, ...)."""


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """The expression that a text such as "(mul (sigmoid x0) x1)" stands for. Raises AutoshardError for any
    other text.
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise AutoshardError(f"an expression must be a text of at most {LONGEST:,} characters")
    words = re.findall(r"[()]|[^\s()]+", text)
    expression, stop = _read(words, 0, 0, text)
    if stop != len(words):
        raise AutoshardError(f"expression {text[:60]!r} goes on behind its end")
    return expression


def _read(words: list[str], place: int, depth: int, text: str) -> tuple[Expression, int]:
    wrong = AutoshardError(f"expression {text[:60]!r} is none: such as (mul (sigmoid x0) x1)")
    if place >= len(words) or depth > DEEPEST:
        raise wrong
    word = words[place]
    if word != "(":
        if re.fullmatch(r"x\d{1,2}", word):
            return word, place + 1
        try:
            number = float(word)
        except ValueError:
            raise wrong from None
        if not math.isfinite(number):
            raise wrong
        return number, place + 1
    if place + 1 >= len(words) or words[place + 1] not in FUNCTIONS:
        raise wrong
    function, place = words[place + 1], place + 2
    operands = []
    for _ in range(FUNCTIONS[function]):
        operand, place = _read(words, place, depth + 1, text)
        operands.append(operand)
    if place >= len(words) or words[place] != ")":
        raise wrong
    return (function, *operands), place + 1


def render(expression: Expression) -> str:
    """The text of an expression, which `parse` reads back."""
    if isinstance(expression, tuple):
        function, *operands = expression
        return f"({function} {' '.join(render(one) for one in operands)})"  # type: ignore[arg-type]
    return expression if isinstance(expression, str) else repr(float(expression))


def inputs(expression: Expression) -> frozenset[str]:
    """Names of the inputs that an expression reads: "x0", "x1", ..."""
    if isinstance(expression, tuple):
        return frozenset().union(*(inputs(one) for one in expression[1:]))  # type: ignore[arg-type]
    return frozenset([expression]) if isinstance(expression, str) else frozenset()


@lru_cache(maxsize=1024)
def count(text: str) -> int:
    """Number of functions in an expression's text, each of them one FLOP for every element of the result."""
    return text.count("(")


@lru_cache(maxsize=1024)
def factor(text: str) -> float | None:
    """The number by which an expression's text multiplies its only input; None where it does anything else."""
    match parse(text):
        case ("mul", float(number), str()) | ("mul", str(), float(number)):
            return number
    return None


def check_expression(text: object, num_inputs: int, of: str) -> None:
    """Raise AutoshardError where the text is no expression of exactly `num_inputs` inputs.

    of: whose it is, in the error.
    """
    if not isinstance(text, str):
        raise AutoshardError(f"expression of {of} must be a text such as (mul (sigmoid x0) x1)")
    read = inputs(parse(text))
    if read != {f"x{index}" for index in range(num_inputs)}:
        raise AutoshardError(f"expression {text[:60]!r} of {of} must read its {num_inputs} inputs x0, x1, ...")
