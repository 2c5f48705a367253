"""Every range of a model's blocks as the stage of each rank of one layout, with its best recompute set.

With one chunk a rank a stage's memory depends on its own blocks and set alone, and no layout is faster for a slower
stage: so a stage takes the fastest set that fits. Ranges with as many blocks of each kind, in all and behind the last
one of each, are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.kind_cuts import blocks_before, kinds_behind
from autoshard.planner.grid.price import last_blocks, layouts_ends, rank_rows
from autoshard.planner.grid.whole import Whole
from autoshard.schedules.held import RankHolds
from autoshard.spec.blocks import Blocks


class Ranges(NamedTuple):
    """Ranges of blocks: from each place, those of 0, 1, ... blocks.

    counts: blocks of each kind, (kind, content), of contents that differ; behind: `kinds_behind` of these, (kind, kind,
    content). content: by (first block, blocks), the place of its content; -1 behind the model's end. end: alike, where
    it ends; behind the model's end one more than there are blocks.
    """

    counts: Array
    behind: Array
    content: Array
    end: Array


def ranges(blocks: Blocks, most: int, in_order: bool) -> Ranges:
    """All ranges of at most `most` blocks. in_order: whether those differ that have as many blocks of each kind, but
    not as many behind the last one of some kind."""
    layers, kinds = len(blocks.kind_of), len(blocks.kinds)
    first, count = np.arange(layers + 1)[:, None], np.arange(most + 1)
    inside = first + count <= layers
    end = np.where(inside, first + count, layers + 1)
    begin, stop = np.broadcast_to(first, end.shape)[inside], end[inside]
    counts = blocks_before(blocks)[:, stop] - blocks_before(blocks)[:, begin]
    behind = np.where(counts[:, None] > 0, kinds_behind(blocks, begin, stop), 0)
    numbers = np.concatenate([counts, behind.reshape(kinds * kinds, -1)]) if in_order else counts
    codes = np.zeros(len(stop), dtype=int)
    for number in numbers:  # one code for all at once may be too large for an integer
        codes = np.unique(codes * (layers + 1) + number, return_inverse=True)[1].ravel()
    _, places, content = np.unique(codes, return_index=True, return_inverse=True)
    table = np.full(inside.shape, -1)
    table[inside] = content.ravel()
    return Ranges(counts[:, places], behind[..., places], table, end)


def upto_s(whole: Whole, drafts: Array, sets: Sequence[Sequence[int]]) -> Array:
    """Seconds of one microbatch, forward and backward, in the blocks in front of each, at least, (blocks + 1, draft);
    ends of the model and launches apart. sets: by draft, places of those that stages choose from."""
    every, state = whole.problem.blocks, whole.state_columns.take(drafts)
    s_per_parameter = accumulation_s_per_parameter(whole.problem.training.precision, whole.problem.cluster.device)
    of_sets = padded(sets)
    blocks = whole.blocks_of(np.repeat(drafts, of_sets.shape[1]), of_sets.ravel())
    least_s = np.stack(
        [
            (block.forward_s + block.backward_s).reshape(of_sets.shape).min(1)
            + s_per_parameter * state.kinds[kind].parameters
            for kind, block in zip(every.kinds, blocks, strict=True)
        ]
    )
    of_blocks = least_s[[every.kinds.index(kind) for kind in every.kind_of]]
    return np.concatenate([np.zeros((1, len(drafts))), of_blocks.cumsum(0)])


def padded(sets: Sequence[Sequence[int]]) -> Array:
    """Sets by draft as an array: where a draft has fewer than another, its last one again."""
    most = max(map(len, sets))
    return np.array([[*some, *[some[-1]] * (most - len(some))] for some in sets])


def longest(upto_s: Array, most: int, limit_s: float) -> int:
    """The most blocks of a stage on which its rank does not work longer than the limit, up to `most`; 1 at least.
    upto_s: work of a whole step on the blocks in front of each, (blocks + 1, layout)."""
    fits = [n for n in range(1, most + 1) if float((upto_s[n:] - upto_s[:-n]).min()) < limit_s]
    return max(fits, default=1)


class Stages(NamedTuple):
    """Stages by (draft, rank, content): seconds forward and backward, infinite where no set fits; of backward, what a
    schedule may put off; which one of the draft's sets it has; the seconds that follow the pipeline on such a rank."""

    forward_s: Array
    backward_s: Array
    weights_s: Array
    chosen: Array
    after_s: Array


