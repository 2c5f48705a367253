"""The kinds of operators: how each one shards, and what it computes, communicates and keeps for backward.

One rule serves all: along an axis on which the work is split over dim d, an input that has d is split along d, an input
without d is `R`, an output without d is `P`. A kind overrides it where its mathematics says otherwise (attention over
the query sequence, cross-entropy over the vocabulary).

To add an operator: subclass `OperatorKind`, put it into `KINDS`, give the torch backend a kernel of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from autoshard.graph.ir import FLOAT32_BYTES, Graph, Operator
from autoshard.graph.pointwise import count
from autoshard.graph.states import INVARIANT, PARTIAL, REPLICATED

Sizes = Mapping[str, float]
"""Local size of each dim on one rank."""


Internal = tuple[str, str, float]
"""A collective inside an operator: kind, loop dim over whose axes it runs, bytes of its larger buffer."""


@dataclass(frozen=True)
class Extra:
    """A buffer that backward needs and that is not a tensor of the graph (softmax statistics, routing tables)."""

    name: str
    bytes: float


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

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of buffers inside the operator's backward, beyond what forward kept and the gradients of inputs and
        output. sizes: local size of each dim."""
        return 0.0

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        """Collectives inside the operator's forward, in order. sizes: local size of each dim."""
        return ()

    def internal_backward_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        """Collectives inside the operator's backward, in order. sizes: local size of each dim."""
        return ()


def _elements(graph: Graph, tensor: str, sizes: Sizes) -> float:
    return prod(sizes[dim] for dim in graph.tensors[tensor].dims)


class Einsum(OperatorKind):
    """Matrix products: 2 FLOPs for each point of the loop nest, twice that backward; keeps both inputs."""

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

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1)


class Elementwise(OperatorKind):
    """add and scale keep nothing; silu_mul(gate, up) keeps both; gelu its input.

    add is the first input plus the others, these times the attribute alpha if there is one; scale is times the
    attribute factor.

    gelu is the tanh approximation, gelu_erf the exact one; sigmoid_mul(x, gate) is x sigmoid(gate); pointwise is the
    attribute expression, of the functions in graph/pointwise.py.
    """

    FLOPS = {"add": 1.0, "silu_mul": 5.0, "gelu": 8.0, "gelu_erf": 8.0, "sigmoid_mul": 5.0, "scale": 1.0}

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        function = str(op.attributes["function"])
        each = count(str(op.attributes["expression"])) if function == "pointwise" else self.FLOPS[function]
        return each * prod(sizes[dim] for dim in op.loop_dims)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return () if op.attributes["function"] in ("add", "scale") else tuple(range(len(op.inputs)))


class Norm(OperatorKind):
    """RMS or layer norm over the last dim: keeps its input and FP32 statistics of each row.

    The attribute over: names of the last dims, where a norm is over several; it may be split over all but the last of
    them. The ranks then sum one number a row, forward and backward. width: elements of a row, without padding.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 6.0 * _elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0,)

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        return (Extra("statistics", FLOAT32_BYTES * _norm_rows(op, sizes)),)

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        size = FLOAT32_BYTES * _norm_rows(op, sizes)
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

    rotary_dim numbers of the last dim turn, from attribute first_rotary on (the default is 0).
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 6.0 * _elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class PositionScale(OperatorKind):
    """x times a number of each place: 1 + attn_scale log(1 + floor((place + 1) / floor_scale)), of attributes of these
    names. Linear with a constant table, so nothing is kept."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return _elements(graph, op.inputs[0], sizes)

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


SEQUENCE_KEYS = "sequence_keys"
"""The input that tells what drops elements which random numbers are each sequence's: int64 [batch]."""


DOCUMENT_STARTS = "document_starts"
"""The input that tells where the document of each place of a row begins: int64 [batch, row]. A row is a sequence that
nothing splits; its elements are places in the sequence."""


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


