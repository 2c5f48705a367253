"""Bounds from the memory of ranks, where blocks are of several kinds: of all cuts and sets, for many layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import BUCKET_BYTES, boundary_buffers, living_bytes, rank_memory
from autoshard.cost.rank import LastBlock, next_to
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.travelling_bytes import FEW_BLOCKS
from autoshard.cost.zero_sharding import State, Unit
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_any_cut_at_least_s
from autoshard.planner.grid.interleaved_bounds import warm_up_visits
from autoshard.planner.grid.kind_cuts import most_behind
from autoshard.planner.grid.price import layouts_ends, rank_rows
from autoshard.planner.grid.unit_costs import PartColumns
from autoshard.planner.grid.whole import Whole
from autoshard.rows import anywhere

PRICES = np.array(
    [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        *((a, 0, 1 - a) for a in (0.3, 0.6, 0.8)),
        *((0, a, 1 - a) for a in (0.3, 0.6, 0.8)),
    ]
)
"""Prices that are tried: of a rank's time, of its time beside one microbatch's way, of its memory."""
HALVINGS = 12
"""Passes that look for the price of memory at which ranks hold as many blocks as there are."""
DEAREST = 64.0
"""A block costs at most so many times what the slowest set replays."""
MOST_BYTES = 1e15
"""More memory than a rank has."""
SMALLEST = 1e-30
"""Less than anything costs."""
ROUNDING = 1e-9
"""Share of a block by which a number of them may be off for rounding."""


class RankRoom(NamedTuple):
    """The room of one rank for blocks, by draft. rank: its number. held: microbatches that it holds of each chunk,
    (chunk, draft). waiting: microbatches whose weight gradients wait. room_bytes: memory beside what is there always.
    """

    rank: int
    held: Array
    waiting: Array
    room_bytes: Array


class Blocks:
    """The needs of blocks in some drafts, (kind, draft, set) each, and what the ranks have for them. drafts: places.
    handed_bytes: of state_bytes those of gradients that one backward hands over, (kind, draft). sums_s: of backward_s
    those that add gradients up, (kind, draft). weight_gradients_s: what may be put off of it, (kind, draft).
    places: of a block in its chunk that change what it needs, which only those do of what travels."""

    def __init__(self, whole: Whole, drafts: Array, limit_bytes: float):
        self.whole, self.drafts, self._limit_bytes = whole, drafts, limit_bytes
        problem, sets = whole.problem, len(whole.sets)
        self.pp, self.vpp, self.m = whole.family.pp, whole.family.num_virtual_stages, whole.count[drafts]
        self.apart, self.counts = whole.family.rules.weights_apart, np.array(whole.kind_counts)
        self._per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
        state = whole.state_columns.take(drafts)
        self.places = range(1, FEW_BLOCKS + 1 if anywhere(state.travels) else 2)
        self._ends_bytes = self._lives(state.first), self._lives(state.last)
        blocks = whole.blocks_of(np.repeat(drafts, sets), np.tile(np.arange(sets), len(drafts)))
        units = [state.kinds[kind] for kind in problem.blocks.kinds]

        def column(name: str) -> Array:
            return np.stack([getattr(block, name).reshape(-1, sets) for block in blocks])

        self.sums_s = self._per_parameter * np.stack([unit.parameters for unit in units])
        self.forward_s, self.backward_s = column("forward_s"), column("backward_s") + self.sums_s[..., None]
        self.weight_gradients_s = column("weight_gradients_s")[..., 0]
        # a backward hands over the gradients of one chunk: of the largest one, which has its share of the blocks
        self.handed_bytes = np.stack([(self._lives(unit) - self._lives(unit, 0.0)) / self.vpp for unit in units])
        self.state_bytes = np.stack([self._lives(unit, 1 / self.vpp) for unit in units])[..., None]
        self.kept_bytes, self.working_bytes = column("kept_bytes"), column("working_bytes").min((0, 2))
        self.waiting_bytes = column("weights_waiting_bytes") if self.apart else np.zeros_like(self.kept_bytes)

    def _lives(self, unit: Unit, handed_over: float = 1.0) -> Array:
        """Bytes that are there all the time. handed_over: the share of gradients that one backward hands over."""
        held = living_bytes(1, handed_over * unit.handed_over, unit, (), self.whole.problem.training.precision)
        return np.asarray(held.parameters + held.gradients + held.optimizer_state)

    @cached_property
    def _ends(self) -> tuple[PartColumns, PartColumns]:
        _, first, last, _ = self.whole.least_parts_of(self.drafts)
        return first, last

    @property
    def ends_weights_s(self) -> list[Array]:
        """Seconds of backward in the ends of the model that may be put off, by draft."""
        return [end.weight_gradients_s for end in self._ends]

    @cached_property
    def ends_s(self) -> list[Array]:
        """Seconds of the ends of the model, (forward and backward, draft) each."""
        first, last = self._ends
        state = self.whole.state_columns.take(self.drafts)
        return [
            np.stack([part.forward_s, part.backward_s + self._per_parameter * unit.parameters])
            for part, unit in ((first, state.first), (last, state.last))
        ]

    def least_work_s(self) -> Array:
        """Seconds of the fastest block for one microbatch, by draft."""
        found: Array = (self.forward_s + self.backward_s).min((0, 2))
        return found

    def given_back_bytes(self, rank: int) -> Array:
        """The most that blocks behind the last one of a kind have given back when that runs backward, (kind, draft,
        set); nothing with several chunks a rank. Where the head is in front of them, it has given back all."""
        if self.vpp > 1:
            return np.zeros_like(self.kept_bytes)
        behind = most_behind(self.whole.problem.blocks)
        found: Array = np.tensordot(behind, np.maximum(self.kept_bytes - self.waiting_bytes, 0.0), 1)
        if rank == self.pp - 1:
            found[behind.any(1)] = MOST_BYTES
        return found

    def alike(self, rank: int) -> int:
        """The first rank on which blocks need as much beside their state and what they keep: it has the same ends of
        the model."""
        return rank if rank in (0, self.pp - 1) else 1

    def beside_bytes(self, rank: int, place: int = 1, at_ends: bool = True) -> Array:
        """Bytes that a rank with blocks needs beside their state and what they keep, at least, (kind, draft, set) of a
        block that it has. place: of that block among those of its kind on its chunk; behind the last of `places` all
        are alike. at_ends: whether an end of the model counts, which may need more than the block.

        Why: with much kept, what travels hides best behind what backward has freed, and in front least travels.
        """
        whole, (rows, blocks, first, last, state) = self.whole, self._alone
        much = min(self._limit_bytes, MOST_BYTES) + 2 * BUCKET_BYTES
        ends, hidden_bytes = layouts_ends(whole.family, first, last, state), whole.hidden_bytes(rows)
        holds = whole.family.holds(whole.count[rows])[rank]._replace(in_flight=1, waiting=0, at_first=1)
        many, places = np.full(len(rows), much), np.full(len(rows), place)
        of_one_chunk = self.vpp == 1  # of several the head's may have no such block
        found = []
        for kind, block in zip(whole.problem.blocks.kinds, blocks, strict=True):
            if kind or not of_one_chunk:  # what the first block runs again more than others, no other one does
                ends = tuple(end._replace(part=end.part.without_replay()) for end in ends)
            of_rank = rank_rows(whole.family, holds, places, rank, block, ends if at_ends else (), hidden_bytes)
            beside = next_to(kind, (kind,), whole.problem.blocks)
            kinds = ((LastBlock(block, opens=of_one_chunk, next_to=beside),),)
            of_rank = of_rank._replace(block=block._replace(kept_bytes=many), kinds=kinds)
            memory = rank_memory(of_rank, state.of([(kind, 1)]), whole.problem.training.precision)
            found.append(memory.ends + memory.replay + memory.working)
        return np.stack(found).reshape(len(found), len(self.drafts), -1)

    @cached_property
    def _alone(self) -> tuple[Array, list[PartColumns], PartColumns, PartColumns, State]:
        """(drafts, a block of each kind, the ends, the state), a row for each draft under each set."""
        sets = len(self.whole.sets)
        rows = np.repeat(self.drafts, sets)
        _, first, last, state, blocks = self.whole.parts_and_kinds(rows, np.tile(np.arange(sets), len(self.drafts)))
        return rows, blocks, first, last, state

    def ranks(self) -> Iterator[RankRoom]:
        """The ranks in order."""
        family, drafts, free = self.whole.family, len(self.drafts), self._limit_bytes - self.working_bytes
        free = free - self.whole.problem.cluster.device.reserved_memory_bytes
        hidden_bytes = self.whole.hidden_bytes(self.drafts)
        one_graph = self.whole.problem.cluster.hands_over == "stages"
        for rank, holds in enumerate(family.holds(self.m)):
            if self.vpp > 1:
                held = np.broadcast_to(warm_up_visits(family, rank)[:, None], (self.vpp, drafts))
            else:
                held = np.broadcast_to(holds.in_flight, (1, drafts))
            between = boundary_buffers(*holds[:3], holds.more, holds.passing, False, one_graph)
            room = free - between * hidden_bytes
            for bytes_of, has in zip(self._ends_bytes, (rank == 0, rank == self.pp - 1), strict=True):
                room = room - has * bytes_of
            yield RankRoom(rank, held, (holds.together - holds.in_flight) * np.ones(drafts), room)


def may_hold_all(whole: Whole, drafts: Array, limit_bytes: float, limit_s: float) -> Array:
    """Whether some cut and some sets may fit and take less than limit_s, by draft. drafts: places of some.

    Why: with any prices of its time and of its memory, the blocks of a rank cost no more than it has, and each block no
    less than on the chunk, with the kind and the set, where it costs least. So no rank has more blocks than it can pay;
    all ranks together must have all blocks, and all of each kind. Nor has a rank more of any weight of blocks, such as
    their work, than of the kind with most for its cost; all ranks together must have that of all blocks. A rank's time
    is that of all its microbatches; what one microbatch takes through all stages and back, and the rank's work on all
    but those of its warm-up, come one after the other. Where weight gradients are put off, that microbatch counts on
    its way up, and all of backward.
    """
    if whole.family.rules.warm_up is None:
        return np.ones(len(drafts), dtype=bool)
    blocks = Blocks(whole, drafts, limit_bytes)
    return _may_hold_all(blocks, _rooms(blocks, limit_s), limit_s)


def held_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, limit_s: float) -> Array:
    """Seconds in which some cut and some sets may fit, by `may_hold_all`, at least, by draft, as far as they are below
    limit_s."""
    low, high = np.zeros(len(drafts)), np.full(len(drafts), limit_s)
    if whole.family.rules.warm_up is None:
        return low
    blocks = Blocks(whole, drafts, limit_bytes)
    rooms = _rooms(blocks, limit_s)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        may = _may_hold_all(blocks, rooms, middle)
        low, high = np.where(may, low, middle), np.where(may, middle, high)
    return low


class _Room(NamedTuple):
    """The room of a rank for blocks that it has one of at least. room_bytes: beside what is there always and what the
    cheapest block needs beside what it takes, by draft. shared_bytes: of what a block needs more than that, its part,
    (kind, draft, set)."""

    rank: RankRoom
    room_bytes: Array
    shared_bytes: Array


def _rooms(blocks: Blocks, limit_s: float) -> list[_Room]:
    """The room of each rank in steps of less than limit_s.

    Why: what a rank needs beside what its blocks take is that of the block that needs most, less what blocks behind
    that one have given back: the mean is no more, and a rank has no more blocks than it has time for.
    """
    most = np.minimum(blocks.counts.sum(), limit_s / (blocks.m * blocks.least_work_s()))
    of_ends = {rank: blocks.beside_bytes(rank) for rank in {*map(blocks.alike, range(blocks.pp))}}
    found = []
    for rank in blocks.ranks():
        beside = of_ends[blocks.alike(rank.rank)]
        least = beside.min((0, 2))
        more = np.maximum(beside - blocks.given_back_bytes(rank.rank) - least[:, None], 0.0)
        found.append(_Room(rank, rank.room_bytes + blocks.working_bytes - least, more / most[:, None]))
    return found


def _may_hold_all(blocks: Blocks, rooms: Sequence[_Room], limit_s: float | Array) -> Array:
    """`may_hold_all` of some blocks. rooms: of the ranks. limit_s: of each draft, or of all."""
    may, of_all = np.ones(len(blocks.drafts), dtype=bool), np.zeros(len(blocks.drafts))
    of_kinds = np.zeros((len(blocks.counts), len(blocks.drafts)))
    times_s = _times_s(blocks, limit_s)
    theres = [_resources(blocks, room, *times_s) for room in rooms]
    of_ranks = [_costs(blocks, room, there) for room, there in zip(rooms, theres, strict=True)]
    # what blocks cost on a rank is a good weight too: most ranks are like the middle one
    of_middle = of_ranks[blocks.pp // 2].min(0)
    work_s = blocks.forward_s.min(2) + blocks.backward_s.min(2)
    weights = np.concatenate([work_s[None], of_middle])[:, None]  # (weight, 1, kind, draft)
    of_weights = np.zeros((len(weights), len(blocks.drafts)))
    for room, there, costs in zip(rooms, theres, of_ranks, strict=True):
        of_kinds += np.floor((1 / costs.min(0)).min(0) + ROUNDING)
        of_weights += (weights / costs.min(0)).max(2).min(1)
        of_any = costs.min(2)  # (chunk, price, draft)
        pinned = np.ones(blocks.vpp)
        if blocks.whole.bare_ends:
            pinned[0] -= room.rank.rank == 0
            pinned[-1] -= room.rank.rank == blocks.pp - 1
        spare = 1 - np.tensordot(pinned, of_any, 1)
        # a rank that must have no block may have room for none, and nothing that a block works with
        bare_bytes = room.rank.room_bytes + blocks.working_bytes
        may &= (there[:-1] > 0).all(0) & ((there[-1] if pinned.any() else bare_bytes) > 0)
        may &= (spare >= -ROUNDING).all(0)
        of_all += np.floor(pinned.sum() + (np.maximum(spare, 0.0) / of_any.min(0)).min(0) + ROUNDING)
    all_weights = np.einsum("wokd,k->wd", weights, blocks.counts)
    may &= (of_all >= blocks.counts.sum()) & (of_kinds >= blocks.counts[:, None]).all(0)
    enough: Array = may & (of_weights >= all_weights * (1 - ROUNDING)).all(0)
    return enough


def _times_s(blocks: Blocks, limit_s: float | Array) -> tuple[Array, Array]:
    """(seconds of the pipeline, those that one microbatch takes through all stages and back at least), by draft."""
    whole, drafts, launch_s = blocks.whole, blocks.drafts, blocks.whole.problem.cluster.device.pass_launch_s
    stages = blocks.pp * blocks.vpp
    up_s, down_s = (
        blocks.counts @ seconds.min(2) + sum(end[way] for end in blocks.ends_s) + stages * launch_s
        for way, seconds in enumerate((blocks.forward_s, blocks.backward_s))
    )
    hops_s = (stages - 1) * whole.hop_s[drafts]
    after_s = after_any_cut_at_least_s(whole.kind_counts, whole.states, whole.state[drafts])
    return limit_s - after_s, up_s + hops_s if blocks.apart else up_s + down_s + 2 * hops_s


def _passes(blocks: Blocks, rank: RankRoom) -> tuple[Array, Array]:
    """Forwards and backwards of each chunk behind the warm-up, (chunk, draft) each."""
    ahead = np.maximum(blocks.m - rank.held, 0)
    return ahead, np.broadcast_to(blocks.m, ahead.shape) if blocks.apart else ahead


def _resources(blocks: Blocks, room: _Room, time_s: Array, way_s: Array) -> Array:
    """The resources of a rank for its blocks, (resource, draft): time, time beside one microbatch's way, memory.
    time_s, way_s: as of `_times_s`."""
    rank, launch_s = room.rank, blocks.whole.problem.cluster.device.pass_launch_s
    ahead, back = _passes(blocks, rank)
    own_s = time_s - 2 * blocks.m * blocks.vpp * launch_s
    beside_s = time_s - way_s - (ahead + back).sum(0) * launch_s
    for end, chunk, has in zip(blocks.ends_s, (0, -1), (rank.rank == 0, rank.rank == blocks.pp - 1), strict=True):
        own_s = own_s - has * blocks.m * end.sum(0)
        beside_s = beside_s - has * (ahead[chunk] * end[0] + back[chunk] * end[1])
    return np.stack([own_s, beside_s, room.room_bytes])


def _costs(blocks: Blocks, room: _Room, there: Array) -> Array:
    """Shares of what a rank has that a block of each kind costs at least, (chunk, price, kind, draft)."""
    shares = PRICES[:, :, None] / np.maximum(there, SMALLEST)  # (price, resource, draft)
    costs = [
        (
            _by(shares[:, 0] * blocks.m + shares[:, 1] * forwards, blocks.forward_s)
            + _by(shares[:, 0] * blocks.m + shares[:, 1] * backwards, blocks.backward_s)
            + _by(shares[:, 2], _taken_bytes(blocks, room, held))
        ).min(3)
        for forwards, backwards, held in zip(*_passes(blocks, room.rank), room.rank.held, strict=True)
    ]
    return np.maximum(np.stack(costs), SMALLEST)  # a rank may have all microbatches in its warm-up


def _by(prices: Array, amounts: Array) -> Array:
    """Costs by (price, kind, draft, set). prices: (price, draft). amounts: (kind, draft, set)."""
    costs: Array = prices[:, None, :, None] * amounts
    return costs


def _taken_bytes(blocks: Blocks, room: _Room, held: Array) -> Array:
    """Bytes that a block takes on a rank, its part of what that needs beside among them, (kind, draft, set). held:
    microbatches of its chunk, by draft."""
    held_bytes = held[:, None] * blocks.kept_bytes + room.rank.waiting[:, None] * blocks.waiting_bytes
    taken: Array = blocks.state_bytes + held_bytes + room.shared_bytes
    return taken


def replayed_at_least_s(whole: Whole, drafts: Array, limit_bytes: float, limit_s: float) -> Array:
    """Seconds that all blocks together replay for one microbatch, at least, by draft, whichever cut and sets fit and
    take less than limit_s.

    Why: with any price of each rank's memory, a block costs what it replays and the price of what it takes, no less
    than on the rank, with the set, where that is least. All blocks' costs, less the price of all room, are below the
    seconds of every choice that fits (Lagrange's relaxation). What a rank needs beside is shared, see `_rooms`. Each
    stage but a bare end has a block, which costs what it costs there: of any kind, so much more than on the stage where
    that kind costs least. The prices are such that a mean block costs as much on each rank, and what it costs is such
    that the ranks have room for as many mean blocks as there are.
    """
    if whole.family.rules.warm_up is None:
        return np.zeros(len(drafts))
    blocks = Blocks(whole, drafts, limit_bytes)
    more_s = blocks.backward_s - blocks.backward_s.min(2, keepdims=True)
    rooms = _rooms(blocks, limit_s)
    taken = [_taken_bytes(blocks, room, room.rank.held.mean(0)) for room in rooms]
    of_chunks = [[_taken_bytes(blocks, room, held) for held in room.rank.held] for room in rooms]
    held_bytes = [np.clip(room.room_bytes, 0.0, MOST_BYTES) for room in rooms]
    room_bytes, taken_bytes = np.stack(held_bytes), np.stack(taken)  # (rank, draft), (rank, kind, draft, set)
    share = blocks.counts / blocks.counts.sum()
    mean_s, mean_bytes = np.tensordot(share, more_s, 1), np.tensordot(share, taken_bytes, (0, 1))

    def prices(cost_s: Array) -> Array:
        """By (rank, draft, set): the price of memory at which a mean block costs so much."""
        found: Array = (cost_s[:, None] - mean_s) / mean_bytes
        return found

    low = np.zeros(len(drafts))
    high = DEAREST * mean_s.max(1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        best = prices(middle).argmax(2)[..., None]
        held = (room_bytes / np.take_along_axis(mean_bytes, best, 2)[..., 0]).sum(0)
        enough = held >= blocks.counts.sum()
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    at_least_s = np.zeros(len(drafts))
    for cost_s in (low, high):
        price = np.maximum(prices(cost_s).max(2), 0.0)  # (rank, draft)
        costs_s = np.stack(  # (stage, kind, draft)
            [
                (more_s + of_rank[:, None] * taken).min(2)
                for of_rank, of_chunk in zip(price, of_chunks, strict=True)
                for taken in of_chunk
            ]
        )
        least_s = costs_s.min(0)
        above_s = (costs_s - least_s).min(1)
        if whole.bare_ends:
            above_s[0] = above_s[-1] = 0.0
        spent_s = blocks.counts @ least_s + above_s.sum(0)
        at_least_s = np.maximum(at_least_s, spent_s - (price * room_bytes).sum(0))
    return at_least_s
