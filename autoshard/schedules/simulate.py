"""Run the action lists of all pipeline ranks on a clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.rows import Number, is_rows
from autoshard.schedules.action import Order


@dataclass(frozen=True)
class Timeline:
    """The times at which actions ran in a simulated step.

    total_s: until the last rank is done. busy_s: by rank, time spent in actions.
    spans: by rank, (start_s, end_s) of each action, in the rank's order.
    """

    total_s: float
    busy_s: tuple[float, ...]
    spans: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def bubble_fraction(self) -> float:
        """Fraction of all ranks' time that is not spent in actions."""
        return 1 - sum(self.busy_s) / (self.total_s * len(self.busy_s)) if self.total_s else 0.0


def simulate(
    orders: Sequence[Order],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    p2p_s: float = 0.0,
    weight_s: Sequence[float] | None = None,
) -> Timeline:
    """The timeline of a step in which every rank runs its actions in order, each as soon as its input has come.

    orders: one list of actions a pipeline rank; chunk c of rank r is virtual stage c * pp + r.
    forward_s, backward_s: seconds of one microbatch, by virtual stage.
    weight_s: the part of backward_s that `W` takes; `I` takes the rest. None is half.
    p2p_s: from the end of an action until its output has come to the next rank; with pp = 1 there is nothing to send.
    Leaves out contention: a transfer delays the rank that waits for it and no other.
    Raises AutoshardError for lists that deadlock.
    """
    ordered = in_dependency_order(orders, len(forward_s))
    seconds = durations(forward_s, backward_s, weight_s)
    total_s, starts = run(ordered, seconds, p2p_s)
    spans = tuple(
        tuple((starts[place], starts[place] + seconds[ordered.steps[place][1]]) for place in places)
        for places in ordered.places
    )
    busy = tuple(sum(seconds[ordered.steps[place][1]] for place in places) for places in ordered.places)
    return Timeline(total_s, busy, spans)


Step = tuple[int, int, int, int, bool]
"""An action: (rank, place of its seconds in `durations`, the value that it waits for, the one that it makes, whether
that goes to another rank)."""


@dataclass(frozen=True, eq=False)
class InOrder:
    """All ranks' actions in one list, each behind those that it waits for.

    steps: the actions. places: for each rank the indices of its actions in `steps`, in its order.
    num_values: how many values steps wait for or make; value 0 is there at the start.
    """

    steps: tuple[Step, ...]
    places: tuple[tuple[int, ...], ...]
    num_values: int

    @cached_property
    def places_of_ranks(self) -> Any:
        """`places` as an array (rank, action), of ranks with as many actions each."""
        import numpy as np

        return np.array(self.places)

    @cached_property
    def waits_for(self) -> tuple[tuple[int, int], ...]:
        """By step, the indices of the one before it on its rank and of the one that makes what it waits for; -1 where
        there is none."""
        maker_of, last_of, found = [-1] * self.num_values, [-1] * len(self.places), []
        for index, (rank, _, source, target, _) in enumerate(self.steps):
            found.append((last_of[rank], maker_of[source]))
            maker_of[target] = last_of[rank] = index
        return tuple(found)

    @cached_property
    def waves(self) -> Waves:
        """The steps in waves."""
        import numpy as np

        wave_of_value, wave_of_rank = [0] * self.num_values, [0] * len(self.places)
        waves: list[list[int]] = []
        for index, (rank, _, source, target, _) in enumerate(self.steps):
            wave = max(wave_of_value[source], wave_of_rank[rank])
            wave_of_value[target] = wave_of_rank[rank] = wave + 1
            if wave == len(waves):
                waves.append([])
            waves[wave].append(index)
        start, nobody = 0, self.num_values - 1
        cell_of, free, num_cells = {start: 0, nobody: 1}, list[int](), 2
        found = []
        for indices in waves:
            ranks, seconds, sources, targets, sends = zip(*(self.steps[index] for index in indices), strict=True)
            of_sources = [cell_of[value] for value in sources]
            free += [cell_of.pop(value) for value in sources if value != start]  # one step waits for each
            for value in targets:
                if value not in cell_of:
                    cell_of[value] = free.pop() if free else num_cells
                    num_cells = max(num_cells, cell_of[value] + 1)
            of_targets = [cell_of[value] for value in targets]
            found.append(np.array([indices, ranks, seconds, of_sources, of_targets, sends]))
        return Waves(found, num_cells)


class Waves(NamedTuple):
    """Steps in waves, each of which waits for waves before it alone and has one step of a rank at most.

    waves: arrays of (index in `steps`, rank, seconds, source, target, sends) by column. A wave reads all of its sources
    before it writes a target. num_cells: sources and targets are cells of so many, each of which holds one value after
    another: few are there at a time. Cell 0 is what is there at the start.
    """

    waves: list[Any]
    num_cells: int


