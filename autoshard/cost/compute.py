"""Seconds of one operator on one device: a roofline of matrix unit and memory, and a fixed cost for each launch.

The matrix unit reaches `device.matmul_efficiency` of its peak on large products. A short contraction fills it badly:
length K reaches K / (K + matmul_k0) of that; and the output is computed in whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from autoshard.cost.stacks import COMPILED, Software
from autoshard.errors import AutoshardError
from autoshard.graph.compressed_kinds import ATTENTION_KINDS, seen_entries, written_columns
from autoshard.graph.count import loop_sizes, operand_bytes, operator_work
from autoshard.graph.indexer_kind import seen_keys
from autoshard.graph.ir import CASTS_INPUT
from autoshard.graph.loss_kinds import LOSS_BACKWARD_RATIO
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program
from autoshard.graph.routing_kinds import AROUND_EXPERTS
from autoshard.rows import Number, ceil, largest, where
from autoshard.spec.cluster import Device
from autoshard.spec.product_format import PRODUCT_FORMATS
from autoshard.spec.training import DTYPE_BYTES, PRECISIONS, Precision

UNKNOWN_EFFICIENCY = 0.95
"""QuantizedProducts.efficiency on a device of which nothing is known: a guess, where fits begin."""
ALIGNMENT = 8
"""Elements: matrix units read 16 bytes at a time; a head dim that is no multiple takes slower kernels."""
LOSS_LAUNCHES = (2, 4)
"""Launches of one chunk of a loss: forward its product and the loss itself, backward three products and the loss."""

CHOICE_PASSES, CHOICE_LAUNCHES = 5, 20
"""Times that an indexer's scores go through memory as FP32 numbers, until its heads are added up: written and read by
three operators, in part in the compute dtype. Launches of one. Counted by hand; no kernel of one was measured."""


@dataclass(frozen=True)
class OperatorSeconds:
    """Seconds of an operator for one microbatch on one rank, over rows; backward is without recompute."""

    forward: Number
    backward: Number


def matmul_s(
    m: Number,
    n: Number,
    k: Number,
    device: Device,
    peak_flops_per_s: float,
    wave_elements: float = 0.0,
    groups: Number = 1.0,
) -> Number:
    """Seconds of the matrix unit for an (m x k) (k x n) product: 2 m n k FLOPs over the achieved rate.

    m and n are rounded up to whole tiles; wave_elements more of the output are computed in vain. groups: the rows are
    those of so many products alike, each rounded up by itself. Leaves out memory traffic and the launch.
    """
    rows = ceil(m / groups / device.tile_rows) * device.tile_rows * groups
    columns = ceil(n / device.tile_columns) * device.tile_columns
    rate = peak_flops_per_s * device.matmul_efficiency * k / (k + device.matmul_k0)
    return 2.0 * (rows * columns + wave_elements) * k / rate


def memory_s(count: float, device: Device) -> float:
    """Seconds to move so many bytes between the device's memory and its cores."""
    return count / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)


class OperatorNeeds(NamedTuple):
    """Sizes of one operator on one rank for one microbatch, whatever the device; or of many of one kind, a row each.

    kind: "matmul" (m x k by k x n), "flash" or "plain" attention (m query rows, n keys, k the head dim), "norm",
    "loss" (n ranks share the vocabulary), "chunked_loss" (a product and the loss of what it gives, a chunk of rows at a
    time), "choice" (of the keys that attention sees: as one product over the width of an indexer's heads), "route"
    (copies of tokens on their way to and from experts), "activation" (inside experts) or "vector".
    scores_bytes: of one pass over all scores of attention or of an indexer; of a loss in chunks, what the loss moves.
    backward_ratio: of its backward FLOPs or bytes to forward.
    groups: products that the m rows belong to, one for each expert, which has a k by n matrix of its own, or for each
    chunk.
    quantized: 1 for a product that may read quantised operands, else 0. casts: 1 where it casts its input, too.
    value_dim: of attention, the width of a head's value. frozen: 1 for a product with a weight that is not learned,
    else 0.
    """

    kind: str
    m: Number
    n: Number
    k: Number
    moving_bytes: Number
    scores_bytes: Number
    flops: Number
    backward_ratio: Number
    groups: Number = 1.0
    quantized: Number = 0.0
    casts: Number = 0.0
    value_dim: Number = 0.0
    frozen: Number = 0.0


