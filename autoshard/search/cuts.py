"""How many blocks each pipeline stage gets."""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import floor

from autoshard.layout.strategy import even_stage_layers


def balanced_stage_layers(num_layers: int, num_stages: int, embedding: float, head: float) -> tuple[int, ...]:
    """The cut whose slowest stage is fastest. embedding, head: work of the first and last stage besides, in blocks.

    Every stage has one block at least. Each further block goes to the stage that is fastest with it; of equals to the
    later one, which holds fewer microbatches. That is exact: the slowest stage of any other cut would hold a block that
    this one gave to a stage that is no slower with it.
    """
    ends = [0.0] * num_stages
    ends[0] += embedding
    ends[-1] += head
    # All stages reach this level in any case: begin there.
    level = (num_layers + embedding + head) / num_stages - 1
    counts = [max(1, floor(level - end)) for end in ends]
    if sum(counts) > num_layers:  # one end alone is more than its share
        counts = [1] * num_stages
    queue = [(round(counts[stage] + 1 + ends[stage], 9), -stage) for stage in range(num_stages)]
    heapify(queue)
    for _ in range(num_layers - sum(counts)):
        after, stage = queue[0]
        counts[-stage] += 1
        heapreplace(queue, (after + 1, stage))
    return tuple(counts)


def stage_cuts(
    num_layers: int, pp: int, num_virtual_stages: int, embedding: float, head: float
) -> tuple[tuple[int, ...], ...]:
    """Cuts worth a look: the even one and, where embedding and head tip it, the balanced one. Work in blocks."""
    even = even_stage_layers(num_layers, pp * num_virtual_stages)
    if pp == 1 or num_virtual_stages > 1:
        return (even,)

    def slowest(cut: tuple[int, ...]) -> float:
        return max(max(cut), cut[0] + embedding, cut[-1] + head)

    balanced = balanced_stage_layers(num_layers, pp, embedding, head)
    return (even, balanced) if slowest(balanced) < slowest(even) * (1 - 1e-9) else (even,)
