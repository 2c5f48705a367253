"""Rules for functions of single numbers: activations, gates, residuals, biases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autoshard.graph.pointwise import Expression, render
from autoshard.graph.pointwise import inputs as inputs_of
from autoshard.runtime.torch_backend.pointwise import pointwise
from autoshard.tracer.dims import Dims, resolve, size_of, unify
from autoshard.tracer.rules.attention import add_to_scores, scale_scores
from autoshard.tracer.rules.experts import divide_gates, weigh
from autoshard.tracer.rules.norms import norm_minus, norm_plus, norm_power, norm_root, norm_times
from autoshard.tracer.rules.positions import add_positions, negative, plus, position_rows, times_table
from autoshard.tracer.tracer import INCOMPLETE, Tracer, finishes, rule
from autoshard.tracer.values import (
    Constant,
    Formula,
    PositionRows,
    Scores,
    Selection,
    Squares,
    Turned,
    Unsupported,
    Value,
    View,
)

_ONE_INPUT = (
    *("exp", "log", "log1p", "abs", "sin", "cos", "tanh", "erf"),
    *("sigmoid", "relu", "silu", "square", "sqrt", "rsqrt", "softplus", "elu"),
)
_DEFAULTS: dict[str, tuple[float, ...]] = {"elu": (1.0, 1.0, 1.0), "softplus": (1.0, 20.0)}
"""Function -> torch's default arguments behind its input: modules give them."""
_FAR = torch.logspace(0, 30, 61, dtype=torch.float64)
_PROBES = torch.cat([torch.linspace(-4, 4, 41, dtype=torch.float64), _FAR, -_FAR])
"""Numbers at which functions are compared: where they bend, and far outside, where a bound may hold."""
_KNOWN = ("gelu", "gelu_erf", "silu")
"""Functions with kernels of their own, recognised by their values however they are written."""
_BENT = ("maximum", "minimum", "relu", "abs", "sign", "elu")
"""Functions with a bend, which those with kernels of their own do not have: it may lie between two probes."""


def formula(t: Tracer, function: str, *operands: Value) -> Formula:
    """The formula function(*operands) of tensors and numbers, which broadcast as in torch.

    function: of graph/pointwise.py.
    """
    leaves: dict[str, View] = {}
    axes: tuple[Dims, ...] = ()
    expressions: list[Expression] = []
    for operand in operands:
        number = t.number(operand)
        if number is not None:
            expressions.append(number)
            continue
        one = operand if isinstance(operand, Formula) else _leaf(t.view(operand))
        renamed = {name: _name_in(leaves, view) for name, view in one.leaves.items()}
        expressions.append(_renamed(one.expression, renamed))
        axes = broadcast(axes, one.axes)
    return Formula((function, *expressions), leaves, axes)


def _leaf(view: View) -> Formula:
    return Formula("x0", {"x0": view}, view.axes)


def _name_in(leaves: dict[str, View], view: View) -> str:
    """The name of a view among the leaves: its old name if it is there, else a new one, under which it is added."""
    for name, other in leaves.items():
        if view.same(other):
            return name
    name = f"x{len(leaves)}"
    leaves[name] = view
    return name


def _renamed(expression: Expression, names: dict[str, str]) -> Expression:
    if isinstance(expression, tuple):
        return (expression[0], *(_renamed(one, names) for one in expression[1:]))  # type: ignore[arg-type]
    return names[expression] if isinstance(expression, str) else expression


def broadcast(one: tuple[Dims, ...], other: tuple[Dims, ...]) -> tuple[Dims, ...]:
    """The dims of each axis of two tensors together; axes of equal size become the same dims."""
    count = max(len(one), len(other))
    one, other = ((),) * (count - len(one)) + one, ((),) * (count - len(other)) + other
    found = []
    for left, right in zip(one, other, strict=True):
        if size_of(left) == 1 or size_of(right) == 1:
            found.append(left if size_of(right) == 1 and left else right or left)
        else:
            unify(left, right)
            found.append(left)
    return tuple(found)


def _table(t: Tracer, value: Value) -> bool:
    """Whether a value is a constant tensor of different numbers."""
    return isinstance(value, Constant) and t.number(value) is None


