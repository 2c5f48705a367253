"""Priced layouts in the other orders of their axes, as far as these may be faster than what is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.schedules import SCHEDULES
from autoshard.search.axis_orders import other_orders
from autoshard.search.grid.table import Table, Whole
from autoshard.search.result import Pins
from autoshard.search.rules import Draft


class Least(NamedTuple):
    """What no cut and no recompute sets take less than. blocks_s, work_s: of one microbatch on all pipeline ranks,
    without and with the ends of the model; last_s: at its end alone; after_s: once a step, behind the pipeline."""

    num_microbatches: int
    blocks_s: float
    work_s: float
    last_s: float
    after_s: float


def faster_orders(wholes: Iterable[Whole], pins: Pins, known_s: float) -> Iterator[Draft]:
    """The drafts that were priced, in their other orders, but for those of which no layout takes less than known_s.

    Layouts that differ in their schedule alone share their work: it is looked up once.
    """
    alike: dict[Draft, list[Draft]] = {}
    problem = None
    for whole in wholes:
        problem = whole.problem
        for draft in whole.drafts.drafts:
            alike.setdefault(draft._replace(schedule="1f1b", num_virtual_stages=1), []).append(draft)
    if problem is None:
        return
    orders: dict[tuple[object, ...], tuple[tuple[str, ...], ...]] = {}
    table, added = Table(problem, (NO_RECOMPUTE,)), dict[Draft, list[Draft]]()
    for draft, several in alike.items():
        if draft[:5] not in orders:
            orders[draft[:5]] = other_orders(problem, pins, draft)
        for order in orders[draft[:5]]:
            other = draft._replace(axis_order=order)
            table.add(other)
            added[other] = several
    for whole in table.wholes():
        for other, least in zip(whole.drafts.drafts, _least(whole), strict=True):
            for one in added[other]:
                if at_least_s(one, least) < known_s:
                    yield one._replace(axis_order=other.axis_order)


def at_least_s(draft: Draft, least: Least) -> float:
    """One rank has its share of all work at least; while a pipeline fills and drains, it has nothing to do.

    With one chunk a rank, what the slowest one does for all microbatches is behind and in front of what the others do
    for the first and the last. With several, so is what the last one does, but for the ends of the model.
    """
    m, (pp, vpp) = least.num_microbatches, (draft.pp, draft.num_virtual_stages)
    if SCHEDULES[draft.schedule].weights_apart:
        return m * least.work_s / pp + least.after_s
    if vpp == 1:
        return (m + pp - 1) * least.work_s / pp + least.after_s
    of_last_s = (m + (pp - 1) / vpp) * least.blocks_s / pp + m * least.last_s
    return max(m * least.work_s / pp, of_last_s) + least.after_s


def _least(whole: Whole) -> Iterator[Least]:
    """Of each draft. whole: priced without recompute."""
    problem, pp = whole.problem, whole.family.pp
    draft = np.arange(len(whole.drafts.drafts))
    block, first, last, state = whole.parts_of(draft, np.zeros_like(draft))
    per_parameter = accumulation_s_per_parameter(problem.training.precision, problem.cluster.device)
    block_s, first_s, last_s = (
        part.forward_s + part.backward_s + per_parameter * parameters
        for part, parameters in ((block, state.block), (first, state.first), (last, state.last))
    )
    layers = problem.model.num_hidden_layers
    launch_s = 2 * problem.cluster.device.pass_launch_s
    blocks_s = layers * block_s + pp * launch_s
    own, between = (layers, 0) if pp == 1 else (1, -(-layers // pp) if pp > 2 else 0)
    after_s = {one: whole.states[one].after_s(own, between, own) for one in dict.fromkeys(whole.state.tolist())}
    columns = (whole.count, blocks_s, blocks_s + first_s + last_s, last_s)
    of_all = (map(float, column) for column in columns)
    for m, of_blocks_s, work_s, ends_s, state in zip(*of_all, whole.state.tolist(), strict=True):
        yield Least(int(m), of_blocks_s, work_s, ends_s, after_s[state])
