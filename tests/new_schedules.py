"""Two schedules that nobody knows, added as CONTRIBUTING says."""

from autoshard.schedules.action import Action, Order
from autoshard.schedules.orders import Schedule, alternate


def _eager_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    return None if num_virtual_stages == 1 else f"schedule=eager has one chunk a rank, not vpp={num_virtual_stages}"


def _eager_warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    return min(2 * (pp - rank) - 1, num_microbatches)


def _eager(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _eager_warm_up)


def _two_by_two(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    """Two microbatches through all ranks and back, then the next two."""
    order = [
        Action(kind, microbatch, 0)
        for first in range(0, num_microbatches, 2)
        for kind in "FB"
        for microbatch in range(first, min(first + 2, num_microbatches))
    ]
    return (tuple(order),) * pp


NEW_SCHEDULES = {
    "eager": Schedule("eager 1F1B: two forwards for each rank behind", _eager_objection, _eager, _eager_warm_up),
    "two_by_two": Schedule("two microbatches at a time", _eager_objection, _two_by_two),
}
