"""Attention: over the query sequence, with masks, windows, chunks and context parallelism."""

from __future__ import annotations

from math import prod

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import Extra, Internal, OperatorKind, Sizes, num_elements
from autoshard.graph.score_tiles import most_of_a_mask, most_scores
from autoshard.graph.states import REPLICATED

KEY = "key"
"""The dim of a mask's keys: as long as the sequence, and never split."""
KEY_BLOCK = "key_block"
"""The dim of a mask's blocks of keys, never split either."""
MASK_BYTES = 1
"""Of one number of a mask that is made while scores are written out: a truth value."""
CHOSEN = 3
"""Place of the mask of chosen keys among the inputs of an attention that has one."""
CAPPED_SCORES = "capped_scores"
"""What attention saves besides where it writes out scores that have a softcap."""


class Attention(OperatorKind):
    """softmax(q k^T) v, causal, grouped-query. q: batch seq kvhead group headdim; k, v: batch seq kvhead headdim. Dims
    of heads may have other names, since blocks may have other heads (spec/attention_heads.py).

    The last dim of v and of the output may be another one than that of q and k.

    With the attribute dropout, SEQUENCE_KEYS is one more input, by which probabilities are dropped; all are kept.

    More attributes: scale, the factor of the scores, None for 1/sqrt(headdim); softcap: a score s becomes
    softcap * tanh(s / softcap); chunk: a query sees keys of its own chunk of so many tokens alone; chosen: the fourth
    input, bool [batch seq key], says which keys a query sees (graph/indexer_kind.py); chosen_block: that input is
    [batch seq kvhead key_block], of blocks of so many keys, as far as they lie before the query; sinks: the next input,
    [kvhead group], is one more score in each row's softmax, which weighs no value. FLOPs are those of all keys before a
    query: no kernel here leaves out what the mask hides.

    kernel 'flash' keeps q, k, v, the output and one FP32 log-sum-exp a row, and its backward computes the scores again
    (5 matrix products against 2 forward, Dao et al. 2022); 'plain' keeps the probabilities as well.

    Split over the query sequence (context parallelism), the attribute context_parallel says how a rank gets to see the
    other ranks' keys and values (layout/context_parallel.py): 'all_gather' (the default) takes them whole, as `R`; the
    others take pieces and communicate inside. Rings pass the pieces of keys and values from rank to rank, and their
    gradients, accumulated in FP32, with them; 'ulysses' exchanges the sequence for the heads and back.
    """

    def input_state(self, op: Operator, dims: tuple[str, ...], index: int, choice: str) -> str:
        is_mask = bool(op.attributes.get("chosen")) and index == CHOSEN
        if choice == "seq" and index > 0 and _context_parallel(op) == "all_gather" and not is_mask:
            return REPLICATED
        return super().input_state(op, dims, index, choice)

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return not (op.attributes.get("chosen") and index == CHOSEN)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """FLOPs of the fullest rank: where causal queries are split contiguously, the last rank sees most keys."""
        whole, local = float(graph.sizes["seq"]), sizes["seq"]
        window, chunk = op.attributes.get("sliding_window"), op.attributes.get("chunk")
        width = whole if window is None else min(whole, float(str(window)))
        match _context_parallel(op):
            case "ulysses":
                keys = mean_keys(0.0, whole, width)
            case "zigzag_ring" if width >= whole:
                keys = whole / 2  # of an early piece and a late one together, whichever these are
            case "zigzag_ring":
                ranks, piece = round(whole / local), local / 2
                pieces = [mean_keys(index * piece, piece, width) for index in range(2 * ranks)]
                keys = max(early + late for early, late in zip(pieces, reversed(pieces), strict=True)) / 2
            case _:
                keys = mean_keys(whole - local, local, width)
        if chunk is not None and float(str(chunk)) < whole:
            keys = _keys_in_chunks(op, whole, local, float(str(chunk)))
        return 2.0 * (num_elements(graph, op.inputs[0], sizes) + num_elements(graph, op.output, sizes)) * keys

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        """Flash has five products against two (Dao et al. 2022): three as wide as keys, two as wide as values."""
        if op.attributes["kernel"] != "flash":
            return 2.0
        key, value = (graph.sizes[graph.tensors[name].dims[-1]] for name in (op.inputs[0], op.output))
        return (3 * key + 2 * value) / (key + value)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2)

    def saves_output(self, op: Operator) -> bool:
        return op.attributes["kernel"] == "flash"

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        rows = prod(sizes[dim] for dim in op.loop_dims)
        rows_bytes = graph.summed_bytes(op.output) * rows
        element_bytes = graph.tensors[op.output].element_bytes
        if op.attributes["kernel"] != "flash":
            written = [Extra("probabilities", element_bytes * rows * graph.sizes["seq"])]
            if op.attributes.get("softcap") is not None:
                written.append(Extra(CAPPED_SCORES, element_bytes * rows * graph.sizes["seq"]))
            if op.attributes.get("sinks"):
                written.append(Extra("weights_of_sinks", rows_bytes))
            return tuple(written)
        statistics = Extra("log_sum_exp", rows_bytes)
        if op.attributes.get("chosen"):
            # numbers that are added to scores, or with sinks the mask as it is
            mask_bytes = (1 if _tiles_chosen(op) else element_bytes) * num_elements(graph, op.inputs[CHOSEN], sizes)
            return (statistics, Extra("mask_in_numbers", mask_bytes, has_gradient=False))
        if _context_parallel(op) == "ulysses" and sizes["seq"] < graph.sizes["seq"]:
            return (statistics, Extra("output_by_heads", element_bytes * num_elements(graph, op.output, sizes)))
        return (statistics,)

    def own_gradients_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the gradient of the probabilities, where scores are written out. Those of the scores are written
        over the probabilities, and with a softcap its slopes are made when the gradient of the probabilities is gone.
        """
        capped = (extra.bytes for extra in self.extra_saved(op, graph, sizes) if extra.name == CAPPED_SCORES)
        return super().own_gradients_bytes(op, graph, sizes) - sum(capped)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes inside a ring's backward at its fullest hop, beyond the gradients that it returns at the end; below 0
        where scores are written out.

        Of a ring there is the gradient of q in FP32. Gradients of keys and values are there three times in FP32: those
        of this hop, and those of the last one as sent and as received. Keys and values are there once, and once more
        where they travel at the same time, which they do not on the second and last hop of two ranks.

        Where scores are written out, the gradient of the output is gone when the probabilities have theirs, and those
        of queries and keys come when the probabilities are gone.
        """
        if op.attributes["kernel"] != "flash" and not (_is_ring(op) or op.attributes.get("dropout")):
            query, key, out = (num_elements(graph, name, sizes) for name in (*op.inputs[:2], op.output))
            if _context_parallel(op) == "all_gather":
                key *= _ring_size(graph, sizes)
            scores = prod(sizes[dim] for dim in op.loop_dims) * graph.sizes["seq"]
            return -float(graph.tensors[op.output].element_bytes * (out + min(query + key, scores)))
        if not _is_ring(op) or (ranks := _ring_size(graph, sizes)) == 1:
            return 0.0
        query, key, value = (num_elements(graph, name, sizes) for name in op.inputs[:3])
        element_bytes = graph.tensors[op.inputs[0]].element_bytes
        summed_bytes = graph.summed_bytes(op.inputs[0])
        travelling_bytes = 3 * summed_bytes + (element_bytes if ranks > 2 else 0)
        return (summed_bytes - element_bytes) * query + travelling_bytes * (key + value)

    def tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of a tile of scores, where there are tiles: the probabilities, a softcap's slopes, and the gradient of
        the scores in FP32 and in the type of the keys. Later a piece's gradient of keys takes the place of that in
        FP32. Where scores are written out, those of one head: its probabilities in FP32, and the gradient of these."""
        element_bytes = graph.tensors[op.inputs[0]].element_bytes
        summed_bytes = graph.summed_bytes(op.inputs[0])
        if op.attributes["kernel"] != "flash":
            cast_bytes = summed_bytes if element_bytes < summed_bytes else 0
            return (summed_bytes + cast_bytes) * _scores_of_a_head(op, graph, sizes)
        length = _length_in_tiles(op, graph, sizes)
        if length is None:
            return 0.0
        window = op.attributes.get("sliding_window")
        heads, whole = prod(sizes[dim] for dim in head_dims(op)), float(graph.sizes["seq"])
        if _context_parallel(op) == "ulysses":
            heads /= _ring_size(graph, sizes)
        # a window as long as the sequence hides nothing: where no piece is in front, none is seen whole
        scores = most_scores(heads, length, whole if window is None else min(whole, float(str(window))))
        cast_bytes = element_bytes if element_bytes < summed_bytes else 0
        slopes_bytes = 0 if op.attributes.get("softcap") is None else summed_bytes
        return (2 * summed_bytes + cast_bytes + slopes_bytes) * scores

    def inner_forward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the scores where they are written out: there until the probabilities are, before the output is."""
        if op.attributes["kernel"] == "flash":
            return 0.0
        scores = prod(sizes[dim] for dim in op.loop_dims) * graph.sizes["seq"]
        return graph.tensors[op.output].element_bytes * max(0.0, scores - num_elements(graph, op.output, sizes))

    def forward_tile_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of one head's scores and its probabilities in FP32, and of a mask and its complement, where scores are
        written out."""
        if op.attributes["kernel"] == "flash":
            return 0.0
        return 2 * (graph.summed_bytes(op.inputs[0]) + MASK_BYTES) * _scores_of_a_head(op, graph, sizes)

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        query, key, value, out = (
            graph.tensors[name].element_bytes * num_elements(graph, name, sizes) for name in (*op.inputs[:3], op.output)
        )
        match _context_parallel(op):
            case "ulysses":
                return tuple(("all_to_all", "seq", size) for size in (query, key, value, out))
            case "ring" | "zigzag_ring":
                return (("send_recv", "seq", key + value),) * (_ring_size(graph, sizes) - 1)
        return ()

    def internal_backward_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        """Collectives of the backward.

        A ring passes keys and values on as in forward; their gradients go one rank further, home.
        """
        if not _is_ring(op):
            return self.internal_collectives(op, graph, sizes)
        elements = sum(num_elements(graph, name, sizes) for name in op.inputs[1:3])
        element_bytes = graph.tensors[op.inputs[1]].element_bytes
        values = ("send_recv", "seq", element_bytes * elements)
        gradients = ("send_recv", "seq", graph.summed_bytes(op.inputs[1]) * elements)
        ranks = _ring_size(graph, sizes)
        return (values, gradients) * (ranks - 1) + (gradients,) * (ranks > 1)


def head_dims(op: Operator) -> tuple[str, str]:
    """The dims of an attention's key-value heads, and of the query heads that share one."""
    key_value, group = (dim for dim in op.loop_dims if dim not in ("batch", "seq"))
    return key_value, group


