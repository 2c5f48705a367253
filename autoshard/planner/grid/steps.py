"""Seconds of the steps of many programs at once: `cost.program.price_program` over columns, for `software.COMPILED`.

What the steps ask for is read off once; other hardware is other numbers for the same columns. Tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from autoshard.cost.collectives import CollectiveLaw, exposed_ring_s
from autoshard.cost.compute import OperatorNeeds, seconds_of
from autoshard.cost.program import ATTENTION, COMPUTE, CONTEXT
from autoshard.cost.stacks import COMPILED
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.microbatch import OPERATORS, Sent, UnitColumns
from autoshard.spec.cluster import Device

Law = Callable[[str, tuple[str, ...]], CollectiveLaw]
"""(kind, axes) -> time over bytes."""


class Asked(NamedTuple):
    """The programs of one local shape, for microbatches of several sizes. sequences: (size,)."""

    columns: UnitColumns
    sequences: Array
    law: Law


class StepSeconds(NamedTuple):
    """forward, backward: (size of microbatch, step, what they are spent on). weight_gradients_s: (size, program), what
    a schedule may put off of backward."""

    forward: Array
    backward: Array
    weight_gradients_s: Array


def step_seconds(asked: Sequence[Asked], device: Device, peak: float) -> list[StepSeconds]:
    """peak: FLOP/s of the compute dtype."""
    needs = [one.columns.needs(one.sequences) for one in asked]
    kinds = np.concatenate([one[..., 0].ravel() for one in needs])
    ahead, back = _operators(np.concatenate([one.reshape(-1, 8) for one in needs]), device, peak)
    ends = np.cumsum([len(one.sequences) * one.columns.first_step[-1] for one in asked]).tolist()
    starts = [0, *ends[:-1]]
    step = np.concatenate([_of_sizes(one, one.columns.step, start) for one, start in zip(asked, starts, strict=True)])
    column = np.where((kinds == 1) | (kinds == 2), ATTENTION, COMPUTE)
    forward, backward = (_in_columns(ends[-1], step, column, seconds) for seconds in (ahead, back))
    _add_collectives(forward, starts, asked, [one.columns.forward for one in asked])
    _add_collectives(backward, starts, asked, [one.columns.backward for one in asked])
    by_operator = np.split(back, np.cumsum([one[..., 0].size for one in needs])[:-1])
    return [
        StepSeconds(
            forward[start:end].reshape(len(one.sequences), -1, 5),
            backward[start:end].reshape(len(one.sequences), -1, 5),
            seconds.reshape(len(one.sequences), -1) @ one.columns.put_off,
        )
        for one, start, end, seconds in zip(asked, starts, ends, by_operator, strict=True)
    ]


def _of_sizes(one: Asked, step: Array, start: int) -> Array:
    """Steps of all its programs, from `start` on, the larger microbatches behind the smaller ones."""
    rounds: Array = start + np.arange(len(one.sequences))[:, None] * one.columns.first_step[-1]
    return (rounds + step).ravel()


def _in_columns(steps: int, step: Array, column: Array, seconds: Array) -> Array:
    return np.bincount(step * 5 + column, seconds, steps * 5).reshape(steps, 5)


def _add_collectives(seconds: Array, starts: Sequence[int], asked: Sequence[Asked], sent: Sequence[Sent]) -> None:
    """Add what each step sends in one direction to its seconds. A ring runs beside its step's attention."""
    found = [one.law(*kind) for one, several in zip(asked, sent, strict=True) for kind in several.laws]
    if not found:
        return
    latency_s = np.array([one.latency_s for one in found])
    s_per_byte = np.array([one.seconds_per_byte for one in found])
    before = np.cumsum([0, *(len(one.laws) for one in sent[:-1])]).tolist()
    times = [len(one.sequences) for one in asked]
    law = np.concatenate([np.tile(first + one.law, k) for first, one, k in zip(before, sent, times, strict=True)])
    column = np.concatenate([np.tile(one.column, k) for one, k in zip(sent, times, strict=True)])
    ring = np.concatenate([np.tile(one.ring, k) for one, k in zip(sent, times, strict=True)])
    size = np.concatenate([np.outer(own.sequences, one.size).ravel() for own, one in zip(asked, sent, strict=True)])
    step = np.concatenate([_of_sizes(own, one.step, s) for own, one, s in zip(asked, sent, starts, strict=True)])
    taken = np.where(size > 0, latency_s[law] + size * s_per_byte[law], 0.0)
    count = len(seconds)
    seconds += _in_columns(count, step[~ring], column[~ring], taken[~ring])
    if ring.any():
        rings, hops = np.bincount(step[ring], taken[ring], count), np.bincount(step[ring], minlength=count)
        seconds[:, CONTEXT] += exposed_ring_s(rings, seconds[:, ATTENTION], hops)


def _operators(rows: Array, device: Device, peak: float) -> tuple[Array, Array]:
    """(forward, backward) seconds of each operator. rows: (operator, field of OperatorNeeds), kinds as numbers."""
    forward, backward = np.empty(len(rows)), np.empty(len(rows))
    for number, kind in enumerate(OPERATORS):
        alike = np.flatnonzero(rows[:, 0] == number)
        if len(alike):
            seconds = seconds_of(OperatorNeeds(kind, *rows[alike, 1:].T), device, peak, COMPILED)
            forward[alike], backward[alike] = seconds.forward, seconds.backward
    return forward, backward
