"""AdamW with bf16 weights and moments: each step is computed in FP32 and rounded at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch

from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.compiled import Compiler
from autoshard.runtime.torch_backend.halves import Halves
from autoshard.runtime.torch_backend.parts import AT_ONCE
from autoshard.runtime.torch_backend.stochastic_rounding import places, random_bits, random_key, rounded

BUFFER_BYTES = 5 * 4 + 4 * 8
"""For each element that is updated at once, AT_ONCE at most: gradient, weight, both moments and denominator in FP32,
and four numbers of 64 bits: its place and what makes random bits of that."""
_KEPT = ("weight", "first moment", "second moment")
"""Tensors that are rounded, as their random numbers know them."""


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

    @property
    def kind(self) -> tuple[Any, ...]:
        """A value that is the same for pieces whose elements have the same places."""
        return self.stop - self.start, self.skipped, self.shape, self.starts, self.lengths

    def places(self, device: torch.device) -> torch.Tensor | Halves:
        """Flat places of the piece's elements in the whole parameter, 64 bits [stop - start]."""
        starts, lengths, skipped = self._rows()
        mine = slice(skipped, skipped + self.stop - self.start)
        if not devices.has_64_bits(device):
            zero = torch.zeros((), dtype=torch.int32, device=device)
            return places(self.shape, starts, lengths, Halves(zero, zero))[mine]
        return places(self.shape, starts, lengths, torch.zeros((), dtype=torch.int64, device=device))[mine]

    def _rows(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """(starts, lengths, skipped) of the least part of the rank's piece, rows of one dim, that holds all elements:
        dims before it have length 1."""
        starts, lengths, skipped = [*self.starts], [*self.lengths], self.skipped
        for dim in range(len(lengths)):
            row = prod(lengths[dim + 1 :])
            first, last = skipped // row, (skipped + self.stop - self.start - 1) // row
            starts[dim], lengths[dim], skipped = starts[dim] + first, last - first + 1, skipped - first * row
            if last > first:
                break
        return tuple(starts), tuple(lengths), skipped

    def parts(self, elements: int) -> Iterator[Piece]:
        """The piece in parts of so many elements at most; none crosses from one to the next of dim 0's rows where a
        row is longer than that."""
        row, at = prod(self.lengths[1:]), self.start
        while at < self.stop:
            skipped = self.skipped + at - self.start
            stop = min(at + elements, self.stop, at + row - skipped % row if row > elements else self.stop)
            yield replace(self, start=at, stop=stop, skipped=skipped)
            at = stop


class RoundedAdamW:
    """AdamW and its state for one shard. pieces: the parts of parameters that it holds; what lies between them is
    padding. compiler: compiles the update of each piece where the device has no 64 bits; None leaves it as it is.

    Two runs with different layouts round an element the same way if its exact value is the same.
    """

    def __init__(self, weights: torch.Tensor, pieces: Sequence[Piece], seed: int, compiler: Compiler | None = None):
        self.weights, self._seed = weights, seed
        self.first_moment, self.second_moment = torch.zeros_like(weights), torch.zeros_like(weights)
        self._compiler = compiler if compiler is not None and compiler.compiles_all else None
        # a graph is one for each piece: its buffers are the compiler's affair
        self._pieces = (
            tuple(pieces) if self._compiler else tuple(part for piece in pieces for part in piece.parts(AT_ONCE))
        )
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
        numbers = 1 - learning_rate * weight_decay, corrections[1], -learning_rate / corrections[0]
        keys = [[random_key(self._seed, self._step, f"{what} of {one.name}") for what in _KEPT] for one in self._pieces]
        state = gradient, self.weights, self.first_moment, self.second_moment
        updates = [(piece, [one[piece.start : piece.stop] for one in state]) for piece in self._pieces]
        if self._compiler is None:
            for (piece, parts), own in zip(updates, keys, strict=True):
                _update(piece, betas, eps, parts, numbers, own)
            return
        given = torch.tensor(numbers, device=gradient.device)
        halves = torch.tensor(keys).view(torch.int32).view(len(keys), len(_KEPT), 2).to(gradient.device)
        for (piece, parts), pairs in zip(updates, halves.unbind(0), strict=True):
            update = partial(_update_with_tensors, piece, betas, eps)
            self._compiler.function("AdamW", update, ("rounded", piece.kind, betas, eps))(*parts, given, pairs)


def _update_with_tensors(piece: Piece, betas: tuple[float, float], eps: float, *values: torch.Tensor) -> None:
    """The update with its numbers and keys as tensors: as constants they would make another graph in every step."""
    *parts, numbers, keys = values
    _update(piece, betas, eps, parts, numbers.unbind(0), [Halves.paired(key) for key in keys.unbind(0)])


def _update(
    piece: Piece,
    betas: tuple[float, float],
    eps: float,
    parts: Sequence[torch.Tensor],
    numbers: Sequence[float] | Sequence[torch.Tensor],
    keys: Sequence[int] | Sequence[Halves],
) -> None:
    """Updates the piece in place.

    parts: its gradient, weights and moments. numbers: factor of the weights, correction of the second moment, step.
    keys: of the random bits of weights and moments.
    """
    gradient, weights, first_moment, second_moment = parts
    decayed, correction, step = numbers
    grad = gradient.float()
    first = first_moment.float().lerp_(grad, 1 - betas[0])
    second = second_moment.float().lerp_(grad.square(), 1 - betas[1])
    exact = weights.float().mul_(decayed)
    denominator = (second / correction).sqrt_().add_(eps)
    if isinstance(step, torch.Tensor):
        exact.addcdiv_(first * step, denominator)
    else:
        exact.addcdiv_(first, denominator, value=step)
    where: Any = piece.places(grad.device)
    for value, kept, key in zip((exact, first, second), (weights, first_moment, second_moment), keys, strict=True):
        kept.copy_(rounded(value, random_bits(where, key)))
