"""Plan against measurement, number by number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import NamedTuple

from autoshard.audits.expected import Expectation
from autoshard.audits.values import ORTHOGONAL, PEAK_MEMORY, STATE_KINDS, Difference, Flops, Measurement, Row
from autoshard.graph.count import Collective
from autoshard.plans.plan import Plan

EXACT = 0.0
CLOSE = 1e-3
"""FLOPs and bytes of state: the plan's numbers have six digits."""
PEAK = 0.03
ORDER = "action order"


class Scale(NamedTuple):
    """From what so many microbatches did to what all of a step do; exact where that is a whole number."""

    planned: int
    measured: int

    def __call__(self, count: float) -> float:
        return count * self.planned / self.measured


def rows(plan: Plan, expected: Expectation, measured: Measurement) -> tuple[Row, ...]:
    """Every compared number, measured ones scaled to all microbatches of the plan's step."""
    scale = Scale(plan.num_microbatches, measured.microbatches)
    return (
        Row("parameters", "elements", expected.parameter_elements, measured.parameter_elements, EXACT),
        *(Row("memory", kind, expected.state[kind], measured.state[kind], CLOSE) for kind in STATE_KINDS),
        *_peak(expected, measured),
        *_flops(expected, measured, scale),
        *_collectives(plan, expected, measured, scale),
        *_graphs(expected, measured),
        *(
            Row("transfers", f"{one.direction} {one.bytes:,} bytes", expected.transfers[one], scale(count), EXACT)
            for one, count in sorted((Counter(expected.transfers.keys()) + Counter(measured.transfers)).items())
            for count in (measured.transfers.get(one, 0),)
        ),
    )


def differences(found: tuple[Row, ...], measured: Measurement, order: tuple[str, ...]) -> tuple[Difference, ...]:
    """Rows beyond their tolerance and actions out of order, largest first. order: expected of the shortened step."""
    apart = [
        Difference(row.what, row.name, row.planned, row.measured)
        for row in found
        if row.tolerance is not None and abs(row.measured - row.planned) > row.tolerance * abs(row.planned)
    ]
    apart += [Difference("steady state", text, 0, 1) for text in measured.irregular]
    return with_order(tuple(apart), order, measured.order)


def with_order(apart: tuple[Difference, ...], wanted: tuple[str, ...], got: tuple[str, ...]) -> tuple[Difference, ...]:
    """The differences, largest first, with the first action that is out of order, where none is known yet."""
    if wanted != got and not any(one.what == ORDER for one in apart):
        place = next(
            (i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), min(len(wanted), len(got))
        )
        planned, ran = (order[place] if place < len(order) else "nothing" for order in (wanted, got))
        words = f"action {place}: {ran} where the plan has {planned}"
        apart = (Difference(ORDER, words, len(wanted), len(got)), *apart)
    return tuple(sorted(apart, key=lambda one: -one.relative))


def _peak(expected: Expectation, measured: Measurement) -> Iterator[Row]:
    yield Row(PEAK_MEMORY, f"at {measured.peak_at}", sum(expected.held.values()), measured.peak_bytes, PEAK)
    for kind, count in measured.held.items():
        yield Row("peak memory of", kind, expected.held[kind], count, None)


def _flops(expected: Expectation, measured: Measurement, scale: Scale) -> Iterator[Row]:
    """By operator; where weights have actions of their own, whose products no operator is named for, by kind."""
    wanted, got = Counter(dict(expected.flops)), Counter(dict(measured.flops))
    if any(not key.operator for key in got):
        wanted, got = _by_kind(wanted), _by_kind(got)
    for key in sorted(wanted.keys() | got.keys()):
        name = f"{key.phase} {key.kind} {key.operator}".strip()
        yield Row("FLOPs", name, wanted[key], got[key] if key.phase == ORTHOGONAL.phase else scale(got[key]), CLOSE)


def _by_kind(flops: Counter[Flops]) -> Counter[Flops]:
    by_kind: Counter[Flops] = Counter()
    for key, count in flops.items():
        by_kind[Flops(key.phase, key.kind, "")] += count
    return by_kind


def _collectives(plan: Plan, expected: Expectation, measured: Measurement, scale: Scale) -> Iterator[Row]:
    wanted = _without_trivial_axes(plan, expected.collectives)
    got = Counter(dict(measured.collectives))
    for collective in sorted(wanted.keys() | got.keys()):
        name = f"{collective.phase} {collective.kind} over {' x '.join(collective.axes)}, {collective.bytes:,} bytes"
        issued = got[collective] if collective.phase == "sync" else scale(got[collective])
        yield Row("collectives", name, wanted[collective], issued, EXACT)


def _graphs(expected: Expectation, measured: Measurement) -> Iterator[Row]:
    if expected.graphs is None or measured.graphs is None:
        return
    pairs = zip(asdict(expected.graphs).items(), asdict(measured.graphs).values(), strict=True)
    yield Row("graphs", "all", expected.graphs.graphs, measured.graphs.graphs, EXACT)
    for (name, planned), found in pairs:
        yield Row("graphs", name, planned, found, EXACT)


def _without_trivial_axes(plan: Plan, collectives: Counter[Collective]) -> Counter[Collective]:
    nontrivial: Counter[Collective] = Counter()
    for collective, count in collectives.items():
        axes = tuple(
            axis for axis in collective.axes if (plan.mesh.pp if axis == "pp" else plan.mesh.size((axis,))) > 1
        )
        nontrivial[Collective(collective.phase, collective.kind, axes, collective.bytes)] += count
    return nontrivial
