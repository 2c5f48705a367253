"""The kinds of operators but for attention, indexers, streams, n-grams, routing, recurrences and the loss; all by name.

To add one: subclass `OperatorKind`, put it into `KINDS`, give the torch backend a kernel of the same name.
"""

from __future__ import annotations

from math import prod

from autoshard.files.fields import check_choice
from autoshard.graph.attention_kind import Attention
from autoshard.graph.compressed_kinds import ChooseEntries, Compress, CompressedAttention
from autoshard.graph.indexer_kind import ChooseBlocks, ChooseKeys, ChooseMeans, ChoosePools
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.loss_kinds import CrossEntropy, LinearCrossEntropy
from autoshard.graph.ngram_kinds import GateStreams, HashNgrams
from autoshard.graph.operator_kind import Extra, Internal, OperatorKind, Sizes, num_elements
from autoshard.graph.pointwise import check_expression, count, factor
from autoshard.graph.recurrent_kinds import (
    CausalConv,
    GatedDeltaRule,
    LightningAttention,
    SelectiveScan,
    StateSpaceScan,
)
from autoshard.graph.routing_kinds import Combine, Dispatch, SumRest, TopKGate
from autoshard.graph.stream_kinds import CollapseStreams, ExpandStreams, MeanStreams, RepeatStreams, StreamWeights