class QuantizedProducts(NamedTuple):
    """The products of linear layers on a device. peak_flops_per_s: in their format. cast_bytes: moved to cast one
    element of an activation or a gradient. efficiency: share of the peak that they reach, against that of products in
    the compute dtype."""

    peak_flops_per_s: float
    cast_bytes: float
    efficiency: float = 1.0


def quantized_products(device: Device, precision: Precision) -> QuantizedProducts | None:
    """The quantised products of a precision on a device, None where it has none. Raises AutoshardError where the device
    has none in its format."""
    products = precision.products
    if products is None:
        return None
    if products.peak not in dict(device.flops_per_s):
        known = [name for name, one in PRECISIONS.items() if one.products is None] + product_formats(device)
        raise AutoshardError(
            f"precision {precision.name}: {device.name} has no products in {products.peak}; precisions that it has: "
            f"{', '.join(known)}"
        )
    cast_bytes = products.cast_bytes(DTYPE_BYTES[precision.compute_dtype])
    efficiency = dict(device.quantized_efficiency).get(products.peak, UNKNOWN_EFFICIENCY)
    return QuantizedProducts(device.peak_flops_per_s(products.peak), cast_bytes, efficiency)


def product_formats(device: Device) -> list[str]:
    """The names of the formats in which linear layers multiply on a device."""
    known = {dtype for dtype, _ in device.flops_per_s}
    return [one.name for one in PRODUCT_FORMATS.values() if one.peak in known]


def cast_s_per_weight(precision: Precision, device: Device) -> float:
    """Seconds to quantise one weight; 0 where products read weights as they are."""
    products = precision.products
    return 0.0 if products is None else memory_s(products.cast_bytes(DTYPE_BYTES[precision.parameter_dtype]), device)


