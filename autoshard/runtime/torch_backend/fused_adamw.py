"""Runs AdamW in the dtype of its weights, FP32 as a rule, with torch's fused kernel where the device has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.optim.adamw import adamw  # the function: torch.optim.AdamW imports torch's compiler, which takes a second

from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.parts import parts


class FusedAdamW:
    """AdamW and its state for one shard, bit for bit that of torch.optim.AdamW(fused=True) where all have one dtype.

    moments_dtype: None for that of the weights. What has another dtype than they have is computed with in theirs, and
    moments are rounded to the nearest.
    Neuron would leave the fused kernel to the host: there it is torch's plain functions, with nothing read back, as one
    graph where there is a compiler.
    """

    def __init__(
        self, weights: torch.Tensor, compiler: Compiler | None = None, moments_dtype: torch.dtype | None = None
    ):
        self.weights = weights
        self.first_moment, self.second_moment = (torch.zeros_like(weights, dtype=moments_dtype) for _ in range(2))
        self._steps = torch.zeros((), dtype=torch.float32, device=weights.device)
        self._is_fused = weights.device.type != "neuron"
        self._compiler = None if self._is_fused else compiler
        self._compiled: Any = None

    def load(self, first_moment: torch.Tensor, second_moment: torch.Tensor, steps: int) -> None:
        """Sets the moments and the number of steps taken; the caller loads the weights."""
        self.first_moment.copy_(first_moment)
        self.second_moment.copy_(second_moment)
        self._steps.fill_(steps)

    @torch.no_grad()
    def step(
        self, gradient: torch.Tensor, learning_rate: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        """Updates the weights in place. gradient: of the shard, summed and clipped."""
        update = partial(_update, self._is_fused, betas, eps, weight_decay)
        state = self.weights, gradient, self.first_moment, self.second_moment
        if self._compiler is None:
            steps = self._steps.clone()
            for weights, given, first, second in parts(*state):
                update(weights, given, first, second, self._steps.copy_(steps), learning_rate)
            return
        if self._compiled is None:
            numbers = self.weights.numel(), tuple(one.dtype for one in state), betas, eps, weight_decay
            self._compiled = self._compiler.function("AdamW", update, ("AdamW", *numbers))
        # a number would be a constant of the graph, and the next step's another graph
        self._compiled(*state, self._steps, torch.tensor(learning_rate, device=self.weights.device))


def _update(
    fused: bool,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first_moment: torch.Tensor,
    second_moment: torch.Tensor,
    steps: torch.Tensor,
    learning_rate: float | torch.Tensor,
) -> None:
    first, second = first_moment.to(weights.dtype), second_moment.to(weights.dtype)
    adamw(
        [weights],
        [gradient.to(weights.dtype)],
        [first],
        [second],
        [],
        [steps],
        fused=fused,
        foreach=not fused,
        capturable=not fused,
        amsgrad=False,
        beta1=betas[0],
        beta2=betas[1],
        lr=learning_rate,
        weight_decay=weight_decay,
        eps=eps,
        maximize=False,
    )
    for kept, value in ((first_moment, first), (second_moment, second)):
        if value is not kept:
            kept.copy_(value)
