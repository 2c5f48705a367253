"""Builds NxD's layers and functions for lowered steps, and the parameters that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from einops import rearrange
from neuronx_distributed.modules.qkv_linear import GQAQKVColumnParallelLinear
from neuronx_distributed.parallel_layers import layers, mappings
from neuronx_distributed.parallel_layers.loss_functions import parallel_cross_entropy
from neuronx_distributed.parallel_layers.utils import set_tensor_model_parallel_attributes
from torch import nn

from autoshard.graph.ir import Graph
from autoshard.graph.partition import OperatorStep, Program
from autoshard.graph.redistribute import Transition, local_sizes
from autoshard.runtime.nxd_backend import lowering
from autoshard.runtime.nxd_backend.attention import nxd_attention
from autoshard.runtime.nxd_backend.lowering import Lowered, tensor_axes
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.kernels import kernel, takes_gradient

HIDDEN_NEGATIVE = -1e9
"""Logits of padded vocabulary entries: their exponentials are zero in every float format."""


@dataclass(frozen=True)
class Held:
    """The contents of one parameter of an NxD layer: local pieces of the plan's parameters, one after another. The
    attribute is a path in the section.

    copies: tensor-parallel ranks that hold the same elements. sums: what its gradient still has to be summed over at
    the end of a step: "tp", "kv" or "". learned: whether it has one.
    """

    attribute: str
    names: tuple[str, ...]
    is_split: bool
    is_expert: bool
    copies: int
    sums: str
    learned: bool = True


@dataclass(frozen=True)
class Call:
    """One call in a section: read views, compute, write views. layer: attribute of the section's layer, "" for a plain
    function.

    parameters: attributes whose tensors follow the inputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[..., Any]
    parameters: tuple[str, ...] = ()
    layer: str = ""


def sequence_first(program: Program) -> Program:
    """The program on tensors [seq, batch, ...], as NxD's sequence-parallel layers want them; ids stay [batch, seq]."""
    tensors = {
        name: replace(tensor, dims=("seq", "batch", *tensor.dims[2:]))
        if tensor.dims[:2] == ("batch", "seq") and tensor.differentiable
        else tensor
        for name, tensor in program.graph.tensors.items()
    }
    graph = Graph(program.graph.sizes, tensors, program.graph.operators)
    return replace(program, graph=graph)


