"""Rules for mixtures of experts: a router's softmax and top k, tokens that go to experts, answers that come back."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.tracer.dims import Dim, resolve, unify
from autoshard.tracer.tracer import Tracer, rule
from autoshard.tracer.values import (
    ExpertRows,
    Gates,
    Parameter,
    Routed,
    Unsupported,
    Value,
    View,
)


@rule("topk")
def topk(t: Tracer, x: Value, k: int, axis: int = -1, *args: Value, **kwargs: Value) -> Value:
    gates = x if isinstance(x, Gates) else Gates(t.view(x), False)
    if gates.part:
        raise Unsupported("it takes the top k of a top k")
    shared: dict[object, View] = {}
    return [Gates(gates.logits, gates.softmaxed, part, k, False, shared) for part in ("weights", "experts")]


@rule("sum")
def sum_(t: Tracer, x: Value, axes: Sequence[int] | None = None, keepdim: bool = False, **kwargs: Value) -> Value:
    if isinstance(x, Gates) and x.part == "weights" and x.softmaxed and keepdim:
        return Gates(x.logits, True, "sum", x.top_k, False, x.shared)
    if isinstance(x, Routed) and x.weighed:
        return _combine(t, x)
    raise Unsupported("sums have a rule for the weights and the answers of experts only")


def divide_gates(t: Tracer, x: Value, y: Value) -> Value | None:
    """The weights of the top k, made to add up to 1; None if this is no such division."""
    if isinstance(x, Gates) and isinstance(y, Gates):
        if x.part == "weights" and y.part == "sum" and x.shared is y.shared:
            return Gates(x.logits, True, "weights", x.top_k, True, x.shared)
        raise Unsupported("it divides the weights of experts by something else than their sum")
    return None


@rule(
    "sort",
    "argsort",
    "histc",
    "bincount",
    "cumsum",
    "floor_divide",
    "index_put",
    "scatter",
    "one_hot",
    "ge",
    "lt",
    "le",
)
def order(t: Tracer, x: Value, *args: Value, **kwargs: Value) -> Value:
    """The value of whatever is computed from the experts' numbers alone: it tells where which token goes."""
    for one in (x, *_flat(args)):
        if isinstance(one, Gates) and one.part in ("experts", "order"):
            found = Gates(one.logits, one.softmaxed, "order", one.top_k, one.normalized, one.shared)
            return [found, found] if not t.shape else found
    raise Unsupported("it has a rule for the numbers of experts only")


def _flat(values: Sequence[Value]) -> list[Value]:
    return [one for value in values for one in (_flat(value) if isinstance(value, (list, tuple)) else [value])]


def chosen(t: Tracer, x: Value, places: Sequence[Value]) -> Value | None:
    """The value of x[places] if the places come from a router: tokens for experts, their weights, or answers; None if
    not.
    """
    gates = next((one for one in places if isinstance(one, Gates) and one.part in ("experts", "order")), None)
    if gates is None:
        return None
    if isinstance(x, (Gates, Routed)):
        return x
    view = t.view(x)
    if isinstance(view.tensor, Parameter):
        return ExpertRows(view, gates)
    return _dispatch(t, view, gates)


def _dispatch(t: Tracer, x: View, gates: Gates) -> Value:
    """The tokens in the slots of their experts; one operator serves all readers."""
    if len(x.axes) != 2 or x.shape[0] != (t.batch, t.seq):
        raise Unsupported("it picks tokens by expert out of something else than all tokens of the batch")
    found = gates.shared.get(x.tensor)
    if found is None:
        operator = _gate_operator(t, gates)
        (expert,) = resolve(gates.logits.axes[-1])
        capacity = Dim(0, "capacity")
        t.gates_of[capacity] = gates
        slots = (expert, t.batch, capacity)
        dispatched = t.emit("dispatch", (x.tensor, operator.tensor), (*slots, *x.axes[-1]))
        found = gates.shared[x.tensor] = View(dispatched, (slots, x.axes[-1]))
    return Routed(found, gates, weighed=False)


