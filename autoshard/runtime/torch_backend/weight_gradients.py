"""Puts off weight gradients from backward to the schedule's action `W` (zero-bubble pipelines).

torch splits a backward by walking the autograd graph twice, which would run a custom function, and its collectives,
twice. Here a projection's backward computes the gradient of its input and leaves a closure; `W` runs the closures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autoshard.runtime.torch_backend.collectives import Move
from autoshard.runtime.torch_backend.keep import Kept, keep

Work = Callable[[], None]


class WeightGradients:
    """The weight gradients that one stage's last backward left to be computed.

    accumulate: set by the optimizer; adds a gradient to the sum of the parameter's gradients.
    """

    def __init__(self) -> None:
        self._left: list[Work] = []
        self.accumulate: dict[nn.Parameter, Callable[[torch.Tensor], object]] = {}

    def leave(self, work: Work) -> None:
        self._left.append(work)

    def add(self, weight: nn.Parameter, gradient: torch.Tensor) -> None:
        self.accumulate[weight](gradient.view(weight.shape))

    def take(self) -> Work:
        """All work that was left since the last call, as one piece."""
        left, self._left = self._left, []

        @torch.no_grad()
        def run() -> None:
            for work in left:
                work()

        return run


def later_linear(
    x: torch.Tensor,
    gather: Move | None,
    scatter: Move | None,
    later: WeightGradients,
    owners: tuple[nn.Parameter, ...],
    weights: tuple[torch.Tensor, ...],
    contracted: tuple[int, ...] = (1,),
) -> tuple[torch.Tensor, ...]:
    """y_i = whole(x) w_i^T with flat weights w_i of the parameters `owners`, whose gradients are left for later.

    gather, scatter: where x is a piece that every product needs whole; the whole is not kept, `W` gathers it again.
    contracted: how many of the last dims of x each product sums over.
    """
    x, kept = keep(x, *weights)
    products: tuple[torch.Tensor, ...] = _LaterLinear.apply(
        x, kept, gather, scatter, later, owners, contracted, *weights
    )
    return products


class _LaterLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        kept: Kept,
        gather: Move | None,
        scatter: Move | None,
        later: WeightGradients,
        owners: tuple[nn.Parameter, ...],
        contracted: tuple[int, ...],
        *weights: torch.Tensor,
    ) -> Any:
        ctx.kept, ctx.gather, ctx.scatter, ctx.later, ctx.owners = kept, gather, scatter, later, owners
        whole = x if gather is None else gather(x)
        ctx.contracted, ctx.whole_shape = contracted, whole.shape
        return tuple(
            nn.functional.linear(whole.flatten(-dims), weight) for dims, weight in zip(contracted, weights, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.kept.tensors
        x = x.detach()  # else its graph waits with it, which holds what the stage has received
        gather, later, owners, contracted = ctx.gather, ctx.later, ctx.owners, ctx.contracted
        flat = [grad.flatten(0, -2) for grad in grads]

        def weight_gradients() -> None:
            whole = x if gather is None else gather(x)
            for owner, dims, grad in zip(owners, contracted, flat, strict=True):
                later.add(owner, grad.t() @ whole.flatten(-dims).flatten(0, -2))

        later.leave(weight_gradients)
        grad_x = flat[0] @ weights[0]
        for grad, weight in zip(flat[1:], weights[1:], strict=True):
            grad_x.view(-1, weight.shape[1]).addmm_(grad, weight)
        grad_x = grad_x.view(ctx.whole_shape)
        if ctx.scatter is not None:
            grad_x = ctx.scatter(grad_x)
        return (grad_x, None, None, None, None, None, None, *(None for _ in weights))