class Attention(OperatorKind):
    """softmax(q k^T) v, causal, grouped-query. q: batch seq kvhead group headdim; k, v: batch seq kvhead headdim.

    The last dim of v and of the output may be another one than that of q and k.

    With the attribute dropout, SEQUENCE_KEYS is one more input, by which probabilities are dropped; all are kept.

    More attributes: scale, the factor of the scores, None for 1/sqrt(headdim); softcap: a score s becomes
    softcap * tanh(s / softcap); sinks: the fourth input, [kvhead group], is one more score in each row's softmax, which
    weighs no value; chunk: a query sees keys of its own chunk of so many tokens alone.

    kernel 'flash' keeps q, k, v, the output and one FP32 log-sum-exp a row, and its backward computes the scores again
    (5 matrix products against 2 forward, Dao et al. 2022); 'plain' keeps the probabilities as well.

    Split over the query sequence (context parallelism), the attribute context_parallel says how a rank gets to see the
    other ranks' keys and values (layout/context_parallel.py): 'all_gather' (the default) takes them whole, as `R`; the
    others take pieces and communicate inside. Rings pass the pieces of keys and values from rank to rank, and their
    gradients, accumulated in FP32, with them; 'ulysses' exchanges the sequence for the heads and back.
    """

    def input_state(self, op: Operator, dims: tuple[str, ...], index: int, choice: str) -> str:
        if choice == "seq" and index > 0 and _context_parallel(op) == "all_gather":
            return REPLICATED
        return super().input_state(op, dims, index, choice)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """FLOPs of the fullest rank: where causal queries are split contiguously, the last rank sees most keys."""
        whole, local = float(graph.sizes["seq"]), sizes["seq"]
        window, chunk = op.attributes.get("sliding_window"), op.attributes.get("chunk")
        width = whole if window is None else min(whole, float(str(window)))
        match _context_parallel(op):
            case "ulysses":
                keys = _mean_keys(0.0, whole, width)
            case "zigzag_ring" if width >= whole:
                keys = whole / 2  # of an early piece and a late one together, whichever these are
            case "zigzag_ring":
                ranks, piece = round(whole / local), local / 2
                pieces = [_mean_keys(index * piece, piece, width) for index in range(2 * ranks)]
                keys = max(early + late for early, late in zip(pieces, reversed(pieces), strict=True)) / 2
            case _:
                keys = _mean_keys(whole - local, local, width)
        if chunk is not None and float(str(chunk)) < whole:
            keys = _keys_in_chunks(op, whole, local, float(str(chunk)))
        return 2.0 * (_elements(graph, op.inputs[0], sizes) + _elements(graph, op.output, sizes)) * keys

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
        rows = prod(sizes[dim] for dim in ("batch", "kvhead", "group", "seq"))
        element_bytes = graph.tensors[op.output].element_bytes
        if op.attributes["kernel"] != "flash":
            written = [Extra("probabilities", element_bytes * rows * graph.sizes["seq"])]
            if op.attributes.get("softcap") is not None:
                written.append(Extra("capped_scores", element_bytes * rows * graph.sizes["seq"]))
            if op.attributes.get("sinks"):
                written.append(Extra("weights_of_sinks", FLOAT32_BYTES * rows))
            return tuple(written)
        statistics = Extra("log_sum_exp", FLOAT32_BYTES * rows)
        if _context_parallel(op) == "ulysses" and sizes["seq"] < graph.sizes["seq"]:
            return (statistics, Extra("output_by_heads", element_bytes * _elements(graph, op.output, sizes)))
        return (statistics,)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes inside a ring's backward at its fullest hop, beyond the gradients that it returns at the end.

        There is the gradient of q in FP32. Gradients of keys and values are there three times in FP32: those of this
        hop, and those of the last one as sent and as received. Keys and values are there once, and once more where they
        travel at the same time, which they do not on the second and last hop of two ranks. A piece's gradient of keys
        is there before it is added to the sum. Leaves out tiles of scores, which have a limit of their own.
        """
        if _context_parallel(op) not in ("ring", "zigzag_ring") or (ranks := _ring_size(graph, sizes)) == 1:
            return 0.0
        query, key, value = (_elements(graph, name, sizes) for name in op.inputs[:3])
        element_bytes = graph.tensors[op.inputs[0]].element_bytes
        summed_bytes = max(FLOAT32_BYTES, element_bytes)
        travelling_bytes = 3 * summed_bytes + (element_bytes if ranks > 2 else 0)
        own_pieces = 2 if _context_parallel(op) == "zigzag_ring" else 1
        product_bytes = element_bytes / own_pieces if element_bytes < summed_bytes else 0
        return (summed_bytes - element_bytes) * query + travelling_bytes * (key + value) + product_bytes * key

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        query, key, value, out = (
            graph.tensors[name].element_bytes * _elements(graph, name, sizes) for name in (*op.inputs[:3], op.output)
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
        if _context_parallel(op) not in ("ring", "zigzag_ring"):
            return self.internal_collectives(op, graph, sizes)
        elements = sum(_elements(graph, name, sizes) for name in op.inputs[1:3])
        element_bytes = graph.tensors[op.inputs[1]].element_bytes
        values = ("send_recv", "seq", element_bytes * elements)
        gradients = ("send_recv", "seq", max(FLOAT32_BYTES, element_bytes) * elements)
        ranks = _ring_size(graph, sizes)
        return (values, gradients) * (ranks - 1) + (gradients,) * (ranks > 1)


def _context_parallel(op: Operator) -> str:
    return str(op.attributes.get("context_parallel", "all_gather"))


def _ring_size(graph: Graph, sizes: Sizes) -> int:
    return round(graph.sizes["seq"] / sizes["seq"])


def _mean_keys(start: float, length: float, window: float) -> float:
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


class Embedding(OperatorKind):
    """Row look-up; split over the vocabulary, each rank adds the rows it holds: the output is `P` by the rule."""

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class PositionEmbedding(OperatorKind):
    """Adds a learned row for each position: x[batch seq embed] + table[position embed]."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return _elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0


