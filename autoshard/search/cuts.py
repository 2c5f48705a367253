"""How many blocks each pipeline stage gets."""

from __future__ import annotations

from autoshard.layout.strategy import even_stage_layers


def balanced_stage_layers(
    num_layers: int, num_stages: int, block_s: float, embedding_s: float, head_s: float
) -> tuple[int, ...]:
    """The cut whose slowest stage is fastest, with embedding and head counted as work of the first and last stage.

    Blocks are alike, so a stage of n blocks takes n * block_s plus its end. Stages get one block each, then each
    further block goes to the stage that it makes least slow; equals go to the later stage, which holds fewer
    microbatches. Greedy is exact here: the slowest stage of any other cut holds a block that this one gave to a
    faster stage.
    """
    ends = [0.0] * num_stages
    ends[0] += embedding_s
    ends[-1] += head_s
    counts = [1] * num_stages
    for _ in range(num_layers - num_stages):
        stage = min(range(num_stages), key=lambda s: (round(((counts[s] + 1) * block_s + ends[s]) / block_s, 9), -s))
        counts[stage] += 1
    return tuple(counts)


def stage_cuts(
    num_layers: int, pp: int, num_virtual_stages: int, block_s: float, embedding_s: float, head_s: float
) -> tuple[tuple[int, ...], ...]:
    """Cuts worth a look: the even one and, where embedding and head tip it, the balanced one."""
    even = even_stage_layers(num_layers, pp * num_virtual_stages)
    if pp == 1 or num_virtual_stages > 1:
        return (even,)
    balanced = balanced_stage_layers(num_layers, pp, block_s, embedding_s, head_s)
    slowest = [
        max(n * block_s + (s == 0) * embedding_s + (s == pp - 1) * head_s for s, n in enumerate(cut))
        for cut in (even, balanced)
    ]
    return (even, balanced) if slowest[1] < slowest[0] * (1 - 1e-9) else (even,)