@rule("mul", "multiply")
def mul(t: Tracer, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Scores) and not one.softmaxed and (number := t.number(other)) is not None:
            return scale_scores(one, number)
        if _table(t, other) and not isinstance(one, Constant):
            return times_table(t, one, other)
        for special in (norm_times, weigh):
            found = special(t, one, other)
            if found is not None:
                return found
    if isinstance(x, Turned) and t.number(y) == -1:
        return negative(t, x)
    return formula(t, "mul", x, y)


@rule("div", "true_divide", "divide")
def div(t: Tracer, x: Value, y: Value, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise Unsupported("it divides whole numbers")
    number = t.number(y)
    if isinstance(x, Scores) and not x.softmaxed and number:
        return scale_scores(x, 1 / number)
    found = norm_times(t, x, y, divided=True) or divide_gates(t, x, y)
    return formula(t, "div", x, y) if found is None else found


@rule("add")
def add(t: Tracer, x: Value, y: Value, alpha: float = 1) -> Value:
    if alpha != 1:
        y = formula(t, "mul", y, alpha)
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Scores) and isinstance(other, Constant):
            return add_to_scores(t, one, other)
        rows = one if isinstance(one, PositionRows) else _added_rows(t, one, other)
        if rows is not None:
            return add_positions(t, t.view(other), rows)
        found = norm_plus(t, one, other)
        if found is not None:
            return found
    if isinstance(x, Turned) and isinstance(y, Turned):
        return plus(t, x, y)
    return _sum(t, "add", x, y)


def _added_rows(t: Tracer, x: Value, other: Value) -> PositionRows | None:
    """The parameter x as learned positions, if it has as many rows as the sequence of what it is added to."""
    if not isinstance(x, View) or len(x.axes) < 2 or not isinstance(other, (View, Formula)):
        return None
    along_tokens = len(other.axes) > 1 and resolve(other.axes[-2]) == (t.seq,)
    return position_rows(t, x, -2, size_of(x.axes[-2])) if along_tokens else None


@rule("sub", "subtract")
def sub(t: Tracer, x: Value, y: Value, alpha: float = 1) -> Value:
    if alpha != 1:
        y = formula(t, "mul", y, alpha)
    if isinstance(x, Turned) and isinstance(y, Turned):
        return plus(t, x, y, -1.0)
    found = norm_minus(t, x, y)
    return _sum(t, "sub", x, y) if found is None else found


@rule("rsub")
def rsub(t: Tracer, x: Value, y: Value, alpha: float = 1) -> Value:
    return sub(t, y, x, alpha)


def _sum(t: Tracer, function: str, x: Value, y: Value) -> Value:
    """The sum or difference of x and y.

    A sum of different tensors is an operator by itself: residuals and biases are no part of an activation.
    """
    found = formula(t, function, x, y)
    if len(found.leaves) < 2 or function != "add":
        return found
    views = [t.view(one) for one in (x, y)]
    views.sort(key=lambda view: sum(dim.size != 1 for axis in view.shape for dim in axis), reverse=True)
    return finish_formula(t, Formula(("add", "x0", "x1"), {"x0": views[0], "x1": views[1]}, found.axes))


@rule("neg", "negative")
def neg(t: Tracer, x: Value) -> Value:
    return negative(t, x) if isinstance(x, (Selection, Turned)) else formula(t, "neg", x)


@rule("pow")
def pow_(t: Tracer, x: Value, exponent: Value) -> Value:
    number = t.number(exponent)
    found = None if number is None else norm_power(t, x, number)
    return formula(t, "pow", x, exponent) if found is None else found


@rule("gelu")
def gelu(t: Tracer, x: Value, approximate: str = "none") -> Value:
    return formula(t, "gelu" if approximate == "tanh" else "gelu_erf", x)


@rule("leaky_relu")
def leaky_relu(t: Tracer, x: Value, slope: float = 0.01) -> Value:
    return formula(t, "maximum" if slope <= 1 else "minimum", formula(t, "mul", x, slope), x)


@rule("clamp", "clamp_min", "hardtanh")
def clamp(t: Tracer, x: Value, low: float | None = None, high: float | None = None) -> Value:
    found = x if low is None else formula(t, "maximum", x, low)
    return found if high is None else formula(t, "minimum", found, high)


@rule("clamp_max")
def clamp_max(t: Tracer, x: Value, high: float) -> Value:
    return clamp(t, x, None, high)


