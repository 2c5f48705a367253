"""The schedules by name: when each is legal, and the actions of every pipeline rank in order.

1f1b and interleaved equal NxD's task orders; gpipe and zero_bubble are the torch backend's alone. No other file knows
a schedule by its name: what others need is a field of `Schedule`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import index
from typing import TypeVar

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.plugins.found import RAISED, in_one_line
from autoshard.plugins.table import Table
from autoshard.rows import Number, is_rows
from autoshard.schedules.action import Action, Order
from autoshard.schedules.closed_form import (
    ClosedForm,
    WarmUp,
    alternating_at_least_s,
    in_turns_at_least_s,
    weights_apart_at_least_s,
)
from autoshard.schedules.whole import check_whole

V = TypeVar("V")


@dataclass(frozen=True)
class Schedule:
    """A schedule: when it is legal, its orders, and the rules that estimates and search ask for.

    Functions of sizes take (pp, num_microbatches, num_virtual_stages); `warm_up` and `most_waiting` take the rank
    before them.

    label: its name for readers; `{vpp}` in it stands for the number of virtual stages.
    objection: why the schedule cannot be used with these sizes, in one line; None or an empty text where it can.
    orders: one tuple of Actions for each rank.
    warm_up: forwards before a rank's first backward, if the orders are `alternate(..., warm_up)`, be it with `I` and
    `W`
    in place of `B`. Without it, what a rank holds is counted from the orders.
    closed_form: seconds that a step takes at least. Search prices with it and simulates the layouts that it leaves;
    without it all layouts are simulated.
    exact_without_transfers: whether the closed form is the step time if transfers take no time; of a schedule that is
    built in nothing is simulated then.
    weights_apart: whether backwards come as `I` and `W`.
    most_waiting: the most `W` of a rank that wait besides that of the backward in work. Without it they are counted.
    What a schedule that is not built in says here is held against its orders.
    nxd: whether NxD has the schedule too.
    """

    label: str
    objection: Callable[[int, int, int], str | None]
    orders: Callable[[int, int, int], tuple[Order, ...]]
    warm_up: WarmUp | None = None
    closed_form: ClosedForm | None = None
    exact_without_transfers: bool = False
    weights_apart: bool = False
    most_waiting: WarmUp | None = None
    nxd: bool = False

    def __post_init__(self) -> None:
        try:
            self.label.format(vpp=1)
        except (AttributeError, LookupError, ValueError):
            raise AutoshardError(f"label={self.label!r} of a Schedule may have {{vpp}} alone in braces") from None

    @property
    def stages_are_free(self) -> bool:
        """Whether search tries every cut, and other recompute sets for each stage.

        It does if the closed form discards most of them and a rank's activations follow from its warm-up.
        """
        return self.closed_form is not None and self.warm_up is not None and not self.weights_apart

    def objection_to(self, pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
        """The reason why these sizes are not legal; None if they are.

        Raises AutoshardError where a schedule of a plug-in fails to say it in a text.
        """
        found = asked(self, self.objection, pp, num_microbatches, num_virtual_stages)
        if not isinstance(found, str | None):
            raise AutoshardError(f"{said(self)} has the objection {show(found)}; it must be a text, or None")
        return " ".join(found.split()) if found else None

    def objection_to_chunks(self, pp: int, num_virtual_stages: int) -> str | None:
        """The reason why so many chunks a rank are not legal, whatever the number of microbatches; None if they are."""
        return self.objection_to(pp, 2 * pp, num_virtual_stages)

    def accepts_chunks(self, pp: int, num_virtual_stages: int) -> bool:
        """Whether so many chunks a rank are legal with some number of microbatches."""
        return self.objection_to_chunks(pp, num_virtual_stages) is None


def alternate(pp: int, num_microbatches: int, num_virtual_stages: int, warm_up: WarmUp) -> tuple[Order, ...]:
    """The orders in which each rank runs its warm-up forwards, then backward and forward in turn, then the other
    backwards.

    Forwards take pp microbatches through chunk 0, the same through chunk 1 and so on, then the next pp; backwards go
    through the chunks from the last to the first.
    warm_up: (rank, pp, num_microbatches, num_virtual_stages) -> number of warm-up forwards, at least 1.
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
    """One forward more than there are ranks behind: that fills the pipeline, and more would only hold activations."""
    return min(pp - rank, num_microbatches)


def _1f1b(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _1f1b_warm_up)


def _gpipe_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    if num_virtual_stages != 1:
        return f"schedule=gpipe has one chunk a rank, not vpp={num_virtual_stages}; use vpp=1 or schedule=interleaved"
    return None


def _gpipe_warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    """All forwards, so that all backwards come after them (Huang et al. 2019)."""
    return num_microbatches


def _gpipe(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _gpipe_warm_up)


def _zero_bubble_objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> str | None:
    if num_virtual_stages != 1:
        return f"schedule=zero_bubble has one chunk a rank, not vpp={num_virtual_stages}; use vpp=1"
    return None


