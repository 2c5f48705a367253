"""Rules for RMS and layer norm, torch's own or written out.

x / sqrt(mean(x^2) + eps), (x - mean(x)) / sqrt(var(x) + eps).
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.tracer.dims import resolve, unify
from autoshard.tracer.tracer import Tracer, finishes, rule
from autoshard.tracer.values import (
    Centered,
    Formula,
    Mean,
    Normed,
    Parameter,
    Squares,
    Unsupported,
    Value,
    View,
)

RMS_EPS = 2.0**-23
"""torch.nn.RMSNorm's where none is given: the FP32 epsilon."""


@rule("layer_norm")
def layer_norm(
    t: Tracer,
    x: Value,
    shape: Sequence[int],
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    *args: Value,
) -> Value:
    return _norm(t, x, shape, "layer", eps, weight, bias)


@rule("rms_norm")
def rms_norm(t: Tracer, x: Value, shape: Sequence[int], weight: Value = None, eps: float | None = None) -> Value:
    return _norm(t, x, shape, "rms", RMS_EPS if eps is None else eps, weight, None)


def _norm(t: Tracer, x: Value, shape: Sequence[int], function: str, eps: float, weight: Value, bias: Value) -> Normed:
    if len(shape) != 1:
        raise Unsupported(f"it normalises over {len(shape)} dims; over the last one is what has a rule")
    found = Normed(t.view(x), function, eps)
    found.weight, found.bias = weight, bias
    for one in (weight, bias):
        if one is not None:
            unify(found.view.axes[-1], one.axes[-1])
    return found


@rule("mean")
def mean(t: Tracer, x: Value, axes: Sequence[int] | None = None, keepdim: bool = False, **kwargs: Value) -> Value:
    _check_last(t, x, axes, keepdim)
    if isinstance(x, Squares) and not x.averaged:
        return Squares(x.view, x.centered, averaged=True)
    if isinstance(x, Formula):
        x = _squared(t, x)
        if isinstance(x, Squares):
            return Squares(x.view, x.centered, averaged=True)
    return Mean(t.view(x))


@rule("var")
def var(
    t: Tracer,
    x: Value,
    axes: Sequence[int] | bool | None = None,
    unbiased: Value = True,
    keepdim: bool = False,
    correction: Value = None,
) -> Value:
    corrected = correction if correction is not None else unbiased
    if corrected not in (0, False):
        raise Unsupported("the variance is divided by n - 1; norms divide by n: unbiased=False")
    _check_last(t, x, axes if not isinstance(axes, bool) else None, keepdim)
    return Squares(t.view(x), centered=True, averaged=True)


def _check_last(t: Tracer, x: Value, axes: Sequence[int] | None, keepdim: bool) -> None:
    if axes is None or len(axes) != 1 or axes[0] not in (-1, len(t.shape) - 1) or not keepdim:
        raise Unsupported("means have a rule over the last axis alone, with keepdim=True, as norms take them")


def _squared(t: Tracer, x: Formula) -> Value:
    """The value of a product x * x, as a square."""
    if x.expression == ("mul", "x0", "x0"):
        return Squares(x.leaves["x0"], centered=False)
    return x


def norm_power(t: Tracer, x: Value, exponent: float) -> Value | None:
    """The value of x^2, or of the reciprocal root of an average; None if this is neither."""
    if exponent == 2:
        if isinstance(x, Centered):
            return Squares(x.view, centered=True)
        if isinstance(x, View):
            return Squares(x, centered=False)
    if isinstance(x, Squares) and x.averaged and not x.root and exponent in (0.5, -0.5):
        return norm_root(t, x, "sqrt" if exponent > 0 else "rsqrt")
    return None


def norm_root(t: Tracer, x: Value, function: str) -> Value | None:
    if isinstance(x, Squares) and x.averaged and not x.root and function in ("sqrt", "rsqrt"):
        return Squares(x.view, x.centered, True, x.plus, function)
    return None


def norm_plus(t: Tracer, x: Value, y: Value) -> Value | None:
    """The value after adding the epsilon to an average, or the bias to a layer norm; None if this is neither."""
    number = t.number(y)
    if isinstance(x, Squares) and x.averaged and not x.root and number is not None:
        return Squares(x.view, x.centered, True, x.plus + number)
    waits = isinstance(x, Normed) and x.done is None and x.function == "layer"
    if waits and x.weight is not None and x.bias is None and _is_vector(y):
        unify(x.view.axes[-1], y.axes[-1])
        found = Normed(x.view, x.function, x.eps)
        found.weight, found.bias = x.weight, y
        return found
    return None


def norm_minus(t: Tracer, x: Value, y: Value) -> Value | None:
    """The value of x - mean(x); None if this is none."""
    if isinstance(y, Mean) and isinstance(x, View) and x.same(y.view):
        return Centered(x)
    return None


def norm_times(t: Tracer, x: Value, y: Value, divided: bool = False) -> Value | None:
    """The norm of x times 1 / sqrt(mean of squares), or a norm times its weight; None if this is neither."""
    if isinstance(y, Squares) and y.averaged and y.root == ("sqrt" if divided else "rsqrt"):
        same = x.view.same(y.view) if isinstance(x, Centered) else isinstance(x, View) and x.same(y.view)
        if not same or isinstance(x, Centered) != y.centered:
            raise Unsupported("it divides a tensor by the root mean square of another one")
        return Normed(y.view, "layer" if y.centered else "rms", y.plus)
    if isinstance(x, Normed) and x.done is None and x.weight is None and not divided and _is_vector(y):
        unify(x.view.axes[-1], y.axes[-1])
        found = Normed(x.view, x.function, x.eps)
        found.weight = y
        return found
    return None


def _is_vector(x: Value) -> bool:
    return isinstance(x, View) and isinstance(x.tensor, Parameter) and len(x.axes) == 1


@finishes(Normed)
def finish_norm(t: Tracer, x: Normed) -> View:
    tensors = [x.view.tensor, *(one.tensor for one in (x.weight, x.bias) if one is not None)]
    if x.bias is not None and x.weight is None:
        raise Unsupported("it is a norm with a bias and without a weight")
    last = resolve(x.view.axes[-1])
    if x.view.repeats or tuple(x.view.tensor.dims[-len(last) :]) != last:
        raise Unsupported("it normalises over a dim that is not the tensor's last")
    found = t.emit("norm", tensors, x.view.tensor.dims, function=x.function, eps=x.eps)
    found.over = x.view.axes[-1]
    return View(found, x.view.axes)
