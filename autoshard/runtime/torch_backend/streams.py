"""Computes hyper-connections: the weights of a residual's streams, their sum, and the next ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.partition import OperatorStep
from autoshard.graph.stream_kinds import STREAM, STREAMS_AT_ONCE, has_mix
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.recomputing_ops import at_least_fp32
from autoshard.runtime.torch_backend.run_again import Again, Slices


def repeat_streams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the first residual: x [batch, seq, embed] -> [batch, seq, stream, embed]."""
    streams = context.graph.sizes[STREAM]
    return lambda x: x.unsqueeze(2).expand(*x.shape[:2], streams, x.shape[2]).contiguous()


def mean_streams(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of the mean of streams: [batch, seq, stream, embed] -> [batch, seq, embed]."""
    return lambda x: x.mean(2)


def stream_weights(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of a token's weights: streams [batch, seq, stream, embed], fn [weights, stream, embed], base [weights]
    and scale [1, 2 or 3] -> [batch, seq, weights] in FP32, or FP64."""
    attributes: Any = step.operator.attributes
    products = partial(_products, eps=attributes["eps"])
    weights = partial(
        _weights,
        streams=context.graph.sizes[STREAM],
        magnitude=attributes["magnitude"],
        eps=attributes["balance_eps"],
        iterations=attributes["iterations"],
    )

    def run(x: torch.Tensor, fn: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        at_once = STREAMS_AT_ONCE // x.shape[0]
        wide, narrow = x.shape[2] * x.shape[3], max(1, 2 * attributes["iterations"]) * fn.shape[0]
        made = Again.apply(products, Slices((1, None), max(1, at_once // wide)), x, fn)
        of_tokens = Slices((1, None, None), max(1, at_once // narrow))
        out: torch.Tensor = Again.apply(weights, of_tokens, made, *parameters)
        return out

    return run


def _products(x: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    """[batch, seq, weights] of the normed streams x with fn."""
    wide = at_least_fp32(x).flatten(2)
    products = F.linear(wide, fn.to(wide.dtype).flatten(1))
    return products * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _weights(
    products: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    streams: int,
    magnitude: float,
    eps: float,
    iterations: int,
) -> torch.Tensor:
    sizes = [streams, streams, streams**2][: len(scale)]
    raw = torch.split(products, sizes, -1)
    pre, *more = (
        part * one + added
        for part, one, added in zip(raw, scale.to(raw[0].dtype), base.to(raw[0].dtype).split(sizes), strict=True)
    )
    read = torch.sigmoid(pre) + eps
    if not more:
        return read
    post, *mixes = more
    written = magnitude * torch.sigmoid(post)
    if not mixes:
        return torch.cat((read, written + eps), -1)
    mix = torch.softmax(mixes[0].unflatten(-1, (streams, streams)), -1) + eps
    mix = _Balanced.apply(mix, eps, iterations)
    return torch.cat((read, written, mix.flatten(-2)), -1)


class _Balanced(torch.autograd.Function):
    """Matrices [..., rows, columns] brought near doubly stochastic ones (Sinkhorn and Knopp). Keeps what each division
    gives, and by what it divides."""

    @staticmethod
    def forward(ctx: Any, mix: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
        ctx.dims, kept = (-2, *(-1, -2) * (iterations - 1)), []
        for dim in ctx.dims:
            total = mix.sum(dim, keepdim=True).add_(eps)
            mix = mix / total
            kept += [mix, total]
        ctx.save_for_backward(*kept)
        return mix

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        kept, grad = ctx.saved_tensors, grads[0]
        for dim, mix, total in zip(reversed(ctx.dims), kept[-2::-2], kept[::-2], strict=True):
            grad = (grad - (grad * mix).sum(dim, keepdim=True)).div_(total)
        return grad, None, None


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
    function: Any = _Expand if has_mix(context.graph, step.operator.inputs[2]) else _Add

    def run(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = function.apply(y, x, weights)
        return out

    return run


class _Add(torch.autograd.Function):
    """Stream k: post[k] y plus stream k, added up in the dtype of the weights. Keeps y and the weights."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(y, weights)
        ctx.streams, out = x.shape[2], torch.empty_like(x)
        for stream, post in enumerate(_of_parts(weights, ctx.streams)):
            out[:, :, stream] = torch.addcmul(x[:, :, stream], y, post)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (y, weights), (grad,) = ctx.saved_tensors, grads
        to_y, to_weights = torch.zeros_like(y, dtype=weights.dtype), torch.zeros_like(weights)
        for stream, post in enumerate(_of_parts(weights, ctx.streams)):
            one = grad[:, :, stream]
            to_y.addcmul_(one, post)
            to_weights[..., stream - ctx.streams] = (one.to(weights.dtype) * y).sum(-1)
        return to_y.to(y.dtype), grad, to_weights


def _of_parts(weights: torch.Tensor, streams: int) -> tuple[torch.Tensor, ...]:
    """The weights of a part's output in each stream, [batch, seq, 1] each, where nothing mixes streams: the last."""
    return weights[..., -streams:].split(1, -1)


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
