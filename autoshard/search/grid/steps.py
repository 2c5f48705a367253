"""Seconds of the steps of many programs at once: `cost.program.price_program` over columns, for `software.COMPILED`.

What the steps ask for is read off once; other hardware is other numbers for the same columns. Tests hold both equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autoshard.cost.collectives import CollectiveLaw
from autoshard.cost.compute import OperatorNeeds
from autoshard.cost.program import Issued, ProgramWork
from autoshard.cost.software import COMPILED
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.search.grid.pipeline import Array
from autoshard.spec.cluster import Device

Law = Callable[[str, tuple[str, ...]], CollectiveLaw]
"""(kind, axes) -> time over bytes."""
OPERATORS = ("matmul", "flash", "plain", "norm", "loss", "vector")
COMPUTE, ATTENTION, TENSOR, CONTEXT, EXPERT = range(5)
"""Columns of seconds: as cost.program.Seconds.values."""


class StepSeconds(NamedTuple):
    """(step, what they are spent on) of one program, and what a schedule may put off of its backward."""

    forward: Array
    backward: Array
    weight_gradients_s: float


class _Sent(NamedTuple):
    """Collectives of one program in one direction, one an entry. law: place in `laws`."""

    laws: tuple[tuple[str, tuple[str, ...]], ...]
    step: Array
    law: Array
    column: Array
    size: Array
    ring: Array


class _Asked(NamedTuple):
    """Of one program. operators: a row each, as OperatorNeeds, its kind as a number; step: of each operator."""

    steps: int
    operators: Array
    step: Array
    forward: _Sent
    backward: _Sent
    projections: Array


@lru_cache(maxsize=8192)
def _asked(work: ProgramWork) -> _Asked:
    operators = [(step, one) for step, several in enumerate(work.operators) for one in several]
    return _Asked(
        len(work.operators),
        _rows([one for _, one in operators]),
        np.array([step for step, _ in operators], dtype=int),
        _sent(work.forward),
        _sent(work.backward),
        _rows(work.projections),
    )


def _rows(needs: Sequence[OperatorNeeds]) -> Array:
    return np.array([(OPERATORS.index(one.kind), *one[1:]) for one in needs], dtype=float).reshape(-1, 8)


def _sent(issued: Sequence[Issued]) -> _Sent:
    every = [(step, *one) for step, several in enumerate(issued) for one in several]
    laws = tuple(dict.fromkeys((kind, axes) for _, kind, axes, _ in every))
    places = {law: place for place, law in enumerate(laws)}
    return _Sent(
        laws,
        np.array([step for step, *_ in every], dtype=int),
        np.array([places[kind, axes] for _, kind, axes, _ in every], dtype=int),
        np.array([_column(kind, axes) for _, kind, axes, _ in every], dtype=int),
        np.array([size for *_, size in every], dtype=float),
        np.array([kind == "send_recv" for _, kind, *_ in every], dtype=bool),
    )


def _column(kind: str, axes: tuple[str, ...]) -> int:
    """As cost.program._collectives."""
    if kind == "send_recv":
        return CONTEXT
    if "ep" in axes or axes == ("dp",):
        return EXPERT
    return TENSOR if any(axis in TENSOR_PARALLEL_AXES for axis in axes) else CONTEXT


def step_seconds(works: Sequence[tuple[ProgramWork, Law]], device: Device, peak: float) -> list[StepSeconds]:
    """Of each program. peak: FLOP/s of the compute dtype."""
    asked = [_asked(work) for work, _ in works]
    ends = np.cumsum([one.steps for one in asked])
    starts = ends - [one.steps for one in asked]
    total = int(ends[-1])
    ahead, back = _operators(np.concatenate([one.operators for one in asked]), device, peak)
    step = np.concatenate([start + one.step for start, one in zip(starts, asked, strict=True)])
    attention = np.isin(np.concatenate([one.operators[:, 0] for one in asked]), (1, 2))
    forward, backward = (
        _in_columns(total, step, np.where(attention, ATTENTION, COMPUTE), seconds) for seconds in (ahead, back)
    )
    for seconds, sent in (
        (forward, [one.forward for one in asked]),
        (backward, [one.backward for one in asked]),
    ):
        _add_collectives(seconds, starts, sent, [law for _, law in works])
    put_off = _operators(np.concatenate([one.projections for one in asked]), device, peak)[1] / 2
    which = np.repeat(np.arange(len(asked)), [len(one.projections) for one in asked])
    put_off_s = np.bincount(which, put_off, len(asked)).tolist()
    return [
        StepSeconds(forward[start:end], backward[start:end], one)
        for start, end, one in zip(starts.tolist(), ends.tolist(), put_off_s, strict=True)
    ]


def _in_columns(steps: int, step: Array, column: Array, seconds: Array) -> Array:
    return np.bincount(step * 5 + column, seconds, steps * 5).reshape(steps, 5)


def _add_collectives(seconds: Array, starts: Array, sent: list[_Sent], laws: list[Law]) -> None:
    """A ring sends the next piece while its step works on the one at hand."""
    found = [law(*one) for several, law in zip(sent, laws, strict=True) for one in several.laws]
    if not found:
        return
    latency_s = np.array([one.latency_s for one in found])
    s_per_byte = np.array([one.seconds_per_byte for one in found])
    before = np.cumsum([0, *(len(one.laws) for one in sent[:-1])])
    law = np.concatenate([first + one.law for first, one in zip(before, sent, strict=True)])
    step = np.concatenate([start + one.step for start, one in zip(starts, sent, strict=True)])
    size = np.concatenate([one.size for one in sent])
    column, ring = np.concatenate([one.column for one in sent]), np.concatenate([one.ring for one in sent])
    taken = np.where(size > 0, latency_s[law] + size * s_per_byte[law], 0.0)
    count = len(seconds)
    seconds += _in_columns(count, step[~ring], column[~ring], taken[~ring])
    if ring.any():
        rings, hops = np.bincount(step[ring], taken[ring], count), np.bincount(step[ring], minlength=count)
        seconds[:, CONTEXT] += np.maximum(0.0, rings - seconds[:, ATTENTION] * hops / (hops + 1))


def _operators(rows: Array, device: Device, peak: float) -> tuple[Array, Array]:
    """(forward, backward) seconds of each operator: as cost.compute.seconds_of."""
    kind, m, n, k, moving_bytes, scores_bytes, _, ratio = rows.T
    launch, per_byte = device.operator_overhead_s, 1 / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    moving = moving_bytes * per_byte
    forward, backward = moving + launch, ratio * moving + launch

    def product(m: Array, n: Array, k: Array) -> Array:
        tile_rows = np.ceil(m / device.tile_rows) * device.tile_rows
        tile_columns = np.ceil(n / device.tile_columns) * device.tile_columns
        return 2.0 * tile_rows * tile_columns * (k + device.matmul_k0) / (peak * device.matmul_efficiency)

    def of(name: str) -> tuple[Array, ...]:
        rows = kind == OPERATORS.index(name)
        return rows, m[rows], n[rows], k[rows], moving[rows]

    rows, m_, n_, k_, moves = of("matmul")
    forward[rows] = np.maximum(product(m_, n_, k_), moves) + launch
    to_input, to_weight = product(m_, k_, n_), product(k_, n_, m_)
    backward[rows] = np.maximum(to_input, moves) + np.maximum(to_weight, moves) + 2 * launch
    rows, m_, n_, k_, moves = of("flash")
    scores, values = product(m_, n_, k_), product(m_, k_, n_)
    forward[rows] = np.maximum(scores + values, moves) + launch
    backward[rows] = np.maximum(2 * scores + 3 * values, 2 * moves) + launch
    rows, m_, n_, k_, moves = of("plain")
    scores, values = product(m_, n_, k_), product(m_, k_, n_)
    one_pass = scores_bytes[rows] * per_byte
    ahead, back = COMPILED.plain_attention_passes
    forward[rows] = scores + values + moves + ahead * one_pass + 3 * launch
    backward[rows] = scores + 3 * values + 2 * moves + back * one_pass + 5 * launch
    return forward, backward
