"""Places each rank's receives among its actions, so that no ranks can wait for each other in a circle."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from autoshard.schedules.action import Action, Order
from autoshard.schedules.simulate import in_dependency_order
from autoshard.schedules.whole import check_whole


class Receive(NamedTuple):
    """A rank begins to receive what one of its actions later on waits for, as `awaits` names it. sender: the pipeline
    rank that sends it right behind the action that makes it."""

    action: Action
    sender: int


Turn = Action | Receive
"""What a rank does next: an action, with what it sends behind it, or the beginning of a receive."""


def with_receives(orders: Sequence[Order], num_stages: int, num_microbatches: int) -> tuple[tuple[Turn, ...], ...]:
    """Each rank's actions with its receives among them.

    Every rank has its own transfers in one order of all: that of ranks which take turns, first to last, with one action
    each whose input is there. So the first transfer that is left can always take place, even where a send ends no
    earlier than its receive begins, and two ranks agree about the order of what goes to and fro between them. A receive
    stands where the sender has its turn: what comes may arrive while the receiver does something else, and room for it
    is not made much earlier.

    orders: one list of actions a pipeline rank; chunk c of rank r is virtual stage c * pp + r.
    Raises AutoshardError for lists that leave something out of the step, or that deadlock.
    """
    pp = len(orders)
    check_whole(orders, pp, num_microbatches, num_stages // pp)
    ordered = in_dependency_order(orders, num_stages)
    rounds, made = [-1] * pp, [(-1, pp)] * ordered.num_values  # each rank's last round; when and where a value was made
    in_turns: list[tuple[int, int, Action, bool]] = []
    left = [iter(order) for order in orders]
    for rank, _, source, target, sends in ordered.steps:
        when, maker = made[source]
        rounds[rank] = max(rounds[rank] + 1, when + (maker >= rank))
        made[target] = rounds[rank], rank
        in_turns.append((rounds[rank], rank, next(left[rank]), sends))
    turns: list[list[Turn]] = [[] for _ in orders]
    for _, rank, action, sends in sorted(in_turns):
        turns[rank].append(action)
        if sends:
            receiver, name = reader(action, rank, pp)
            turns[receiver].append(Receive(name, rank))
    return tuple(map(tuple, turns))


def awaits(action: Action) -> Action:
    """The name of what an action waits for: the forward or the backward that it is part of, as `I` is of `B`."""
    return action._replace(kind="B") if action.kind == "I" else action


def reader(action: Action, rank: int, pp: int) -> tuple[int, Action]:
    """The pipeline rank of the stage for which an action makes something, the next one or, for a backward, the one
    before; and what that stage's action awaits."""
    step = 1 if action.kind == "F" else -1
    chunk, receiver = divmod(action.chunk * pp + rank + step, pp)
    return receiver, awaits(action._replace(chunk=chunk))


def received_by(turns: Sequence[Sequence[Turn]], rank: int) -> dict[Action, tuple[Action, ...]]:
    """By action of a rank, those of its actions of which the output has been received once what this action waits for
    is there: who sent that had read them before. Each stands behind the first action that proves it.

    turns: of every rank, as `with_receives` gives them.
    """
    pp = len(turns)
    made = {reader(one, rank, pp): one for one in turns[rank] if isinstance(one, Action) and one.kind != "W"}
    found: dict[Action, tuple[Action, ...]] = {}
    for other in {one.sender for one in turns[rank] if isinstance(one, Receive)}:
        acts = [one for one in turns[other] if isinstance(one, Action)]
        reads = deque((at, made[other, awaits(one)]) for at, one in enumerate(acts) if (other, awaits(one)) in made)
        makes = {reader(one, other, pp): at for at, one in enumerate(acts) if one.kind != "W"}
        for action in turns[rank]:
            if not isinstance(action, Action) or (at := makes.get((rank, awaits(action)))) is None:
                continue
            while reads and reads[0][0] <= at:
                found[action] = (*found.get(action, ()), reads.popleft()[1])
    return found
