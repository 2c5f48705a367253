"""AdamW with bf16 weights and moments: each step is computed in FP32 and rounded at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.halves import Halves
from autoshard.runtime.torch_backend.stochastic_rounding import places, random_bits, random_key, rounded


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a shard: elements from `skipped` on of a rank's piece of a parameter.

    shape: of the whole parameter. starts, lengths: of the rank's piece, along each dim.
    """

    name: str
    start: int
    stop: int
    skipped: int
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]

    def places(self, device: torch.device) -> torch.Tensor | Halves:
        """Flat places of the piece's elements in the whole parameter, 64 bits [stop - start]."""
        mine = slice(self.skipped, self.skipped + self.stop - self.start)
        if not devices.has_64_bits(device):
            zero = torch.zeros((), dtype=torch.int32, device=device)
            return places(self.shape, self.starts, self.lengths, Halves(zero, zero))[mine]
        return places(self.shape, self.starts, self.lengths, torch.zeros((), dtype=torch.int64, device=device))[mine]


class RoundedAdamW:
    """AdamW and its state for one shard. pieces: the parts of parameters that it holds; what lies between them is
    padding.

    Two runs with different layouts round an element the same way if its exact value is the same.
    """

    def __init__(self, weights: torch.Tensor, pieces: Sequence[Piece], seed: int):
        self.weights, self._pieces, self._seed = weights, tuple(pieces), seed
        self.first_moment, self.second_moment = torch.zeros_like(weights), torch.zeros_like(weights)
        self._step = 0

    def load(self, first_moment: torch.Tensor, second_moment: torch.Tensor, steps: int) -> None:
        """Sets the moments and the number of steps taken; the caller loads the weights."""
        self.first_moment.copy_(first_moment)
        self.second_moment.copy_(second_moment)
        self._step = steps

    @torch.no_grad()
    def step(
        self, gradient: torch.Tensor, learning_rate: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        """Updates the weights in place. gradient: of the shard, summed and clipped."""
        self._step += 1
        corrections = tuple(1 - beta**self._step for beta in betas)
        for piece in self._pieces:
            part = slice(piece.start, piece.stop)
            grad = gradient[part].float()
            first = self.first_moment[part].float().lerp_(grad, 1 - betas[0])
            second = self.second_moment[part].float().lerp_(grad.square(), 1 - betas[1])
            weights = self.weights[part].float().mul_(1 - learning_rate * weight_decay)
            denominator = (second / corrections[1]).sqrt_().add_(eps)
            weights.addcdiv_(first, denominator, value=-learning_rate / corrections[0])
            where = piece.places(grad.device)
            for what, exact, kept in (
                ("weight", weights, self.weights),
                ("first moment", first, self.first_moment),
                ("second moment", second, self.second_moment),
            ):
                bits = random_bits(where, random_key(self._seed, self._step, f"{what} of {piece.name}"))
                kept[part] = rounded(exact, bits)