class Builder:
    """Builds the layers of one section: adds them to `module` and remembers what they hold.

    pieces: this rank's piece of a parameter, by its name. cpu_mode: plain attention instead of the chip's kernels.
    """

    def __init__(
        self, context: Context, pieces: Mapping[str, torch.Tensor], dtype: torch.dtype, cpu_mode: bool, lnc: int
    ):
        self._context, self._program, self._pieces = context, context.program, pieces
        self._graph, self._tp = context.graph, tensor_axes(context.program)
        self._dtype, self._cpu_mode, self._lnc = dtype, cpu_mode, lnc

    def build(self, module: nn.Module, number: int, one: Lowered) -> tuple[Call, tuple[Held, ...]]:
        """Builds layer `number` of a section: (its call, what its parameters hold)."""
        name = f"layer_{number}"
        match one.layer:
            case lowering.QKV:
                return self._qkv(module, name, one)
            case lowering.COLUMN:
                return self._column(module, name, one)
            case lowering.ROW:
                return self._row(module, name, one)
            case lowering.EMBEDDING:
                return self._embedding(module, name, one)
            case lowering.CROSS_ENTROPY:
                return self._cross_entropy(one), ()
            case lowering.MAPPING:
                dims = self._program.tensor(one.inputs[0]).dims
                moves = [_transition(transition, dims) for transition in one.transitions]
                return Call(one.inputs, one.outputs, lambda x: _in_turn(x, moves)), ()
        return self._local(module, name, one)

    def _qkv(self, module: nn.Module, name: str, one: Lowered) -> tuple[Call, tuple[Held, ...]]:
        sizes = [self._columns(step) for step in one.steps]
        layer = GQAQKVColumnParallelLinear(
            self._contracted(one.steps[0]),
            [sizes[0], sizes[1]],
            bias=False,
            gather_output=False,
            dtype=self._dtype,
            sequence_parallel_enabled=one.sequence_parallel,
            kv_size_multiplier=one.kv_size_multiplier,
            fuse_qkv=False,
        )
        module.add_module(name, layer)
        held = []
        for part, step, copies in zip("qkv", one.steps, (1, *[one.kv_size_multiplier] * 2), strict=True):
            weight = f"weight_{part}"
            self._fill(getattr(layer, weight), (step.operator.inputs[1],))
            held.append(self._holds(f"{name}.{weight}", (step.operator.inputs[1],), copies))
        return Call(one.inputs, one.outputs, self._unflattened(one), layer=name), tuple(held)

    def _column(self, module: nn.Module, name: str, one: Lowered) -> tuple[Call, tuple[Held, ...]]:
        layer = layers.ColumnParallelLinear(
            self._contracted(one.steps[0]),
            sum(self._columns(step) for step in one.steps),
            bias=False,
            gather_output=False,
            dtype=self._dtype,
            sequence_parallel_enabled=one.sequence_parallel,
            sequence_dimension=0,
        )
        module.add_module(name, layer)
        names = tuple(step.operator.inputs[1] for step in one.steps)
        self._fill(layer.weight, names)
        rows = [prod(self._local_columns(step).values()) for step in one.steps]
        unflattened = self._unflattened(one)

        def run(product: torch.Tensor) -> Any:
            return unflattened(product.split(rows, -1))

        return Call(one.inputs, one.outputs, run, layer=name), (self._holds(f"{name}.weight", names, 1),)

    def _row(self, module: nn.Module, name: str, one: Lowered) -> tuple[Call, tuple[Held, ...]]:
        (step,) = one.steps
        layer = layers.RowParallelLinear(
            self._contracted(step),
            self._columns(step),
            bias=False,
            input_is_parallel=True,
            dtype=self._dtype,
            sequence_parallel_enabled=one.sequence_parallel,
            sequence_dimension=0,
        )
        module.add_module(name, layer)
        names = (step.operator.inputs[1],)
        self._fill(layer.weight, names)
        return Call(one.inputs, one.outputs, lambda y: y, layer=name), (self._holds(f"{name}.weight", names, 1),)

    def _embedding(self, module: nn.Module, name: str, one: Lowered) -> tuple[Call, tuple[Held, ...]]:
        (step,) = one.steps
        rows, columns = (self._graph.sizes[dim] for dim in ("vocab", "embed"))
        layer = layers.ParallelEmbedding(
            rows, columns, dtype=self._dtype, sequence_parallel_enabled=one.sequence_parallel
        )
        module.add_module(name, layer)
        names = (step.operator.inputs[1],)
        self._fill(layer.weight, names)

        learned = self._graph.tensors[names[0]].differentiable

        def run(y: torch.Tensor) -> torch.Tensor:  # NxD turns it only where it scatters the sequence
            turned = y if one.sequence_parallel else _sequence_first(y)
            return turned if learned else takes_gradient(turned)

        return Call(one.inputs, one.outputs, run, layer=name), (self._holds(f"{name}.weight", names, 1),)

    def _cross_entropy(self, one: Lowered) -> Call:
        """The call for the loss: the mean over the local tokens of weight * -log p(label), from logits [seq, batch,
        vocab], labels and weights [batch, seq]."""
        (step,) = one.steps
        position, count = self._context.piece(step, "vocab")
        valid: Any = step.operator.attributes["valid_vocab"]
        columns = self._graph.sizes["vocab"] // count
        padded = torch.arange(position * columns, (position + 1) * columns) >= valid
        hides = bool(padded.any())

        def run(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
            scores = scores.masked_fill(padded.to(scores.device), HIDDEN_NEGATIVE) if hides else scores.clone()
            losses = parallel_cross_entropy(scores, _sequence_first(labels).contiguous())
            return (losses * _sequence_first(weights)).mean()

        return Call((*one.inputs, "weights"), one.outputs, run)

    def _local(self, module: nn.Module, name: str, one: Lowered) -> tuple[Call, tuple[Held, ...]]:
        (step,) = one.steps
        op = step.operator
        parameters = [tensor for tensor in op.inputs if self._graph.tensors[tensor].role == "parameter"]
        attributes, held = [], []
        for index, parameter in enumerate(parameters):
            attribute = f"{name}_{index}"
            module.register_parameter(attribute, nn.Parameter(self._pieces[parameter].clone()))
            attributes.append(attribute)
            held.append(self._holds(attribute, (parameter,), self._copies(parameter)))
        return Call(one.inputs, one.outputs, self._kernel(step), tuple(attributes)), tuple(held)

    def _kernel(self, step: OperatorStep) -> Callable[..., Any]:
        """The torch backend's kernel of the operator, on tensors [seq, batch, ...]."""
        if step.operator.kind == "attention":
            return nxd_attention(self._context, step, self._cpu_mode, self._lnc)
        run = kernel(self._context, step)
        match step.operator.kind:
            case "position_embedding":
                rows = self._context.positions(step)
                return lambda x, table: x + table[rows.to(table.device)].unsqueeze(1)
            case "dispatch":
                return lambda x, gates: run(_batch_first(x), _batch_first(gates))
            case "combine":
                return lambda answers, gates: _sequence_first(run(answers, _batch_first(gates)))
        return run

    def _unflattened(self, one: Lowered) -> Callable[..., Any]:
        columns = [self._local_columns(step) for step in one.steps]
        patterns = [f"seq batch ({' '.join(sizes)}) -> seq batch {' '.join(sizes)}" for sizes in columns]

        def run(products: Any) -> Any:
            found = tuple(
                rearrange(y, pattern, **sizes) for y, pattern, sizes in zip(products, patterns, columns, strict=True)
            )
            return found if len(found) > 1 else found[0]

        return run

    def _fill(self, parameter: nn.Parameter, names: tuple[str, ...]) -> None:
        """Fills a parameter from the pieces of these names. NxD's weights are [columns, contracted], whatever dims they
        have here."""
        pieces = [self._pieces[name].reshape(-1, parameter.shape[-1]) for name in names]
        with torch.no_grad():
            parameter.copy_(torch.cat(pieces))

    def _holds(self, attribute: str, names: tuple[str, ...], copies: int) -> Held:
        program, first = self._program, names[0]
        dims = self._graph.tensors[first].dims
        state = dict(zip(program.axes, program.states[first], strict=True))
        synced = set(program.gradient_sync.get(first, ())) & set(self._tp)
        is_layer = "." in attribute  # of NxD's own, which sums over copies of keys and values itself
        sums = "" if is_layer or not synced else "tp" if synced == set(self._tp) else "kv"
        assert sums != "kv" or synced == {"tp1"}, (first, synced)
        is_split = any(state[axis] in dims for axis in self._tp)
        learned = self._graph.tensors[first].differentiable
        return Held(attribute, names, is_split or is_layer, state.get("ep") == "expert", copies, sums, learned)

    def _copies(self, name: str) -> int:
        program = self._program
        state = dict(zip(program.axes, program.states[name], strict=True))
        dims = self._graph.tensors[name].dims
        return prod(program.axes[axis] for axis in self._tp if state[axis] not in dims)

    def _contracted(self, step: OperatorStep) -> int:
        out = self._graph.tensors[step.operator.output].dims
        weight = self._graph.tensors[step.operator.inputs[1]].dims
        return prod(self._graph.sizes[dim] for dim in weight if dim not in out)

    def _columns(self, step: OperatorStep) -> int:
        out = self._graph.tensors[step.operator.output].dims
        weight = self._graph.tensors[step.operator.inputs[1]].dims
        return prod(self._graph.sizes[dim] for dim in weight if dim in out)

    def _local_columns(self, step: OperatorStep) -> dict[str, int]:
        program, name = self._program, step.operator.inputs[1]
        out = self._graph.tensors[step.operator.output].dims
        dims = self._graph.tensors[name].dims
        sizes = local_sizes(self._graph, dims, program.states[name], program.axes)
        return {dim: size for dim, size in zip(dims, sizes, strict=True) if dim in out}


def mark(parameter: nn.Parameter, held: Held, tensor_parallel_size: int) -> None:
    """Sets the attributes by which NxD knows how a parameter is spread, where its own layers have not set them, and
    whether it is learned."""
    parameter.requires_grad_(held.learned)
    if held.is_split and not hasattr(parameter, "tensor_model_parallel"):
        set_tensor_model_parallel_attributes(parameter, True, 0, 1, tensor_parallel_size)
    if held.sums == "tp":
        parameter.sequence_parallel_enabled = True  # type: ignore[attr-defined]
    if held.is_expert:
        parameter.expert_model_parallel = True  # type: ignore[attr-defined]


def _batch_first(x: torch.Tensor) -> torch.Tensor:
    return rearrange(x, "seq batch ... -> batch seq ...")


def _sequence_first(x: torch.Tensor) -> torch.Tensor:
    return rearrange(x, "batch seq ... -> seq batch ...")


def _in_turn(x: torch.Tensor, moves: list[tuple[Callable[[torch.Tensor], torch.Tensor], ...]]) -> torch.Tensor:
    for forward, backward in moves:
        x = _Move.apply(x, forward, backward)
    return x


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
        ctx.backward_move = backward
        result: torch.Tensor = forward(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.backward_move(grads[0]), None, None


def _transition(transition: Transition, dims: tuple[str, ...]) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
    source = None if transition.source_dim is None else dims.index(transition.source_dim)
    target = None if transition.target_dim is None else dims.index(transition.target_dim)
    return _move(transition.forward, source, target), _move(transition.backward, target, source)


def _move(kind: str, source: int | None, target: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of the local tensor that stops splitting it along dim `source` and starts splitting it along
    `target`."""
    match kind:
        case "identity":
            return lambda x: x.view_as(x)
        case "all_reduce":
            return lambda x: mappings._reduce(x.clone())
        case "scale":
            return lambda x: x / mappings.get_tensor_model_parallel_size()
        case "all_gather":
            assert source is not None
            return lambda x: mappings._gather_along_dim(x.contiguous(), source)
        case "slice":
            assert target is not None
            return lambda x: mappings._split_along_dim(x, target).contiguous()
        case "reduce_scatter":
            assert target is not None
            return lambda x: mappings._reduce_scatter_along_dim(x, target)
    assert kind == "all_to_all", kind
    return lambda x: mappings._all_to_all_in_expert_parallel_region(x, target, source)