def _scores_of_a_head(op: Operator, graph: Graph, sizes: Sizes) -> float:
    queries = sizes["seq"] if _context_parallel(op) != "ulysses" else graph.sizes["seq"]
    return float(queries) * graph.sizes["seq"]


def _context_parallel(op: Operator) -> str:
    return str(op.attributes.get("context_parallel", "all_gather"))


def _is_ring(op: Operator) -> bool:
    return _context_parallel(op) in ("ring", "zigzag_ring")


def _ring_size(graph: Graph, sizes: Sizes) -> int:
    return round(graph.sizes["seq"] / sizes["seq"])


def _tiles_chosen(op: Operator) -> bool:
    """Whether scores of chosen keys are computed tile by tile, with the mask as it is: torch's fused attention, which
    reads it as numbers, knows no sinks, and of blocks it is as many numbers for each key."""
    more = bool(op.attributes.get("sinks")) or "chosen_block" in op.attributes
    return bool(op.attributes.get("chosen")) and more


def _length_in_tiles(op: Operator, graph: Graph, sizes: Sizes) -> float | None:
    """Tokens of a piece of queries whose scores the torch backend computes tile by tile; None where it does not: it has
    a kernel for whole sequences without more, and one that reads a mask, unless that would be large. A GPU has one for
    more, which no graph knows of."""
    whole, local, kind = float(graph.sizes["seq"]), float(sizes["seq"]), _context_parallel(op)
    if op.attributes["kernel"] != "flash" or (op.attributes.get("chosen") and not _tiles_chosen(op)):
        return None
    if _is_ring(op) and local < whole:
        return local / 2 if kind == "zigzag_ring" else local
    length = whole if kind == "ulysses" else local
    limits = (op.attributes.get("sliding_window"), op.attributes.get("chunk"))
    is_masked = length < whole or any(limit is not None and float(str(limit)) < whole for limit in limits)
    is_large = is_masked and length * whole > most_of_a_mask(on_gpu=False)
    has_scores = op.attributes.get("softcap") is not None or bool(op.attributes.get("sinks")) or _tiles_chosen(op)
    return length if has_scores or is_large else None


def mean_keys(start: float, length: float, window: float) -> float:
    """Mean number of keys that a query of the positions [start, start + length) sees, causal, at most `window`."""
    ramp = min(max(window - start, 0.0), length)  # queries whose window still reaches the first position
    return ((start + ramp / 2) * ramp + window * (length - ramp)) / length


def _keys_in_chunks(op: Operator, whole: float, local: float, chunk: float) -> float:
    """Mean number of keys that a query of the fullest rank sees in its chunk, causal.

    whole, local: length of the sequence and of a rank's part of it.
    """

    def mean(start: float, length: float) -> float:
        def until(end: float) -> float:  # keys that all queries before `end` see
            full, rest = divmod(end, chunk)
            return full * chunk**2 / 2 + rest**2 / 2

        return (until(start + length) - until(start)) / length

    ranks = round(whole / local)
    match _context_parallel(op):
        case "ulysses":
            return mean(0.0, whole)
        case "zigzag_ring":
            pieces = [mean(index * local / 2, local / 2) for index in range(2 * ranks)]
            return max(early + late for early, late in zip(pieces, reversed(pieces), strict=True)) / 2
    return max(mean(index * local, local) for index in range(ranks))
