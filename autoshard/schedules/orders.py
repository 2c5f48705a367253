"""The schedules by name: when each is legal, and what every pipeline rank does in order.

1f1b and interleaved equal NxD's task orders; gpipe and zero_bubble are the torch backend's alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import ge

from autoshard.errors import AutoshardError
from autoshard.schedules.action import Action, Order

WarmUp = Callable[[int, int, int, int], int]
"""(rank, pp, num_microbatches, num_virtual_stages) -> forwards before the first backward, at least 1."""


@dataclass(frozen=True)
class Schedule:
    """A schedule. All three functions take (pp, num_microbatches, num_virtual_stages), `warm_up` the rank before them.

    objection: why the schedule cannot be used with these sizes, in one line, or None.
    orders: what each rank does, one tuple of Actions a rank.
    warm_up: set when the orders are `alternate(..., warm_up)`, for which there is a closed form; else search simulates.
    weights_apart: backwards come as `I` and `W`. The orders then are those of `alternate` but for that, and simulated.
    """

    objection: Callable[[int, int, int], str | None]
    orders: Callable[[int, int, int], tuple[Order, ...]]
    warm_up: WarmUp | None = None
    weights_apart: bool = False


def alternate(pp: int, num_microbatches: int, num_virtual_stages: int, warm_up: WarmUp) -> tuple[Order, ...]:
    """Each rank runs its warm-up forwards, then backward and forward in turn, then the backwards that are left.

    Forwards take pp microbatches through chunk 0, the same through chunk 1 and so on, then the next pp; backwards go
    through the chunks from the last to the first.
    """
    block = pp if num_virtual_stages > 1 else 1
    visits = [
        (first + within, chunk)
        for first in range(0, num_microbatches, block)
        for chunk in range(num_virtual_stages)
        for within in range(block)
    ]
    forwards = [Action("F", microbatch, chunk) for microbatch, chunk in visits]
    backwards = [Action("B", microbatch, num_virtual_stages - 1 - chunk) for microbatch, chunk in visits]
    orders = []
    for rank in range(pp):
        warm = warm_up(rank, pp, num_microbatches, num_virtual_stages)
        turns = [action for pair in zip(backwards, forwards[warm:], strict=False) for action in pair]
        orders.append((*forwards[:warm], *turns, *backwards[len(forwards) - warm :]))
    return tuple(orders)


def _1f1b_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    if num_virtual_stages != 1:
        return f"schedule=1f1b has one chunk a rank, not vpp={num_virtual_stages}; use vpp=1 or schedule=interleaved"
    return None


def _1f1b_warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    """One more than the ranks behind this one: that fills the pipeline, and more would only hold activations."""
    return min(pp - rank, num_microbatches)


def _1f1b(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _1f1b_warm_up)


def _gpipe_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    if num_virtual_stages != 1:
        return f"schedule=gpipe has one chunk a rank, not vpp={num_virtual_stages}; use vpp=1 or schedule=interleaved"
    return None


def _gpipe_warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return num_microbatches


def _gpipe(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _gpipe_warm_up)


def _zero_bubble_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    if num_virtual_stages != 1:
        return f"schedule=zero_bubble has one chunk a rank, not vpp={num_virtual_stages}; use vpp=1"
    return None


def _zero_bubble(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    """1F1B with weight gradients apart: ZB-H1 of Qi et al. 2023, "Zero Bubble Pipeline Parallelism".

    Rank r lets r of them wait: with the pp - r microbatches between its forward and its backward it then holds as much
    as the first rank of 1F1B, and what waits fills the gaps of the last backwards.
    """
    return tuple(_weights_apart(order, rank) for rank, order in enumerate(_1f1b(pp, num_microbatches, 1)))


def _weights_apart(order: Order, most_waiting: int) -> Order:
    apart: list[Action] = []
    waiting: list[Action] = []
    for action in order:
        if action.kind == "F":
            apart.append(action)
            continue
        apart.append(action._replace(kind="I"))
        waiting.append(action._replace(kind="W"))
        if len(waiting) > most_waiting:
            apart.append(waiting.pop(0))
    return (*apart, *waiting)


def _interleaved_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    if num_virtual_stages < 2:
        return f"schedule=interleaved needs at least 2 chunks a rank, not vpp={num_virtual_stages}; use schedule=1f1b"
    if num_microbatches % pp:
        multiples = [count * pp for count in (num_microbatches // pp, num_microbatches // pp + 1) if count]
        return (
            f"schedule=interleaved needs a multiple of pp={pp} as num_microbatches, not {num_microbatches}; "
            f"{' or '.join(map(str, multiples))} would do"
        )
    return None


def _interleaved_warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    """pp microbatches through all chunks but the last, and two for each rank behind.

    With pp microbatches in all NxD runs all forwards, then all backwards; so does this.
    """
    if num_microbatches == pp:
        return num_microbatches * num_virtual_stages
    return min(2 * (pp - 1 - rank) + (num_virtual_stages - 1) * pp + 1, num_microbatches * num_virtual_stages)


def _interleaved(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _interleaved_warm_up)


SCHEDULES: dict[str, Schedule] = {
    "1f1b": Schedule(_1f1b_objection, _1f1b, _1f1b_warm_up),
    "interleaved": Schedule(_interleaved_objection, _interleaved, _interleaved_warm_up),
    "gpipe": Schedule(_gpipe_objection, _gpipe, _gpipe_warm_up),
    "zero_bubble": Schedule(_zero_bubble_objection, _zero_bubble, _1f1b_warm_up, weights_apart=True),
}
NXD_SCHEDULES = ("1f1b", "interleaved")
"""Those that NxD has as well."""


def check_schedule(schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int) -> None:
    """Errors: an unknown schedule, a size below 1, or sizes that the schedule cannot be used with."""
    if schedule not in SCHEDULES:
        raise AutoshardError(f"schedule={schedule!r} is not known; known: {', '.join(SCHEDULES)}")
    for name, value in (("pp", pp), ("num_microbatches", num_microbatches), ("vpp", num_virtual_stages)):
        if value < 1:
            raise AutoshardError(f"{name}={value} must be at least 1")
    objection = SCHEDULES[schedule].objection(pp, num_microbatches, num_virtual_stages)
    if objection:
        raise AutoshardError(objection)


@lru_cache(maxsize=16)
def actions(schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int = 1) -> tuple[Order, ...]:
    """What each pipeline rank does, in order: one tuple of Actions a rank. Errors: as `check_schedule`."""
    check_schedule(schedule, pp, num_microbatches, num_virtual_stages)
    return SCHEDULES[schedule].orders(pp, num_microbatches, num_virtual_stages)


def in_flight(orders: tuple[Order, ...]) -> tuple[tuple[int, ...], ...]:
    """By rank and chunk: the most microbatches whose forward has run and whose backward (or `I`) has not.

    Each of them holds the chunk's saved activations. The peaks of two chunks of a rank need not fall together.
    """
    return tuple(_peaks(order, "F", "BI") for order in orders)


@lru_cache(maxsize=256)
def held_together(
    schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """By rank: how many microbatches of each chunk it holds, at every moment when no other moment has more of all.

    Interleaved: more than 3 pp microbatches add no such moment, since its chunks repeat every pp microbatches and its
    warm-up takes fewer than (vpp + 1) pp forwards; tested.
    """
    count = min(num_microbatches, 4 * pp) if schedule == "interleaved" else num_microbatches
    return tuple(_most_held(order, num_virtual_stages) for order in actions(schedule, pp, count, num_virtual_stages))


def _most_held(order: Order, num_virtual_stages: int) -> tuple[tuple[int, ...], ...]:
    held, moments = [0] * num_virtual_stages, set()
    for kind, _, chunk in order:
        held[chunk] += (kind == "F") - (kind in "BI")
        if kind == "F":
            moments.add(tuple(held))
    return tuple(
        sorted(one for one in moments if not any(other != one and all(map(ge, other, one)) for other in moments))
    )


def weights_waiting(orders: tuple[Order, ...]) -> tuple[tuple[int, ...], ...]:
    """By rank and chunk: the most microbatches whose `I` has run and whose `W` has not."""
    return tuple(_peaks(order, "I", "W") for order in orders)


def _peaks(order: Order, begins: str, ends: str) -> tuple[int, ...]:
    held = [0] * (1 + max((action.chunk for action in order), default=0))
    peaks = list(held)
    for kind, _, chunk in order:
        held[chunk] += (kind in begins) - (kind in ends)
        peaks[chunk] = max(peaks[chunk], held[chunk])
    return tuple(peaks)
