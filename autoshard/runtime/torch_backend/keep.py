"""Tensors kept for the backward of a function that has not run yet.

A replay under recompute stops at the last tensor that was saved. What a torch.autograd.Function saves is counted when
its forward is over: a projection that keeps only its input would run again, and gather again, for nothing.
"""

from __future__ import annotations

from typing import Any

import torch


class Kept:
    """Filled by `keep`; its tensors are there until the backward of what came before."""

    node: Any = None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = self.node.saved_tensors
        return found


def keep(x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, Kept]:
    """(x, what gives x and the others back in backward)."""
    kept = Kept()
    return _Keep.apply(x, kept, *others), kept


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: Kept, *others: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *others)
        ctx.count, kept.node = len(others), ctx
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return (grads[0], None, *(None for _ in range(ctx.count)))
