"""Step time and memory of whole layouts: everything that `cost.estimate` counts, for thousands at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.cost.memory import rank_memory
from autoshard.cost.passes import add_ends, block_passes, end_passes, put_off_s, stage_passes
from autoshard.cost.rank import End, Rank, ends_of, model_ends
from autoshard.cost.shards import State
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.schedules import SCHEDULES
from autoshard.search.grid.cuts import Cuts
from autoshard.search.grid.parts import PartColumns
from autoshard.search.grid.pipeline import Array, interleaved_s, one_chunk_s, weights_apart_at_least_s
from autoshard.search.rules import Problem


class Family(NamedTuple):
    """What layouts that are priced together share. at_once: all forwards come before all backwards, as in GPipe and in
    an interleaved schedule with as many microbatches as stages."""

    schedule: str
    pp: int
    num_virtual_stages: int
    at_once: bool

    @property
    def has_closed_form(self) -> bool:
        """Else a step time is a lower bound, and `cost.estimate` simulates."""
        return not SCHEDULES[self.schedule].weights_apart

    @property
    def cuts_are_free(self) -> bool:
        """One chunk a rank, on several ranks: each stage may have a number of blocks and a recompute set of its own."""
        return self.pp > 1 and self.num_virtual_stages == 1 and self.has_closed_form

    @property
    def sets_are_free(self) -> bool:
        """Several chunks a rank, on several ranks: each virtual stage may have a recompute set of its own."""
        return self.pp > 1 and self.num_virtual_stages > 1 and self.has_closed_form


class Layouts(NamedTuple):
    """An entry for each layout of one family. first, last: the ends of the model. after_s: once a step, behind the
    pipeline."""

    num_microbatches: Array
    block: PartColumns
    first: PartColumns
    last: PartColumns
    hidden_bytes: Array
    state: State
    hop_s: Array
    after_s: Array
    cuts: Cuts


def waiting(
    parts: tuple[PartColumns, PartColumns, PartColumns], state: State
) -> tuple[PartColumns, PartColumns, PartColumns]:
    """Block and ends with passes that wait for what travels."""
    if state.travels is False:
        return parts
    block, first, last = parts
    waits = (block_passes(block, state.block), end_passes(first, state.first), end_passes(last, state.last))
    block, first, last = (
        part._replace(forward_s=passes.forward_s, backward_s=passes.backward_s)
        for part, passes in zip(parts, waits, strict=True)
    )
    return block, first, last


def step_times_s(problem: Problem, family: Family, layouts: Layouts) -> Array:
    pp, vpp = family.pp, family.num_virtual_stages
    device, state = problem.cluster.device, layouts.state
    accumulation_s = accumulation_s_per_parameter(problem.training.precision, device)
    layers = layouts.cuts.layers(pp) if vpp == 1 else layouts.cuts.base
    blocks_s, blocks_back_s = stage_passes(layers, layouts.block, state.block, device, accumulation_s)
    if vpp > 1:
        blocks_s, blocks_back_s = (np.repeat(one[None], pp * vpp, axis=0) for one in (blocks_s, blocks_back_s))
    ends = layouts_ends(family, layouts.first, layouts.last, state)
    add_ends(blocks_s, blocks_back_s, ends, accumulation_s)
    m = layouts.num_microbatches
    if not family.has_closed_form:
        weights_s = put_off_s(layers * layouts.block.weight_gradients_s, ends)
        least_s = weights_apart_at_least_s(blocks_s, blocks_back_s, weights_s, m, layouts.hop_s)
        return least_s + layouts.after_s
    if vpp == 1:
        return one_chunk_s(blocks_s, blocks_back_s, m, layouts.hop_s, family.at_once) + layouts.after_s
    fewest, warm_up = int(m.min()), SCHEDULES[family.schedule].warm_up
    assert warm_up is not None

    def warm(rank: int) -> int:
        return warm_up(rank, pp, fewest, vpp)

    return interleaved_s(blocks_s, blocks_back_s, m, layouts.hop_s, pp, warm, family.at_once) + layouts.after_s


def memory_bytes(problem: Problem, family: Family, layouts: Layouts) -> Array:
    """On the fullest rank. Of alike ranks the lowest counts, which has the most microbatches in flight."""
    pp, vpp, m = family.pp, family.num_virtual_stages, layouts.num_microbatches
    layers = layouts.cuts.layers(pp) if vpp == 1 else np.repeat(layouts.cuts.base[None], pp, axis=0)
    ends = layouts_ends(family, layouts.first, layouts.last, layouts.state)
    fullest: Array = np.zeros_like(layouts.hidden_bytes)
    for rank in range(pp):
        if family.has_closed_form and 1 < rank < pp - 1 and (layers[rank] == layers[rank - 1]).all():
            continue
        rows = rank_rows(family, m, layers[rank], rank, layouts.block, ends, layouts.hidden_bytes)
        needed = rank_memory(rows, layouts.state, problem.training.precision).total
        np.maximum(fullest, needed, out=fullest)
    return fullest + problem.cluster.device.reserved_memory_bytes


def layouts_ends(family: Family, first: PartColumns, last: PartColumns, state: State) -> tuple[End, ...]:
    """The ends of the models. first, last: as `Whole.parts_of` says them."""
    return model_ends(first, last, state, family.pp == 1 and not state.last.parameters.any())


def rank_rows(
    family: Family,
    m: Array,
    layers: Array,
    rank: int,
    block: PartColumns,
    ends: tuple[End, ...],
    hidden_bytes: Array,
) -> Rank:
    """One pipeline rank of many layouts: as cost.load.rank_load. layers: of each chunk of the rank. ends: all."""
    pp, vpp = family.pp, family.num_virtual_stages
    first, last = rank == 0, rank == pp - 1
    in_flight: Array
    if vpp == 1:
        in_flight = embeddings = m if family.at_once else np.minimum(pp - rank, m)
    else:
        warm_up = SCHEDULES[family.schedule].warm_up
        assert warm_up is not None
        in_flight = np.full_like(m, warm_up(rank, pp, int(m.min()), vpp))
        embeddings = np.minimum(in_flight, np.where(m > pp, 2 * pp, pp)) if first else 0
    weights_apart = SCHEDULES[family.schedule].weights_apart
    return Rank(
        vpp * layers if vpp > 1 else layers,
        layers,
        in_flight,
        embeddings if first else 0,
        np.maximum(1, in_flight - (vpp - 1) * pp) if last else 0,
        np.minimum(rank, m - 1) if weights_apart else 0,
        weights_apart,
        pp == 1,
        (block,),
        ends_of(ends, first, last),
        hidden_bytes,
    )
