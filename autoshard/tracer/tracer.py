"""Read an exported graph node by node, and write down the operators of ours that it is made of."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from autoshard.tracer.changes import Changes, changed_by
from autoshard.tracer.dims import Dim, Dims, resolve, size_of
from autoshard.tracer.source import UNKNOWN_LINE, Place, place_of
from autoshard.tracer.values import (
    Centered,
    Constant,
    Cut,
    ExpertRows,
    Formula,
    Gates,
    Input,
    Mean,
    Operation,
    Parameter,
    Pending,
    PositionRows,
    Scores,
    Squares,
    Tensor,
    Unsupported,
    Value,
    View,
    has_gradient,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

METADATA_OPERATORS = ("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size")
MAKE_LIKE = ("new_ones", "new_zeros", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like")
"""They look at the shape of a tensor, not at its numbers."""

MOST_KEPT = 2**22
"""Numbers of a constant that are kept once computed: tables of positions are, masks are not."""

Rule = Callable[..., Value]
RULES: dict[str, Rule] = {}
"""Name of an ATen operator, without its overload -> what it means. A rule takes the tracer and the values of the
arguments; it raises Unsupported where it cannot tell."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """A decorator that registers a function as the rule for these ATen operators."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return register


FINISHES: dict[type[Pending], Callable[..., View]] = {}
"""Kind of pattern -> the tensor that it is where nothing completes it. A function takes the tracer and the pattern; it
raises Unsupported where it is none."""
INCOMPLETE = {
    Mean: "a mean that is no part of a norm",
    Centered: "a tensor less its mean that is no part of a norm",
    Squares: "squares that are no part of a norm",
    PositionRows: "learned positions that are not added to the tokens' embeddings",
    Scores: "attention scores that meet something else than a number, a causal mask, softmax and values",
    Gates: "a router whose result does not go to experts in a way that has a rule",
    ExpertRows: "parameters of experts that are used in a way that has no rule",
}
"""Kind of pattern -> what it is where nothing completes it and it is no tensor."""


def finishes(kind: type[Pending]) -> Callable[[Callable[..., View]], Callable[..., View]]:
    """A decorator that registers a function as what patterns of a kind are by themselves."""

    def register(function: Callable[..., View]) -> Callable[..., View]:
        assert kind not in FINISHES, kind
        FINISHES[kind] = function
        return function

    return register


INSTEAD = {
    "baddbmm": "nn.MultiheadAttention traces with need_weights=False",
    "linalg_vector_norm": "a norm traces as nn.RMSNorm, or written x * torch.rsqrt(x.square().mean(-1, keepdim=True))",
    "log_softmax": "give the logits themselves, the loss takes their log_softmax",
    "_weight_norm": "nn.utils.parametrize.remove_parametrizations(module, 'weight') leaves the weight itself",
}
"""Operator without a rule -> what works in its place."""
HOW_EXPERTS_TRACE = (
    "a mixture traces where the choices of all tokens are sorted by expert and meet weight[experts], of [experts, in, "
    "out], or a grouped product; a loop over experts, and all experts for every token, do not"
)


