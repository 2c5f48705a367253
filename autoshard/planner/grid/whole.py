"""Layouts of one family in columns: the parts of any draft under any recompute set, and prices under any cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.backends.rules import Draft, Problem, blocks_move, ends_may_be_bare
from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.passes import block_passes, unit_work_s
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import State
from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import fewest_blocks
from autoshard.planner.grid.cuts import Cuts, balanced_cuts, even_cuts
from autoshard.planner.grid.kind_cuts import KindCuts, candidate_cuts
from autoshard.planner.grid.price import Family, Layouts, memory_bytes, step_times_s, waiting
from autoshard.planner.grid.ranks import RankState
from autoshard.planner.grid.unit_costs import PartColumns, StageColumns, mean_columns
from autoshard.rows import different

PartsAndKinds = tuple[PartColumns, PartColumns, PartColumns, State, list[PartColumns]]
"""A block, the ends on the first and on the last rank, the state; a block of each kind."""


@dataclass
class Drafts:
    """The drafts of one family. shapes, states, num_microbatches: an entry for each: the places of its local shape and
    of its mesh in the tables, and its microbatches a step."""

    drafts: list[Draft] = field(default_factory=list)
    shapes: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    num_microbatches: list[int] = field(default_factory=list)

    def take(self, rows: Sequence[int]) -> Drafts:
        """These alone, in their order."""
        return Drafts(
            [self.drafts[row] for row in rows],
            *([column[row] for row in rows] for column in (self.shapes, self.states, self.num_microbatches)),
        )


@dataclass(frozen=True)
class Priced:
    """Whole layouts of one family, an entry each. draft, recompute: places in `drafts` and `sets`."""

    whole: Whole
    draft: Array
    recompute: Array
    cuts: Cuts | KindCuts
    step_time_s: Array
    memory_bytes: Array

    @property
    def at_least(self) -> bool:
        """Whether step times are lower bounds."""
        return self.whole.family.is_bound

    def exact_s(self, rows: Sequence[int]) -> Array:
        """Seconds of a step of some rows, as `cost.estimate` has them."""
        return self.whole.exact_s(self.draft[rows], self.recompute[rows], self.cuts.take(np.array(rows)))

    def take(self, rows: Array) -> Priced:
        """Some of these layouts, in another order perhaps."""
        return replace(
            self,
            draft=self.draft[rows],
            recompute=self.recompute[rows],
            cuts=self.cuts.take(rows),
            step_time_s=self.step_time_s[rows],
            memory_bytes=self.memory_bytes[rows],
        )

    def strategy(self, row: int) -> Strategy:
        family, cut = self.whole.family, self.cuts.take(np.array([row]))
        stages = family.pp * family.num_virtual_stages
        layers = np.broadcast_to(cut.of_stages(family.pp, family.num_virtual_stages)[:, 0], stages).tolist()
        return self.whole.strategy(int(self.draft[row]), [self.whole.sets[self.recompute[row]]] * stages, layers)

    def fitting(self, capacity_bytes: float) -> list[Draft]:
        """The drafts of which a layout fits."""
        drafts = self.whole.drafts.drafts
        return [drafts[place] for place in different(self.draft[self.memory_bytes <= capacity_bytes])]

    def pairs(self, capacity_bytes: float) -> tuple[int, int]:
        """(that fit, that do not): layouts whatever their cut, which fit if one of their cuts does."""
        layout = self._layout
        every, fitting = different(layout), different(layout[self.memory_bytes <= capacity_bytes])
        return len(fitting), len(every) - len(fitting)

    def nearest_miss(self, capacity_bytes: float) -> tuple[float, Strategy]:
        """(memory, layout) of the smallest one of which no cut fits; there must be one."""
        layout = self._layout
        fits = np.isin(layout, layout[self.memory_bytes <= capacity_bytes])
        row = int(np.where(fits, np.inf, self.memory_bytes).argmin())
        return float(self.memory_bytes[row]), self.strategy(row)

    @property
    def _layout(self) -> Array:
        return self.draft * len(self.whole.sets) + self.recompute


class Whole:
    """Prices ranges of the drafts of one family."""

    def __init__(
        self,
        problem: Problem,
        sets: tuple[str, ...],
        columns: StageColumns,
        states: list[RankState],
        held: State,
        family: Family,
        drafts: Drafts,
        places: list[int],
    ):
        self.problem, self.sets, self._columns, self.states = problem, sets, columns, states
        self._held, self.family, self.drafts, self._places = held, family, drafts, np.array(places)
        self._useful_sets: dict[int, tuple[int, ...]] = {}
        self._shape, self.state, self.count = (
            np.array(values) for values in (drafts.shapes, drafts.states, drafts.num_microbatches)
        )
        hops = [(hop.latency_s, hop.seconds_per_byte) for hop in (states[place].hop for place in drafts.states)]
        self.hop_s = CollectiveLaw(*np.array(hops).T).time_s(columns.hidden_bytes[self._shape * len(sets)])

    def only(self, rows: Array) -> Whole:
        """Some of the drafts alone."""
        drafts = self.drafts.take(rows.tolist())
        held, places = self._held, self._places.tolist()
        return Whole(self.problem, self.sets, self._columns, self.states, held, self.family, drafts, places)

    @property
    def num_sets(self) -> int:
        """How many recompute sets each draft is priced under."""
        return len(self._places)

    def pairs(self, numbers: Array) -> tuple[Array, Array]:
        """(draft, recompute set) of some pairs, which are numbered draft by draft."""
        draft, place = np.divmod(numbers, self.num_sets)
        return draft, self._places[place]

    def price(self, draft: Array, recompute: Array) -> Priced:
        """Some pairs, each with all cuts that are worth a look."""
        cuts, which = self.cuts(draft, recompute)
        draft, recompute = draft[which], recompute[which]
        layouts = self.layouts(draft, recompute, cuts)
        times = step_times_s(self.problem, self.family, layouts)
        needed = memory_bytes(self.problem, self.family, layouts)
        return Priced(self, draft, recompute, cuts, times, needed)

    def exact_s(self, draft: Array, recompute: Array, cuts: Cuts | KindCuts) -> Array:
        """Seconds of a step, as `cost.estimate` has them. draft, recompute, cuts: an entry for each layout."""
        return step_times_s(self.problem, self.family, self.layouts(draft, recompute, cuts), exact=True)

    def strategy(self, draft: int, recompute: Sequence[str], layers: Sequence[int]) -> Strategy:
        """One of the drafts with a set and a number of blocks for each virtual stage."""
        choices = {"recompute": tuple(recompute), "stage_layers": tuple(int(count) for count in layers)}
        return Strategy(**{**self.drafts.drafts[draft]._asdict(), **choices})

    def cuts(self, draft: Array, recompute: Array) -> tuple[Cuts | KindCuts, Array]:
        """(cuts, the entry of draft and recompute that each belongs to)."""
        pp, layers = self.family.pp, self.problem.model.num_hidden_layers
        everything = np.arange(len(draft))
        if self.has_kinds:
            vpp = self.family.num_virtual_stages
            return candidate_cuts(self.problem, pp, vpp, self._work_of_parts(draft, recompute))
        if pp == 1 or self.family.num_virtual_stages > 1:
            each = np.full(len(draft), layers // (pp * self.family.num_virtual_stages))
            return Cuts(each, each, each, np.ones_like(each), np.zeros_like(each)), everything
        even = even_cuts(layers, pp, len(draft))
        block, first, last, state = self.parts_of(draft, recompute)
        s_per_parameter = accumulation_s_per_parameter(self.problem.training.precision, self.problem.cluster.device)
        block_s = unit_work_s(block, state.block, s_per_parameter)
        embedding, head = (
            unit_work_s(end, unit, s_per_parameter) / block_s
            for end, unit in ((first, state.first), (last, state.last))
        )
        several, which = [even], [everything]
        slowest = _slowest(even, pp, embedding, head)
        for early in (False, True):
            cuts = balanced_cuts(layers, pp, embedding, head, early, self.bare_ends)
            differs = [
                np.any([count != other for count, other in zip(cuts, others, strict=True)], axis=0)
                for others in several
            ]
            worth = everything[np.all(differs, axis=0) & (_slowest(cuts, pp, embedding, head) <= slowest * (1 + 1e-9))]
            several.append(cuts)
            which.append(worth)
        chosen = [cuts.take(rows) for cuts, rows in zip(several, which, strict=True)]
        return Cuts(*(np.concatenate(columns) for columns in zip(*chosen, strict=True))), np.concatenate(which)

    @property
    def moves_blocks(self) -> bool:
        """Whether stages may differ in how many blocks they have."""
        return blocks_move(self.problem, self.family.num_virtual_stages)

    @property
    def bare_ends(self) -> bool:
        """Whether the first and the last of several stages may have no blocks, but an end of the model alone."""
        return ends_may_be_bare(self.problem, self.family.pp, self.family.num_virtual_stages)

    @property
    def fewest_of_stages(self) -> Array:
        """The fewest blocks that each stage may have, by stage, where each rank has one."""
        fewest = np.ones(self.family.pp, dtype=int)
        if self.bare_ends:
            fewest[[0, -1]] = 0
        return fewest

    @property
    def fewest_blocks(self) -> tuple[int, int, int]:
        """Blocks of the first, the fullest middle and the last rank, as `bounds.fewest_blocks` has them."""
        family, layers = self.family, self.problem.model.num_hidden_layers
        return fewest_blocks(family.pp, family.num_virtual_stages, layers, self.bare_ends)

    @property
    def has_kinds(self) -> bool:
        """Whether the model's blocks are of several kinds."""
        return len(self._columns.blocks) > 1

    def useful_sets(self, draft: int) -> tuple[int, ...]:
        """The places of the recompute sets that some stage of a draft may do best with: of each other one some set is
        nowhere slower, keeps no more of any block, and comes before it or is faster for all blocks."""
        shape = int(self._shape[draft])
        if shape not in self._useful_sets:
            rows = np.arange(shape * len(self.sets), (shape + 1) * len(self.sets))
            blocks = [block.take(rows) for block in self._columns.blocks]
            ends = [end for together in (False, True) for end in self._columns.ends(rows, together)]
            numbers = np.array([column for part in (*blocks, *ends) for column in part])
            no_worse = (numbers[:, :, None] <= numbers[:, None]).all(0)
            back_s = np.array([block.backward_s for block in blocks])
            faster = (back_s[:, :, None] < back_s[:, None]).all(0)
            wins = no_worse & (faster | np.tri(len(rows), k=-1, dtype=bool).T)
            self._useful_sets[shape] = tuple(np.flatnonzero(~wins.any(0)).tolist())
        return self._useful_sets[shape]

    def parts_of(
        self, draft: Array, recompute: Array, counts: Sequence[Array] | None = None
    ) -> tuple[PartColumns, PartColumns, PartColumns, State]:
        """(a block, the end on the first rank, that on the last one, the state), with their waits.

        recompute: the set of each row; where blocks are of several kinds also that of each stage, (stage, row).
        counts: of blocks of several kinds, how many are of each, in rows that go with those of draft and recompute:
        the block is their mean, by default that of all of the model's. As what waits is no faster apart than together,
        no cut of the model takes less than if all of its blocks were that mean.
        """
        return self.parts_and_kinds(draft, recompute, counts)[:4]

    def parts_and_kinds(self, draft: Array, recompute: Array, counts: Sequence[Array] | None = None) -> PartsAndKinds:
        """`parts_of`, and a block of each kind as `blocks_of` has it."""
        rows = self._shape[draft] * len(self.sets) + recompute
        of_first, of_last = (rows[0], rows[-1]) if rows.ndim > 1 else (rows, rows)
        first, last = self._columns.ends(of_first, self.family.pp == 1)
        if of_last is not of_first:
            last = self._columns.ends(of_last, self.family.pp == 1)[1]
        state = self._held.take(self.state[draft])
        return self._with_mean([block.take(rows) for block in self._columns.blocks], first, last, state, counts)

    def _with_mean(
        self,
        blocks: list[PartColumns],
        first: PartColumns,
        last: PartColumns,
        state: State,
        counts: Sequence[Array] | None,
    ) -> PartsAndKinds:
        if not self.has_kinds:
            return *waiting((blocks[0], first, last), state), state, blocks
        if counts is None:
            counts = [np.full(1, count) for count in self.kind_counts]
        state = state.of(zip(self.problem.blocks.kinds, counts, strict=True))
        return *waiting((mean_columns(blocks, counts), first, last), state), state, blocks

    def blocks_of(self, draft: Array, recompute: Array) -> list[PartColumns]:
        """A block of each kind, without waits, by row."""
        rows = self._shape[draft] * len(self.sets) + recompute
        return [block.take(rows) for block in self._columns.blocks]

    def _work_of_parts(self, draft: Array, recompute: Array) -> tuple[list[Array], Array, Array]:
        """Forward and backward of one microbatch, gradients added up: (of a block of each kind, of the end on the first
        rank, of that on the last one)."""
        s_per_parameter = accumulation_s_per_parameter(self.problem.training.precision, self.problem.cluster.device)
        _, first, last, state, blocks = self.parts_and_kinds(draft, recompute)
        units = [state.kinds[kind] for kind in self.problem.blocks.kinds]
        passes = (block_passes(block, unit) for block, unit in zip(blocks, units, strict=True))
        first_s, last_s, *blocks_s = (
            unit_work_s(part, unit, s_per_parameter)
            for part, unit in zip((first, last, *passes), (state.first, state.last, *units), strict=True)
        )
        return blocks_s, first_s, last_s

    @property
    def state_columns(self) -> State:
        """The state of the mesh of each draft."""
        return self._held.take(self.state)

    def hidden_bytes(self, draft: Array) -> Array:
        """Bytes that one microbatch sends from stage to stage, for each draft."""
        return self._columns.hidden_bytes[self._shape[draft] * len(self.sets)]

    def least_parts_of(
        self, draft: Array, counts: Sequence[Array] | None = None
    ) -> tuple[PartColumns, PartColumns, PartColumns, State]:
        """Block, ends and state as `parts_of` has them, by draft: of each column, and of each kind of blocks, the least
        of all recompute sets."""
        return self._least_parts_and_kinds(draft, counts)[:4]

    def _least_parts_and_kinds(self, draft: Array, counts: Sequence[Array] | None) -> PartsAndKinds:
        count, sets = len(draft), len(self.sets)
        rows = (self._shape[draft] * sets)[:, None] + np.arange(sets)

        def least(columns: PartColumns) -> PartColumns:
            return PartColumns(*(column.reshape(count, sets).min(1) for column in columns))

        first, last = map(least, self._columns.ends(rows.ravel(), self.family.pp == 1))
        blocks, state = [least(block.take(rows)) for block in self._columns.blocks], self._held.take(self.state[draft])
        return self._with_mean(blocks, first, last, state, counts)

    @property
    def kind_counts(self) -> tuple[int, ...]:
        """How many blocks the model has of each kind."""
        return self.problem.blocks.counts

    def layouts(self, draft: Array, recompute: Array | None, cuts: Cuts | KindCuts) -> Layouts:
        """All that their prices follow from. draft, recompute, cuts: as `parts_of` has them; for blocks of several
        kinds recompute may be None: then nothing is above what it is with any sets."""
        hidden = self.hidden_bytes(draft)
        if isinstance(cuts, KindCuts):
            counts = [*cuts.kinds(self.problem.blocks)]
            if recompute is None:
                block, first, last, state, kinds = self._least_parts_and_kinds(draft, counts)
            else:
                block, first, last, state, kinds = self.parts_and_kinds(draft, recompute, counts)
            after_s = cuts.after_s(self.problem.blocks, self.family.pp, self.states, self.state[draft])
        else:
            assert recompute is not None
            block, first, last, state, kinds = self.parts_and_kinds(draft, recompute)
            after_s = self._after_s(self.state[draft], cuts)
        return Layouts(self.count[draft], block, first, last, hidden, state, self.hop_s[draft], after_s, cuts, kinds)

    def _after_s(self, state: Array, cuts: Cuts) -> Array:
        """Looked up once for each different mesh and cut."""
        vpp = self.family.num_virtual_stages
        between = cuts.most_between if self.family.pp > 2 else np.zeros_like(cuts.base)
        key = np.stack([state, vpp * cuts.first, vpp * between, vpp * cuts.last])
        codes = np.ravel_multi_index(tuple(key), tuple(key.max(1) + 1))
        _, places, inverse = np.unique(codes, return_index=True, return_inverse=True)
        seconds = [self.states[place].after_s(*map(int, blocks)) for place, *blocks in key[:, places].T]
        return np.array(seconds)[inverse]


def _slowest(cuts: Cuts, pp: int, embedding: Array, head: Array) -> Array:
    """Work of the slowest stage, in blocks."""
    ends = np.maximum(cuts.first + embedding, cuts.last + head)
    return np.maximum(ends, cuts.most_between) if pp > 2 else ends
