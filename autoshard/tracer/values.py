"""The values of an exported graph's nodes while it is read.

A value is a tensor of our graph in some view, a constant, or a part of a pattern that is not complete yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.graph.pointwise import Expression
from autoshard.tracer.dims import Dim, Dims, resolve, same
from autoshard.tracer.source import Place


class Unsupported(Exception):
    """The traced code has no meaning in our graph; the text says what was met and what would work."""


@dataclass(frozen=True)
class Cut:
    """The places [start, stop) of a dim `whole` of the user's parameter, which are the dims `dims` of ours."""

    whole: Dim
    start: int
    stop: int
    dims: Dims


@dataclass(eq=False)
class Parameter:
    """A parameter of ours.

    tensor: the user's name. axes: dims of each dim of the user's tensor, with cut.whole among them.
    """

    tensor: str
    axes: tuple[Dims, ...]
    cut: Cut | None = None

    @property
    def dims(self) -> Dims:
        found: list[Dim] = []
        for dim in resolve([dim for axis in self.axes for dim in axis]):
            found += resolve(self.cut.dims) if self.cut is not None and dim is self.cut.whole else (dim,)
        return tuple(found)


@dataclass(eq=False)
class Input:
    """The token ids [batch, seq]."""

    name: str
    dims: Dims


@dataclass(eq=False)
class Operation:
    """An operator of our graph to be.

    path: of the user's submodule that it ran in. line: of the user's code, as 'file.py:12'. over: the dims that a norm
    or rotary positions are over.
    """

    kind: str
    inputs: list[Parameter | Input | Operation]
    own_dims: Dims
    path: str
    line: str
    attributes: dict[str, Any] = field(default_factory=dict)
    over: Dims = ()

    @property
    def dims(self) -> Dims:
        return resolve(self.own_dims)


Tensor = Parameter | Input | Operation


@dataclass(frozen=True, eq=False)
class View:
    """A tensor as torch has it: for each axis the dims that it is made of. A dim that is not the tensor's
    repeats it.
    """

    tensor: Tensor
    axes: tuple[Dims, ...]

    @property
    def shape(self) -> tuple[Dims, ...]:
        return tuple(resolve(axis) for axis in self.axes)

    @property
    def repeats(self) -> bool:
        """Whether the view has dims that the tensor does not have."""
        own = set(self.tensor.dims)
        return any(dim not in own for axis in self.shape for dim in axis)

    def same(self, other: View) -> bool:
        """Whether two views have the same numbers in the same places."""
        axes = len(self.axes) == len(other.axes) and all(map(same, self.axes, other.axes))
        return self.tensor is other.tensor and axes


@dataclass(frozen=True, eq=False)
class Constant:
    """A value that depends on no parameter and no token id; it is computed when needed."""

    compute: Callable[[], Any]


@dataclass(eq=False)
class Pending:
    """A pattern that is not complete.

    place: where it began. done: the tensor that it became when it was read incomplete.
    """

    place: Place | None = field(default=None, init=False)
    done: View | None = field(default=None, init=False)


@dataclass(eq=False)
class Formula(Pending):
    """A function of single numbers. leaves: its inputs by their names in the expression. axes: of the result."""

    expression: Expression
    leaves: dict[str, View]
    axes: tuple[Dims, ...]

    @property
    def reads_activations(self) -> bool:
        """Whether the formula reads an activation, rather than parameters alone."""
        return any(not isinstance(view.tensor, Parameter) for view in self.leaves.values())


@dataclass(eq=False)
class Selection(Pending):
    """Places [start, stop) of one axis of a view. drops: whether the axis is gone, because one place was taken."""

    view: View
    axis: int
    start: int
    stop: int
    drops: bool = False


@dataclass(eq=False)
class Turned(Pending):
    """A linear function of the view's last `tail` axes that differs from position to position: rotary positions.

    matrix: [positions looked at, *shape of the result's last axes, elements of the view's tail], real or complex.
    """

    view: View
    tail: int
    matrix: Any


@dataclass(eq=False)
class Squares(Pending):
    """The square of a view, or of a view less its mean, on the way to a norm.

    averaged: whether over the last axis. plus: what was added then. root: '' | 'sqrt' | 'rsqrt' of it all.
    """

    view: View
    centered: bool
    averaged: bool = False
    plus: float = 0.0
    root: str = ""


@dataclass(eq=False)
class Mean(Pending):
    """The mean of a view over its last axis."""

    view: View


@dataclass(eq=False)
class Centered(Pending):
    """A view less its mean over the last axis."""

    view: View


@dataclass(eq=False)
class Normed(Pending):
    """The result of an RMS or layer norm; its weight and bias may come later."""

    view: View
    function: str
    eps: float
    weight: View | None = None
    bias: View | None = None


@dataclass(eq=False)
class PositionRows(Pending):
    """The first rows of a table of learned positions, one for each token of the sequence."""

    table: View


@dataclass(eq=False)
class Scores(Pending):
    """Attention scores: q k^T times factor. masked: causally. window: keys that a query sees, None for all before it.

    softmaxed: whether they are probabilities already.
    """

    query: View
    key: View
    factor: float
    masked: bool = False
    window: int | None = None
    softmaxed: bool = False


@dataclass(eq=False)
class Gates(Pending):
    """A value computed from a router's logits.

    part: '' all of them; 'weights' and 'experts' of the top k, 'sum' of those weights. Once the choices of all tokens
    are ordered by expert: 'choices' in that order, 'tokens' and 'sorted weights' and 'sorted experts' of these,
    'places' of the choices, 'counts' of tokens by expert and 'ends' of the experts' choices. shared: by all parts of
    one top k.
    """

    logits: View
    softmaxed: bool
    part: str = ""
    top_k: int = 0
    normalized: bool = False
    shared: dict[Any, View] = field(default_factory=dict)

    def as_part(self, part: str) -> Gates:
        """Another part of the same top k."""
        return replace(self, part=part)


@dataclass(eq=False)
class Routed(Pending):
    """The experts' answers for each token and choice, weighed or not yet.

    by_token: in the order of the tokens again, rather than by expert.
    """

    view: View
    gates: Gates
    weighed: bool
    by_token: bool = False


@dataclass(eq=False)
class ExpertRows(Pending):
    """The rows of a parameter for the chosen experts: parameter[experts]."""

    parameter: View
    gates: Gates


def has_gradient(value: Value) -> bool:
    """Whether gradients pass through a value: not through constants, token ids and the numbers of experts."""
    if isinstance(value, Gates):
        return value.part not in ("experts", "order")
    return isinstance(value, Pending) or (isinstance(value, View) and not isinstance(value.tensor, Input))


Value = Any
"""View | Constant | Pending | a list of them | numbers and other plain arguments."""
