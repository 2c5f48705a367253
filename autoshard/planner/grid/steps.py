"""Programs of many local shapes as one column of steps, which cost/program.py prices at once.

What the steps ask for is read off once; other hardware is other numbers for the same columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.compute import OperatorNeeds, QuantizedProducts
from autoshard.cost.part import CONTEXT
from autoshard.cost.program import LawOf, Operators, Sent, StepSeconds, StepWork, step_seconds
from autoshard.cost.stacks import COMPILED
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.microbatch import OPERATORS, RING, SentColumns, UnitColumns
from autoshard.spec.cluster import Device


class Asked(NamedTuple):
    """The programs of one local shape, for microbatches of several sizes. sequences: (size,)."""

    columns: UnitColumns
    sequences: Array
    law_of: LawOf

    @property
    def num_steps(self) -> int:
        """Steps of all its programs for microbatches of all sizes."""
        return len(self.sequences) * self.columns.first_step[-1]

    def steps(self, step: Array, start: int) -> Array:
        """The places of some steps of its programs for each size, the larger microbatches behind the smaller ones,
        (size x step,). step: (step,). start: place of the first one of all."""
        rounds: Array = start + np.arange(len(self.sequences))[:, None] * self.columns.first_step[-1]
        return (rounds + step).ravel()


def priced_steps(
    asked: Sequence[Asked], device: Device, peak_flops_per_s: float, products: QuantizedProducts | None = None
) -> tuple[StepSeconds, list[int]]:
    """(seconds of all steps, an array each; the place of the first step of each of `asked`, and how many all are).

    peak_flops_per_s: of the matrix products' dtype. products: those that are quantised.
    """
    starts = [0, *accumulate(shape.num_steps for shape in asked)]
    forward, backward = (
        [*_sent(asked, starts, [getattr(shape.columns, direction) for shape in asked])]
        for direction in ("forward", "backward")
    )
    work = StepWork([*_operators(asked, starts)], forward, backward, num_steps=starts[-1])
    return step_seconds(work, device, peak_flops_per_s, COMPILED, products), starts


def _operators(asked: Sequence[Asked], starts: Sequence[int]) -> Iterator[Operators]:
    """All operators, kind by kind."""
    fields = len(OperatorNeeds._fields)
    needs = np.concatenate([shape.columns.needs(shape.sequences).reshape(-1, fields) for shape in asked])
    steps = np.concatenate(
        [shape.steps(shape.columns.step, start) for shape, start in zip(asked, starts[:-1], strict=True)]
    )
    put_off = np.concatenate([np.tile(shape.columns.put_off, len(shape.sequences)) for shape in asked])
    for number, kind in enumerate(OPERATORS):
        alike = np.flatnonzero(needs[:, 0] == number)
        if len(alike):
            yield Operators(OperatorNeeds(kind, *needs[alike, 1:].T), put_off[alike], steps[alike])


def _sent(asked: Sequence[Asked], starts: Sequence[int], sent: Sequence[SentColumns]) -> Iterator[Sent]:
    """All collectives of one pass, by what they are spent on. sent: of each of `asked`."""
    laws = [shape.law_of(*kind) for shape, columns in zip(asked, sent, strict=True) for kind in columns.laws]
    if not laws:
        return
    latency_s, s_per_byte = np.array([(law.latency_s, law.seconds_per_byte) for law in laws]).T
    before = accumulate((len(columns.laws) for columns in sent[:-1]), initial=0)
    rows = [
        (
            np.tile(columns.spent_on, len(shape.sequences)),
            np.tile(first + columns.law, len(shape.sequences)),
            np.outer(shape.sequences, columns.size).ravel(),
            np.tile(columns.times, len(shape.sequences)),
            shape.steps(columns.step, start),
        )
        for shape, start, first, columns in zip(asked, starts[:-1], before, sent, strict=True)
    ]
    spent_on, law, size, times, step = (np.concatenate(column) for column in zip(*rows, strict=True))
    for place in np.bincount(spent_on).nonzero()[0].tolist():
        alike = np.flatnonzero(spent_on == place)
        law_of_each = CollectiveLaw(latency_s[law[alike]], s_per_byte[law[alike]])
        yield Sent(
            CONTEXT if place == RING else place, place == RING, law_of_each, size[alike], times[alike], step[alike]
        )
