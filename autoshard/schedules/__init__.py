"""Pipeline schedules as plain data: the list of actions of each pipeline rank, and the time that they take on
a clock.
"""

from autoshard.schedules.action import Action, Order
from autoshard.schedules.closed_form import Work
from autoshard.schedules.held import (
    Moments,
    head_apart,
    held_at_first,
    held_together,
    in_flight,
    rank_holds,
    weights_waiting,
)
from autoshard.schedules.orders import (
    NXD_SCHEDULES,
    SCHEDULES,
    Schedule,
    actions,
    check_schedule,
    usual_schedule,
)
from autoshard.schedules.simulate import Timeline, simulate
from autoshard.schedules.step_time import at_least_s, step_time_s

__all__ = [
    "NXD_SCHEDULES",
    "SCHEDULES",
    "Action",
    "Moments",
    "Order",
    "Schedule",
    "Timeline",
    "Work",
    "actions",
    "at_least_s",
    "check_schedule",
    "head_apart",
    "held_at_first",
    "held_together",
    "in_flight",
    "rank_holds",
    "simulate",
    "step_time_s",
    "usual_schedule",
    "weights_waiting",
]
