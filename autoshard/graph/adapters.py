"""Gives linear layers of blocks low-rank adapters: of a graph that has some nothing else is learned.

y = W x becomes y = W x + scale * B A x, of two products with the parameters lora_A and lora_B. They are operators as
all others: how they are sharded, what they cost and how they run follows from their dims.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from autoshard.graph.ir import INDEX_BYTES, Graph, Operator, Tensor
from autoshard.graph.linear_layers import is_linear, routers
from autoshard.graph.operator_kind import SEQUENCE_KEYS

RANK = "lora_rank"
"""The dim between both matrices of an adapter."""
BASE = "base_layer"
DROPPED, DOWN, SCALED, UP = "lora_dropout", "lora_A", "lora_scaled", "lora_B"
WEIGHT = ".weight"


def linear_layers(graph: Graph) -> dict[str, str]:
    """Operators that can have an adapter -> the last part of their weight's name, such as q_proj: the linear layers of
    blocks but for routers, experts, and others of which each head or group has a matrix of its own."""
    routing = routers(graph)
    layers = (op for op in graph.operators if is_linear(graph, op) and "expert" not in op.loop_dims)
    return {op.name: _module(op) for op in layers if op.output not in routing and not _is_grouped(graph, op)}


def _is_grouped(graph: Graph, op: Operator) -> bool:
    """Whether a product is several: what it reads, its weight and what it gives have a dim in common."""
    return bool(set.intersection(*({*graph.tensors[name].dims} for name in (*op.inputs, op.output))))


def _module(op: Operator) -> str:
    return op.inputs[1].removesuffix(WEIGHT).rpartition(".")[2]


def with_adapters(graph: Graph, rank: int, scale: float, modules: Collection[str], rate: float = 0.0) -> Graph:
    """The graph in which linear layers of blocks have adapters, and nothing else is learned.

    rank: of an adapter. scale: by which its output is multiplied. modules: names of the layers that have one, as
    `linear_layers` gives them. rate: probability with which an element of what an adapter reads is dropped. All blocks
    are alike: even what no adapter lies before has a gradient, as PEFT has it where blocks run again in backward.
    """
    targets = {name for name, module in linear_layers(graph).items() if module in modules}
    tensors = {one.name: _frozen(graph, one) for one in graph.tensors.values() if one.role != "activation"}
    if rate and targets:
        tensors.setdefault(SEQUENCE_KEYS, Tensor(SEQUENCE_KEYS, ("batch",), "input", INDEX_BYTES, differentiable=False))
    operators: list[Operator] = []
    for op in graph.operators:
        output = graph.tensors[op.output]
        added = _adapted(graph, op, scale, rate) if op.name in targets else [(op, output)]
        for parameter in _matrices(graph, op) if op.name in targets else ():
            tensors[parameter.name] = parameter
        for one, made in added:
            tensors[one.output] = made
            operators.append(one)
    return Graph({**graph.sizes, RANK: rank}, tensors, tuple(operators))


def _frozen(graph: Graph, tensor: Tensor) -> Tensor:
    """A parameter that is not learned; it stays in the dtype that it had (`Graph.rounded`). An input as it is."""
    if tensor.role != "parameter":
        return tensor
    is_matrix = tensor.name in graph.matrices
    return replace(tensor, differentiable=False, matrix=is_matrix, rounded=graph.rounded(tensor))


def _matrices(graph: Graph, op: Operator) -> tuple[Tensor, Tensor]:
    """Both parameters of an operator's adapter, under PEFT's names: A [rank, what it contracts], B [what it gives,
    rank]."""
    weight = graph.tensors[op.inputs[1]]
    prefix = weight.name.removesuffix(WEIGHT)
    _, contracted, given = _dims(graph, op)
    down = Tensor(f"{prefix}.{DOWN}{WEIGHT}", (RANK, *contracted), "parameter", weight.element_bytes)
    up = Tensor(f"{prefix}.{UP}{WEIGHT}", (*given, RANK), "parameter", weight.element_bytes)
    return down, up


def _dims(graph: Graph, op: Operator) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The dims of a linear layer: of its rows, those that it contracts, those that it gives."""
    x, weight = (graph.tensors[name].dims for name in op.inputs)
    rows = tuple(dim for dim in x if dim not in weight)
    contracted = tuple(dim for dim in x if dim in weight)
    return rows, contracted, tuple(dim for dim in weight if dim not in contracted)


def _adapted(graph: Graph, op: Operator, scale: float, rate: float) -> list[tuple[Operator, Tensor]]:
    """The operators in place of a linear layer, each with what it gives; the last one gives what the layer gave."""
    x, output = graph.tensors[op.inputs[0]], graph.tensors[op.output]
    rows, _, given = _dims(graph, op)
    down, up = _matrices(graph, op)
    base, dropped, inner, scaled, outer = (f"{op.name}.{name}" for name in (BASE, DROPPED, DOWN, SCALED, UP))
    whole = replace(op, name=base, output=base)
    drops = Operator("dropout", dropped, (x.name, SEQUENCE_KEYS), dropped, x.dims, op.module, {"rate": rate})
    read = dropped if rate else x.name
    first = Operator("einsum", inner, (read, down.name), inner, (*x.dims, RANK), op.module)
    narrow = (*rows, RANK)
    factor = {"function": "scale", "factor": scale}  # of the narrow one, whose gradient is small, too
    times = Operator("elementwise", scaled, (inner,), scaled, narrow, op.module, factor)
    second = Operator("einsum", outer, (scaled, up.name), outer, (*narrow, *given), op.module)
    total = Operator("elementwise", op.name, (outer, base), op.output, output.dims, op.module, {"function": "add"})
    return [  # the layer last: where a block runs again up to what its last adapter keeps, it is left out
        *([(drops, replace(output, name=dropped, dims=x.dims))] if rate else []),
        (first, replace(output, name=inner, dims=narrow)),
        (times, replace(output, name=scaled, dims=narrow)),
        (second, replace(output, name=outer)),
        (whole, replace(output, name=base)),
        (total, output),
    ]
