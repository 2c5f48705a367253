"""Embeddings of n-grams: which rows of a table a token has, and how a residual of several streams weighs what is made
of them (Qwen4-Exp)."""

from __future__ import annotations

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import OperatorKind, Sizes, num_elements
from autoshard.graph.stream_kinds import STREAMS_AT_ONCE

LEAST_PRODUCT = 1e-6
"""What a gate takes the root of is no smaller, whatever a stream's product with its key is."""


class HashNgrams(OperatorKind):
    """The rows of a table that the n-grams of each token have: token ids [batch seq] -> int64 [batch seq ngram_head].

    Heads of n-grams of two tokens come first, then those of three, and so on. With f the attribute factors and t0, t1,
    ... a token and those before it, an n-gram's number is t0 f0 xor t1 f1 xor ..., in 64 bits; a head's row is what is
    left of it by the head's attribute rows, behind the rows of the heads before. A token is eos, an attribute, where it
    lies before the row, or before or at the last eos ahead of t0. Reads the whole sequence. With the attribute
    documents, DOCUMENT_STARTS is one more input, and the row is a document.
    """

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return False

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Two 64-bit operations a head: the rest, and the sum with the rows before."""
        return 2.0 * num_elements(graph, op.output, sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 0.0


class GateStreams(OperatorKind):
    """A value [batch seq embed] in each stream, as far as the stream's key says: [batch seq stream embed].

    More inputs: keys and queries, both [batch seq stream embed]. With p the product of a stream's query with its key by
    the root of their width, the value is multiplied by sigmoid(sign(p) sqrt(max(|p|, LEAST_PRODUCT))). Keeps its
    inputs; backward computes again. Computed in FP32, some tokens at a time.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 3.0 * num_elements(graph, op.output, sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2)

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of some tokens' keys and queries in FP32, of what these give, and of gradients of both; where more
        tokens follow, of those in the dtype of the inputs too. Exact to a part in a hundred on fake tensors."""
        numbers = num_elements(graph, op.output, sizes)
        times = 4.5 if numbers > STREAMS_AT_ONCE else 4.0
        return times * graph.summed_bytes(op.inputs[0]) * min(numbers, float(STREAMS_AT_ONCE))
