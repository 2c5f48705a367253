"""Runs AdamW in the dtype of its weights, FP32 as a rule, with torch's fused kernel where the device has it."""

from __future__ import annotations

import torch
from torch.optim.adamw import adamw  # the function: torch.optim.AdamW imports torch's compiler, which takes a second


class FusedAdamW:
    """AdamW and its state for one shard, bit for bit that of torch.optim.AdamW(fused=True).

    Neuron would leave the fused kernel to the host: there it is torch's plain functions, with nothing read back.
    """

    def __init__(self, weights: torch.Tensor):
        self.weights = weights
        self.first_moment, self.second_moment = torch.zeros_like(weights), torch.zeros_like(weights)
        self._steps = torch.zeros((), dtype=torch.float32, device=weights.device)
        self._is_fused = weights.device.type != "neuron"

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
        adamw(
            [self.weights],
            [gradient],
            [self.first_moment],
            [self.second_moment],
            [],
            [self._steps],
            fused=self._is_fused,
            foreach=not self._is_fused,
            capturable=not self._is_fused,
            amsgrad=False,
            beta1=betas[0],
            beta2=betas[1],
            lr=learning_rate,
            weight_decay=weight_decay,
            eps=eps,
            maximize=False,
        )
