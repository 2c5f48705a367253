"""Operators whose backward computes cheap things again, so that they keep for it what the graph counts.

Composed of torch's own, silu(gate) * up keeps three tensors instead of two, and attention written out in BF16 keeps its
probabilities in FP32 as well.
"""

from __future__ import annotations

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
    """softmax in FP32 over what the mask leaves, in the dtype of the scores; keeps that result and no mask."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        masked = scores.to(torch.promote_types(scores.dtype, torch.float32), copy=True)
        masked.masked_fill_(~mask, float("-inf"))
        exponentials = masked.sub_(masked.amax(-1, keepdim=True)).exp_()
        weights = exponentials.div_(exponentials.sum(-1, keepdim=True)).to(scores.dtype)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weights,) = ctx.saved_tensors
        accurate = _accurate(weights)
        products = grads[0] * accurate
        inner = products.sum(-1, keepdim=True)
        return products.addcmul_(accurate, inner, value=-1).to(weights.dtype), None
