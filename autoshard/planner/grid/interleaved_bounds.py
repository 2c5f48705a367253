"""What layouts with several chunks a rank take at least, whatever each virtual stage recomputes: many drafts of one
family at once.

As if chunks could recompute in part: a price of memory then chooses for each, and every price gives a bound. The best
one is found as on a convex curve: it lies between one with which too much is kept and one with which memory is left,
and where their lines meet is the next one to try.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import BUCKET_BYTES, rank_memory
from autoshard.cost.passes import stage_passes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.price import Family, layouts_ends, rank_rows
from autoshard.planner.grid.table import Whole
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.schedules.closed_form import chunk_visits

PRICES = 8
"""Of memory, tried one after the other: with more, bounds hardly rise."""


class Least(NamedTuple):
    """Backward seconds of one rank at least, infinite where nothing fits: of all its chunks, of its first and of its
    last one, and of all microbatches but those of the warm-up."""

    own_s: Array
    first_s: Array
    last_s: Array
    later_s: Array


def warm_up_visits(family: Family, rank: int) -> Array:
    """Forwards through each chunk before the first backward: what is in flight when the warm-up ends."""
    return np.array(chunk_visits(family.warm_ups[rank], family.pp, family.num_virtual_stages), dtype=float)


def steps_at_least_s(family: Family, forward_s: Array, m: Array, hop_s: Array, least: Sequence[Least]) -> Array:
    """The formula of schedules.closed_form.alternating_at_least_s with the least of every rank. forward_s: (virtual
    stage, draft), or of one draft."""
    pp, vpp = family.pp, family.num_virtual_stages
    all_forward_s, all_back_s = forward_s.sum(0), sum(one.own_s for one in least)
    longest: Array = 0.0
    fill_s = drain_s = 0.0
    for rank, one in enumerate(least):
        own_s, way_s = m * forward_s[rank::pp].sum(0), hop_s * (len(forward_s) + pp - 2 - rank)
        warm_s = warm_up_visits(family, rank) @ forward_s[rank::pp]
        behind_forward_s = forward_s[len(forward_s) - pp + rank + 1 :].sum(0)
        behind_back_s = sum(other.last_s for other in least[rank + 1 :])
        until_s = np.maximum(all_forward_s + behind_back_s + way_s, fill_s + warm_s)
        around_s = all_back_s + behind_forward_s + way_s
        total_s = np.where(
            family.warm_ups[rank] < m * vpp,
            until_s + own_s - warm_s + np.maximum(one.later_s + around_s, m * one.own_s + drain_s),
            np.maximum(until_s + drain_s + m * one.own_s, fill_s + warm_s + around_s),
        )
        longest = np.maximum(longest, total_s)
        fill_s, drain_s = fill_s + forward_s[rank] + hop_s, drain_s + one.first_s + hop_s
    return longest


class MixedLeast:
    """Of drafts of one interleaved family, with every set that its virtual stages may choose from."""

    def __init__(self, whole: Whole, draft: Array, limit_bytes: float):
        self._whole, self._draft, self._limit_bytes = whole, draft, limit_bytes
        family, problem = whole.family, whole.problem
        self._pp, self._vpp, self._m = family.pp, family.num_virtual_stages, whole.count[draft]
        self._layers = problem.model.num_hidden_layers // (self._pp * self._vpp)
        own, sets = self._vpp * self._layers, len(whole.sets)
        states = [whole.states[one] for one in whole.state[draft].tolist()]
        self._after_s = np.array([one.after_s(own, own if self._pp > 2 else 0, own) for one in states])
        self._rows = np.repeat(draft, sets)
        self._block, self._first, self._last, self._state = whole.parts_of(
            self._rows, np.tile(np.arange(sets), len(draft))
        )
        self._per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        self._chunk_s, back_s = stage_passes(
            self._layers, self._block, self._state.block, problem.cluster.device, self._per_parameter
        )
        self._back_s = self._by_set(back_s)
        self._kept_bytes = self._by_set(self._layers * self._block.kept_bytes)

    def _by_set(self, column: Array) -> Array:
        """(draft, set)."""
        return column.reshape(len(self._draft), -1)

    @cached_property
    def _forward_s(self) -> Array:
        """(virtual stage, draft)."""
        block, first, last = (
            self._by_set(column)[:, 0] for column in (self._chunk_s, self._first.forward_s, self._last.forward_s)
        )
        seconds = np.repeat(block[None], self._pp * self._vpp, axis=0)
        seconds[0] += first
        seconds[-1] += last
        return seconds

    @cached_property
    def of_ranks(self) -> list[Least]:
        first_s, last_s = (
            self._by_set(part.backward_s + self._per_parameter * unit.parameters)
            for part, unit in ((self._first, self._state.first), (self._last, self._state.last))
        )
        found = []
        for rank in range(self._pp):
            visits, room = warm_up_visits(self._whole.family, rank), self._room_bytes(rank)
            later = self._m[:, None] - visits
            ends_s = np.zeros((len(self._draft), self._vpp))
            ends_s[:, 0] += first_s.min(1) if rank == 0 else 0.0
            ends_s[:, -1] += last_s[:, 0] if rank == self._pp - 1 else 0.0
            own_s, later_s = (self._relaxed_s(weights, visits, room) for weights in (np.ones_like(later), later))
            chunk_s = self._back_s.min(1)
            found.append(
                Least(
                    own_s + ends_s.sum(1),
                    chunk_s + ends_s[:, 0],
                    chunk_s + ends_s[:, -1],
                    later_s + (ends_s * later).sum(1),
                )
            )
        return found

    def _room_bytes(self, rank: int) -> Array:
        """For what blocks keep of all microbatches in flight, at most; of much that is kept the rest does not
        depend."""
        whole, problem = self._whole, self._whole.problem
        much = self._limit_bytes + 2 * BUCKET_BYTES
        holds = whole.family.holds(whole.count[self._rows])[rank]
        blocks, sets = np.full(len(self._rows), self._layers), len(whole.sets)
        first = PartColumns(*(np.repeat(self._by_set(column).min(1), sets) for column in self._first))
        last = PartColumns(*(np.repeat(self._by_set(column)[:, 0], sets) for column in self._last))
        ends, hidden_bytes = layouts_ends(whole.family, first, last, self._state), whole.hidden_bytes(self._rows)
        of_rank = rank_rows(whole.family, holds, blocks, rank, self._block, ends, hidden_bytes)
        block = self._block._replace(kept_bytes=much / (of_rank.in_flight * self._layers))
        needed = rank_memory(of_rank._replace(kinds=(block,)), self._state, problem.training.precision).total
        free: Array = self._limit_bytes + much - problem.cluster.device.reserved_memory_bytes
        return free - self._by_set(needed).min(1)

    def _relaxed_s(self, weights: Array, visits: Array, room: Array) -> Array:
        """Weighted backward seconds of a rank's chunks, at least. weights: (draft, chunk)."""
        back_s, kept_bytes, every = self._back_s, self._kept_bytes, np.arange(len(room))[:, None]

        def chosen(price: Array) -> tuple[Array, Array]:
            """(seconds, bytes) that it makes the chunks take and keep."""
            costs = weights[..., None] * back_s[:, None] + (price[:, None] * visits)[..., None] * kept_bytes[:, None]
            sets = costs.argmin(2)
            return (weights * back_s[every, sets]).sum(1), kept_bytes[every, sets] @ visits

        over_s, over_bytes = chosen(np.zeros(len(room)))
        smallest = kept_bytes.argmin(1)
        under_s, under_bytes = back_s[every[:, 0], smallest] * weights.sum(1), kept_bytes.min(1) * visits.sum()
        at_least_s = np.where(over_bytes <= room, over_s, 0.0)
        for _ in range(PRICES):
            saved = over_bytes - under_bytes
            price = np.divide(under_s - over_s, saved, out=np.zeros_like(saved), where=saved > 0)
            seconds, kept = chosen(np.maximum(price, 0.0))
            np.maximum(at_least_s, seconds + np.maximum(price, 0.0) * (kept - room), out=at_least_s)
            over = kept > room
            over_s, over_bytes = np.where(over, seconds, over_s), np.where(over, kept, over_bytes)
            under_s, under_bytes = np.where(over, under_s, seconds), np.where(over, under_bytes, kept)
        return np.where(kept_bytes.min(1) * visits.sum() > room, np.inf, at_least_s)

    def steps_s(self) -> Array:
        """No sets by stage that fit take less."""
        hop_s = self._whole.hop_s[self._draft]
        return steps_at_least_s(self._whole.family, self._forward_s, self._m, hop_s, self.of_ranks) + self._after_s

    def work_s(self) -> Array:
        """The same by sums of forward and backward alone: each rank works on every microbatch; before its first and
        after its last one the ranks in front of it do."""
        longest: Array = np.zeros(len(self._draft))
        before_s = np.zeros(len(self._draft))
        for rank, one in enumerate(self.of_ranks):
            own_s = self._forward_s[rank :: self._pp].sum(0) + one.own_s
            longest = np.maximum(longest, before_s + self._m * own_s)
            before_s = before_s + self._forward_s[rank] + one.first_s
        return longest + self._after_s