class CrossEntropy(OperatorKind):
    """Mean negative log-likelihood of all tokens. Split over the vocabulary, two all-reduces of row statistics inside.

    Computed in FP32: the probabilities are kept for backward (4 bytes a logit), the logits themselves are not.
    A third input is another loss, to which this one is added, times the attribute weight.
    """

    def input_state(self, op: Operator, dims: tuple[str, ...], index: int, choice: str) -> str:
        return self.output_state(op, dims, choice) if index == 2 else super().input_state(op, dims, index, choice)

    def output_state(self, op: Operator, dims: tuple[str, ...], choice: str) -> str:
        return INVARIANT if choice == "vocab" else super().output_state(op, dims, choice)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 5.0 * prod(sizes[dim] for dim in op.loop_dims)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 0.5

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        return (Extra("probabilities", FLOAT32_BYTES * prod(sizes[dim] for dim in op.loop_dims)),)

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        rows = sizes["batch"] * sizes["seq"]
        return (
            ("all_reduce", "vocab", FLOAT32_BYTES * rows),  # maximum of each row
            ("all_reduce", "vocab", 2 * FLOAT32_BYTES * rows),  # sum of exponentials and the label's logit
        )


class TopKGate(OperatorKind):
    """Softmax over the experts in FP32, the top k kept and normalised, zero elsewhere. Works on whole expert rows.

    Attribute router: a Router (spec/router.py) that scores and chooses otherwise; its correction bias [expert] is one
    more input, and only says which experts are chosen.

    aux_loss_coef: of its load-balancing loss, which is of the means over all tokens: two numbers an expert are summed
    over whatever axes the tokens are split.
    """

    def internal_collectives(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Internal, ...]:
        if not op.attributes.get("aux_loss_coef"):
            return ()
        size = 2.0 * FLOAT32_BYTES * graph.sizes["expert"]
        return ("all_reduce", "batch", size), ("all_reduce", "seq", size)

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 8.0 * _elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0,)

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index == 0


class Dispatch(OperatorKind):
    """Copies each token into a slot of its experts: batch seq embed -> expert batch capacity embed.

    Slots are given in sequence order, so it needs the whole sequence; tokens beyond the capacity are dropped.
    The gates only say which: they are weighed in `combine`, or here with the attribute weighs.
    """

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index == 0 or bool(op.attributes.get("weighs"))

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1) if op.attributes.get("weighs") else ()

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 1.0

    def extra_saved(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[Extra, ...]:
        slots = sizes["batch"] * sizes["expert"] * sizes["capacity"]
        return (Extra("slot_of_token", 8.0 * slots),)


class Combine(OperatorKind):
    """Weighted sum of the experts' answers per token: linear in them, so it can run on partial sums.

    A third input is a bias [expert, embed] of each answer, added once: where the answers are partial sums, by the first
    of the ranks that hold them. With weighs=False the gates only say whose answers are summed.
    """

    linear_input = 0

    def passes_gradient(self, op: Operator, index: int) -> bool:
        return index != 1 or bool(op.attributes.get("weighs", True))

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return 2.0 * _elements(graph, op.inputs[0], sizes)

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1) if op.attributes.get("weighs", True) else ()