def stages_of(whole: Whole, drafts: Array, sets: Sequence[Sequence[int]], limit_bytes: float, found: Ranges) -> Stages:
    """The stages of some drafts with one chunk a rank. sets: by draft, places of those that stages choose from. found:
    ranges of blocks that differ in order, too."""
    problem, family, pp = whole.problem, whole.family, whole.family.pp
    device, counts, contents = problem.cluster.device, found.counts, found.counts.shape[1]
    of_sets = padded(sets)
    shape = (len(drafts), contents, of_sets.shape[1])
    rows, of_each = np.repeat(drafts, contents * shape[2]), len(drafts) * contents * shape[2]
    of_kinds = [np.tile(np.repeat(count, shape[2]), len(drafts)) for count in counts]
    recompute = np.broadcast_to(of_sets[:, None], shape).ravel()
    block, first, last, state, kinds = whole.parts_and_kinds(rows, recompute, of_kinds)
    behind = np.tile(np.repeat(found.behind, shape[2], axis=2), len(drafts))
    lasts = last_blocks(problem.blocks, [[kind] for kind in kinds], np.stack(of_kinds)[:, None], behind)
    blocks, hidden_bytes = sum(of_kinds), whole.hidden_bytes(rows)
    accumulation_s = accumulation_s_per_parameter(problem.training.precision, device)
    passes = stage_passes(blocks, block, state.block, device, accumulation_s)
    ends, holds = layouts_ends(family, first, last, state), family.holds(whole.count[drafts])

    def of_ranks(ranks: range) -> tuple[Array, Array, Array, Array]:
        """The first four of Stages, of ranks with the same ends."""
        numbers = np.array([[np.broadcast_to(number, len(drafts)) for number in holds[rank]] for rank in ranks])
        same = (numbers == numbers[..., :1]).all()
        held = RankHolds(
            *(numbers[..., :1] if same else np.repeat(numbers, of_each // len(drafts), axis=2)).swapaxes(0, 1)
        )
        of_rank = rank_rows(family, held, blocks, ranks[0], block, ends, hidden_bytes)._replace(kinds=lasts)
        needed = rank_memory(of_rank, state, problem.training.precision).total + device.reserved_memory_bytes
        (ahead_s, back_s), weights_s = passes, blocks * block.weight_gradients_s
        for end in of_rank.ends:
            weights_s = weights_s + end.part.weight_gradients_s
            ahead_s = ahead_s + end.part.forward_s
            back_s = back_s + end.part.backward_s + accumulation_s * end.unit.parameters
        back_s = np.where(needed <= limit_bytes, back_s, np.inf).reshape(len(ranks), *shape)
        chosen = back_s.argmin(3)
        ahead_s, weights_s = (
            np.broadcast_to(seconds.reshape(shape)[..., 0], chosen.shape) for seconds in (ahead_s, weights_s)
        )
        return ahead_s, np.take_along_axis(back_s, chosen[..., None], 3)[..., 0], weights_s, chosen

    groups = [ranks for ranks in (range(1), range(1, pp - 1), range(pp - 1, pp)) if len(ranks)]
    columns = [np.concatenate(column).swapaxes(0, 1) for column in zip(*map(of_ranks, groups), strict=True)]
    forward_s, backward_s, weights_s, chosen = columns
    return Stages(forward_s, backward_s, weights_s, chosen, seconds_after(whole, drafts, counts))


def seconds_after(whole: Whole, drafts: Array, counts: Array) -> Array:
    """Seconds that follow the pipeline, (draft, rank, content). counts: of blocks of each kind, (kind, content)."""
    pp = whole.family.pp
    places, of_draft = np.unique(whole.state[drafts], return_inverse=True)
    of_ends = np.array(
        [
            [
                whole.states[place].after_rows_s(list(counts), rank == 0, rank == pp - 1)
                for rank in (0, min(1, pp - 1), pp - 1)
            ]
            for place in places.tolist()
        ]
    )
    of_ranks = [0, *[1] * (pp - 2), 2]
    return of_ends[of_draft][:, of_ranks]
