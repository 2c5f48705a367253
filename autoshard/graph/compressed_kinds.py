"""Attention whose heads share one vector a token as key and value, and that sees what is farther away compressed.

A query sees the tokens of a window, and entries: each stands for the tokens of one piece of the sequence, `rate` of
them, and is seen from the piece's last token on. An indexer may choose some of them (DeepSeek-V4's technical report,
2.3).
"""

from __future__ import annotations

from math import prod

from autoshard.graph.attention_kind import mean_keys
from autoshard.graph.indexer_kind import ChooseKeys, seen_keys
from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import Extra, Internal, OperatorKind, Sizes, num_elements
from autoshard.graph.score_tiles import compressed_tile
from autoshard.graph.states import REPLICATED

SERIES = "series"
"""The dim of the two values that a token has for entries that overlap: one for the next piece's, one for its own."""
QUERY, SHARED, SINKS, ENTRIES, CHOSEN_ENTRIES = range(5)
"""Places of the inputs of compressed attention; the last two may be absent."""
ATTENTION_KINDS = ("attention", "compressed_attention")


class Compress(OperatorKind):
    """Entries of pieces of the sequence: values and gates [batch seq width], bias [rate width] -> [batch entry width].

    In each number an entry is the sum of its tokens' values, weighed by the softmax of their gates plus the bias of
    their places in the piece. With a dim SERIES before the width, entries overlap: an entry is that of its piece's
    second series and of the first series of the piece before. Tokens behind the last whole piece are in no entry. Not
    split over the sequence. Attribute rate: tokens of a piece. Keeps values and gates; backward weighs again.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 8.0 * num_elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the FP32 numbers that the torch runtime holds at once: gates, weights, products and the gradients of
        two of them, of which each is as many as the values."""
        return 5.0 * graph.summed_bytes(op.inputs[0]) * num_elements(graph, op.inputs[0], sizes)


class CompressedAttention(OperatorKind):
    """softmax(q k^T) k of a window's tokens and of entries. q: batch seq kvhead group headdim; keys and values of all
    heads: batch seq headdim; sinks [kvhead group], one more score in each row's softmax, which weighs no value; perhaps
    entries [batch entry headdim]; perhaps bool [batch seq entry], which of them a query sees.

    Dims of heads are what tensor parallelism splits: no key has one. Attributes: sliding_window, keys that a query
    sees, itself included; rate, tokens of a piece: entry i is seen from token (i + 1) rate - 1 on. FLOPs are those of
    all of these entries, also where some are chosen: no kernel here leaves out what the mask hides.

    kernel 'flash' keeps q, keys, entries, the output and one FP32 log-sum-exp a row, and its backward computes the
    scores again, some queries at a time; 'plain' keeps q, keys and entries joined, and the probabilities.
    """

    def input_state(self, op: Operator, dims: tuple[str, ...], index: int, choice: str) -> str:
        if choice == "seq" and index == SHARED:
            return REPLICATED
        return super().input_state(op, dims, index, choice)

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index != CHOSEN_ENTRIES

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """FLOPs of the fullest rank: where queries are split, the last one sees most."""
        whole, local = float(graph.sizes["seq"]), sizes["seq"]
        window = min(whole, float(str(op.attributes["sliding_window"])))
        keys = mean_keys(whole - local, local, window)
        if len(op.inputs) > ENTRIES:
            keys += seen_entries(op, graph, sizes)
        return 4.0 * num_elements(graph, op.inputs[QUERY], sizes) * keys

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 2.5 if op.attributes["kernel"] == "flash" else 2.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        if op.attributes["kernel"] == "flash":
            return tuple(range(len(op.inputs)))
        return (QUERY, SINKS)

    def saves_output(self, op: Operator) -> bool:
        return op.attributes["kernel"] == "flash"

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        rows = prod(sizes[dim] for dim in op.loop_dims)
        rows_bytes = graph.summed_bytes(op.output) * rows
        element_bytes = graph.tensors[op.output].element_bytes
        if op.attributes["kernel"] == "flash":
            masks_bytes = (num_elements(graph, name, sizes) for name in op.inputs[CHOSEN_ENTRIES:])
            masks = (Extra("mask", mask_bytes, has_gradient=False) for mask_bytes in masks_bytes)
            return Extra("log_sum_exp", rows_bytes), *masks
        columns = written_columns(op, graph)
        keys = sizes["batch"] * columns * graph.sizes[graph.tensors[op.output].dims[-1]]
        return (
            Extra("probabilities", element_bytes * rows * columns),
            Extra("weights_of_sinks", rows_bytes),
            Extra("joined_keys", element_bytes * keys),
        )

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the gradients of keys and entries in FP32, in which tiles are added up."""
        if op.attributes["kernel"] != "flash":
            return 0.0
        width = graph.sizes[graph.tensors[op.output].dims[-1]]
        keys = sizes["batch"] * written_columns(op, graph) * width
        return graph.summed_bytes(op.inputs[QUERY]) * keys

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of a tile of scores: the probabilities, and the gradient of the scores, both in FP32 and in the type of
        the keys. Where scores are written out, those of one head: its probabilities in FP32, and the gradient of
        these."""
        element_bytes = graph.tensors[op.inputs[QUERY]].element_bytes
        summed_bytes = graph.summed_bytes(op.inputs[QUERY])
        cast_bytes = element_bytes if element_bytes < summed_bytes else 0
        if op.attributes["kernel"] != "flash":
            columns = written_columns(op, graph)
            return (summed_bytes + (summed_bytes if cast_bytes else 0)) * sizes["seq"] * columns
        heads = prod(sizes[dim] for dim in op.loop_dims if dim not in ("batch", "seq"))
        window = int(str(op.attributes["sliding_window"]))
        rows, columns = compressed_tile(round(heads * sizes["batch"]), window, entries(op, graph), round(sizes["seq"]))
        return (2 * summed_bytes + 2 * cast_bytes) * sizes["batch"] * heads * rows * columns


