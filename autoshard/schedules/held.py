"""How many microbatches a pipeline rank holds at once, from a schedule's orders or its warm-up."""

from __future__ import annotations

from functools import lru_cache
from operator import ge, index
from typing import NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.schedules.action import Order
from autoshard.schedules.orders import SCHEDULES, Schedule, asked, is_built_in, orders_of, said


class RankHolds(NamedTuple):
    """The most that a pipeline rank holds at once, in microbatches.

    in_flight: chunk activations, all chunks together. embeddings, heads: microbatches in the chunk with the embedding
    and in the one with the head, on the ranks that have these, else 0. waiting: microbatches whose weight gradients
    wait, besides the one in work. together: in flight and waiting at one moment. at_first: chunk activations, all
    chunks together, when a backward of the first chunk begins. more: 1 where others come or are gone when it needs
    most, 0 where its one chunk holds all of a step together. passing: of other ranks' microbatches, what has room then
    or is being sent.
    """

    in_flight: int
    embeddings: int
    heads: int
    waiting: int
    together: int
    at_first: int
    more: int
    passing: int


@lru_cache(maxsize=1024)
def rank_holds(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[RankHolds, ...]:
    """The most that each pipeline rank holds at once. Sizes must be legal (`check_schedule`).

    Raises AutoshardError as `orders_of`, and where a schedule that is not built in has another `most_waiting` than its
    orders.
    """
    sizes = (pp, num_microbatches, num_virtual_stages)
    if schedule.warm_up is None or not is_built_in(schedule):
        return _counted(schedule, *sizes)
    held, waiting = warm_ups(schedule, *sizes), [0] * pp
    if schedule.most_waiting is not None:
        waiting = [schedule.most_waiting(rank, *sizes) for rank in range(pp)]
    every, embeddings = num_microbatches * num_virtual_stages, _most_of_chunk(held[0], *sizes, 0)
    heads = _most_of_chunk(held[-1], *sizes, num_virtual_stages - 1)
    return tuple(
        RankHolds(
            held[rank],
            embeddings * (rank == 0),
            heads * (rank == pp - 1),
            waiting[rank],
            # a microbatch is in flight or waits, never both
            min(held[rank] + waiting[rank], every),
            # backwards of pp microbatches through all other chunks come before, and as many forwards as are left
            min(held[rank], every - (num_virtual_stages - 1) * pp),
            int(num_virtual_stages > 1 or held[rank] + waiting[rank] < every),
            _passing(schedule, rank, pp, num_virtual_stages) if held[rank] + waiting[rank] < every else 0,
        )
        for rank in range(pp)
    )


def _passing(schedule: Schedule, rank: int, pp: int, num_virtual_stages: int) -> int:
    """RankHolds.passing of a rank that does not hold all of a step together.

    A rank holds most behind a forward. While that ran, the gradient of the backward before it has been sent; what the
    rank behind sends for the next backward has its room then, or later. So there is room for the next forward alone, if
    another rank sends that; with several chunks on the last rank for a gradient, too, that the first one sends while
    the forward runs. Where gradients of weights wait this is not looked at: as if there were room for what comes, and a
    gradient on its way.
    """
    received = int(rank > 0 or num_virtual_stages > 1)
    last_of_several = rank == pp - 1 and num_virtual_stages > 1
    return received + int(schedule.weights_apart or last_of_several)


def _counted(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[RankHolds, ...]:
    """`rank_holds`, from the orders."""
    sizes = (pp, num_microbatches, num_virtual_stages)
    orders = orders_of(schedule, *sizes)
    peaks = in_flight(orders)
    found = []
    for rank, order in enumerate(orders):
        held, waiting, together, at_first = _most_at_once(order)
        ends = (peaks[0][0] * (rank == 0), peaks[-1][-1] * (rank == pp - 1))
        more = int(num_virtual_stages > 1 or together < num_microbatches)
        every = num_microbatches * num_virtual_stages
        passing = _passing(schedule, rank, pp, num_virtual_stages) if together < every else 0
        found.append(RankHolds(held, *ends, waiting, together, at_first, more, passing))
    most_waiting = schedule.most_waiting
    if most_waiting is not None:
        declared = asked(schedule, lambda *given: [most_waiting(rank, *given) for rank in range(pp)], *sizes)
        for rank, (one, said_to_wait) in enumerate(zip(found, declared, strict=True)):
            if said_to_wait != one.waiting:
                raise AutoshardError(
                    f"{said(schedule)} says most_waiting={show(said_to_wait)} of rank {rank}, whose orders have "
                    f"{one.waiting} with pp={pp}, num_microbatches={num_microbatches} and vpp={num_virtual_stages}; "
                    "without most_waiting they are counted"
                )
    return tuple(found)


def _most_at_once(order: Order) -> tuple[int, int, int, int]:
    """The most of a rank, all chunks together: in flight, waiting besides the one in work, both at one moment, and in
    flight when a backward of the first chunk begins.

    Looked at are the ends of forwards and the beginnings of backwards: at others a rank holds no more.
    """
    held = waiting = 0
    most = (0, 0, 0, 0)
    for kind, _, chunk in order:
        held += kind == "F"
        if kind != "W":
            at_first = held if kind in "BI" and not chunk else 0
            most = (
                max(most[0], held),
                max(most[1], waiting),
                max(most[2], held + waiting),
                max(most[3], at_first),
            )
        held -= kind in "BI"
        waiting += (kind == "I") - (kind == "W")
    return most


@lru_cache(maxsize=1024)
def warm_ups(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[int, ...]:
    """The number of forwards of each rank before its first backward. The schedule must have a `warm_up`.

    Raises AutoshardError where that of a schedule that is not built in raises, or gives no whole number.
    """
    warm_up = schedule.warm_up
    assert warm_up is not None
    sizes = (pp, num_microbatches, num_virtual_stages)
    return asked(schedule, lambda *given: tuple(index(warm_up(rank, *given)) for rank in range(pp)), *sizes)


def _most_of_chunk(warm: int, pp: int, num_microbatches: int, num_virtual_stages: int, chunk: int) -> int:
    """The most microbatches in flight through one chunk of a rank under `alternate`. warm: the rank's warm-up forwards.

    A backward and a forward take turns. The pattern repeats after pp turns of each chunk.
    """
    if num_virtual_stages == 1:
        return warm
    round_ = pp * num_virtual_stages
    turns = min(num_microbatches * num_virtual_stages - warm, round_)

    def visits(actions: int, of_chunk: int) -> int:
        rounds, rest = divmod(actions, round_)
        return rounds * pp + min(pp, max(0, rest - of_chunk * pp))

    # it holds more as long as forwards go through it, and never more than when these end
    ends = ((chunk + 1) * pp - warm) % round_
    return max(
        visits(warm + turn, chunk) - visits(turn, num_virtual_stages - 1 - chunk)
        for turn in {0, min(ends, turns), turns}
    )


def in_flight(orders: tuple[Order, ...]) -> tuple[tuple[int, ...], ...]:
    """For each rank and chunk, the most microbatches whose forward has run and whose backward (or `I`) has not.

    Each of them holds the chunk's saved activations. The peaks of two chunks of a rank need not fall together.
    """
    return tuple(_peaks(order, "F", "BI") for order in orders)


def weights_waiting(orders: tuple[Order, ...]) -> tuple[tuple[int, ...], ...]:
    """For each rank and chunk, the most microbatches whose `I` has run and whose `W` has not."""
    return tuple(_peaks(order, "I", "W") for order in orders)


def _peaks(order: Order, begins: str, ends: str) -> tuple[int, ...]:
    held = [0] * (1 + max((action.chunk for action in order), default=0))
    peaks = list(held)
    for kind, _, chunk in order:
        held[chunk] += (kind in begins) - (kind in ends)
        peaks[chunk] = max(peaks[chunk], held[chunk])
    return tuple(peaks)


Moments = tuple[tuple[int, ...], ...]
"""By moment of a rank: how many microbatches of each chunk it holds."""
Held = tuple[Moments, ...]
"""By rank, its moments."""


def held_together(schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int) -> Held:
    """For each rank, the moments at which it holds most: at each, how many microbatches of each chunk.

    Left out are moments at which the rank holds no more of any chunk than at another moment.
    """
    return _moments_of(SCHEDULES[schedule], pp, num_microbatches, num_virtual_stages).together


def held_at_first(schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int) -> Held:
    """For each rank, the moments at which a backward of its first chunk begins while it holds most, as of
    `held_together`."""
    return _moments_of(SCHEDULES[schedule], pp, num_microbatches, num_virtual_stages).at_first


def head_apart(moments: Moments) -> tuple[Moments, Moments]:
    """Moments of the last rank, as of `held_together`: (with a microbatch in its last chunk, which has the head;
    without)."""
    return tuple(one for one in moments if one[-1]), tuple(one for one in moments if not one[-1])


class _HeldAtMost(NamedTuple):
    """Moments of each rank of a pipeline at which it holds most: together, of all; at_first, of those at which a
    backward of its first chunk begins."""

    together: Held
    at_first: Held


@lru_cache(maxsize=256)
def _moments_of(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> _HeldAtMost:
    count = num_microbatches
    if schedule.warm_up is not None:
        count = _telling_count(schedule, pp, num_microbatches, num_virtual_stages)
    orders = orders_of(schedule, pp, count, num_virtual_stages)
    return _HeldAtMost(*zip(*(_most_held(order, num_virtual_stages) for order in orders), strict=True))


def _telling_count(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    """The smallest number of microbatches that is enough to see all that `alternate` holds at once with
    num_microbatches.

    Turns of a backward and a forward repeat when all chunks had pp of each (with one chunk, one of each). So a whole
    round behind the longest warm-up shows all, if warm-ups are as long with fewer microbatches.
    """
    wanted = warm_ups(schedule, pp, num_microbatches, num_virtual_stages)
    size = pp if num_virtual_stages > 1 else 1
    rounds = -(-max(wanted) // (size * num_virtual_stages)) + 1
    count = size * rounds
    tells = count < num_microbatches and warm_ups(schedule, pp, count, num_virtual_stages) == wanted
    return count if tells else num_microbatches


def _most_held(order: Order, num_virtual_stages: int) -> tuple[Moments, Moments]:
    """The fullest moments of one rank: of all, and of those at which a backward of its first chunk begins."""
    held, moments, at_first = [0] * num_virtual_stages, set(), set()
    for kind, _, chunk in order:
        if kind in "BI" and not chunk:
            at_first.add(tuple(held))
        held[chunk] += (kind == "F") - (kind in "BI")
        if kind == "F":
            moments.add(tuple(held))
    return _fullest(moments), _fullest(at_first)


def _fullest(moments: set[tuple[int, ...]]) -> Moments:
    """The moments but those at which a rank holds no more of any chunk than at another one."""
    most: list[tuple[int, ...]] = []
    for one in sorted(moments, reverse=True):  # what holds as much of each chunk comes earlier
        if not any(all(map(ge, other, one)) for other in most):
            most.append(one)
    return tuple(reversed(most))