class CausalConv(OperatorKind):
    """silu of a convolution over the sequence, each channel by itself, of the last `tap` tokens.

    x: batch seq and the channels; weight: the channels and tap; perhaps a bias: the channels. Not split over the
    sequence. Keeps x; backward convolves again.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        taps = sizes[graph.tensors[op.inputs[1]].dims[-1]]
        return (2.0 * taps + 4.0) * _elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0,)


class GatedDeltaRule(OperatorKind):
    """Linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464), in chunks of DELTA_CHUNK tokens.

    q, k: batch seq linear_key_head linear_keydim, which it brings to length 1; v: batch seq linear_key_head
    linear_group linear_valuedim; b, a: batch seq linear_key_head linear_group; A_log, dt_bias: linear_key_head
    linear_group. The state of a value head, [linear_keydim, linear_valuedim], is multiplied by exp(-exp(A_log)
    softplus(a + dt_bias)) at each token, and then moved towards answering k with v, by the part sigmoid(b). Its answer
    to q / sqrt(linear_keydim) is the output, like v. Not split over the sequence. Computed in FP32; keeps its inputs,
    backward computes the states again.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        keys, values = sizes["linear_keydim"], sizes["linear_valuedim"]
        chunk = min(float(DELTA_CHUNK), sizes["seq"])
        token = 5 * chunk * keys + 3 * chunk * values + 6 * keys * values
        return token * _elements(graph, op.inputs[3], sizes)

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        return _as_product(
            self.flops(op, graph, sizes), _elements(graph, op.inputs[3], sizes), sizes["linear_valuedim"]
        )

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2, 3, 4)


class StateSpaceScan(OperatorKind):
    """Mamba-2's state space (Dao and Gu 2024, arXiv 2405.21060), in chunks of the attribute chunk_size tokens.

    x: batch seq mamba_head mamba_headdim; dt: batch seq mamba_head; B, C: batch seq mamba_state, one for all heads;
    A_log, D, dt_bias: mamba_head. With groups of heads, each with a B and C of its own, mamba_group stands before
    mamba_head and mamba_state. With t = softplus(dt + dt_bias), the state of a head, [mamba_headdim, mamba_state],
    is multiplied by exp(-t exp(A_log)) at each token, and t x B^T is added. The output, like x, is the state times C,
    plus D x. Not split over the sequence. Computed in FP32; keeps its inputs, backward computes the states again.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        width, state, seq = sizes["mamba_headdim"], sizes["mamba_state"], sizes["seq"]
        chunk = min(float(str(op.attributes["chunk_size"])), seq)
        head = 2 * chunk * width + 4 * width * state + 2 * chunk
        return head * _elements(graph, op.inputs[1], sizes) + 2 * chunk * _elements(graph, op.inputs[2], sizes)

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        return _as_product(self.flops(op, graph, sizes), _elements(graph, op.inputs[1], sizes), sizes["mamba_headdim"])

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2, 3)


def _as_product(flops: float, rows: float, columns: float) -> tuple[float, float, float]:
    """(M, N, K) of one matrix product with so many FLOPs."""
    return rows, columns, flops / (2 * rows * columns)


DELTA_CHUNK = 64
"""Tokens of a chunk of the gated delta rule: flash-linear-attention's and transformers'."""
RECURRENCES = ("causal_conv", "gated_delta_rule", "state_space_scan")
"""Kinds that go through the sequence in its order, and need the whole of it."""

KINDS: dict[str, OperatorKind] = {
    "einsum": Einsum(),
    "elementwise": Elementwise(),
    "norm": Norm(),
    "rope": Rope(),
    "slice": Slice(),
    "concat": Concat(),
    "dropout": Dropout(),
    "attention": Attention(),
    "embedding": Embedding(),
    "position_embedding": PositionEmbedding(),
    "cross_entropy": CrossEntropy(),
    "top_k_gate": TopKGate(),
    "dispatch": Dispatch(),
    "combine": Combine(),
    "position_scale": PositionScale(),
    "causal_conv": CausalConv(),
    "gated_delta_rule": GatedDeltaRule(),
    "state_space_scan": StateSpaceScan(),
}