class Einsum(OperatorKind):
    """Matrix products: 2 FLOPs for each point of the loop nest, forward and for the gradient of each input that has
    one, for which the other input is kept."""

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        left, right = (graph.tensors[name].dims for name in op.inputs)
        output = graph.tensors[op.output].dims
        contracted = [dim for dim in left if dim not in output]
        rows = [dim for dim in left if dim in output]
        columns = [dim for dim in right if dim not in left]
        return (prod(sizes[d] for d in rows), prod(sizes[d] for d in columns), prod(sizes[d] for d in contracted))

    def groups(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """One product for each expert: for each index that a parameter shares with the input and the output."""
        left, right = (graph.tensors[name] for name in op.inputs)
        output = graph.tensors[op.output].dims
        if right.role != "parameter":
            return 1.0
        return float(prod(sizes[dim] for dim in right.dims if dim in left.dims and dim in output))

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 2.0 * prod(sizes[dim] for dim in op.loop_dims)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        """A product for the gradient of each input that has one."""
        return float(sum(graph.tensors[name].differentiable for name in op.inputs))

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        """Each input, for the gradient of the other one."""
        has_gradient = [graph.tensors[name].differentiable for name in op.inputs]
        return tuple(place for place, other in enumerate(reversed(has_gradient)) if other)


class Elementwise(OperatorKind):
    """add and scale keep nothing; silu_mul(gate, up) keeps both; gelu its input; scaled_by(x, number), where the number
    is not learned, the number alone.

    add is the first input plus the others, these times the attribute alpha if there is one; scale is times the
    attribute factor.

    gelu is the tanh approximation, gelu_erf the exact one; sigmoid_mul(x, gate) is x sigmoid(gate); pointwise is the
    attribute expression, of the functions in graph/pointwise.py, which keeps its inputs but where it is scale.
    """

    FLOPS = {
        "add": 1.0,
        "silu_mul": 5.0,
        "gelu": 8.0,
        "gelu_erf": 8.0,
        "sigmoid_mul": 5.0,
        "scale": 1.0,
        "scaled_by": 1.0,
    }

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        function = str(op.attributes["function"])
        each = count(str(op.attributes["expression"])) if function == "pointwise" else self.FLOPS[function]
        return each * prod(sizes[dim] for dim in op.loop_dims)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        function = op.attributes["function"]
        if function == "scaled_by":
            return (1,)
        is_scale = function == "pointwise" and factor(str(op.attributes["expression"])) is not None
        return () if is_scale or function in ("add", "scale") else tuple(range(len(op.inputs)))


class Norm(OperatorKind):
    """RMS or layer norm over the last dim: keeps its input and FP32 statistics of each row.

    A weight may have more dims than the last one, such as heads: each of them then has its own.
    The attribute over: names of the last dims, where a norm is over several; it may be split over all but the last of
    them. The ranks then sum one number a row, forward and backward. width: elements of a row, without padding.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 6.0 * num_elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0,)

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        return (Extra("statistics", graph.summed_bytes(op.inputs[0]) * _norm_rows(op, sizes)),)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes in FP32 of a norm over several dims: the rows as they are normal, their products with the gradient and
        with the weight too and, where it is narrower, the gradient itself; the gradient of the input at last takes
        their place. Other norms compute some rows at a time."""
        if not op.attributes.get("over"):
            return 0.0
        summed_bytes = graph.summed_bytes(op.inputs[0])
        wide = 2 if graph.tensors[op.inputs[0]].element_bytes == summed_bytes else 4
        return wide * summed_bytes * num_elements(graph, op.inputs[0], sizes)

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        size = graph.summed_bytes(op.inputs[0]) * _norm_rows(op, sizes)
        return tuple(("all_reduce", dim, size) for dim in split_norm_dims(op))

    def internal_backward_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        return self.internal_collectives(op, graph, sizes)


def split_norm_dims(op: Operator) -> tuple[str, ...]:
    """The dims over which a norm is and over which it may be split: none for a norm over the last dim alone."""
    over: tuple[str, ...] = op.attributes.get("over", ())  # type: ignore[assignment]
    return over[:-1]


def _norm_rows(op: Operator, sizes: Sizes) -> float:
    return prod(sizes[dim] for dim in op.loop_dims if dim not in split_norm_dims(op))


class Rope(OperatorKind):
    """Rotary positions: linear with a constant table, so nothing is kept.

    rotary_dim numbers of the last dim turn, from attribute first_rotary on (the default is 0). With the attribute every
    the second dim is of places so many tokens apart, in place of the sequence.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 6.0 * num_elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class ScaledRope(Rope):
    """Rotary positions whose frequencies are multiplied by exp of the second input [a pair's frequency], of which
    nothing makes a gradient: its tables are made anew wherever they are read, and not kept."""

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index == 0


class LogScale(OperatorKind):
    """x times scale log(place + 1) + bias, of two learned numbers of each head: keeps x.

    Inputs: x [batch seq heads width], scale [heads], bias [heads]. With the attribute documents, DOCUMENT_STARTS is one
    more input, and places count from the start of a document.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return num_elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        """A product for the gradient of x; a product and a sum for those of both numbers."""
        return 3.0

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index < 3

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0,)


class PositionScale(OperatorKind):
    """x times a number of each place: 1 + attn_scale log(1 + floor((place + first) / floor_scale)), of attributes of
    these names; without it, first is 1. Linear with a constant table, so nothing is kept."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return num_elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class Slice(OperatorKind):
    """A range of the last dim, of attribute `first` on, as long as the output's last dim, copied: nothing keeps the
    rest alive."""

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class Concat(OperatorKind):
    """Two tensors behind one another along the last dim; the second may lack dims of the first, and is repeated."""

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class Dropout(OperatorKind):
    """Sets elements to zero at random (attribute rate) and scales the others; the last input is SEQUENCE_KEYS.

    Whether an element is dropped is a function of its sequence's key, the operator's name and the element's place in
    the whole tensor: each rank decides it for what it holds. Nothing is kept, backward decides again.
    """

    HASH_OPERATIONS = 9.0
    """32-bit operations an element (torch_backend/dropout.py); a comparison, a choice and a product come on top."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return (self.HASH_OPERATIONS + 3.0) * prod(sizes[dim] for dim in op.loop_dims)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class Embedding(OperatorKind):
    """Row look-up; split over the vocabulary, each rank adds the rows it holds: the output is `P` by the rule.

    The last dim of the table is a row's; rows may be counted over several dims before it, of which the first may be
    split."""

    def inner_forward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the rows before those that other ranks hold are set to zero, where the table is split."""
        output, split = graph.tensors[op.output], graph.tensors[op.inputs[1]].dims[0]
        is_whole = sizes[split] == graph.sizes[split]
        return 0.0 if is_whole else float(output.element_bytes * num_elements(graph, op.output, sizes))

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class PositionEmbedding(OperatorKind):
    """Adds a learned row for each position: x[batch seq embed] + table[position embed]."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return num_elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


KINDS: dict[str, OperatorKind] = {
    "einsum": Einsum(),
    "elementwise": Elementwise(),
    "norm": Norm(),
    "rope": Rope(),
    "scaled_rope": ScaledRope(),
    "log_scale": LogScale(),
    "slice": Slice(),
    "concat": Concat(),
    "dropout": Dropout(),
    "attention": Attention(),
    "choose_keys": ChooseKeys(),
    "choose_pools": ChoosePools(),
    "choose_means": ChooseMeans(),
    "choose_blocks": ChooseBlocks(),
    "compress": Compress(),
    "compressed_attention": CompressedAttention(),
    "choose_entries": ChooseEntries(),
    "embedding": Embedding(),
    "position_embedding": PositionEmbedding(),
    "cross_entropy": CrossEntropy(),
    "linear_cross_entropy": LinearCrossEntropy(),
    "top_k_gate": TopKGate(),
    "sum_rest": SumRest(),
    "dispatch": Dispatch(),
    "combine": Combine(),
    "position_scale": PositionScale(),
    "causal_conv": CausalConv(),
    "gated_delta_rule": GatedDeltaRule(),
    "state_space_scan": StateSpaceScan(),
    "selective_scan": SelectiveScan(),
    "lightning_attention": LightningAttention(),
    "repeat_streams": RepeatStreams(),
    "mean_streams": MeanStreams(),
    "stream_weights": StreamWeights(),
    "collapse_streams": CollapseStreams(),
    "expand_streams": ExpandStreams(),
    "hash_ngrams": HashNgrams(),
    "gate_streams": GateStreams(),
}


def check_operator(op: Operator) -> None:
    """Raise AutoshardError where nobody knows what the operator computes."""
    of = f"operator {op.name}"
    check_choice(of, "kind", op.kind, KINDS)
    if op.kind != "elementwise":
        return
    function = op.attributes.get("function")
    check_choice(of, "function", function, (*Elementwise.FLOPS, "pointwise"))
    if function == "pointwise":
        check_expression(op.attributes.get("expression"), len(op.inputs), of)
