"""Rules for mixtures of experts: a router's softmax and top k, tokens that go to experts, answers that come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from autoshard.tracer.dims import Dim, resolve, size_of, unify
from autoshard.tracer.tracer import Tracer, finishes, rule
from autoshard.tracer.values import (
    Constant,
    ExpertRows,
    Gates,
    Parameter,
    Routed,
    Unsupported,
    Value,
    View,
)

EXPERTS_ONLY = "it has a rule for the numbers of experts only"
WHOLE = ("experts", "choices", "tokens", "sorted experts", "places", "counts", "ends")
"""Parts of a router's result that are whole numbers."""


@rule("topk")
def topk(t: Tracer, x: Value, k: int, axis: int = -1, largest: bool = True, ordered: bool = True) -> Value:
    gates = x if isinstance(x, Gates) else Gates(t.view(x), False)
    if gates.part:
        raise Unsupported("it takes the top k of a top k")
    if not largest or axis not in (-1, len(t.shape) - 1):
        raise Unsupported("a router takes the largest k over the last axis, that of the experts")
    if [dim for axis in gates.logits.shape[:-1] for dim in axis] != [t.batch, t.seq]:
        raise Unsupported("the top k has a rule over all experts of a router, for each token of the batch")
    gates = Gates(gates.logits, gates.softmaxed, top_k=k)
    return [gates.as_part("weights"), gates.as_part("experts")]


def arranged(t: Tracer, x: Gates | Routed) -> Value:
    """The same value where the node at hand keeps the order of its numbers; axes of 1 come and go.

    Raises Unsupported for a part of it.
    """
    if _without_ones(t.shape) not in map(_without_ones, _shapes(t, x)):
        raise Unsupported("it takes a part of what a router chose, or gives it another order")
    return x


def _shapes(t: Tracer, x: Gates | Routed) -> list[tuple[int, ...]]:
    """The shapes in which torch has a value, without axes of 1."""
    rows, gates = _rows(t), x.gates if isinstance(x, Routed) else x
    experts, k = size_of(gates.logits.axes[-1]), gates.top_k
    choices, by_token = (rows[0][0] * k,), [(*row, k) for row in rows]
    if isinstance(x, Routed):
        width = size_of(x.view.axes[-1])
        return [(*one, width) for one in (choices, *(by_token if x.by_token else ()))]
    if x.part in ("weights", "experts"):
        return [choices, *by_token]
    if x.part in ("counts", "ends"):
        return [(experts,)]
    return {"": [(*row, experts) for row in rows], "sum": rows}.get(x.part, [choices])


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _is_flat(t: Tracer, gates: Gates) -> bool:
    """Whether the node at hand gives one number for each choice of each token, in one axis."""
    return t.shape == (_rows(t)[0][0] * gates.top_k,)


def is_row_of_each_token(t: Tracer, width: int) -> bool:
    """Whether the node at hand gives rows of this width, one for each token."""
    return t.shape in [(*rows, width) for rows in _rows(t)]


def _rows(t: Tracer) -> list[tuple[int, ...]]:
    batch, seq = t.batch.size, t.seq.size
    return [(batch * seq,), (batch, seq)]


@rule("sum")
def sum_(t: Tracer, x: Value, axes: Sequence[int] | None = None, keepdim: bool = False, **kwargs: Value) -> Value:
    axis = axes[0] if axes is not None and len(axes) == 1 else None
    if isinstance(x, Gates) and x.part == "weights" and x.softmaxed and not x.normalized:
        if keepdim and axis in (-1, len(t.shape) - 1) and is_row_of_each_token(t, 1):
            return x.as_part("sum")
        raise Unsupported("the weights of experts have a rule for their sum over the choices of a token, keepdim=True")
    if isinstance(x, Routed) and x.weighed:
        if keepdim or axis not in (-2, len(t.shape) - 1) or not is_row_of_each_token(t, size_of(x.view.axes[-1])):
            raise Unsupported("answers of experts have a rule for their sum over the choices of a token")
        return _combine(t, x)
    raise Unsupported("sums have a rule for the weights and the answers of experts only")


