"""Sums over the whole model in FP64: of losses, and of the gradient's squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.groups import Group

NORM_ELEMENTS = 2**20
"""How many elements a norm is taken of at a time: on CPU torch converts them to FP64 first."""
_ROW = 2**12
"""How many squares are summed up in FP32, where the device has no FP64, before the host goes on in FP64."""


def row_squares(x: torch.Tensor) -> torch.Tensor:
    """The sums of the squares of 4,096 elements each, and of those that are left, in FP32."""
    whole = x.numel() // _ROW * _ROW
    squares = x.float().square()
    return torch.cat((squares[:whole].view(-1, _ROW).sum(1), squares[whole:].sum().view(1)))


@dataclass(frozen=True)
class Sums:
    """The place where sums are made, and who shares them. group: all ranks, None where there is one."""

    place: torch.device
    group: dist.ProcessGroup | None

    @staticmethod
    def on(device: torch.device, world: Group | None, host: dist.ProcessGroup | None) -> Sums:
        """Sums on the device; on the host, and over its group, where the device has no FP64."""
        if devices.has_64_bits(device):
            return Sums(device, None if world is None else world.handle)
        return Sums(torch.device("cpu"), host)

    def zero(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64, device=self.place)

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """x in FP64, where sums are made."""
        return x.to(self.place).double()

    def squares(self, x: torch.Tensor, by_rows: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The sum of the squares of a flat tensor. by_rows: `row_squares`, compiled or not, for a device without
        FP64."""
        if devices.has_64_bits(x.device):
            norms = torch._foreach_norm(x.split(NORM_ELEMENTS), dtype=torch.float64)
            return torch.stack(norms).square().sum()
        return self.wide(by_rows(x)).sum()

    def over_ranks(self, total: torch.Tensor) -> torch.Tensor:
        """The total of all ranks, in place; collective."""
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        return total
