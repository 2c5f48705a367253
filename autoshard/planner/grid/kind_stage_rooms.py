"""The least that every range of a model's blocks takes as the stage of each rank, for many layouts at once.

The stages of kind_stages.py, as if memory were no more than what kind_room.py counts of each block: with a few products
of matrices where those take dozens of columns, so that it is for bounds, and most of the work of a stage is not done
for layouts that are too slow anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.kind_room import Blocks
from autoshard.planner.grid.kind_stages import Ranges, Stages, padded, seconds_after
from autoshard.planner.grid.whole import Whole
from autoshard.rows import shares

ROUNDING = 1e-9
"""Share of the memory by which what a stage needs may be off for rounding."""


def stages_at_least(
    whole: Whole, drafts: Array, sets: Sequence[Sequence[int]], limit_bytes: float, found: Ranges
) -> Stages:
    """`stages_of` with no more memory and no more seconds of any stage; no set is chosen.

    Why: a rank holds the state and the kept activations of its blocks. While one runs backward, that needs what it
    needs alone, less what blocks behind it have given back.
    """
    blocks, of_sets = Blocks(whole, drafts, limit_bytes), padded(sets)
    state, pp = whole.state_columns.take(drafts), whole.family.pp
    counts, some = found.counts, found.counts.sum(0) > 0

    def chosen(amounts: Array) -> Array:
        """Amounts under the sets that a draft chooses from, (kind, draft, set)."""
        return np.take_along_axis(
            np.broadcast_to(amounts, (len(counts), len(drafts), len(whole.sets))), of_sets[None], 2
        )

    def of_stages(amounts: Array, numbers: Array = counts) -> Array:
        """By (draft, ..., content) from (kind, draft, ...)."""
        return np.tensordot(amounts, numbers, (0, 0))

    launch_s = whole.problem.cluster.device.pass_launch_s
    units = [state.kinds[kind] for kind in whole.problem.blocks.kinds]
    travels = np.zeros((3, len(counts), len(drafts)))  # weights forward, weights backward, gradients
    if state.travels is not False:
        travels = np.array([[unit.travelling[way] for unit in units] for way in (2, 3, 4)])
    opens, kept = np.array(shares(list(counts))), chosen(blocks.kept_bytes)
    waiting, gather_s = chosen(blocks.waiting_bytes), of_stages(travels[0], opens)
    forward_s = launch_s + gather_s + np.maximum(of_stages(blocks.forward_s[..., 0]), of_stages(travels[0]))
    moved_s = of_stages(travels[1] + travels[2] + blocks.sums_s)
    backward_s = np.maximum(of_stages(chosen(blocks.backward_s)), moved_s[:, None])
    backward_s = backward_s + (launch_s + gather_s + of_stages(travels[2], opens))[:, None]
    freed = np.maximum(kept - waiting, 0.0)
    given_back = np.stack([of_stages(freed, behind) for behind in found.behind])  # (kind, draft, set, content)

    def beside(rank: int) -> Array:
        """Bytes beside state and what is kept, (draft, set, content)."""
        needed = chosen(blocks.beside_bytes(rank))[..., None] - given_back
        there = counts > 0
        if rank == pp - 1:  # the head may have given back all
            there = there & ~found.behind.any(1)
        return np.where(there[:, None, None], needed, -np.inf).max(0)

    of_ends = {rank: beside(rank) for rank in {0, min(1, pp - 1), pp - 1}}
    state_bytes, kept_bytes, waiting_bytes = (
        of_stages(amounts) for amounts in (blocks.state_bytes[..., 0], kept, waiting)
    )
    spare = blocks.working_bytes + ROUNDING * min(limit_bytes, whole.problem.cluster.device.memory_bytes)
    least_s = []
    for rank in blocks.ranks():
        room = (rank.room_bytes + spare)[:, None] - state_bytes
        needed = rank.held[0][:, None, None] * kept_bytes + of_ends[rank.rank if rank.rank in of_ends else 1]
        if blocks.apart:
            needed = needed + rank.waiting[:, None, None] * waiting_bytes
        least_s.append(np.where((needed <= room[:, None]) | ~some, backward_s, np.inf).min(1))
    behind_s, ahead_s = np.stack(least_s, axis=1), np.repeat(forward_s[:, None], pp, axis=1)
    weights_s = of_stages(blocks.weight_gradients_s)
    weights_s = np.repeat(weights_s[:, None], pp, axis=1)
    for at, (end_forward_s, end_backward_s), end_weights_s in zip(
        (0, -1), blocks.ends_s, blocks.ends_weights_s, strict=True
    ):
        ahead_s[:, at] += end_forward_s[:, None]
        behind_s[:, at] += end_backward_s[:, None]
        weights_s[:, at] += end_weights_s[:, None]
    after_s = seconds_after(whole, drafts, counts)
    return Stages(ahead_s, behind_s, weights_s, np.zeros(behind_s.shape, dtype=int), after_s)
