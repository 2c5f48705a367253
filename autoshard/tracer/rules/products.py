"""Rules for matrix products: with a parameter they are projections, of two activations they are attention."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.tracer.dims import Dim, Dims, resolve, unify
from autoshard.tracer.rules.attention import product_of_activations
from autoshard.tracer.rules.experts import expert_product
from autoshard.tracer.tracer import Tracer, finishes, rule
from autoshard.tracer.values import (
    Cut,
    ExpertRows,
    Operation,
    Parameter,
    Scores,
    Selection,
    Tensor,
    Unsupported,
    Value,
    View,
)


@rule("linear")
def linear(t: Tracer, x: Value, weight: Value, bias: Value = None) -> Value:
    """The value of x W^T + b. weight: W [out, in]."""
    out, inside = _matrix(weight).axes
    product = project(t, t.view(x), weight, inside, out)
    return product if bias is None else add_bias(t, product, bias)


@rule("addmm")
def addmm(t: Tracer, bias: Value, x: Value, weight: Value, beta: float = 1, alpha: float = 1) -> Value:
    """The value of x W + b. weight: W [in, out], as in the Conv1D of GPT-2."""
    if (beta, alpha) != (1, 1):
        raise Unsupported("it scales the bias or the product of addmm")
    inside, out = _matrix(weight).axes
    return add_bias(t, project(t, t.view(x), weight, inside, out), bias)


@rule("matmul", "mm", "bmm")
def matmul(t: Tracer, x: Value, y: Value) -> Value:
    if isinstance(x, ExpertRows) or isinstance(y, ExpertRows):
        return expert_product(t, x, y)
    if isinstance(x, Scores):
        return product_of_activations(t, x, y)
    right = t.view(y)
    if isinstance(right.tensor, Parameter):
        inside, out = _matrix(right).axes
        return project(t, t.view(x), right, inside, out)
    left = t.view(x)
    if isinstance(left.tensor, Parameter):
        raise Unsupported("it multiplies a parameter from the left; x @ W and F.linear(x, W) have rules")
    return product_of_activations(t, left, right)


@rule("einsum")
def einsum(t: Tracer, equation: str, operands: Sequence[Value], **kwargs: Value) -> Value:
    """The einsum of an activation and a parameter: a projection. Raises Unsupported for two activations."""
    left, _, result = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    if len(operands) != 2 or "." in equation or not result:
        raise Unsupported("einsum has a rule for two tensors with every letter written")
    views = [t.view(one) for one in operands]
    if isinstance(views[0].tensor, Parameter):
        views, letters = views[::-1], letters[::-1]
    axes: dict[str, Dims] = {}
    for view, own in zip(views, letters, strict=True):
        for letter, dims in zip(own, view.axes, strict=True):
            if letter in axes:
                unify(axes[letter], dims)
            axes[letter] = dims
    if not isinstance(views[1].tensor, Parameter):
        raise Unsupported("einsum of two activations has no rule; attention has: scaled_dot_product_attention, matmul")
    kept = {dim for letter in result for dim in resolve(axes[letter])}
    if not {t.batch, t.seq} <= kept:
        raise Unsupported("it sums over the tokens or the sequences of the batch")
    found = t.emit("einsum", (views[0].tensor, views[1].tensor), [dim for letter in result for dim in axes[letter]])
    return View(found, tuple(axes[letter] for letter in result))


def _matrix(weight: Value) -> View:
    if not (isinstance(weight, View) and isinstance(weight.tensor, Parameter) and len(weight.axes) == 2):
        raise Unsupported("it multiplies by something else than a parameter of two dims")
    return weight


def project(t: Tracer, x: View, weight: View, inside: Dims, out: Dims) -> View:
    """The projection of x by a parameter, over the last axis of x.

    inside, out: the weight's dims that go and that stay.
    """
    if x.repeats:
        raise Unsupported("it projects a tensor that was repeated")
    unify(x.axes[-1], inside)
    contracted = set(resolve(inside))
    rows = [dim for dim in x.tensor.dims if dim not in contracted]
    found = t.emit("einsum", (x.tensor, weight.tensor), [*rows, *out])
    return View(found, (*x.axes[:-1], out))


def add_bias(t: Tracer, x: View, bias: Value) -> View:
    if not (isinstance(bias, View) and isinstance(bias.tensor, Parameter) and len(bias.axes) == 1):
        raise Unsupported("it adds a bias that is no parameter of one dim")
    unify(x.axes[-1], bias.axes[-1])
    return View(t.emit("elementwise", (x.tensor, bias.tensor), x.tensor.dims, function="add"), x.axes)


@finishes(Selection)
def finish_selection(t: Tracer, x: Selection) -> View:
    """A part of a projection's result, as the projection by a part of its weight; one operator serves all readers."""
    key = (x.view.tensor, x.view.shape, x.axis, x.start, x.stop, x.drops)
    if key not in t.parts:
        t.parts[key] = _part(t, x)
    return t.parts[key]


def _part(t: Tracer, x: Selection) -> View:
    chosen = resolve(x.view.axes[x.axis])
    if isinstance(x.view.tensor, Parameter):
        raise Unsupported("it takes a part of a parameter; give each part, such as that of a block, its own parameter")
    sources: list[Operation] = []
    tensor: Tensor = x.view.tensor
    while isinstance(tensor, Operation) and tensor.kind == "elementwise" and len(tensor.inputs) == 2:
        sources.insert(0, tensor)  # its bias
        tensor = tensor.inputs[0]
    biased = all(op.attributes["function"] == "add" and isinstance(op.inputs[1], Parameter) for op in sources)
    if not (isinstance(tensor, Operation) and tensor.kind == "einsum" and biased and chosen):
        raise Unsupported("it takes a part of a tensor that is not the result of a projection")
    product, weight = tensor, tensor.inputs[1]
    if not isinstance(weight, Parameter) or not set(chosen) <= set(weight.dims) - set(product.inputs[0].dims):
        raise Unsupported("it takes a part of a tensor along a dim that no parameter's columns make")
    fresh = {dim: Dim(dim.size) for dim in _columns(weight, chosen)}
    kept: Dims = () if x.drops else (Dim(x.stop - x.start),)

    def renamed(dims: Sequence[Dim]) -> Dims:
        return _replaced(resolve(dims), chosen, kept, fresh)

    part = t.parameter_part(weight, Cut(chosen[0], x.start, x.stop, kept), chosen, fresh)
    result = t.emit("einsum", (product.inputs[0], part), renamed(product.dims))
    for op in sources:
        bias = op.inputs[1]
        assert isinstance(bias, Parameter)
        part = t.parameter_part(bias, Cut(chosen[0], x.start, x.stop, kept), chosen, fresh)
        result = t.emit("elementwise", (result, part), result.dims, function="add")
    axes = [renamed(axis) for i, axis in enumerate(x.view.axes) if not (x.drops and i == x.axis)]
    return View(result, tuple(axes))


def _columns(weight: Parameter, chosen: Dims) -> Dims:
    """Dims of the part that stand for the chosen ones of the weight: each part of a user's dim gets its own."""
    for axis in weight.axes:
        dims = resolve(axis)
        if set(chosen) <= set(dims):
            return tuple(dim for dim in dims if dim not in chosen)
    raise Unsupported("it takes a part along dims that lie in different dims of the parameter")


def _replaced(dims: Dims, chosen: Dims, kept: Dims, fresh: dict[Dim, Dim]) -> Dims:
    found: list[Dim] = []
    for dim in dims:
        if dim in chosen:
            found += kept if dim is chosen[0] else ()
        else:
            found.append(fresh.get(dim, dim))
    return tuple(found)
