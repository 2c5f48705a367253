"""Operators whose backward computes cheap things again, so that they keep for it what the graph counts.

Composed of torch's own, silu(gate) * up keeps three tensors instead of two, and attention written out in BF16 keeps its
probabilities in FP32 as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses


def _accurate(x: torch.Tensor) -> torch.Tensor:
    """In FP32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class SiluMul(torch.autograd.Function):
    """silu(gate) * up; keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        (grad,) = grads
        grad_up = F.silu(gate).mul_(grad)
        return torch.ops.aten.silu_backward(grad * up, gate), grad_up


class MaskedSoftmax(torch.autograd.Function):
    """softmax in FP32 over what the mask leaves, in the dtype of the scores; keeps that result and no mask.

    scores: [batch heads queries keys]. One head at a time: all of them in FP32 would be twice the scores and more.
    """

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights, hidden = torch.empty_like(scores), ~mask
        for score, weight in _heads(scores, weights):
            weight.copy_(torch.softmax(_accurate(score).masked_fill(hidden, float("-inf")), -1))
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weights,) = ctx.saved_tensors
        out = torch.empty_like(weights)
        for weight, grad, grad_score in _heads(weights, grads[0], out):
            accurate = _accurate(weight)
            products = grad * accurate
            grad_score.copy_(products.addcmul_(accurate, products.sum(-1, keepdim=True), value=-1))
        return out, None


def _heads(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Those of the same batch row and head, together."""
    yield from zip(*(tensor.flatten(0, 1).unbind(0) for tensor in tensors), strict=True)
