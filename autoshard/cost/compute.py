"""Seconds of one operator on one device: a roofline of matrix unit and memory, and a fixed cost for each launch.

The matrix unit reaches `device.matmul_efficiency` of its peak on large products. A short contraction fills it badly:
length K reaches K / (K + matmul_k0) of that; and the output is computed in whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from autoshard.graph.count import loop_sizes, operator_work
from autoshard.graph.operators import KINDS
from autoshard.graph.partition import OperatorStep, Program
from autoshard.spec.cluster import Device

PLAIN_ATTENTION_PASSES = 1
"""Times that plain attention moves all scores through memory forward: the softmax is fused with the product before
it, and only the probabilities are written. Set by hand to published Llama-2-7B results on trn1; unfused it would be
4."""
PLAIN_ATTENTION_BACKWARD_PASSES = 2
"""Backward: the probabilities are read and their gradient is written. Set as above; unfused it would be 7."""


@dataclass(frozen=True)
class OperatorSeconds:
    """Of one microbatch on one rank; backward is without recompute."""

    forward: float
    backward: float


def matmul_s(m: float, n: float, k: float, device: Device, peak_flops_per_s: float) -> float:
    """Seconds of the matrix unit for an (m x k) (k x n) product: 2 m n k FLOPs over the achieved rate.

    m and n are rounded up to whole tiles. Leaves out memory traffic and the launch.
    """
    rows = ceil(m / device.tile_rows) * device.tile_rows
    columns = ceil(n / device.tile_columns) * device.tile_columns
    rate = peak_flops_per_s * device.matmul_efficiency * k / (k + device.matmul_k0)
    return 2.0 * rows * columns * k / rate


def memory_s(count: float, device: Device) -> float:
    """Seconds to move so many bytes between the device's memory and its cores."""
    return count / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)


def operator_seconds(program: Program, step: OperatorStep, device: Device, dtype: str) -> OperatorSeconds:
    """Forward and backward of one operator. dtype: of the matrix products, such as "bfloat16".

    A matrix product's backward is two products of the same size, contracted over n and over m. Attention: see below.
    Everything else moves its bytes, `backward_flops_ratio` times as many backward.
    """
    op = step.operator
    if op.kind == "attention":
        return _attention_seconds(program, step, device, dtype)
    work = operator_work(program, step)
    extra = sum(e.bytes for e in KINDS[op.kind].extra_saved(op, program.graph, loop_sizes(program, step)))
    moving = memory_s(work.bytes_moved + extra, device)
    launch = device.operator_overhead_s
    if work.matmul is None:
        return OperatorSeconds(moving + launch, work.backward_flops_ratio * moving + launch)
    peak = device.peak_flops_per_s(dtype)
    m, n, k = work.matmul
    forward = matmul_s(m, n, k, device, peak)
    to_input, to_weight = matmul_s(m, k, n, device, peak), matmul_s(k, n, m, device, peak)
    return OperatorSeconds(max(forward, moving) + launch, max(to_input, moving) + max(to_weight, moving) + 2 * launch)


def _attention_seconds(program: Program, step: OperatorStep, device: Device, dtype: str) -> OperatorSeconds:
    """scores = q k^T contracts over the head dim, values = p v over the keys.

    'flash' skips what the mask hides and stays on the core; backward is 2 products like scores and 3 like values.
    'plain' computes the whole square and moves it through memory; backward is 1 like scores and 3 like values.
    """
    op, work, sizes = step.operator, operator_work(program, step), loop_sizes(program, step)
    peak, launch = device.peak_flops_per_s(dtype), device.operator_overhead_s
    head_dim = float(program.graph.sizes["headdim"])
    rows = sizes["batch"] * sizes["seq"] * sizes["kvhead"] * sizes["group"]
    plain = op.attributes["kernel"] == "plain"
    keys = float(program.graph.sizes["seq"]) if plain else work.flops / (4.0 * rows * head_dim)
    scores = matmul_s(rows, keys, head_dim, device, peak)
    values = matmul_s(rows, head_dim, keys, device, peak)
    moving = memory_s(work.bytes_moved, device)
    if not plain:
        forward = max(scores + values, moving)
        return OperatorSeconds(forward + launch, max(2 * scores + 3 * values, 2 * moving) + launch)
    one_pass = memory_s(rows * keys * program.graph.tensors[op.output].element_bytes, device)
    return OperatorSeconds(
        scores + values + moving + PLAIN_ATTENTION_PASSES * one_pass + 3 * launch,
        scores + 3 * values + 2 * moving + PLAIN_ATTENTION_BACKWARD_PASSES * one_pass + 5 * launch,
    )
