"""The load-balancing loss of a mixture's routers: added to the gradient where it arises, not to the stage's output.

A pipeline stage sends its hidden states to the next one and no loss. So a router passes its probabilities on, and adds
its loss's gradient to theirs in backward. The losses are summed up for the report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autoshard.graph.partition import OperatorStep
from autoshard.graph.states import REPLICATED
from autoshard.runtime.torch_backend.collectives import all_reduce

Balance = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class RouterLosses:
    """The router losses of one stage. scale: factor of a microbatch's loss in the gradient, the same for every
    router."""

    def __init__(self) -> None:
        self.scale = 1.0
        self._found: list[torch.Tensor] = []

    def add(self, loss: torch.Tensor) -> None:
        self._found.append(loss)

    def take(self) -> list[torch.Tensor]:
        """Losses of all routers whose backward ran since the last call, one for each microbatch."""
        found, self._found = self._found, []
        return found


def balance(context: Any, step: OperatorStep) -> Balance | None:
    """The function (probabilities [batch seq expert], chosen experts [batch seq top_k]) -> probabilities that adds the
    loss's gradient; None without such a loss.

    The loss is coefficient * experts * sum over experts of the share of tokens that choose one times its mean
    probability, over all tokens of the microbatch (transformers' load_balancing_loss_func, of one layer).
    """
    coefficient: Any = step.operator.attributes.get("aux_loss_coef", 0.0)
    if not coefficient:
        return None
    sizes, program = context.graph.sizes, context.program
    candidates = sizes[context.dims(step.operator.output)[-1]]
    tokens = sizes["batch"] * sizes["seq"]
    groups = [group for group in (context.group(step, dim) for dim in ("batch", "seq")) if group is not None]
    copies = 1  # ranks whose gradients are added up although they hold the same tokens
    for axis, size in program.axes.items():
        copies *= size if step.choice.get(axis) == REPLICATED else 1

    def total(sums: torch.Tensor) -> torch.Tensor:
        for group in groups:
            sums = all_reduce(sums, group)
        return sums

    def run(probabilities: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return probabilities
        out: torch.Tensor = _Balance.apply(
            probabilities, experts, total, tokens, coefficient * candidates, copies, context.router_losses
        )
        return out

    return run


class _Balance(torch.autograd.Function):
    """The identity on probabilities, whose backward adds the loss's gradient. Keeps two numbers an expert."""

    @staticmethod
    def forward(
        ctx: Any,
        probabilities: torch.Tensor,
        experts: torch.Tensor,
        total: Callable[[torch.Tensor], torch.Tensor],
        tokens: int,
        weight: float,
        copies: int,
        losses: RouterLosses,
    ) -> torch.Tensor:
        chosen = torch.zeros_like(probabilities).scatter_(-1, experts, 1.0)
        sums = total(torch.stack((chosen.sum((0, 1)), probabilities.sum((0, 1)))))
        ctx.save_for_backward(sums / tokens)
        ctx.tokens, ctx.weight, ctx.copies, ctx.losses = tokens, weight, copies, losses
        return probabilities.view_as(probabilities)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        (means,) = ctx.saved_tensors
        chosen, probability = means.unbind(0)
        ctx.losses.add(ctx.weight * (chosen * probability).sum())
        slope = ctx.losses.scale * ctx.weight / ctx.tokens / ctx.copies
        return (grads[0] + slope * chosen, None, None, None, None, None, None)
