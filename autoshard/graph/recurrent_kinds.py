"""Kinds of operators that go through the sequence in its order."""

from __future__ import annotations

from autoshard.graph.ir import Graph, Operator
from autoshard.graph.operator_kind import OperatorKind, Sizes, num_elements
from autoshard.graph.score_tiles import most_scan_scores

DELTA_CHUNK = 64
"""Tokens of a chunk of the gated delta rule: flash-linear-attention's and transformers'."""
WITH_STATES = ("gated_delta_rule", "state_space_scan", "selective_scan", "lightning_attention")
"""Kinds that stand in attention's place, and hand a state from token to token."""
RECURRENCES = ("causal_conv", *WITH_STATES)
"""Kinds that go through the sequence in its order, and need the whole of it."""


class CausalConv(OperatorKind):
    """A convolution over the sequence, each channel by itself, of the last `tap` tokens; and silu, unless the attribute
    activates is False. With the attribute dilation, of tokens that are so many apart.

    x: batch seq and the channels; weight: the channels and tap; perhaps a bias: the channels. Not split over the
    sequence. Keeps x; backward convolves again, with the same weight.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        taps = sizes[graph.tensors[op.inputs[1]].dims[-1]]
        activation = 4.0 if op.attributes.get("activates", True) else 0.0
        return (2.0 * taps + activation) * num_elements(graph, op.inputs[0], sizes)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1)


class GatedDeltaRule(OperatorKind):
    """Linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464), in chunks of DELTA_CHUNK tokens.

    q, k: batch seq linear_key_head linear_keydim, which it brings to length 1; v: batch seq linear_key_head
    linear_group linear_valuedim; b, a: batch seq linear_key_head linear_group; A_log, dt_bias: linear_key_head
    linear_group. The state of a value head, [linear_keydim, linear_valuedim], is multiplied by exp(-exp(A_log)
    softplus(a + dt_bias)) at each token, and then moved towards answering k with v, by the part sigmoid(b), or by that
    times the attribute beta_scale. Its answer to q / sqrt(linear_keydim) is the output, like v. Not split over the
    sequence. Computed in FP32; keeps its inputs, backward computes the states again.

    Where each channel of a key fades by itself (Kimi Linear 2025, arXiv 2510.26692), a is batch seq linear_key_head
    linear_keydim, dt_bias linear_key_head linear_keydim, A_log linear_key_head, and a state's rows fade as their
    channels do. With the attribute lower_bound (Ling 3.0), which is below 0, they are multiplied by exp(lower_bound
    sigmoid(exp(A_log) (a + dt_bias))) instead.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        keys, values = sizes["linear_keydim"], sizes["linear_valuedim"]
        chunk = min(float(DELTA_CHUNK), sizes["seq"])
        token = 5 * chunk * keys + 3 * chunk * values + 6 * keys * values
        return token * num_elements(graph, op.inputs[3], sizes)

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        return _as_product(
            self.flops(op, graph, sizes), num_elements(graph, op.inputs[3], sizes), sizes["linear_valuedim"]
        )

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2, 3, 4)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the FP32 numbers that the torch runtime holds at once, as it computes forward again and goes back,
        beside the gradients of all inputs: these are not there by then, unless it works off some heads at a time.

        Exact to a part in a thousand of what its backward holds of one sequence on fake tensors, with 1, 2 and 4 value
        heads a key head and heads of 64 to 256; of several sequences, which need not be copied, it holds a copy of the
        values less.
        """
        gradients = sum(num_elements(graph, name, sizes) * graph.tensors[name].element_bytes for name in op.inputs[:5])
        if fades_by_channel(op, graph):
            part, held = self._bytes_of_channels(op, graph, sizes)
            return held - gradients if part == 1 else held
        keys, values = sizes["linear_keydim"], sizes["linear_valuedim"]
        of_value = 9 * keys + 7 * values + 4 * DELTA_CHUNK + 4 + 2 * keys * values / DELTA_CHUNK
        of_key = 6 * keys + DELTA_CHUNK + 2
        numbers = (of_key + sizes["linear_group"] * of_value) * num_elements(graph, op.inputs[0], sizes) / keys
        return graph.summed_bytes(op.inputs[0]) * numbers - gradients

    def _bytes_of_channels(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float]:
        """The part of all heads that the torch runtime works off at once where channels fade by themselves, and the
        bytes that it holds of these.

        Fitted, within 1 % with keys and values of 128 numbers, to what its backward holds of one sequence on fake
        tensors: one and two value heads a key head, all heads at once and some.
        """
        keys, values, heads = sizes["linear_keydim"], sizes["linear_valuedim"], sizes["linear_key_head"]
        scores = numbers_of_head(sizes["seq"], keys)
        part = min(1.0, most_scan_scores(heads, scores) / (scores * heads))
        of_value = 15 * keys + 7 * values + 1.15 * DELTA_CHUNK + 2 * keys * values / DELTA_CHUNK
        of_key = 17.5 * keys + 1.15 * DELTA_CHUNK
        numbers = (of_key + sizes["linear_group"] * of_value) * sizes["batch"] * sizes["seq"] * heads
        return part, graph.summed_bytes(op.inputs[0]) * part * numbers


def numbers_of_head(seq: float, keys: float) -> float:
    """Queries and keys of a head and sequence, numbers: where channels fade by themselves, the torch runtime works off
    as many heads at a time as `score_tiles.scan_tile` says for them."""
    return 2 * seq * keys


def fades_by_channel(op: Operator, graph: Graph) -> bool:
    """Whether the state of a gated delta rule has a rate of fading for each channel of a key."""
    return graph.tensors[op.inputs[4]].dims[-1] == "linear_keydim"


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
        chunk = _chunk(op, seq)
        head = _flops_of_head(chunk, width, state)
        return head * num_elements(graph, op.inputs[1], sizes) + 2 * chunk * num_elements(graph, op.inputs[2], sizes)

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        return _as_product(
            self.flops(op, graph, sizes), num_elements(graph, op.inputs[1], sizes), sizes["mamba_headdim"]
        )

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2, 3)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the FP32 numbers that the torch runtime holds of the heads that it scans at once, as it computes
        forward again and goes back.

        Fitted, within 10 % (1.6 % on average), to what its backward holds on fake tensors: chunks, heads' widths and
        states of 64 to 256, heads in one to eight groups.
        """
        seq, width, state, heads = (sizes[dim] for dim in ("seq", "mamba_headdim", "mamba_state", "mamba_head"))
        chunk = _chunk(op, seq)
        at_once = most_scan_scores(sizes.get("mamba_group", 1.0) * heads, seq * chunk) / (seq * chunk)
        of_head = 2.65 * chunk + 10.5 * width + 3.3 * width * state / chunk + 1.2 * state
        of_token = at_once * of_head + max(1.0, at_once / heads) * 6.1 * state
        return graph.summed_bytes(op.inputs[0]) * sizes["batch"] * seq * of_token


