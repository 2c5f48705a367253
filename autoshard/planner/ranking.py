"""The order of layouts: fastest first, of equally fast ones the simplest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Protocol

from autoshard.backends.problem import Draft
from autoshard.graph.recompute import NO_RECOMPUTE, members
from autoshard.layout.degrees import Degrees
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.plans.names import BY_STAGE

DIGITS = 9
"""Step times that agree in so many digits are equal."""


@dataclass(frozen=True)
class Timed:
    """A layout that fits, with its step time in seconds. memory_bytes: what its fullest rank needs, where that is known
    already."""

    step_time_s: float
    strategy: Strategy
    memory_bytes: float | None = field(default=None, compare=False)


def simplicity(s: Strategy) -> tuple[object, ...]:
    """A key to order layouts by, the simplest first. It decides between equally fast layouts; no two layouts share
    it."""
    recompute = sum(len(members(one)) for one in s.recompute)
    uneven = s.stage_layers != even_stage_layers(sum(s.stage_layers), len(s.stage_layers))
    degrees = (s.pp, s.num_virtual_stages, recompute, s.cp, s.ep, s.tp, s.microbatch_size)
    unusual = (*_unusual(s), uneven, len(set(s.recompute)) > 1)
    return (_axes(s), *degrees, *unusual, *_ways(s), s.stage_layers, s.recompute)


def draft_simplicity(draft: Draft) -> tuple[object, ...]:
    """A key to order drafts by, the simplest first: that of `simplicity` without what a draft leaves open."""
    degrees = (draft.pp, draft.num_virtual_stages, draft.cp, draft.ep, draft.tp, draft.microbatch_size)
    return (_axes(draft), *degrees, *_unusual(draft), *_ways(draft))


def _axes(s: Strategy | Draft) -> int:
    return sum(degree > 1 for degree in (s.tp, s.pp, s.cp, s.ep))


def _unusual(s: Strategy | Draft) -> tuple[int, ...]:
    return (s.zero != 1, s.dp_replicate, s.etp or 0, s.tp > 1 and not s.sequence_parallel)


def _ways(s: Strategy | Draft) -> tuple[object, ...]:
    """A plain ring comes last: where a zigzag is legal, a search leaves it out (planner/dominated.py)."""
    return (
        s.attention_kernel,
        s.context_parallel == "ring",
        s.context_parallel,
        tuple(map(AXIS_ORDER.index, s.axis_order)),
    )


class PipelineDegrees(Degrees, Protocol):
    """A layout as far as its degrees are decided, and its chunks a rank."""

    @property
    def num_virtual_stages(self) -> int: ...
    @property
    def etp(self) -> int | None: ...


def degrees_of(s: PipelineDegrees) -> str:
    """'tp=32 pp=8 dp=2': the degrees above 1, and etp where it is less than tp."""
    degrees = {"tp": s.tp, "pp": s.pp, "dp": s.dp, "cp": s.cp, "ep": s.ep, "vpp": s.num_virtual_stages}
    degrees["dp_replicate"] = s.dp_replicate
    shown = [f"{name}={degree}" for name, degree in degrees.items() if degree > 1]
    shown += [f"etp={s.etp}"] if s.etp is not None else []
    return " ".join(shown) or "one device"


def describe(strategy: Strategy) -> str:
    """'tp=32 pp=8 dp=2, microbatch 1, full recompute': the degrees above 1 and what decides about memory."""
    shown = degrees_of(strategy)
    order = f", axes {strategy.axis_order_name}" if strategy.axis_order != AXIS_ORDER else ""
    recompute = "no" if strategy.uniform_recompute == NO_RECOMPUTE else strategy.uniform_recompute or BY_STAGE
    return f"{shown}, microbatch {strategy.microbatch_size}, {recompute} recompute{order}"


def kind(s: Strategy) -> tuple[object, ...]:
    """The choices that variants of a layout have in common: the fastest variant stands for its kind."""
    return (s.tp, s.pp, s.dp, s.cp, s.ep, s.etp, s.dp_replicate, s.schedule, s.uniform_recompute, s.microbatch_size)


def in_order(layouts: Iterable[Timed]) -> Iterator[Timed]:
    """The layouts with the simplest first among those whose step times agree to the last digit that counts. layouts: by
    rising step time."""
    for _, equal in groupby(layouts, key=lambda one: float(f"{one.step_time_s:.{DIGITS}g}")):
        yield from sorted(equal, key=lambda one: simplicity(one.strategy))


def best_of_each_kind(layouts: Iterable[Timed], count: int, behind: float = inf) -> list[Timed]:
    """The `count` first kinds; of each the fastest in the default order of axes and the fastest in another, as far as
    they come before the last kind. layouts: by rising step time. behind: those that take more than so many times as
    long as the first are left out."""
    best: dict[tuple[object, ...], Timed] = {}
    kinds: set[tuple[object, ...]] = set()
    most_s = inf
    for layout in in_order(layouts):
        most_s = min(most_s, behind * layout.step_time_s)
        if layout.step_time_s > most_s:
            break
        kinds.add(its := kind(layout.strategy))
        best.setdefault((its, layout.strategy.axis_order == AXIS_ORDER), layout)
        if len(kinds) == count:
            break
    return list(best.values())
