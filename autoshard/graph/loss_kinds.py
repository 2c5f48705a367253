"""The kinds of operators that end a model: the loss of logits, and the loss in chunks with the product before it."""

from __future__ import annotations

from math import prod

from autoshard.graph.ir import FLOAT32_BYTES, Graph, Operator
from autoshard.graph.operator_kind import Extra, Internal, OperatorKind, Sizes
from autoshard.graph.states import INVARIANT

LOSS_BACKWARD_RATIO = 0.5
"""FLOPs and bytes of the backward of a loss over those of its forward."""


class CrossEntropy(OperatorKind):
    """Mean negative log-likelihood of all tokens. Split over the vocabulary, two all-reduces of row statistics inside.

    Computed in FP32: the probabilities are kept for backward (4 bytes a logit), the logits themselves are not.
    A third input is another loss, to which this one is added, times the attribute weight.
    """

    OTHER_LOSS = 2
    """The place of that input."""

    def input_state(self, op: Operator, dims: tuple[str, ...], index: int, choice: str) -> str:
        is_loss = index == self.OTHER_LOSS
        return self.output_state(op, dims, choice) if is_loss else super().input_state(op, dims, index, choice)

    def output_state(self, op: Operator, dims: tuple[str, ...], choice: str) -> str:
        return INVARIANT if choice == "vocab" else super().output_state(op, dims, choice)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 5.0 * prod(sizes[dim] for dim in op.loop_dims)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return LOSS_BACKWARD_RATIO

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        """Probabilities. Logits that are no narrower than these need no other gradient than their own."""
        is_narrow = graph.tensors[op.inputs[0]].element_bytes < FLOAT32_BYTES
        written_bytes = graph.summed_bytes(op.inputs[0]) * prod(sizes[dim] for dim in op.loop_dims)
        return (Extra("probabilities", written_bytes, has_gradient=is_narrow),)

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        numbers_bytes = graph.summed_bytes(op.inputs[0]) * sizes["batch"] * sizes["seq"]
        return (
            ("all_reduce", "vocab", numbers_bytes),  # maximum of each row
            ("all_reduce", "vocab", 2 * numbers_bytes),  # sum of exponentials and the label's logit
        )


class LinearCrossEntropy(CrossEntropy):
    """The logits x[batch seq embed] w[vocab embed]^T and their mean negative log-likelihood, a chunk of rows at a time.

    Inputs: x, w, labels, and another loss as CrossEntropy has it. The attribute chunks says how many chunks; the
    attribute expression, where there is one, is a function of each logit (graph/pointwise.py). Forward keeps x and one
    number a row; backward computes each chunk's logits again. Ranks that have a piece of the vocabulary exchange
    statistics of all rows at once.
    """

    OTHER_LOSS = 3

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        contracted = graph.tensors[op.inputs[0]].dims[2:]
        return sizes["batch"] * sizes["seq"], sizes["vocab"], prod(sizes[dim] for dim in contracted)

    def groups(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """A product for each chunk."""
        return num_chunks(op)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 2.0 * prod(self.matmul_shape(op, graph, sizes))

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        """The logits again, then the two products of a matrix product's backward, or that of its input alone where the
        table is not learned."""
        return 2.0 if graph.is_frozen(op) else 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1)

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        rows_bytes = graph.summed_bytes(op.inputs[0]) * sizes["batch"] * sizes["seq"]
        return (Extra("log_sum_exp", rows_bytes, has_gradient=False),)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of one chunk's logits and, where these are narrower, probabilities in FP32. A function of the logits
        adds what it gives and that one's gradient."""
        element_bytes = graph.tensors[op.inputs[0]].element_bytes
        each = element_bytes + (FLOAT32_BYTES if element_bytes < FLOAT32_BYTES else 0)
        if "expression" in op.attributes:
            each += 2 * element_bytes
        return each * sizes["batch"] * sizes["seq"] * sizes["vocab"] / num_chunks(op)


def num_chunks(op: Operator) -> int:
    """In how many chunks an operator computes: 1 for all but a loss in chunks."""
    return int(str(op.attributes.get("chunks", 1)))