def in_dependency_order(orders: Sequence[Order], num_stages: int, of: str = "the schedule") -> InOrder:
    """All ranks' actions in an order in which they can run. It serves any durations, so it is found once.

    orders: one list of actions a pipeline rank. num_stages: virtual stages. of: whose orders they are, in the error.
    Raises AutoshardError for lists that deadlock.
    """
    pp = len(orders)
    assert pp >= 1, "a rank at least"
    assert num_stages % pp == 0, "as many chunks on each rank"
    assert all(action.chunk < num_stages // pp for order in orders for action in order), "a chunk without durations"
    count = 1 + max((action.microbatch for order in orders for action in order), default=-1)
    forwards, backwards, nobody = 1, 1 + num_stages * count, 1 + 2 * num_stages * count  # where their inputs begin
    known = bytearray(nobody + 1)
    known[0] = 1
    steps: list[Step] = []
    places: list[list[int]] = [[] for _ in orders]

    def steps_of(rank: int) -> Iterator[Step]:
        for kind, microbatch, chunk in orders[rank]:
            stage = chunk * pp + rank
            if kind == "F":
                source = forwards + stage * count + microbatch if stage else 0
                is_last = stage == num_stages - 1
                target = (backwards + stage * count if is_last else forwards + (stage + 1) * count) + microbatch
                yield rank, stage, source, target, not is_last and pp > 1
            elif kind == "W":  # its `I` came before on this rank
                yield rank, 3 * num_stages + stage, 0, nobody, False
            else:
                target = backwards + (stage - 1) * count + microbatch if stage else nobody
                kinds_before = 1 if kind == "B" else 2
                source = backwards + stage * count + microbatch
                yield rank, kinds_before * num_stages + stage, source, target, stage > 0 and pp > 1

    left = [steps_of(rank) for rank in range(pp)]
    heads = [next(one, None) for one in left]
    ranks, moved = list(range(pp)), True
    while moved:
        moved = False
        for rank in ranks:
            head, own, behind = heads[rank], places[rank], left[rank]
            while head is not None and known[head[2]]:
                known[head[3]] = moved = True
                own.append(len(steps))
                steps.append(head)
                head = next(behind, None)
            heads[rank] = head
        ranks.reverse()  # forwards travel up the ranks and backwards down: sweep both ways
    if any(head is not None for head in heads):
        raise AutoshardError(_deadlock(of, orders, places))
    return InOrder(tuple(steps), tuple(map(tuple, places)), nobody + 1)


def durations(
    forward_s: Sequence[Number], backward_s: Sequence[Number], weight_s: Sequence[Number] | None
) -> list[Number]:
    """Seconds of one microbatch by kind (F, B, I, W), and within a kind by virtual stage.

    weight_s: the part of backward_s that `W` takes; None is half.
    """
    assert len(forward_s) == len(backward_s), "one duration for each virtual stage"
    weight_s = [time_s / 2 for time_s in backward_s] if weight_s is None else weight_s
    input_s = [whole - part for whole, part in zip(backward_s, weight_s, strict=True)]
    return [*forward_s, *backward_s, *input_s, *weight_s]


def run(ordered: InOrder, seconds: Sequence[Number], transfer_s: Number) -> tuple[Number, list[Number]]:
    """(seconds until the last rank is done, start of each step in seconds).

    ordered: the steps. seconds: as `durations` gives them. transfer_s: between ranks. Seconds may all be arrays of
    layouts: the order of actions is the same in all rows, and starts are then an array (step, row).
    """
    if is_rows(seconds[0]):
        import numpy as np

        starts_s: Any = np.empty((len(ordered.steps), len(seconds[0])))
        return _run_rows(ordered, seconds, transfer_s, starts_s), starts_s
    there_s: list[Number] = [0.0] * ordered.num_values
    clock: list[Number] = [0.0] * len(ordered.places)
    starts: list[Number] = []
    append = starts.append
    for rank, what, source, target, sends in ordered.steps:  # the inner loop of all simulations
        start, now = there_s[source], clock[rank]
        if now > start:
            start = now
        append(start)
        clock[rank] = end = start + seconds[what]
        there_s[target] = end + transfer_s if sends else end
    return max(clock), starts


def until_done_s(ordered: InOrder, seconds: Sequence[Number], transfer_s: Number) -> Number:
    """The seconds of `run` alone; of rows in half the time, and in little memory."""
    if is_rows(seconds[0]):
        return _run_rows(ordered, seconds, transfer_s)
    return run(ordered, seconds, transfer_s)[0]


def _run_rows(ordered: InOrder, seconds: Sequence[Number], transfer_s: Number, starts_s: Any = None) -> Number:
    """The seconds of `run` over rows, wave by wave: the same additions and maxima, of all ranks and rows at once.
    starts_s: takes the start of each step, (step, row), if it is given."""
    import numpy as np

    seconds_of = np.array(np.broadcast_arrays(*seconds))
    waves, num_cells = ordered.waves
    rows = seconds_of.shape[1]
    there_s, clock = np.zeros((num_cells, rows)), np.zeros((len(ordered.places), rows))
    for index, rank, what, source, target, sends in waves:
        start = np.maximum(there_s[source], clock[rank])
        if starts_s is not None:
            starts_s[index] = start
        clock[rank] = end = start + seconds_of[what]
        there_s[target] = end + sends[:, None] * transfer_s
    return clock.max(0)


def _deadlock(of: str, orders: Sequence[Order], places: Sequence[Sequence[int]]) -> str:
    waiting = (
        f"rank {rank} before {order[len(done)]}"
        for rank, (order, done) in enumerate(zip(orders, places, strict=True))
        if len(done) < len(order)
    )
    return f"{of} deadlocks: {', '.join(list(waiting)[:4])} wait for what no rank will send"
