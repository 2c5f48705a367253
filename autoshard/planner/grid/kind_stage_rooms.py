"""The least that every range of a model's blocks takes as the stage of each rank, for many layouts at once.

The stages of kind_stages.py, as if memory were no more than what kind_room.py counts of each block: with a few products
of matrices where those take dozens of columns, so that it is for bounds, and most of the work of a stage is not done
for layouts that are too slow anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.kind_room import Blocks, RankRoom
from autoshard.planner.grid.kind_stages import Ranges, Stages, padded, seconds_after
from autoshard.planner.grid.whole import Whole
from autoshard.rows import shares

ROUNDING = 1e-9
"""Share of the memory by which what a stage needs may be off for rounding."""
TOO_LARGE = Stages(np.inf, np.inf, 0.0, 0, np.inf)
"""Of a stage that fits nowhere."""


class _Alone(NamedTuple):
    """Bytes beside state and what is kept while the last block of a kind on a stage runs backward, as if blocks behind
    it had given nothing back.

    needed_bytes: (case, kind, draft, set), of the sets that each draft chooses from; in case 0 there is no such block.
    case: (kind, content).
    """

    needed_bytes: Array
    case: Array

    def least_bytes(self) -> Array:
        """The least that is needed at the worst time, (draft, content), whatever is given back of what is kept."""
        of_kinds = zip(self.needed_bytes.min(3).swapaxes(0, 1), self.case, strict=True)
        return np.maximum.reduce([needed[case].T for needed, case in of_kinds])

    def most_bytes(self, contents: Array, given_back: Sequence[Array]) -> Array:
        """Bytes needed at the worst time, (draft, set, content). contents: some. given_back: by kind, then alike."""
        of_kinds = zip(np.moveaxis(self.needed_bytes, 0, 3), self.case[:, contents], given_back, strict=True)
        return np.maximum.reduce([needed[..., case] - given_back for needed, case, given_back in of_kinds])


def _alone(blocks: Blocks, rank: int, found: Ranges, chosen: Callable[[Array], Array]) -> _Alone:
    """The needs of stages on a rank. chosen: amounts under the sets that drafts choose from."""
    places = blocks.places
    case = np.minimum(found.counts, places[-1])
    of_cases = [chosen(blocks.beside_bytes(rank, place)) for place in places]
    if rank == blocks.pp - 1:  # the head is over before blocks give anything back
        of_cases += [chosen(blocks.beside_bytes(rank, place, at_ends=False)) for place in places]
        case = case + len(places) * (found.behind.sum(1) > 0)
    nothing = np.full_like(of_cases[0], -np.inf)
    return _Alone(np.stack([nothing, *of_cases]), np.where(found.counts > 0, case, 0))


def stages_at_least(
    whole: Whole, drafts: Array, sets: Sequence[Sequence[int]], limit_bytes: float, found: Ranges
) -> Stages:
    """`stages_of` with no more memory and no more seconds of any stage; no set is chosen.

    Why: a rank holds the state and the kept activations of its blocks. While one runs backward, that needs what it
    needs alone, less what blocks behind it have given back, which is no more than they keep.
    """
    blocks, of_sets, all_counts = Blocks(whole, drafts, limit_bytes), padded(sets), found.counts
    state, pp = whole.state_columns.take(drafts), whole.family.pp

    def chosen(amounts: Array) -> Array:
        """Amounts under the sets that a draft chooses from, (kind, draft, set)."""
        return np.take_along_axis(
            np.broadcast_to(amounts, (len(all_counts), len(drafts), len(whole.sets))), of_sets[None], 2
        )

    def of_stages(amounts: Array, numbers: Array) -> Array:
        """By (draft, ..., content) from (kind, draft, ...)."""
        return np.tensordot(amounts, numbers, (0, 0))

    spare = blocks.working_bytes + ROUNDING * min(limit_bytes, whole.problem.cluster.device.memory_bytes)
    ranks = [rank._replace(room_bytes=rank.room_bytes + spare) for rank in blocks.ranks()]
    alone = {rank: _alone(blocks, rank, found, chosen) for rank in {*map(blocks.alike, range(pp))}}
    contents = _that_may_fit(blocks, ranks, alone, of_stages(blocks.state_bytes[..., 0], all_counts))
    counts, behind = all_counts[:, contents], found.behind[..., contents]

    launch_s = whole.problem.cluster.device.pass_launch_s
    units = [state.kinds[kind] for kind in whole.problem.blocks.kinds]
    travels = np.zeros((3, len(counts), len(drafts)))  # weights forward, weights backward, gradients
    if state.travels is not False:
        travels = np.array([[unit.travelling[way] for unit in units] for way in (2, 3, 4)])
    # where there are no blocks, nothing is gathered
    opens, kept = np.array(shares(list(counts))) * (counts.sum(0) > 0), chosen(blocks.kept_bytes)
    waiting, gather_s = chosen(blocks.waiting_bytes), of_stages(travels[0], opens)
    work_s = of_stages(blocks.forward_s[..., 0], counts)
    forward_s = launch_s + gather_s + np.maximum(work_s, of_stages(travels[0], counts))
    moved_s = of_stages(travels[1] + travels[2] + blocks.sums_s, counts)
    backward_s = np.maximum(of_stages(chosen(blocks.backward_s), counts), moved_s[:, None])
    backward_s = backward_s + (launch_s + gather_s + of_stages(travels[2], opens))[:, None]
    given_back = [of_stages(np.maximum(kept - waiting, 0.0), of_kind) for of_kind in behind]
    of_ends = {rank: needs.most_bytes(contents, given_back) for rank, needs in alone.items()}
    state_bytes, kept_bytes, waiting_bytes = (
        of_stages(amounts, counts) for amounts in (blocks.state_bytes[..., 0], kept, waiting)
    )
    least_s = []
    for rank in ranks:
        room = rank.room_bytes[:, None] - state_bytes
        needed = rank.held[0][:, None, None] * kept_bytes + of_ends[blocks.alike(rank.rank)]
        if blocks.apart:
            needed = needed + rank.waiting[:, None, None] * waiting_bytes
        least_s.append(np.where(needed <= room[:, None], backward_s, np.inf).min(1))
    behind_s, ahead_s = np.stack(least_s, axis=1), np.repeat(forward_s[:, None], pp, axis=1)
    weights_s = of_stages(blocks.weight_gradients_s, counts)
    weights_s = np.repeat(weights_s[:, None], pp, axis=1)
    for at, (end_forward_s, end_backward_s), end_weights_s in zip(
        (0, -1), blocks.ends_s, blocks.ends_weights_s, strict=True
    ):
        ahead_s[:, at] += end_forward_s[:, None]
        behind_s[:, at] += end_backward_s[:, None]
        weights_s[:, at] += end_weights_s[:, None]
    some = Stages(
        ahead_s, behind_s, weights_s, np.zeros(behind_s.shape, dtype=int), seconds_after(whole, drafts, counts)
    )
    every = Stages(*(np.full((*some.chosen.shape[:2], all_counts.shape[1]), of_none) for of_none in TOO_LARGE))
    for column, of_some in zip(every, some, strict=True):
        column[..., contents] = of_some
    return every


def _that_may_fit(blocks: Blocks, ranks: Sequence[RankRoom], alone: Mapping[int, _Alone], state_bytes: Array) -> Array:
    """Places of the contents that may fit on some rank of some draft. state_bytes: (draft, content)."""
    most_room = {place: np.full(len(state_bytes), -np.inf) for place in alone}
    for rank in ranks:
        place = blocks.alike(rank.rank)
        most_room[place] = np.maximum(most_room[place], rank.room_bytes)
    fits = [alone[place].least_bytes() + state_bytes <= room[:, None] for place, room in most_room.items()]
    return np.flatnonzero(np.any(fits, axis=(0, 1)))