def _gate_operator(t: Tracer, gates: Gates) -> View:
    """The weight of every expert for every token, zero for experts that were not chosen."""
    found = gates.shared.get("gates")
    if found is None:
        dims = resolve(gates.logits.axes[-1])
        if len(dims) != 1:
            raise Unsupported("a router's logits are of several dims")
        dims[0].name = "expert"
        logits = gates.logits.tensor
        found = View(t.emit("top_k_gate", (logits,), logits.dims, top_k=gates.top_k), gates.logits.axes)
        gates.shared["gates"] = found
    return found


@rule("grouped_mm_fallback", "_grouped_mm")
def grouped_product(t: Tracer, x: Value, weight: Value, offsets: Value = None, *args: Value, **kwargs: Value) -> Value:
    """The tokens, in the order of their experts, each multiplied by its expert's matrix of W [expert, in, out]."""
    tokens = _routed(t, x)
    if tokens is None or not isinstance(weight, View) or not isinstance(weight.tensor, Parameter):
        raise Unsupported("a grouped product has a rule for tokens of experts and a parameter of theirs")
    return _by_expert(t, tokens, weight)


def _routed(t: Tracer, x: Value) -> Routed | None:
    """The value as tokens of experts, also behind their activation; None if it is none."""
    if isinstance(x, Routed):
        return x
    view = t.view(x)
    gates = next((t.gates_of[dim] for dim in view.shape[0] if dim in t.gates_of), None) if view.axes else None
    return None if gates is None else Routed(view, gates, weighed=False)


def expert_product(t: Tracer, x: Value, y: Value) -> Value:
    """Each token multiplied by the matrix of its expert: parameter[experts] @ tokens, or the other way around."""
    rows, others = (x, y) if isinstance(x, ExpertRows) else (y, x)
    tokens = None if isinstance(others, ExpertRows) else _routed(t, others)
    if tokens is None or not isinstance(rows, ExpertRows):
        raise Unsupported("parameters of experts meet something else than their tokens")
    view = rows.parameter
    if rows is x:  # [out, in] from the left
        view = View(view.tensor, (view.axes[0], view.axes[2], view.axes[1]))
    return _by_expert(t, tokens, view)


def _by_expert(t: Tracer, x: Routed, weight: View) -> Routed:
    if x.weighed:
        raise Unsupported("answers of experts go to further experts")
    expert, inside, out = weight.axes
    view = t.view(x)
    unify(expert, [dim for dim in resolve(view.axes[0]) if dim.name == "expert"])
    unify(view.axes[-1], inside)
    contracted = set(resolve(inside))
    rows = [dim for dim in view.tensor.dims if dim not in contracted]
    found = t.emit("einsum", (view.tensor, weight.tensor), [*rows, *out])
    return Routed(View(found, (view.axes[0], out)), x.gates, weighed=False)


def weigh(t: Tracer, x: Value, y: Value) -> Value | None:
    """The experts' answers times their weights; None if this is no such product."""
    if isinstance(x, Routed) and isinstance(y, Gates):
        if y.part != "weights" or x.gates.shared is not y.shared or x.weighed:
            raise Unsupported("answers of experts are weighed by something else than their own weights")
        _gate_operator(t, y)
        return Routed(x.view, y, weighed=True)
    return None


def _combine(t: Tracer, x: Routed) -> View:
    """The weighted sum of each token's answers."""
    if not x.gates.softmaxed:
        raise Unsupported("the weights of experts are no softmax of the router's logits")
    operator = x.gates.shared["gates"].tensor
    assert not hasattr(operator, "cut")
    operator.attributes["normalized"] = x.gates.normalized  # type: ignore[union-attr]
    dims = (t.batch, t.seq, *x.view.axes[-1])
    return View(t.emit("combine", (x.view.tensor, operator), dims), ((t.batch, t.seq), x.view.axes[-1]))


def finish_routed(t: Tracer, x: Routed) -> View:
    """The tokens of experts as a tensor of slots, which the experts' activation reads."""
    if x.weighed:
        raise Unsupported("weighed answers of experts are not summed for each token")
    return x.view
