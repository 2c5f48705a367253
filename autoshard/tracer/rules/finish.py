"""Complete patterns that are read before they are whole: each becomes the tensor that it means by itself."""

from __future__ import annotations

from autoshard.tracer.rules.experts import finish_routed
from autoshard.tracer.rules.norms import finish_norm
from autoshard.tracer.rules.numbers import finish_formula
from autoshard.tracer.rules.positions import finish_turned
from autoshard.tracer.rules.products import finish_selection
from autoshard.tracer.tracer import Tracer
from autoshard.tracer.values import (
    Formula,
    Normed,
    Pending,
    Routed,
    Selection,
    Squares,
    Turned,
    Unsupported,
    Value,
    View,
)

_MEANING = {
    "Mean": "a mean that is no part of a norm",
    "Centered": "a tensor less its mean that is no part of a norm",
    "Squares": "squares that are no part of a norm",
    "PositionRows": "learned positions that are not added to the tokens' embeddings",
    "Scores": "attention scores that meet something else than a number, a causal mask, softmax and values",
    "Gates": "a router whose result does not go to experts in a way that has a rule",
    "ExpertRows": "parameters of experts that are used in a way that has no rule",
}


def finish(t: Tracer, x: Value) -> View:
    """The pattern as a tensor of our graph; it is computed once for all readers."""
    if not isinstance(x, Pending):
        raise Unsupported(f"it takes {type(x).__name__} where a tensor is expected")
    if x.done is None:
        here, t.place = t.place, x.place or t.place
        x.done = _finish(t, x)
        t.place = here
    return x.done


def _finish(t: Tracer, x: Pending) -> View:
    match x:
        case Formula():
            return finish_formula(t, x)
        case Selection():
            return finish_selection(t, x)
        case Turned():
            return finish_turned(t, x)
        case Normed():
            return finish_norm(t, x)
        case Routed():
            return finish_routed(t, x)
        case Squares() if not x.averaged and not x.centered:
            return finish_formula(t, Formula(("square", "x0"), {"x0": x.view}, x.view.axes))
    raise Unsupported(_MEANING[type(x).__name__])