def written_columns(op: Operator, graph: Graph) -> int:
    """Keys, and entries, for which attention writes out the scores of each query, where it does."""
    return graph.sizes["seq"] + (entries(op, graph) if op.kind == "compressed_attention" else 0)


def entries(op: Operator, graph: Graph) -> int:
    """Entries of compressed attention."""
    if len(op.inputs) <= ENTRIES:
        return 0
    return graph.sizes[graph.tensors[op.inputs[ENTRIES]].dims[1]]


def seen_entries(op: Operator, graph: Graph, sizes: Sizes) -> float:
    """Entries that a query sees, on average over those of the rank that has the end of the sequence. Leaves out that
    they come in whole pieces. op: with the attribute rate."""
    return seen_keys(graph, sizes) / float(str(op.attributes["rate"]))


class ChooseEntries(ChooseKeys):
    """A mask of the entries that each query sees: those that are whole before it or with it, that score most.

    Inputs: the hidden state [batch seq embed], the compressed queries [batch seq q_rank], and weights that are not
    learned: wq_b [index_head index_dim q_rank], weights_proj [index_head embed], and those of entries of its own, as in
    `Compress`: wkv and wgate [series index_dim embed], bias [rate series index_dim], and weight of an RMS norm of them
    [index_dim]. Output: bool [batch seq entry], True where the query sees the entry.

        q = rope(wq_b c), k = rope(norm(compressed wkv h)), w = weights_proj h
        score(query, entry) = sum over heads of w relu(q k) / sqrt(index_dim index_head)

    Attributes: top_k, entries that are chosen, of equal scores the first; rate, tokens of a piece; eps, of the norm;
    those of Rope. Split over the sequence, each rank scores its own queries, and gathers what entries are made of.
    Nothing has a gradient, and nothing is kept.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Projections, and the scores of the entries before each query, of the fullest rank."""
        tokens = prod(sizes[dim] for dim in op.loop_dims)
        weights = sum(num_elements(graph, op.inputs[index], sizes) for index in (2, 3, 4, 5))
        heads, width = sizes["index_head"], sizes["index_dim"]
        return 2.0 * tokens * (weights + seen_entries(op, graph, sizes) * heads * (width + 1))

    def _columns(self, op: Operator, graph: Graph) -> float:
        return float(graph.sizes[graph.tensors[op.output].dims[-1]])

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        if sizes["seq"] == graph.sizes["seq"]:
            return ()
        made = 2 * sizes["batch"] * graph.sizes["seq"] * sizes[SERIES] * sizes["index_dim"]
        return (("all_gather", "seq", made * graph.tensors[op.inputs[0]].element_bytes),)