class Tracer:
    """Reads one exported graph.

    operations: in the order in which they were understood. seq: tokens of a traced sequence.
    """

    def __init__(self, program: ExportedProgram, parameters: dict[str, str], constants: dict[str, torch.Tensor]):
        self._program = program
        self._parameter_names = parameters
        """The exported graph's placeholder -> the user's name, one for tied parameters."""
        self._constants = constants
        self._changes = Changes(program.graph_module)
        self._parameters: dict[str, Parameter] = {}
        self.operations: list[Operation] = []
        self.batch, self.seq = Dim(0, "batch"), Dim(0, "seq")
        self.roles: list[tuple[str, Dims]] = []
        """Names of dims that operators give them."""
        self.parts: dict[Any, View] = {}
        """Parts of projections that were asked for."""
        self.windows: dict[tuple[Constant, bool], int | None] = {}
        """What masks were found to say."""
        self.gates_of: dict[Dim, Gates] = {}
        """The router behind a dim of slots."""
        self.place = Place("", "", "")
        self.operator = ""
        """ATen's name of the node at hand."""
        self.shape: tuple[int, ...] = ()
        """Of the torch tensor that the node at hand gives, the first if it gives several."""

    def run(self) -> View:
        """The logits. Raises Unsupported, with `place` at the node that is not understood."""
        graph = self._program.graph_module
        given = [self._given(node) for node in graph.graph.nodes if node.op == "placeholder"]
        results = self._interpret(graph, given)
        (logits,) = results
        return self.view(logits)

    def emit(self, kind: str, inputs: Sequence[Tensor], dims: Sequence[Dim], **attributes: Any) -> Operation:
        """Append an operator at the place in the user's code where the tracer is, and return it."""
        place = self.place
        found = Operation(kind, list(inputs), resolve(dims), place.path, place.line or UNKNOWN_LINE, attributes)
        self.operations.append(found)
        return found

    def view(self, value: Value) -> View:
        """The value as a tensor of our graph; a pattern that is not complete becomes what it means by itself."""
        if isinstance(value, View):
            return value
        if isinstance(value, Constant):
            raise Unsupported(
                "it computes with a constant tensor, which has a rule as rotary positions and as a mask of attention; "
                "positions that are added are learned ones: nn.Embedding(positions, width)"
            )
        if not isinstance(value, Pending):
            raise Unsupported(f"it takes {type(value).__name__} where a tensor is expected")
        if value.done is None:  # it is computed once for all readers
            here, self.place = self.place, value.place or self.place
            value.done = self._finished(value)
            self.place = here
        return value.done

    def _finished(self, pattern: Pending) -> View:
        kind = type(pattern)
        if kind not in FINISHES:
            raise Unsupported(INCOMPLETE[kind])
        return FINISHES[kind](self, pattern)

    def number(self, value: Value) -> float | None:
        """The number that a value is, or that all elements of a constant tensor are; None for any other value."""
        if isinstance(value, Constant):
            found = value.compute()
            if not isinstance(found, torch.Tensor):
                return float(found)
            if found.is_complex() or found.numel() == 0:
                return None
            first = found.flatten()[0]
            return float(first) if found.numel() == 1 or bool((found == first).all()) else None
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def parameter(self, name: str, shape: Sequence[int]) -> View:
        found = self._parameters.setdefault(
            name, Parameter(name, tuple((Dim(size),) if size > 1 else () for size in shape))
        )
        return View(found, found.axes)

    def parameter_part(self, whole: Parameter, cut: Cut, chosen: Dims, fresh: Mapping[Dim, Dim]) -> Parameter:
        """The parameter that is a part of another one: the places that `cut` names, of the neighbouring dims `chosen`.

        fresh: dims of the whole -> dims that stand for them in the part.
        """
        if whole.cut is not None:
            raise Unsupported("it takes a part of a part of what a projection gives")
        cut = replace(cut, whole=Dim(size_of(chosen)))
        axes = []
        for axis in whole.axes:
            dims: list[Dim] = []
            for dim in resolve(axis):
                if dim is chosen[0]:
                    dims.append(cut.whole)
                elif dim not in chosen:
                    dims.append(fresh.get(dim, dim))
            axes.append(tuple(dims))
        return Parameter(whole.tensor, tuple(axes), cut)

    def _given(self, node: fx.Node) -> Value:
        """The value that a placeholder stands for: a parameter, a constant or the token ids [batch, seq]."""
        if node.name in self._parameter_names:
            return self.parameter(self._parameter_names[node.name], tuple(node.meta["val"].shape))
        if node.name in self._constants:
            numbers = self._constants[node.name]
            numbers = numbers.clone() if self._changes.is_changed(node) else numbers  # the module keeps its own
            return Constant(partial(_numbers_of, node.name.removeprefix("b_module_"), numbers))
        self.batch.size, self.seq.size = node.meta["val"].shape
        dims: Dims = (self.batch, self.seq)
        return View(Input("input_ids", dims), tuple((dim,) for dim in dims))

    def without_gradient(self, value: Value) -> Value:
        """The value, whose gradient ends here. Raises Unsupported where it has one: a plan passes all of them on."""
        if has_gradient(value):
            raise Unsupported(
                "the gradient would end here, and in a plan it passes on to every parameter; leave it out"
            )
        return value

    def _interpret(self, module: fx.GraphModule, given: Sequence[Value], learns: bool = True) -> list[Value]:
        """The values of the graph's outputs. learns: whether gradients pass through what it computes."""
        values: dict[fx.Node, Value] = {}
        arguments = iter(given)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments)
            elif node.op == "get_attr":
                values[node] = _attribute(module, str(node.target))
            elif node.op == "output" and not learns:
                return [self._unlearned(one, values[one]) for one in node.args[0]]
            elif node.op == "output":
                (outputs,) = fx.map_arg(node.args, values.__getitem__)
                return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            else:
                self._node(node, values)
        raise AssertionError("a graph without outputs")

    def _unlearned(self, node: fx.Node, value: Value) -> Value:
        """The value of a node that torch.no_grad() gives out."""
        before, self.place, self.operator = self.place, place_of(node, self.place), "no_grad"
        found = self.without_gradient(value)
        self.place = before
        return found

    def _node(self, node: fx.Node, values: dict[fx.Node, Value]) -> None:
        name = name_of(node)
        if name in METADATA_OPERATORS:
            return
        before, self.place = self.place, place_of(node, self.place)
        self.operator = name
        found = node.meta.get("val")
        found = found[0] if isinstance(found, (list, tuple)) and found else found
        self.shape = tuple(found.shape) if isinstance(found, torch.Tensor) else ()
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        changed = changed_by(node)
        if not (_is_constant(args) and _is_constant(tuple(kwargs.values()))):
            self._check_change(node, changed)
        result = self._value(node, name, args, dict(kwargs))
        readers = [user for user in node.users if name_of(user) not in METADATA_OPERATORS]
        if isinstance(result, Formula) and len(readers) > 1 and result.reads_activations:
            result = self.view(result)
        for one in result if isinstance(result, list) else (result,):
            if isinstance(one, Pending) and one.place is None:
                one.place = self.place
        values[node] = result
        values.update(dict.fromkeys(changed, result))
        self.place = before

    def _check_change(self, node: fx.Node, changed: Sequence[fx.Node]) -> None:
        """Raise Unsupported where the node changes numbers in place that are read later as another tensor: each node
        has a value of its own here.
        """
        if any(self._changes.read_later(node, one) for one in changed):
            raise Unsupported(
                "it changes a tensor in place of which another view, or the whole, is read later; write it out of "
                "place, with torch.where, torch.cat or masked_fill"
            )

    def _value(self, node: fx.Node, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        if name == "wrap_with_set_grad_enabled":
            return self._interpret(args[1], args[2:], learns=bool(args[0]))
        if name == "wrap_with_autocast":
            return self._interpret(args[4], args[5:])
        if node.target is operator.getitem and isinstance(args[0], (list, tuple)):
            return args[0][args[1]]
        if name in MAKE_LIKE and not isinstance(args[0], Constant):
            like = node.args[0].meta["val"]  # type: ignore[union-attr]
            stand_in = Constant(lambda: torch.empty(like.shape, dtype=like.dtype))
            return _constant(node, (stand_in, *args[1:]), kwargs, self._changes.to_come(node))
        if _is_constant(args) and _is_constant(tuple(kwargs.values())):
            return _constant(node, args, kwargs, self._changes.to_come(node))
        found = RULES.get(name) or RULES.get(name.removesuffix("_"))
        if found is None and any(isinstance(one, Gates) for one in args):
            raise Unsupported(f"it has no rule for what a router chose: {HOW_EXPERTS_TRACE}")
        if found is None:
            raise Unsupported(f"it has no rule: {INSTEAD[name]}" if name in INSTEAD else "it has no rule")
        return found(self, *args, **kwargs)


def name_of(node: fx.Node) -> str:
    """The short name of a node's operator: 'linear' for aten.linear.default."""
    target: Any = node.target
    if hasattr(target, "_overloadpacket"):
        return str(target._overloadpacket.__name__)
    return str(getattr(target, "__name__", target))


def _attribute(module: fx.GraphModule, name: str) -> Value:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return Constant(lambda: found) if isinstance(found, torch.Tensor) else found


def _numbers_of(name: str, constant: torch.Tensor) -> torch.Tensor:
    """A buffer by its numbers. Raises Unsupported where it has none."""
    if constant.device.type == "meta":
        raise Unsupported(
            f"the buffer {name} is on the meta device and has no numbers; make the module on the CPU, whose parameters "
            "alone may be on meta, or give its config"
        )
    return constant


def _is_constant(value: Value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_constant, value))
    return value is None or isinstance(
        value, (Constant, int, float, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
    )


def _constant(node: fx.Node, args: tuple[Value, ...], kwargs: dict[str, Value], at_once: bool) -> Value:
    """The value of an operator on constants, computed when needed; a list of values if the operator gives several.

    at_once: compute it now and keep it, because what it reads or gives is changed in place, here or later.
    """
    target: Any = node.target
    computed: list[Any] = []

    is_random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) and "dropout" not in name_of(node)

    def compute() -> Any:
        if is_random:
            raise Unsupported(
                f"it computes with random numbers ({name_of(node)}), and a plan has the same operators in each step; "
                "draw them only where self.training is set, which is traced as unset"
            )
        if computed:
            return computed[0]
        with torch.no_grad():
            result = target(*_real(args), **_real(kwargs))
        if at_once or not isinstance(result, torch.Tensor) or result.numel() <= MOST_KEPT:
            computed.append(result)
        return result

    if at_once:
        compute()
    found = node.meta.get("val")
    if isinstance(found, (list, tuple)):
        return [Constant(lambda index=index: compute()[index]) for index in range(len(found))]  # type: ignore[misc]
    return Constant(compute)


def _real(value: Value) -> Any:
    if isinstance(value, Constant):
        return value.compute()
    if isinstance(value, dict):
        return {key: _real(one) for key, one in value.items()}
    return type(value)(map(_real, value)) if isinstance(value, (list, tuple)) else value
