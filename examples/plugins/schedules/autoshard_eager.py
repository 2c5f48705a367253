"""1F1B with two forwards ahead for each rank behind: it hides slow transfers and holds more microbatches.

autoshard plan --model llama3-8b --schedule eager --pp 4 --backend torch
"""

from autoshard.schedules.orders import Schedule, alternate


def objection(pp: int, num_microbatches: int, num_virtual_stages: int) -> "str | None":
    return None if num_virtual_stages == 1 else f"schedule=eager has one chunk a rank, not vpp={num_virtual_stages}"


def warm_up(rank: int, pp: int, num_microbatches: int, num_virtual_stages: int) -> int:
    return min(2 * (pp - rank) - 1, num_microbatches)


def orders(pp: int, num_microbatches: int, num_virtual_stages: int):
    return alternate(pp, num_microbatches, num_virtual_stages, warm_up)


EAGER = Schedule("eager 1F1B: two forwards for each rank behind", objection, orders, warm_up)
