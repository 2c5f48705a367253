"""Legal layouts, collected by family with the local shapes and meshes that they share, and priced in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from operator import itemgetter

import numpy as np

from autoshard.backends.rules import Draft, Problem, ends_may_be_bare
from autoshard.cost.local_shape import LocalShape, local_shape, strategy_mesh
from autoshard.cost.zero_sharding import Unit
from autoshard.graph.recompute import COMMON_SETS
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import OperatorChoices
from autoshard.planner.axis_orders import Laws, stage_laws
from autoshard.planner.grid.microbatch import working_bytes_of
from autoshard.planner.grid.price import Family
from autoshard.planner.grid.ranks import RankState, rank_state, stacked
from autoshard.planner.grid.unit_costs import StageColumns, stage_columns, unit_programs
from autoshard.planner.grid.whole import Drafts, Priced, Whole
from autoshard.spec.training import DTYPE_BYTES

CHUNK = 4096
"""Layouts that are priced at once: their columns stay in a core's cache."""


def _fields(*names: str) -> itemgetter[tuple[object, ...]]:
    return itemgetter(*map(Draft._fields.index, names))


_OF_MESH = ("tp", "pp", "dp", "cp", "ep", "sequence_parallel", "axis_order", "etp")
shape_key = _fields(*_OF_MESH, "microbatch_size", "attention_kernel", "context_parallel")
_state_key = _fields(*_OF_MESH, "zero", "dp_replicate")
"""What a draft's local shape and its mesh's state follow from: many drafts have one."""


