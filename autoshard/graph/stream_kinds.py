"""Hyper-connections: a residual of several streams, which each part of a block mixes (Xie et al. 2025, 2512.24880).

    w = weights(streams)     pre, post and mix of every token
    y = part(norm(sum over streams of pre * stream))
    stream k = post[k] y + sum over streams j of mix[j, k] * stream j

The residual is batch seq stream embed. `mix` is brought near a doubly stochastic matrix, so that it makes nothing grow.
Some models have no `mix`: stream k = post[k] y + stream k. Some of these have no `pre` either: the streams are read
another way (models/qwen4_exp/graph.py).
"""

from __future__ import annotations

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import Extra, OperatorKind, Sizes, num_elements

STREAM = "stream"
"""The dim of a residual's streams."""
ONE_STREAM, SEVERAL_STREAMS = ("batch", "seq", "embed"), ("batch", "seq", STREAM, "embed")
"""Dims of a residual of one stream, which every part of a block reads and gives, and of one of several."""
STREAMS_AT_ONCE = 2**24
"""Numbers of streams of which products are made at one time; the most that balancing keeps, about, is as many."""


class RepeatStreams(OperatorKind):
    """The first residual: x [batch seq embed] in each stream."""

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 0.0


class MeanStreams(OperatorKind):
    """The mean of streams [batch seq stream embed], [batch seq embed]: a head may read it, which then has no weights of
    streams."""

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return num_elements(graph, op.inputs[0], sizes)


class StreamWeights(OperatorKind):
    """The weights of a token's streams, in FP32: streams [batch seq stream embed] -> [batch seq weights].

    More inputs: fn [weights stream embed], base [weights] and scale, of one number for each kind of weights. With z the
    product of fn with the streams, all of which have one RMS norm without a weight (attribute eps):

        pre = sigmoid(scale z + base) + balance_eps        the first `stream` numbers, and with one scale all
        post = magnitude sigmoid(scale z + base)           as many, and with two scales, plus balance_eps, the others
        mix = balanced(softmax(scale z + base) + balance_eps)   stream * stream, a row for each old stream

    balanced divides columns by their sums plus balance_eps, and then rows and columns, iterations - 1 times (Sinkhorn
    and Knopp); without a mix iterations is 0. Keeps its inputs and the product; backward computes the weights again,
    and what the product is made of some tokens at a time.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        numbers, weights = num_elements(graph, op.output, sizes), sizes[graph.tensors[op.output].dims[-1]]
        streams = num_elements(graph, op.inputs[0], sizes)
        return (2.0 * weights + 2.0) * streams + 4.0 * _divisions(op, graph) * numbers

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2, 3)

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        return (Extra("products", graph.tensors[op.output].element_bytes * num_elements(graph, op.output, sizes)),)

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of some tokens' streams in FP32, of the gradients by the product and by the norm, and of their sum."""
        streams = num_elements(graph, op.inputs[0], sizes)
        return 4.0 * graph.summed_bytes(op.inputs[0]) * min(streams, float(STREAMS_AT_ONCE))


class CollapseStreams(OperatorKind):
    """The sum of streams [batch seq stream embed] times the first of their weights [batch seq weights], [batch seq
    embed]: a part of a block reads it."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 2.0 * num_elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1)


class ExpandStreams(OperatorKind):
    """The next residual: y [batch seq embed] of a part of a block, streams [batch seq stream embed] and their weights
    [batch seq weights] -> stream k is post[k] y plus mix[j, k] times stream j, summed over j; without a mix, plus
    stream k, and backward then reads no stream. Weights that are as many as streams are post alone."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        products = sizes[STREAM] + 1.0 if has_mix(graph, op.inputs[2]) else 1.0
        return 2.0 * products * num_elements(graph, op.inputs[1], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2) if has_mix(graph, op.inputs[2]) else (0, 2)


def has_mix(graph: Graph, weights: str) -> bool:
    """Whether weights of streams, a tensor, have a matrix that mixes them, beside pre and post or pre alone."""
    return graph.sizes[graph.tensors[weights].dims[-1]] > 2 * graph.sizes[STREAM]


def _divisions(op: Operator, graph: Graph) -> int:
    """How often balancing divides a matrix by its sums: never where there is no matrix."""
    return 2 * int(str(op.attributes["iterations"])) - 1 if has_mix(graph, op.output) else 0
