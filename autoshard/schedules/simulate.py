"""Run action lists on a clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.schedules.action import Order

_NOT_YET = -1.0


@dataclass(frozen=True)
class Timeline:
    """What a simulation saw.

    total_s: until the last rank is done. busy_s: by rank, time spent in actions.
    spans: by rank, (start_s, end_s) of each action, in the rank's order.
    """

    total_s: float
    busy_s: tuple[float, ...]
    spans: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time that is not spent in actions."""
        return 1 - sum(self.busy_s) / (self.total_s * len(self.busy_s)) if self.total_s else 0.0


def simulate(
    orders: Sequence[Order],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    p2p_s: float = 0.0,
    weight_s: Sequence[float] | None = None,
) -> Timeline:
    """Every rank does its actions in order, each as soon as its input has come.

    orders: one list of actions a pipeline rank; chunk c of rank r is virtual stage c * pp + r.
    forward_s, backward_s: seconds of one microbatch, by virtual stage.
    weight_s: the part of backward_s that `W` takes; `I` takes the rest. Without it half.
    p2p_s: from the end of an action until its output has come to the next rank; with pp = 1 there is nothing to send.
    Leaves out contention: a transfer delays who waits for it and nobody else.
    Errors: lists that deadlock.
    """
    pp, stages = len(orders), len(forward_s)
    assert pp >= 1, "a rank at least"
    weight_s = [time_s / 2 for time_s in backward_s] if weight_s is None else weight_s
    input_s = [whole - part for whole, part in zip(backward_s, weight_s, strict=True)]
    assert stages == len(backward_s) and stages % pp == 0, "one duration for each virtual stage"
    count = 1 + max((action.microbatch for order in orders for action in order), default=-1)
    assert all(action.chunk < stages // pp for order in orders for action in order), "a chunk without durations"
    # By stage and microbatch: when the input of its forward and of its backward is there.
    forward_ready = [[_NOT_YET] * count for _ in range(stages + 1)]
    backward_ready = [[_NOT_YET] * count for _ in range(stages + 1)]
    forward_ready[0] = [0.0] * count
    transfer_s = p2p_s if pp > 1 else 0.0
    spans: list[list[tuple[float, float]]] = [[] for _ in orders]
    clock = [0.0] * pp
    ranks, left = list(range(pp)), sum(map(len, orders))
    while left:
        before = left
        for rank in ranks:
            done = _run_until_blocked(
                orders[rank],
                rank,
                pp,
                spans[rank],
                clock,
                forward_s,
                backward_s,
                input_s,
                weight_s,
                transfer_s,
                forward_ready,
                backward_ready,
            )
            left -= done
        if left == before:
            raise AutoshardError(_deadlock(orders, spans))
        ranks.reverse()  # forwards travel up the ranks and backwards down: sweep both ways
    seconds = {"F": forward_s, "B": backward_s, "I": input_s, "W": weight_s}
    busy = tuple(sum(seconds[kind][chunk * pp + rank] for kind, _, chunk in order) for rank, order in enumerate(orders))
    return Timeline(max(clock), busy, tuple(map(tuple, spans)))


def _run_until_blocked(
    order: Order,
    rank: int,
    pp: int,
    spans: list[tuple[float, float]],
    clock: list[float],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    input_s: Sequence[float],
    weight_s: Sequence[float],
    transfer_s: float,
    forward_ready: list[list[float]],
    backward_ready: list[list[float]],
) -> int:
    """Do one rank's actions up to the first whose input is not known yet; how many. The inner loop: keep it plain."""
    now, start_at, last = clock[rank], len(spans), len(forward_s) - 1
    append = spans.append
    for position in range(start_at, len(order)):
        kind, microbatch, chunk = order[position]
        stage = chunk * pp + rank
        if kind == "F":
            start = forward_ready[stage][microbatch]
            if start < 0:
                break
            if start < now:
                start = now
            now = start + forward_s[stage]
            if stage == last:
                backward_ready[stage][microbatch] = now
            else:
                forward_ready[stage + 1][microbatch] = now + transfer_s
        elif kind == "W":  # its `I` came before on this rank
            start = now
            now += weight_s[stage]
        else:
            start = backward_ready[stage][microbatch]
            if start < 0:
                break
            if start < now:
                start = now
            now = start + (backward_s[stage] if kind == "B" else input_s[stage])
            backward_ready[stage - 1][microbatch] = now + transfer_s
        append((start, now))
    clock[rank] = now
    return len(spans) - start_at


def _deadlock(orders: Sequence[Order], spans: list[list[tuple[float, float]]]) -> str:
    waiting = (
        f"rank {rank} before {order[len(done)]}"
        for rank, (order, done) in enumerate(zip(orders, spans, strict=True))
        if len(done) < len(order)
    )
    return f"the schedule deadlocks: {', '.join(list(waiting)[:4])} wait for what no rank will send"