class Table:
    """Legal drafts, priced when all are there."""

    rank_state: type[RankState] = RankState

    def __init__(
        self, problem: Problem, sets: tuple[str, ...], by_stage: bool = False, operators: OperatorChoices = ()
    ):
        """by_stage: stages may choose among the sets one by one. Where grid/refine.py then finds the best ones, only
        the common sets are priced here, the same for all stages. operators: of all layouts, what differs from the rule
        of layout/sharding.py."""
        self._problem, self._sets, self._by_stage, self._operators = problem, sets, by_stage, operators
        self._families: dict[Family, Drafts] = {}
        self._shapes: dict[LocalShape, int] = {}
        self._shapes_of: dict[tuple[object, ...], LocalShape] = {}
        self._shape_places: dict[tuple[object, ...], int] = {}
        self._states: dict[tuple[object, ...], int] = {}
        self._held: list[RankState] = []
        self._working: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._staying: dict[int, tuple[float, ...]] = {}
        self._laws: dict[tuple[int, ...], dict[Laws, tuple[tuple[str, int], ...]]] = {}
        self._placements: dict[tuple[object, ...], tuple[tuple[str, int], ...]] = {}

    def sets_of(self, draft: Draft) -> int:
        """How many recompute sets a draft is priced under."""
        return len(self._places(Family(draft.schedule, draft.pp, draft.num_virtual_stages)))

    def _places(self, family: Family) -> list[int]:
        every = list(range(len(self._sets)))
        if not self._by_stage or not family.cuts_are_free:
            return every
        return [place for place in every if self._sets[place] in COMMON_SETS]

    def has_room(self, draft: Draft) -> bool:
        """Whether ranks could hold a block and the head, each with what works on it: on one rank, where no rank may
        have the head alone and each has a block of the only kind. A bound that needs no prices: it leaves out large
        microbatches."""
        problem, device = self._problem, self._problem.cluster.device
        working, staying = self._working_bytes(draft), self._staying_bytes(self._state(draft))
        if len(working) > 2 or ends_may_be_bare(problem, draft.pp, draft.num_virtual_stages):
            needed = max(work + stay for work, stay in zip(working, staying, strict=True))
        else:
            needed = max(working) + sum(staying)
        return needed + device.reserved_memory_bytes <= device.memory_bytes

    def _working_bytes(self, draft: Draft) -> tuple[float, ...]:
        """Bytes that a block of each kind works on, then the head."""
        key = shape_key(draft)
        if key not in self._working:
            units = unit_programs(self._problem, self._shape_of(draft))
            every = (*units.blocks, units.head)
            self._working[key] = tuple(working_bytes_of(work, draft.microbatch_size) for work in every)
        return self._working[key]

    def _staying_bytes(self, place: int) -> tuple[float, ...]:
        """Parameters and sums of gradients of a block of each kind, as some rank has one, then of the head."""
        if place not in self._staying:
            state, precision = self._held[place].state, self._problem.training.precision

            def held(unit: Unit) -> float:
                weights = unit.weights * DTYPE_BYTES[precision.parameter_dtype]
                sums = unit.sums * DTYPE_BYTES[precision.gradient_accumulation_dtype]
                return float(weights + sums)

            self._staying[place] = (*map(held, state.kinds.values() or (state.block,)), held(state.last))
        return self._staying[place]

    def add(self, draft: Draft) -> None:
        """Append a layout, which is priced with every set. draft: legal but for its stage_layers."""
        count = self._problem.training.global_batch_size // (draft.dp * draft.microbatch_size)
        family = Family.of(draft.schedule, draft.pp, draft.num_virtual_stages, count)
        drafts = self._families.get(family)
        if drafts is None:
            drafts = self._families[family] = Drafts()
        drafts.drafts.append(draft)
        drafts.shapes.append(self.shape(draft))
        drafts.states.append(self._state(draft))
        drafts.num_microbatches.append(count)

    def shape(self, draft: Draft) -> int:
        """The place of a draft's local shape, of which `parts` has the columns."""
        key = shape_key(draft)
        place = self._shape_places.get(key)
        if place is None:
            place = self._shapes.setdefault(self._shape_of(draft), len(self._shapes))
            self._shape_places[key] = place
        return place

    def _shape_of(self, draft: Draft) -> LocalShape:
        key = shape_key(draft)
        if key not in self._shapes_of:
            shape = local_shape(draft)
            if shape.placement:
                shape = replace(shape, placement=self._first_alike(shape))
            self._shapes_of[key] = replace(shape, operators=self._operators) if self._operators else shape
        return self._shapes_of[key]

    def _first_alike(self, shape: LocalShape) -> tuple[tuple[str, int], ...]:
        """The first placement whose collectives within a stage have the same laws."""
        degrees = (shape.tp, shape.cp, shape.ep, shape.etp or shape.tp)
        key = (*degrees, shape.placement)
        if key not in self._placements:
            usual = replace(shape, placement=())
            known = self._laws.setdefault(degrees, {stage_laws(self._problem, usual): ()})
            self._placements[key] = known.setdefault(stage_laws(self._problem, shape), shape.placement)
        return self._placements[key]

    def _state(self, draft: Draft) -> int:
        key = _state_key(draft)
        if draft.zero >= 2:  # it matters what a block works on while its gradients travel
            key = (*key, draft.attention_kernel, draft.context_parallel)
        place = self._states.get(key)
        if place is None:
            place = self._states[key] = len(self._held)

            def made_of() -> tuple[Mesh, LocalShape, int]:
                mesh = strategy_mesh(self._problem.model, self._problem.cluster, draft)
                return mesh, self._shape_of(draft), draft.zero

            self._held.append(rank_state(self.rank_state, self._problem, (self._operators, key), made_of))
        return place

    @cached_property
    def parts(self) -> StageColumns:
        """Blocks and ends of all local shapes under each recompute set."""
        return stage_columns(self._problem, list(self._shapes), self._sets)

    def wholes(self) -> Iterator[Whole]:
        """Everything that was added, a family at a time."""
        if not self._families:
            return
        columns, states = self.parts, stacked([held.state for held in self._held])
        for family, drafts in self._families.items():
            yield Whole(self._problem, self._sets, columns, self._held, states, family, drafts, self._places(family))

    def price(self) -> Iterator[Priced]:
        """Everything that was added, a chunk at a time."""
        for whole in self.wholes():
            count = len(whole.drafts.drafts)
            step = max(1, CHUNK // whole.num_sets)
            for begin in range(0, count, step):
                pairs = np.arange(begin * whole.num_sets, min(begin + step, count) * whole.num_sets)
                yield whole.price(*whole.pairs(pairs))