def operator_needs(program: Program, step: OperatorStep) -> OperatorNeeds:
    """The needs of an operator on one rank: products, and bytes through memory."""
    op, work, sizes = step.operator, operator_work(program, step), loop_sizes(program, step)
    if op.kind in ATTENTION_KINDS:
        graph = program.graph
        head_dim, value_dim = (float(graph.sizes[graph.tensors[name].dims[-1]]) for name in (op.inputs[0], op.output))
        rows = prod(sizes[dim] for dim in op.loop_dims)
        plain = op.attributes["kernel"] == "plain"
        keys = float(written_columns(op, graph)) if plain else work.flops / (2.0 * rows * (head_dim + value_dim))
        scores = rows * keys * program.graph.tensors[op.output].element_bytes
        kind = "plain" if plain else "flash"
        traffic = (work.bytes_moved, scores, work.flops, 2.5 if plain else work.backward_flops_ratio)
        return OperatorNeeds(kind, rows, keys, head_dim, *traffic, value_dim=value_dim)
    extra = sum(e.bytes for e in KINDS[op.kind].extra_saved(op, program.graph, sizes))
    m, n, k = work.matmul or (0.0, 0.0, 0.0)
    if op.kind == "cross_entropy":
        shards = program.graph.sizes["vocab"] / sizes["vocab"]
        return OperatorNeeds("loss", m, shards, k, work.bytes_moved + extra, 0.0, work.flops, work.backward_flops_ratio)
    if op.kind == "linear_cross_entropy":
        logits = m * n * program.graph.tensors[op.inputs[0]].element_bytes
        # as a loss of whole logits moves: these, and the probabilities
        lost = logits + program.graph.summed_bytes(op.inputs[0]) * m * n
        traffic = (work.bytes_moved + logits, lost, work.flops, work.backward_flops_ratio)
        frozen = float(program.graph.is_frozen(op))
        groups = KINDS[op.kind].groups(op, program.graph, sizes)
        return OperatorNeeds("chunked_loss", m, n, k, *traffic, groups, frozen=frozen)
    if op.kind in ("choose_keys", "choose_pools", "choose_means", "choose_entries"):
        queries, width = prod(sizes[dim] for dim in op.loop_dims), sizes["index_dim"]
        seen = seen_entries(op, program.graph, sizes) if "rate" in op.attributes else seen_keys(program.graph, sizes)
        scores = queries * sizes["index_head"] * seen
        scores_bytes = program.graph.summed_bytes(op.inputs[0]) * scores
        columns = work.flops / (2.0 * queries * width)
        return OperatorNeeds("choice", queries, columns, width, work.bytes_moved, scores_bytes, work.flops, 0.0)
    if op.kind == "choose_blocks":
        queries, width = prod(sizes[dim] for dim in op.loop_dims), sizes["index_dim"]
        element_bytes = program.graph.tensors[op.inputs[0]].element_bytes
        scores_bytes = element_bytes * queries * seen_keys(program.graph, sizes)
        columns = work.flops / (2.0 * queries * width)
        return OperatorNeeds("choice", queries, columns, width, work.bytes_moved, scores_bytes, work.flops, 0.0)
    kind = "matmul" if work.matmul is not None else "norm" if op.kind == "norm" else "vector"
    if kind == "vector":
        routed = op.kind in AROUND_EXPERTS
        kind = "route" if routed else "activation" if "capacity" in op.loop_dims else "vector"
    is_quantized = operand_bytes(program, step) is not None
    marks = float(is_quantized), float(is_quantized and bool(op.attributes.get(CASTS_INPUT)))
    groups = KINDS[op.kind].groups(op, program.graph, sizes)
    traffic = (work.bytes_moved + extra, 0.0, work.flops, work.backward_flops_ratio)
    return OperatorNeeds(kind, m, n, k, *traffic, groups, *marks, frozen=float(program.graph.is_frozen(op)))


def operator_seconds(
    program: Program,
    step: OperatorStep,
    device: Device,
    dtype: str,
    software: Software = COMPILED,
    products: QuantizedProducts | None = None,
) -> OperatorSeconds:
    """Forward and backward seconds of one operator. dtype: of the matrix products, such as "bfloat16". products: of
    those that are quantised."""
    return seconds_of(operator_needs(program, step), device, device.peak_flops_per_s(dtype), software, products)


