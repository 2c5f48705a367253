"""A kind of operator: how it shards, and what it computes, communicates and keeps for backward.

One rule serves all: along an axis on which the work is split over dim d, an input that has d is split along d, an input
without d is `R`, an output without d is `P`. A kind overrides it where its mathematics says otherwise (attention over
the query sequence, cross-entropy over the vocabulary).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED

Sizes = Mapping[str, float]
"""Local size of each dim on one rank."""
Internal = tuple[str, str, float]
"""A collective inside an operator: kind, loop dim over whose axes it runs, bytes of its larger buffer."""


SEQUENCE_KEYS = "sequence_keys"
"""The input that tells what drops elements which random numbers are each sequence's: int64 [batch]."""
DOCUMENT_STARTS = "document_starts"
"""The input that tells where the document of each place of a row begins: int64 [batch, row]. A row is a sequence that
nothing splits; its elements are places in the sequence."""


@dataclass(frozen=True)
class Extra:
    """A buffer that backward needs and that is not a tensor of the graph (softmax statistics, routing tables).
    has_gradient: whether backward makes a gradient of it too."""

    name: str
    bytes: float
    has_gradient: bool = True


class OperatorKind:
    """A kind of operator with the common sharding rule; subclasses override what their mathematics changes.

    FLOPs and bytes are of one rank, forward only, given local sizes.
    """

    linear_input: int | None = None
    """Input in which the operator is linear: it may then run on a partial sum and give one (choice `P`)."""

    def input_state(self, op: Operator, dims: tuple[str, ...], index: int, choice: str) -> str:
        """The state along one mesh axis that the operator needs for one of its inputs.

        dims: of the input. index: its position among the inputs.
        choice: what the operator does along the axis: a loop dim that is split, or `R`, `I` or `P`.
        """
        if choice in (INVARIANT, REPLICATED):
            return choice
        if choice == PARTIAL:
            return PARTIAL if index == self.linear_input else REPLICATED
        return choice if choice in dims else REPLICATED

    def output_state(self, op: Operator, dims: tuple[str, ...], choice: str) -> str:
        """The state of the output along one mesh axis: partial if the dim that is split there was summed over.

        dims: of the output. choice: what the operator does along the axis, as in `input_state`.
        """
        if choice in (INVARIANT, REPLICATED, PARTIAL):
            return choice
        return choice if choice in dims else PARTIAL

    def passes_gradient(self, op: Operator, index: int) -> bool:
        """Whether the output depends smoothly on the input at `index`; if not, the input gets no gradient from this
        operator.
        """
        return True

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float] | None:
        """(M, N, K) of the matrix product that dominates, or of one with as many FLOPs as all; None for kinds that are
        no matrix product. sizes: local."""
        return None

    def groups(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Into how many products of equal size `matmul_shape` falls: 1, or the experts of a grouped product. sizes:
        local."""
        return 1.0

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Forward FLOPs of one rank; a multiply-add is two. sizes: local size of each dim."""
        return 0.0

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        """FLOPs of the backward over those of the forward."""
        return 2.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        """Positions of the inputs that backward reads. Parameters are never charged: they are in memory anyway."""
        return ()

    def saves_output(self, op: Operator) -> bool:
        """Whether backward reads the output."""
        return False

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        """Buffers that backward needs besides inputs and output. sizes: local size of each dim."""
        return ()

    def own_gradients_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of gradients that backward makes of `extra_saved`, beside those of inputs and output. sizes: local size
        of each dim."""
        return float(sum(extra.bytes for extra in self.extra_saved(op, graph, sizes) if extra.has_gradient))

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of buffers inside the operator's backward, beyond what forward kept and the gradients of inputs and
        output, as far as they grow with the microbatch. sizes: local size of each dim."""
        return 0.0

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of further such buffers, which do not grow with the microbatch. sizes: local size of each dim."""
        return 0.0

    def inner_forward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of buffers inside the operator's forward, beyond inputs, output and what it saves, as far as they grow
        with the microbatch and are more than its backward has. sizes: local size of each dim."""
        return 0.0

    def forward_tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of further such buffers, which do not grow with the microbatch. sizes: local size of each dim."""
        return 0.0

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        """Collectives inside the operator's forward, in order. sizes: local size of each dim."""
        return ()

    def internal_backward_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        """Collectives inside the operator's backward, in order. sizes: local size of each dim."""
        return ()


def num_elements(graph: Graph, tensor: str, sizes: Sizes) -> float:
    """Elements of a tensor on one rank. sizes: local size of each dim."""
    return prod(sizes[dim] for dim in graph.tensors[tensor].dims)