@rule("reciprocal")
def reciprocal(t: Tracer, x: Value) -> Value:
    return formula(t, "div", 1.0, x)


@rule("mish")
def mish(t: Tracer, x: Value) -> Value:
    return formula(t, "mul", x, formula(t, "tanh", formula(t, "softplus", x)))


def _one_input(function: str) -> Callable[..., Value]:
    def found(t: Tracer, x: Value, *args: Value) -> Value:
        if args != _DEFAULTS.get(function, ())[: len(args)]:
            raise Unsupported(f"{function} has a rule for torch's default arguments only")
        special = norm_power(t, x, 2.0) if function == "square" else norm_root(t, x, function)
        return formula(t, function, x) if special is None else special

    return found


for _name in _ONE_INPUT:
    rule(_name)(_one_input(_name))


@rule("maximum", "minimum")
def extreme(t: Tracer, x: Value, y: Value) -> Value:
    raise Unsupported("the larger or smaller of two tensors is no smooth function; of a tensor and a number, use clamp")


@finishes(Squares)
def finish_squares(t: Tracer, x: Squares) -> View:
    """The squares of a tensor, where they are all that it is."""
    if x.averaged or x.centered:
        raise Unsupported(INCOMPLETE[Squares])
    return finish_formula(t, Formula(("square", "x0"), {"x0": x.view}, x.view.axes))


@finishes(Formula)
def finish_formula(t: Tracer, x: Formula) -> View:
    """The formula as one elementwise operator. Its first input is the leaf with all dims."""
    expression = _simplified(x.expression)
    names = sorted(x.leaves, key=lambda name: len(x.leaves[name].tensor.dims), reverse=True)
    if isinstance(expression, str):
        return View(x.leaves[expression].tensor, x.axes)
    assert isinstance(expression, tuple), expression
    gate, gated = _gate(expression, "silu"), _gate(expression, "sigmoid")
    if gate is not None and x.leaves[gate[0]].tensor.dims == x.leaves[gate[1]].tensor.dims:
        function, names = "silu_mul", gate
    elif gated is not None and len(x.leaves[gated[1]].tensor.dims) >= len(x.leaves[gated[0]].tensor.dims):
        function, names = "sigmoid_mul", gated[::-1]
    elif expression[0] in ("gelu", "gelu_erf") and isinstance(expression[1], str):
        function = str(expression[0])
    else:
        function = "add" if expression in (("add", "x0", "x1"), ("add", "x1", "x0")) else "pointwise"
    tensors = [x.leaves[name].tensor for name in names]
    for other in tensors[1:]:
        if not set(other.dims) <= set(tensors[0].dims):
            raise Unsupported("it combines two tensors of which each has dims that the other lacks")
    more = {}
    if function == "pointwise":
        more["expression"] = render(_renamed(expression, {name: f"x{i}" for i, name in enumerate(names)}))
    found = t.emit("elementwise", tensors, tensors[0].dims, function=function, **more)
    return View(found, x.axes)


def _gate(expression: Expression, function: str) -> list[str] | None:
    """The inputs (gate, up) of function(gate) * up; None if the expression is no such product."""
    if not isinstance(expression, tuple) or expression[0] != "mul":
        return None
    for one, other in ((expression[1], expression[2]), (expression[2], expression[1])):
        if isinstance(one, tuple) and one[0] == function and isinstance(one[1], str) and isinstance(other, str):
            return [one[1], other]
    return None


def _simplified(expression: Expression) -> Expression:
    """The expression with written-out functions replaced by those that have a kernel, such as silu."""
    if not isinstance(expression, tuple):
        return expression
    read = inputs_of(expression)
    if len(read) == 1 and expression[0] not in _KNOWN and not _bends(expression):
        (name,) = read
        values = pointwise(render(_renamed(expression, {name: "x0"})))(_PROBES)
        for known in _KNOWN:
            if torch.allclose(values, pointwise(f"({known} x0)")(_PROBES), rtol=1e-7, atol=1e-9, equal_nan=False):
                return (known, name)
    return (expression[0], *(_simplified(one) for one in expression[1:]))  # type: ignore[arg-type]


def _bends(expression: Expression) -> bool:
    return isinstance(expression, tuple) and (expression[0] in _BENT or any(map(_bends, expression[1:])))  # type: ignore[arg-type]
