"""The prices that the integer program is told: seconds and bytes of operators, redistributions and parameters.

`program_price` says the same of a finished program; the integer program must agree with it to the last digit where
nothing is recomputed, and tests hold it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from autoshard.cost.collectives import exposed_ring_s
from autoshard.cost.working_bytes import operator_bytes, working_bytes
from autoshard.graph.count import (
    backward_collectives,
    forward_collectives,
    operator_steps,
    parameter_elements,
)
from autoshard.graph.partition import OperatorStep, Program, RedistributeStep, Step
from autoshard.graph.recompute import kept_activations, replayed_activations, segments
from autoshard.layout.buckets import sharing_axes

Axes = tuple[str, ...]


class Stored(NamedTuple):
    """A parameter as a rank holds it. elements: local ones. axes: over which its gradient is summed; without one,
    those of the ranks that may share it. matrix, learned: whether it is."""

    elements: int
    axes: Axes
    matrix: bool
    learned: bool


@dataclass(frozen=True)
class MemoryRow:
    """One rank's memory, as far as choices decide it, and what is left for that.

    state_bytes: of one local element of a parameter by the last three fields of Stored, all blocks of the rank
    together. kept, replay, working: how many times the rank holds
    what one microbatch keeps in one block, what a replayed segment keeps, and the activations of the largest operator.
    """

    state_bytes: Callable[[Axes, bool, bool], float]
    kept: float
    replay: float
    working: float
    capacity_bytes: float

    def parameter_bytes(self, one: Stored) -> float:
        """Bytes of the state of a parameter, all blocks of the rank together."""
        return one.elements * self.state_bytes(one.axes, one.matrix, one.learned)


@dataclass(frozen=True)
class Prices:
    """The prices that a program is made of. operator_s: seconds (forward, backward) of one operator on local tensors.
    collective_s: (kind, axes, bytes) -> seconds.

    parameter_s: of one local element, summed over these axes, as its share of one microbatch. recompute: a named set.
    """

    operator_s: Callable[[Program, OperatorStep], tuple[float, float]]
    collective_s: Callable[[str, Axes, int], float]
    parameter_s: Callable[[Axes], float]
    memory: tuple[MemoryRow, ...]
    recompute: str = "none"


@dataclass(frozen=True)
class Price:
    """The price of one microbatch through a program on one rank. seconds: forward and backward. memory_bytes: by memory
    row."""

    seconds: float
    memory_bytes: tuple[float, ...]


def program_price(program: Program, prices: Prices) -> Price:
    """The price of a whole program, step by step."""
    forward = [_forward_s(program, step, prices) for step in program.steps]
    seconds = sum(forward) + sum(_backward_s(program, step, prices) for step in program.steps)
    replay = 0.0
    for segment in segments(program, prices.recompute):
        if segment.recomputed:
            seconds += sum(forward[segment.start : segment.replay_stop])
            replay = max(replay, sum(replayed_activations(program, segment).values()))
    kept = sum(kept_activations(program, prices.recompute).values())
    working = max((_working_bytes(program, step) for step in program.steps), default=0.0)
    graph = program.graph
    held = []
    for name, count in parameter_elements(program).items():
        learned = graph.tensors[name].differentiable
        axes = program.gradient_sync.get(name, ()) if learned else sharing_axes(program, name)
        held.append(Stored(count, axes, name in graph.matrices, learned))
    seconds += sum(one.elements * prices.parameter_s(one.axes) for one in held if one.learned)
    memory = tuple(
        sum(row.parameter_bytes(one) for one in held) + row.kept * kept + row.replay * replay + row.working * working
        for row in prices.memory
    )
    return Price(seconds, memory)


def _forward_s(program: Program, step: Step, prices: Prices) -> float:
    operators_s = sum(prices.operator_s(program, one)[0] for one in operator_steps(step))
    return with_collectives_s(prices, operators_s, forward_collectives(program, step))


def _backward_s(program: Program, step: Step, prices: Prices) -> float:
    operators_s = sum(prices.operator_s(program, one)[1] for one in operator_steps(step))
    return with_collectives_s(prices, operators_s, backward_collectives(program, step))


def with_collectives_s(prices: Prices, operators_s: float, issued: Iterable[tuple[str, Axes, int]]) -> float:
    """Seconds of a step: its operators and the collectives that it issues. A ring, which only attention has, runs
    beside it."""
    sent = [(kind == "send_recv", prices.collective_s(kind, axes, size)) for kind, axes, size in issued]
    hops, ring_s = sum(ring for ring, _ in sent), sum(seconds for ring, seconds in sent if ring)
    others_s = sum(seconds for ring, seconds in sent if not ring)
    waits_s: float = exposed_ring_s(ring_s, operators_s, hops)
    return operators_s + others_s + waits_s


def _working_bytes(program: Program, step: Step) -> float:
    """Bytes that the backward of a step works in. Of operators that share a gather each stands for itself: the integer
    program does not know which do."""
    if isinstance(step, RedistributeStep):
        return working_bytes(program, step)
    return max(operator_bytes(program, one) for one in operator_steps(step))