def seconds_of(
    needs: OperatorNeeds,
    device: Device,
    peak_flops_per_s: float,
    software: Software,
    products: QuantizedProducts | None = None,
) -> OperatorSeconds:
    """Forward and backward seconds of what an operator needs, over rows.

    peak_flops_per_s: of the compute dtype. products: of those that are quantised. A matrix product's backward is two
    products of the same size, contracted over n and over the rows of one group: the fewer tokens an expert has, the
    shorter is the contraction of its weights' gradient; that one is left out where weights are not trained. Where it is
    quantised its input is cast before forward, the gradient of its output before backward. Attention: see below. A
    recurrence counts as one product of its FLOPs, as wide as a head: a guess, no kernel of one was measured. Everything
    else moves its bytes, `backward_ratio` times as many backward.
    """
    if needs.kind in ("flash", "plain"):
        return _attention_seconds(needs, device, peak_flops_per_s, software)
    slow, launch = software.compute_slowdown, device.operator_overhead_s
    moving = memory_s(needs.moving_bytes, device) * slow
    if needs.kind == "norm":
        moving = moving * software.norm_passes
    if needs.kind == "loss":
        moving = moving * software.loss_passes * (needs.n if software.whole_logits else 1.0)
    if needs.kind == "route":
        moving = moving * software.route_passes
    if needs.kind == "activation":
        moving = moving * software.activation_passes
    if needs.kind in ("norm", "loss", "route", "activation", "vector"):
        return OperatorSeconds(moving + launch, needs.backward_ratio * moving + launch)
    if needs.kind == "choice":
        product = matmul_s(needs.m, needs.n, needs.k, device, peak_flops_per_s / slow)
        passes = memory_s(needs.scores_bytes, device) * slow * CHOICE_PASSES
        return OperatorSeconds(product + moving + passes + CHOICE_LAUNCHES * launch, 0.0 * moving)
    m, n, k, groups = needs.m, needs.n, needs.k, needs.groups
    casting: Number = 0.0
    casting_back: Number = 0.0
    if products is not None:
        share = products.efficiency if software.quantized_efficiency is None else software.quantized_efficiency
        quantized_peak = products.peak_flops_per_s * share
        peak_flops_per_s = where(needs.quantized > 0, quantized_peak, peak_flops_per_s)
        cast_s = memory_s(products.cast_bytes, device) * slow
        casting, casting_back = needs.casts * m * k * cast_s, needs.quantized * m * n * cast_s
    peak_flops_per_s = peak_flops_per_s / slow
    wave = software.wave_elements
    forward = matmul_s(m, n, k, device, peak_flops_per_s, wave, groups)
    to_input = matmul_s(m, k, n, device, peak_flops_per_s, wave, groups)
    to_weight = matmul_s(groups * k, n, m / groups, device, peak_flops_per_s, wave, groups)
    learned = 0.0 if software.adapts else 1.0 - needs.frozen
    backward = largest(to_input, moving) + learned * largest(to_weight, moving) + casting_back + (1 + learned) * launch
    # of a recurrence its states, of a loss its logits
    again = (needs.backward_ratio - 2.0 + needs.frozen) * largest(forward, moving)
    if needs.kind == "chunked_loss":  # the products of each chunk are launched by themselves, and so is its loss
        loss = memory_s(needs.scores_bytes, device) * slow * software.loss_passes
        ahead, back = LOSS_LAUNCHES
        return OperatorSeconds(
            largest(forward, moving) + loss + ahead * groups * launch,
            backward - 2 * launch + again + (1 + LOSS_BACKWARD_RATIO) * loss + back * groups * launch,
        )
    return OperatorSeconds(largest(forward, moving) + casting + launch, backward + again)


def _attention_seconds(
    needs: OperatorNeeds, device: Device, peak_flops_per_s: float, software: Software
) -> OperatorSeconds:
    """scores = q k^T contracts over the head dim, values = p v over the keys.

    'flash' skips what the mask hides and stays on the core; backward is 2 products like scores and 3 like values, or
    `backward_ratio` times the forward where the kernel's own efficiency is known, the stack's or else the device's.
    'plain' computes the whole square and moves it through memory; backward is 1 like scores and 3 like values.
    """
    slow, launch = software.compute_slowdown, device.operator_overhead_s
    rows, keys, head_dim, value_dim = needs.m, needs.n, needs.k, needs.value_dim
    moving = memory_s(needs.moving_bytes, device) * slow
    share = device.attention_efficiency if software.attention_efficiency is None else software.attention_efficiency
    if needs.kind == "flash" and share is not None:
        kernel = needs.flops / (peak_flops_per_s * share) * slow
        backward = largest(needs.backward_ratio * kernel, 2 * moving)
        return OperatorSeconds(largest(kernel, moving) + launch, backward + launch)
    scores = matmul_s(rows, keys, head_dim, device, peak_flops_per_s / slow)
    values = matmul_s(rows, value_dim, keys, device, peak_flops_per_s / slow)
    if software is not COMPILED:
        slower = where(head_dim % ALIGNMENT > 0, software.misaligned_slowdown, 1.0)
        scores, values = scores * slower, values * slower
    if needs.kind == "flash":
        forward = largest(scores + values, moving)
        return OperatorSeconds(forward + launch, largest(2 * scores + 3 * values, 2 * moving) + launch)
    one_pass = memory_s(needs.scores_bytes, device) * slow
    ahead, back = software.plain_attention_passes
    return OperatorSeconds(
        scores + values + moving + ahead * one_pass + 3 * launch,
        scores + 3 * values + 2 * moving + back * one_pass + 5 * launch,
    )