class SelectiveScan(OperatorKind):
    """Mamba-1's state space (Gu and Dao 2023, arXiv 2312.00752).

    x, dt: batch seq mamba_channel; B, C: batch seq mamba_state, one for all channels; A_log: mamba_channel mamba_state;
    D, dt_bias: mamba_channel. With t = softplus(dt + dt_bias), the state of a channel, [mamba_state], is multiplied by
    exp(-t exp(A_log)) at each token, a number of its own for each of its numbers, and t x B is added. The output, like
    x, is the state times C, summed over its numbers, plus D x. Not split over the sequence. Computed in FP32; keeps its
    inputs, backward computes the states again.

    Each number of a state fades by itself, so that no matrix product is within a chunk. It counts as one all the same,
    as other recurrences do: as wide as a state, and of so short a contraction that it hardly fills a matrix unit. A
    guess of what a fused kernel takes.
    """

    FLOPS = 7.0
    """FLOPs for each number of a state: t exp(A_log) and its exp; a product with B; a product and a sum for the next
    state; a product with C and its sum."""

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        return self.FLOPS * num_elements(graph, op.inputs[0], sizes) * sizes["mamba_state"]

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        return _as_product(self.flops(op, graph, sizes), num_elements(graph, op.inputs[0], sizes), sizes["mamba_state"])

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2, 3)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the FP32 numbers that the torch runtime holds of the channels that it scans at once, as it computes
        forward again and goes back, beside the gradients of all inputs: those of channels are not there by then, unless
        it scans some channels at a time.

        Fitted, within 3 parts in a thousand, to what its backward holds on fake tensors: states of 8 to 64 numbers, all
        channels at once and some.
        """
        seq, state, channels, gradients = sizes["seq"], sizes["mamba_state"], sizes["mamba_channel"], 0.0
        at_once = most_scan_scores(channels, seq * state) / (seq * state)
        if at_once == channels:
            gradients = sum(num_elements(graph, x, sizes) * graph.tensors[x].element_bytes for x in op.inputs[:2])
        of_token = at_once * (4.0 * state + 6.03) + 4.3 * state
        return graph.summed_bytes(op.inputs[0]) * sizes["batch"] * seq * of_token - gradients


class LightningAttention(OperatorKind):
    """Linear attention whose states fade at fixed rates (Qin et al. 2024, arXiv 2401.04658), in chunks of the attribute
    chunk_size tokens.

    q, k, v: batch seq lightning_head headdim, of which it takes the silu. The state of a head, [headdim, headdim], is
    multiplied by exp(-rate) at each token, where the attribute rates has one of each head, and k v^T is added. The
    output, like v, is the state times q. This is Mamba-2's state space with a B and C for each head. Not split over the
    sequence. Computed in FP32; keeps its inputs, backward computes the states again.
    """

    def flops(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        width, chunk = sizes["headdim"], _chunk(op, sizes["seq"])
        head = _flops_of_head(chunk, width, width) + 2 * chunk * width
        return head * num_elements(graph, op.inputs[0], sizes) / width

    def matmul_shape(self, op: Operator, graph: Graph, sizes: Sizes) -> tuple[float, float, float]:
        width = sizes["headdim"]
        return _as_product(self.flops(op, graph, sizes), num_elements(graph, op.inputs[0], sizes) / width, width)

    def backward_flops_ratio(self, op: Operator, graph: Graph) -> float:
        return 3.0

    def saved_inputs(self, op: Operator, graph: Graph) -> tuple[int, ...]:
        return (0, 1, 2)

    def inner_backward_bytes(self, op: Operator, graph: Graph, sizes: Sizes) -> float:
        """Bytes of the FP32 numbers that the torch runtime holds of the heads that it works off at once, as it computes
        forward again and goes back, beside the gradients of all inputs: these are not there by then, unless it works
        off some heads at a time.

        It holds most of scores, or of states. Exact to a part in a thousand of what it holds on fake tensors, in BF16:
        chunks of 64 to 512, heads of 64 to 256, all at once and some.
        """
        width, heads, tokens = sizes["headdim"], sizes["lightning_head"], sizes["batch"] * sizes["seq"]
        chunk, gradients = _chunk(op, sizes["seq"]), 0.0
        scores = sizes["seq"] * chunk
        at_once = most_scan_scores(heads, scores) / scores
        if at_once == heads:
            gradients = sum(num_elements(graph, name, sizes) * graph.tensors[name].element_bytes for name in op.inputs)
        of_head = max(11 * width + 2 * chunk, 10.5 * width + 3 * width**2 / chunk + chunk)
        return graph.summed_bytes(op.inputs[0]) * at_once * (of_head * tokens + chunk**2) - gradients


def _chunk(op: Operator, seq: float) -> float:
    """Tokens of a chunk, of which the attribute chunk_size says the most."""
    return min(float(str(op.attributes["chunk_size"])), seq)


def _flops_of_head(chunk: float, width: float, state: float) -> float:
    """FLOPs of a head and token that is scanned, but for the products of what tokens tell and ask, which heads may
    share. width, state: dims of a state."""
    return 2 * chunk * width + 4 * width * state + 2 * chunk


def _as_product(flops: float, rows: float, columns: float) -> tuple[float, float, float]:
    """(M, N, K) of one matrix product with so many FLOPs."""
    return rows, columns, flops / (2 * rows * columns)
