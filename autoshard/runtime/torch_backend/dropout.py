"""Dropout with the same mask in every layout: the mask depends on the element's place, not on a generator.

An element's random number is a hash of the seed, the step, the sequence's place in the global batch, the operator's
name (which has the layer) and the element's coordinates in the whole tensor. A rank computes it for the elements that
it holds, and again in backward and in a replay, so nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from autoshard.graph.partition import OperatorStep
from autoshard.runtime.torch_backend import devices
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.halves import Halves
from autoshard.runtime.torch_backend.heads import heads_of_rows, rows_of_keys
from autoshard.runtime.torch_backend.keep import Kept, keep
from autoshard.runtime.torch_backend.stochastic_rounding import Wide, mixed, random_key

_FIRST, _SECOND = -0x7A143595, -0x3D4D51CB
"""Odd multipliers of murmur3's finalizer (Appleby 2011), as signed numbers of 32 bits."""
_STEP = -0x61C88647
"""2^32 over the golden ratio, which puts the numbers of neighbours far apart."""


def sequence_keys(seed: int, step: int, sequences: int) -> torch.Tensor:
    """int64 [sequences]: a key for each sequence of a step's global batch."""
    return _key(torch.arange(sequences), random_key(seed, step, "dropout"))


def on_device(keys: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Keys of sequences as the device takes them: int64 [n], or their halves, int32 [n, 2], where it has 32 bits."""
    return keys if devices.has_64_bits(device) else keys.view(torch.int32).view(-1, 2)


def _key(places: Wide, key: int | Wide) -> Wide:
    """The key of places under a key: a hash that uses both of its halves. places: 64 bits [n]."""
    found = mixed(places, key)
    return found ^ (found >> 31)


@dataclass(frozen=True)
class Mask:
    """Which elements of a tensor [batch, *places] one operator keeps, each with probability 1 - rate.

    operator: its name. places: along each dim behind batch, which of the whole tensor's this rank holds.
    """

    operator: str
    places: tuple[torch.Tensor, ...]
    rate: float
    _here: dict[torch.device, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """The factor 1 / (1 - rate) by which kept elements are multiplied."""
        return 1 / (1 - self.rate)

    def rows(self, keys: torch.Tensor) -> Halves:
        """Keys of all rows along the last dim, [batch, *places but the last], from the keys of sequences: int64
        [batch], or int32 [batch, 2] as `on_device` gives them."""
        is_wide = keys.dtype == torch.int64
        if keys.device not in self._here:
            *outer, columns = (place.to(keys.device, torch.int64 if is_wide else torch.int32) for place in self.places)
            wide = outer if is_wide else [Halves(place, torch.zeros_like(place)) for place in outer]
            self._here[keys.device] = (*wide, columns.to(torch.int32))
        found: Any = (keys if is_wide else Halves.paired(keys)) ^ random_key(0, 0, self.operator)
        for place in self._here[keys.device][:-1]:
            found = _key(place, found.unsqueeze(-1))
        return Halves(_signed_half(found), _signed_half(found >> 32)) if is_wide else found

    def kept(self, rows: Halves) -> torch.Tensor:
        """Boolean [*rows, elements], True where an element is kept, from the keys of some rows."""
        low, high = rows.low, rows.high
        columns = self._here[low.device][-1]
        found = low.unsqueeze(-1) + columns * _STEP
        shifted = found >> 16
        found.bitwise_xor_(shifted).mul_(_FIRST)
        torch.bitwise_right_shift(found, 13, out=shifted)
        found.bitwise_xor_(shifted).bitwise_xor_(high.unsqueeze(-1)).mul_(_SECOND)
        return found >= min(round(self.rate * 2**32), 2**32 - 1) - 2**31


def _signed_half(x: torch.Tensor) -> torch.Tensor:
    """The lower 32 bits of x as int32."""
    return ((x & 0xFFFFFFFF) - ((x & 0x80000000) << 1)).to(torch.int32)


def places(context: Context, step: OperatorStep, dim: str) -> torch.Tensor:
    """The places in the whole dim that this rank holds while the operator runs, int64 [n]."""
    if dim == "seq":
        return context.positions(step)
    position, count = context.piece(step, dim)
    length = context.graph.sizes[dim] // count
    return torch.arange(position * length, (position + 1) * length)


def dropout(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of dropout: x [batch ...], keys [batch] -> x with elements dropped where gradients are computed, else
    x."""
    op = step.operator
    rate: Any = op.attributes["rate"]
    batch, *dims = context.dims(op.output)
    assert batch == "batch", op
    mask = Mask(op.name, tuple(places(context, step, dim) for dim in dims), rate)

    def run(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return x
        out: torch.Tensor = _Dropout.apply(x, keys, mask)
        return out

    return run


class _Dropout(torch.autograd.Function):
    """Dropout as an autograd function. It keeps the sequences' keys, which are no activation, so a replay need not run
    up to here."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keys: torch.Tensor, mask: Mask) -> torch.Tensor:
        ctx.keys, ctx.mask = keys, mask
        return (x * mask.kept(mask.rows(keys))).mul_(mask.scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        mask: Mask = ctx.mask
        return (grads[0] * mask.kept(mask.rows(ctx.keys))).mul_(mask.scale), None, None


def dropped_product(weights: torch.Tensor, v: torch.Tensor, keys: torch.Tensor, mask: Mask) -> torch.Tensor:
    """The product of weights [batch heads queries keys], some of them dropped, and v [batch kvheads keys headdim]:
    [batch kvheads heads/kvheads*queries headdim].

    mask: of weights as [batch kvhead group queries keys]. Keeps v, and the weights as they came, for backward.
    """
    weights, kept = keep(weights, v)
    out: torch.Tensor = _DroppedProduct.apply(weights, v, kept, keys, mask)
    return out


class _DroppedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: torch.Tensor, v: torch.Tensor, kept: Kept, keys: torch.Tensor, mask: Mask
    ) -> torch.Tensor:
        ctx.kept, ctx.keys, ctx.mask = kept, keys, mask
        return (rows_of_keys(_without_dropped(weights, keys, mask), v.shape[1]) @ v).mul_(mask.scale)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
        weights, v = ctx.kept.tensors
        grad = grads[0] * ctx.mask.scale
        dropped = _without_dropped(weights, ctx.keys, ctx.mask)
        grad_v = rows_of_keys(dropped, v.shape[1]).transpose(-1, -2) @ grad
        del dropped
        grad_weights = heads_of_rows(grad @ v.transpose(-1, -2), weights.shape[2])
        return _without_dropped(grad_weights, ctx.keys, ctx.mask, out=grad_weights), grad_v, None, None, None


def _without_dropped(x: torch.Tensor, keys: torch.Tensor, mask: Mask, out: torch.Tensor | None = None) -> torch.Tensor:
    """x with dropped elements set to zero, one head at a time: random numbers of all heads would be as large as the
    scores. out: where it is written, which may be x; None: a new tensor."""
    out, rows = torch.empty_like(x) if out is None else out, mask.rows(keys)
    low, high = (half.view(x.shape[:-1]) for half in (rows.low, rows.high))
    for own, one, *row in zip(*(t.flatten(0, 1).unbind(0) for t in (out, x, low, high)), strict=True):
        torch.mul(one, mask.kept(Halves(*row)), out=own)
    return out