def divide_gates(t: Tracer, x: Value, y: Value) -> Value | None:
    """The weights of the top k, made to add up to 1; None if this is no such division."""
    if isinstance(x, Gates) and isinstance(y, Gates):
        if x.part == "weights" and y.part == "sum" and x.shared is y.shared and is_row_of_each_token(t, x.top_k):
            return replace(x, normalized=True)
        raise Unsupported("it divides the weights of experts by something else than their sum")
    return None


@rule("sort", "argsort")
def sort(t: Tracer, x: Value, *args: Value, descending: bool = False, **kwargs: Value) -> Value:
    """The choices of all tokens ordered by expert, or the place of each choice in that order."""
    flags = [one for one in args if isinstance(one, bool)]
    if not isinstance(x, Gates) or x.part not in ("experts", "choices"):
        raise Unsupported(EXPERTS_ONLY)
    if not _is_flat(t, x) or descending or any(flags):
        raise Unsupported("it orders the experts' numbers otherwise than those of all tokens in one axis, ascending")
    order = x.as_part("choices" if x.part == "experts" else "places")
    if t.operator == "argsort":
        return order
    return [x.as_part("sorted experts" if x.part == "experts" else "sorted choices"), order]


@rule("floor_divide")
def token_of(t: Tracer, x: Value, k: Value) -> Value:
    """The token of each choice: its number divided by the choices of a token."""
    if not isinstance(x, Gates):
        raise Unsupported(EXPERTS_ONLY)
    if x.part != "choices" or k != x.top_k:
        raise Unsupported("it divides whole numbers, which has a rule for the order of choices by expert, // k")
    return x.as_part("tokens")


@rule("index_put")
def places(t: Tracer, x: Value, order: Sequence[Value], numbers: Value, accumulate: bool = False) -> Value:
    """The place of each choice in the order by expert: places[choices] = 0, 1, 2, ..."""
    (gates, *more) = order
    counted = isinstance(numbers, Constant) and isinstance(x, Constant) and not more and not accumulate
    if not counted or not isinstance(gates, Gates) or gates.part != "choices" or not _is_flat(t, gates):
        raise Unsupported(
            "it writes into a tensor, which has a rule for the places of choices in their order by expert"
        )
    if not torch.equal(numbers.compute(), torch.arange(t.shape[0])):
        raise Unsupported("it numbers the choices of experts otherwise than 0, 1, 2, ...")
    return gates.as_part("places")


@rule("histc")
def histc(t: Tracer, x: Value, bins: int = 100, low: float = 0, high: float = 0) -> Value:
    return _counts(x, (low, high) == (0, bins - 1), bins)


@rule("bincount")
def bincount(t: Tracer, x: Value, weights: Value = None, minlength: int = 0) -> Value:
    return _counts(x, weights is None, minlength)


def _counts(x: Value, of_each: bool, experts: int) -> Gates:
    """The number of choices of each expert."""
    if not isinstance(x, Gates) or x.part not in ("experts", "sorted experts"):
        raise Unsupported(EXPERTS_ONLY)
    if not of_each or experts != size_of(x.logits.axes[-1]):
        raise Unsupported(f"it counts the choices otherwise than of each of {size_of(x.logits.axes[-1])} experts")
    return x.as_part("counts")


@rule("cumsum")
def ends(t: Tracer, x: Value, axis: int, **kwargs: Value) -> Value:
    """The places where the choices of each expert end, from their counts."""
    if not isinstance(x, Gates) or x.part != "counts":
        raise Unsupported(EXPERTS_ONLY)
    return x.as_part("ends")


