"""Times the collectives that the torch runtime issues, over all ranks, for payloads from 1 KiB up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from autoshard.calibration.clock import Clock
from autoshard.calibration.values import CollectiveTime
from autoshard.cost.collectives import KINDS
from autoshard.runtime.torch_backend.collectives import all_gather, all_reduce, all_to_all, pass_on, reduce_scatter
from autoshard.runtime.torch_backend.groups import Group
from autoshard.units import KIB, MIB

SIZES = (KIB, 16 * KIB, 128 * KIB, MIB, 4 * MIB, 16 * MIB)
MORE_SIZES = {"cuda": (64 * MIB, 256 * MIB)}
"""Type of device -> payloads beyond those: NVLink reaches its bandwidth late."""
FLOAT_BYTES = 4


def collective_times(ranks: int, clock: Clock) -> Iterator[CollectiveTime]:
    """Yields the time of every kind and size of collective, that of the slowest rank."""
    group = Group.of(dist.new_group(), list(range(ranks)), dist.get_rank())
    for kind in KINDS:
        for size in (*SIZES, *MORE_SIZES.get(clock.device.type, ())):
            elements = int(size) // FLOAT_BYTES // ranks**2 * ranks**2
            seconds = torch.tensor(_fastest_s(_work(kind, elements, group, clock.device), clock), device=clock.device)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            yield CollectiveTime(kind, ranks, float(elements * FLOAT_BYTES), float(seconds))


def _fastest_s(work: Callable[[], Any], clock: Clock) -> float:
    """Seconds of the fastest round; all ranks start a round together. Clock.typical_s would repeat more often on one
    rank than on another."""
    work()
    found = []
    for _ in range(clock.rounds * 2):
        dist.barrier()
        found.append(clock.once_s(work))
    return min(found)


def _work(kind: str, elements: int, group: Group, device: torch.device) -> Callable[[], Any]:
    """A function that runs one collective as the runtime issues it. elements: of its larger buffer."""
    whole, part = torch.ones(elements, device=device), torch.ones(elements // group.size, device=device)
    if kind == "all_reduce":
        return lambda: all_reduce(whole, group)
    if kind == "all_gather":
        return lambda: all_gather(part, group, 0)
    if kind == "reduce_scatter":
        return lambda: reduce_scatter(whole, group, 0)
    if kind == "all_to_all":
        square = whole.view(group.size, -1)
        return lambda: all_to_all(square, group, 1, 0)
    return lambda: pass_on(whole, group)()