def _zero_bubble_most_waiting(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    return min(rank, num_microbatches - 1)


def _zero_bubble(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    """The orders of 1F1B with weight gradients apart: ZB-H1 of Qi et al. 2023, "Zero Bubble Pipeline Parallelism".

    Rank r lets r weight gradients wait. With the pp - r microbatches between its forward and its backward it then holds
    as much as the first rank of 1F1B. The weight gradients that wait fill the gaps of the last backwards.
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
    """The forwards of pp microbatches through all chunks but the last, two for each rank behind, and one.

    With pp microbatches in all NxD runs all forwards, then all backwards; so does this.
    """
    if num_microbatches == pp:
        return num_microbatches * num_virtual_stages
    return min(2 * (pp - 1 - rank) + (num_virtual_stages - 1) * pp + 1, num_microbatches * num_virtual_stages)


def _interleaved(pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    return alternate(pp, num_microbatches, num_virtual_stages, _interleaved_warm_up)


_BUILT_IN = {
    "1f1b": Schedule(
        "1F1B: one forward, one backward",
        _1f1b_objection,
        _1f1b,
        _1f1b_warm_up,
        partial(in_turns_at_least_s, _1f1b_warm_up),
        exact_without_transfers=True,
        nxd=True,
    ),
    "interleaved": Schedule(
        "interleaved 1F1B with {vpp} virtual stages on each pipeline rank",
        _interleaved_objection,
        _interleaved,
        _interleaved_warm_up,
        partial(alternating_at_least_s, _interleaved_warm_up),
        nxd=True,
    ),
    "gpipe": Schedule(
        "GPipe: all forwards, then all backwards",
        _gpipe_objection,
        _gpipe,
        _gpipe_warm_up,
        partial(alternating_at_least_s, _gpipe_warm_up),
        exact_without_transfers=True,
    ),
    "zero_bubble": Schedule(
        "zero-bubble (ZB-H1): 1F1B whose weight gradients wait until there is time",
        _zero_bubble_objection,
        _zero_bubble,
        _1f1b_warm_up,
        weights_apart_at_least_s,
        weights_apart=True,
        most_waiting=_zero_bubble_most_waiting,
    ),
}
SCHEDULES = Table[Schedule]("schedules", lambda value: isinstance(value, Schedule), "a Schedule", _BUILT_IN)
"""The schedules by name, those of plug-ins too."""
NXD_SCHEDULES = tuple(name for name, schedule in SCHEDULES.items() if schedule.nxd)
"""Names of the schedules that NxD has as well."""


def usual_schedule(num_virtual_stages: int) -> str:
    """The name of the schedule to take if the user names none."""
    return "1f1b" if num_virtual_stages == 1 else "interleaved"


def check_schedule(schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int) -> None:
    """Raise AutoshardError for an unknown schedule, a size below 1, or sizes that the schedule cannot be used with."""
    if schedule not in SCHEDULES:
        raise AutoshardError(f"schedule={schedule!r} is not known; known: {', '.join(SCHEDULES)}")
    for name, value in (("pp", pp), ("num_microbatches", num_microbatches), ("vpp", num_virtual_stages)):
        if value < 1:
            raise AutoshardError(f"{name}={value} must be at least 1")
    objection = SCHEDULES[schedule].objection_to(pp, num_microbatches, num_virtual_stages)
    if objection is not None:
        raise AutoshardError(objection)


def actions(schedule: str, pp: int, num_microbatches: int, num_virtual_stages: int = 1) -> tuple[Order, ...]:
    """The orders of a schedule: for each pipeline rank a tuple of its Actions, in order.

    Raises AutoshardError as `check_schedule` and as `orders_of`.
    """
    check_schedule(schedule, pp, num_microbatches, num_virtual_stages)
    return orders_of(SCHEDULES[schedule], pp, num_microbatches, num_virtual_stages)


@lru_cache(maxsize=16)
def orders_of(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    """The orders of a schedule, as `actions` gives them, made once. Sizes must be legal.

    Raises AutoshardError where those of a schedule that is not built in are no whole step, or not those of its warm-up.
    """
    if is_built_in(schedule):
        return schedule.orders(pp, num_microbatches, num_virtual_stages)
    return asked(schedule, partial(_checked_orders, schedule), pp, num_microbatches, num_virtual_stages)


def is_built_in(schedule: Schedule) -> bool:
    """Whether it is one of those of this file: what they say of themselves is not held against their orders."""
    return any(schedule is one for one in _BUILT_IN.values())


def _checked_orders(schedule: Schedule, pp: int, num_microbatches: int, num_virtual_stages: int) -> tuple[Order, ...]:
    sizes, of = (pp, num_microbatches, num_virtual_stages), said(schedule)
    orders = tuple(
        tuple(Action(kind, index(microbatch), index(chunk)) for kind, microbatch, chunk in order)
        for order in schedule.orders(*sizes)
    )
    check_whole(orders, *sizes, of, schedule.weights_apart)
    if schedule.warm_up is None:
        return orders
    for rank, (order, wanted) in enumerate(zip(orders, alternate(*sizes, schedule.warm_up), strict=True)):
        whole = (action._replace(kind="B") if action.kind == "I" else action for action in order if action.kind != "W")
        if tuple(whole) != wanted:
            raise AutoshardError(
                f"{of} has orders of rank {rank} that are not those of `alternate` with its warm_up="
                f"{schedule.warm_up(rank, *sizes)}; without warm_up what a rank holds is counted from the orders"
            )
    return orders


def said(schedule: Schedule) -> str:
    """The name of a schedule with the package that it comes from, for errors."""
    return f"schedule {SCHEDULES.name_of(schedule) or repr(schedule.label)}"


def asked(schedule: Schedule, of_sizes: Callable[..., V], *sizes: Number) -> V:
    """The answer of a schedule's function of sizes. Raises AutoshardError where that of a plug-in raises."""
    try:
        return of_sizes(*sizes)
    except AutoshardError:
        raise
    except RAISED as error:
        if is_built_in(schedule):
            raise
        pp, count, vpp = sizes
        of_count = "" if is_rows(count) else f", num_microbatches={count}"
        raise AutoshardError(
            f"{said(schedule)} fails with pp={pp}{of_count} and vpp={vpp}: {in_one_line(error)}"
        ) from error
