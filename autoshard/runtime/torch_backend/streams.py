"""Computes hyper-connections: the weights of a residual's streams, their sum, and the next ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.partition import OperatorStep
from autoshard.graph.stream_kinds import STREAM, STREAMS_AT_ONCE
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32
from autoshard.runtime.torch_backend.run_again import Again, Slices


def repeat_streams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the first residual: x [batch, seq, embed] -> [batch, seq, stream, embed]."""
    streams = context.graph.sizes[STREAM]
    return lambda x: x.unsqueeze(2).expand(*x.shape[:2], streams, x.shape[2]).contiguous()


def stream_weights(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of a token's weights: streams [batch, seq, stream, embed], fn [weights, stream, embed], base [weights]
    and scale [1 or 3] -> [batch, seq, weights] in FP32, or FP64."""
    attributes: Any = step.operator.attributes
    weights = partial(
        _weights, eps=attributes["eps"], balance_eps=attributes["balance_eps"], iterations=attributes["iterations"]
    )

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        tokens = max(1, STREAMS_AT_ONCE // (x.shape[0] * x.shape[2] * x.shape[3]))
        out: torch.Tensor = Again.apply(weights, Slices((1, None, None, None), tokens), x, *parameters)
        return out

    return run


def _weights(
    x: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    balance_eps: float,
    iterations: int,
) -> torch.Tensor:
    streams, wide = x.shape[2], at_least_fp32(x).flatten(2)
    products = F.linear(wide, fn.to(wide.dtype).flatten(1))
    products = products * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    sizes = [streams, streams, streams**2][: len(scale)]
    raw = torch.split(products, sizes, -1)
    pre, *more = (
        part * one + added
        for part, one, added in zip(raw, scale.to(wide.dtype), base.to(wide.dtype).split(sizes), strict=True)
    )
    if not more:
        return torch.sigmoid(pre) + balance_eps
    post, mix = more
    mix = _balanced(mix.unflatten(-1, (streams, streams)), balance_eps, iterations)
    return torch.cat((torch.sigmoid(pre) + balance_eps, 2 * torch.sigmoid(post), mix.flatten(-2)), -1)


def _balanced(logits: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
    """Matrices [..., rows, columns] brought near doubly stochastic ones (Sinkhorn and Knopp)."""
    mix = torch.softmax(logits, -1) + eps
    for dim in (-2, *(-1, -2) * (iterations - 1)):
        mix = mix / (mix.sum(dim, keepdim=True) + eps)
    return mix


def collapse_streams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of what a part of a block reads: streams [batch, seq, stream, embed] and their weights -> [batch, seq,
    embed]."""

    def run(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Collapse.apply(x, weights)
        return out

    return run


class _Collapse(torch.autograd.Function):
    """The sum of streams times their first weights, added up in the dtype of the weights. Keeps both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weights)
        first, *others = x.unbind(2)
        total = first * weights[..., :1]
        for stream, one in enumerate(others, 1):
            total.addcmul_(one, weights[..., stream : stream + 1])
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weights = ctx.saved_tensors
        grad, streams = grads[0].to(weights.dtype), x.shape[2]
        to_x, to_weights = torch.empty_like(x), torch.zeros_like(weights)
        for stream in range(streams):
            to_x[:, :, stream] = grad * weights[..., stream : stream + 1]
            to_weights[..., stream] = (grad * x[:, :, stream]).sum(-1)
        return to_x, to_weights


def expand_streams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the next residual: y [batch, seq, embed], streams [batch, seq, stream, embed] and their weights ->
    streams."""

    def run(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Expand.apply(y, x, weights)
        return out

    return run


class _Expand(torch.autograd.Function):
    """Stream k: post[k] y plus mix[j, k] times stream j, summed over j. Weights are rounded to the dtype of the
    streams. Keeps its inputs."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(y, x, weights)
        post, mix = _post_and_mix(x, weights)
        return (mix.mT @ x).addcmul_(post.unsqueeze(-1), y.unsqueeze(2))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, x, weights = ctx.saved_tensors
        (grad,), streams = grads, x.shape[2]
        post, mix = _post_and_mix(x, weights)
        to_weights = torch.zeros_like(weights)
        to_weights[..., streams : 2 * streams] = (grad @ y.unsqueeze(-1)).squeeze(-1)
        to_weights[..., 2 * streams :] = (x @ grad.mT).flatten(-2)
        return (post.unsqueeze(2) @ grad).squeeze(2), mix @ grad, to_weights


def _post_and_mix(x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both parts of the weights of streams x, [batch, seq, stream] and [batch, seq, stream, stream]."""
    streams = x.shape[2]
    rounded = weights.to(x.dtype)
    return rounded[..., streams : 2 * streams], rounded[..., 2 * streams :].unflatten(-1, (streams, streams))
