"""Pipeline schedules as plain data: for each pipeline rank the list of what it does, and what that takes on a clock."""

from autoshard.schedules.action import Action, Order
from autoshard.schedules.closed_form import step_time_s
from autoshard.schedules.orders import (
    NXD_SCHEDULES,
    SCHEDULES,
    actions,
    check_schedule,
    held_together,
    in_flight,
    weights_waiting,
)
from autoshard.schedules.simulate import Timeline, simulate

__all__ = [
    "NXD_SCHEDULES",
    "SCHEDULES",
    "Action",
    "Order",
    "Timeline",
    "actions",
    "check_schedule",
    "held_together",
    "in_flight",
    "simulate",
    "step_time_s",
    "weights_waiting",
]