def chosen(t: Tracer, x: Value, places: Sequence[Value]) -> Value | None:
    """The value of x[places] if the places come from a router: tokens for experts, their weights, or answers; None if
    not.
    """
    gates = next((one for one in places if isinstance(one, Gates)), None)
    if gates is None:
        return None
    if len(places) == 1:
        own = isinstance(x, (Gates, Routed)) and (x if isinstance(x, Gates) else x.gates).shared is gates.shared
        if own and isinstance(x, Gates) and gates.part == "choices" and x.part in ("weights", "experts"):
            if _is_flat(t, gates):
                return x.as_part(f"sorted {x.part}")
        elif own and isinstance(x, Routed) and gates.part == "places" and not x.by_token:
            return arranged(t, replace(x, by_token=True))
        elif gates.part == "sorted experts" and isinstance(x, View) and isinstance(x.tensor, Parameter):
            return ExpertRows(x, gates)
        elif gates.part == "tokens" and not isinstance(x, (Gates, Routed)):
            return _dispatch(t, t.view(x), gates)
    raise Unsupported(
        "it picks by what a router chose; tokens, weights and answers have a rule, in the order by expert and back"
    )


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
    return arranged(t, Routed(found, gates, weighed=False))


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
def grouped_product(
    t: Tracer, x: Value, weight: Value, offs: Value = None, bias: Value = None, **kwargs: Value
) -> Value:
    """The tokens, in the order of their experts, each multiplied by its expert's matrix of W [expert, in, out]."""
    tokens = _routed(t, x)
    if tokens is None or not isinstance(weight, View) or not isinstance(weight.tensor, Parameter):
        raise Unsupported("a grouped product has a rule for tokens of experts and a parameter of theirs")
    if not isinstance(offs, Gates) or offs.part != "ends" or bias is not None:
        raise Unsupported("a grouped product has a rule for groups that end where the choices of each expert do")
    return _by_expert(t, tokens, weight, offs)


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
    return _by_expert(t, tokens, view, rows.gates)


def _by_expert(t: Tracer, x: Routed, weight: View, gates: Gates) -> Value:
    """The product of tokens, ordered by expert, and the weight of each one's own expert.

    gates: of the order that the weight's experts are in.
    """
    if x.weighed or x.by_token:
        raise Unsupported("answers of experts go to further experts")
    if x.gates.shared is not gates.shared:
        raise Unsupported("tokens that one router chose experts for meet the experts of another one")
    expert, inside, out = weight.axes
    view = t.view(x)
    unify(expert, [dim for dim in resolve(view.axes[0]) if dim.name == "expert"])
    unify(view.axes[-1], inside)
    contracted = set(resolve(inside))
    rows = [dim for dim in view.tensor.dims if dim not in contracted]
    found = t.emit("einsum", (view.tensor, weight.tensor), [*rows, *out])
    return arranged(t, Routed(View(found, (view.axes[0], out)), x.gates, weighed=False))


def weigh(t: Tracer, x: Value, y: Value) -> Value | None:
    """The experts' answers times their weights; None if this is no such product."""
    if isinstance(x, Routed) and isinstance(y, Gates):
        part = "weights" if x.by_token else "sorted weights"
        if y.part != part or x.gates.shared is not y.shared or x.weighed:
            raise Unsupported("answers of experts are weighed by something else than their own weights")
        _gate_operator(t, y)
        return arranged(t, replace(x, gates=y, weighed=True))
    return None


def _combine(t: Tracer, x: Routed) -> View:
    """The weighted sum of each token's answers."""
    if not x.gates.softmaxed:
        raise Unsupported("the weights of experts are no softmax of the router's logits")
    operator = x.gates.shared["gates"].tensor
    assert not hasattr(operator, "cut")
    if operator.attributes.setdefault("normalized", x.gates.normalized) != x.gates.normalized:  # type: ignore[union-attr]
        raise Unsupported("answers of experts are weighed by weights that add up to 1 and by others")
    dims = (t.batch, t.seq, *x.view.axes[-1])
    return View(t.emit("combine", (x.view.tensor, operator), dims), ((t.batch, t.seq), x.view.axes[-1]))


@finishes(Routed)
def finish_routed(t: Tracer, x: Routed) -> View:
    """The tokens of experts as a tensor of slots, which the experts' activation reads."""
    if x.weighed or x.by_token:
        raise Unsupported("weighed answers of experts are not summed for each token")
    return x.view
