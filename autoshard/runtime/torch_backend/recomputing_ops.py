"""Operators that recompute cheap values in backward, so that they keep only what the graph counts.

Composed of torch's own, silu(gate) * up keeps three tensors instead of two, and attention written out in BF16 keeps its
probabilities in FP32 as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.runtime.torch_backend.pointwise import at_once, has_pieces


def _as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x in the dtype; unlike x.to(dtype), it is quick where x has it already."""
    return x if x.dtype is dtype else x.to(dtype)


def at_least_fp32(x: torch.Tensor) -> torch.Tensor:
    """x in FP32, or in FP64 if it is that."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class GatedMul(torch.autograd.Function):
    """function(gate) * up, of which one may lack dims; function: a name in ACTIVATIONS. Keeps both for backward."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor, function: str) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = ACTIVATIONS[function]
        return ctx.activation.value(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        gate, up = ctx.saved_tensors
        (grad,) = grads
        # the gate's first: what it is made of, as large, is gone before the other is there
        grad_gate = ctx.activation.gradient(grad * up, gate)
        activated = ctx.activation.value(gate)
        grad_up = activated.mul_(grad) if gate.shape == grad.shape else activated * grad
        return grad_gate, grad_up, None  # autograd sums them over dims that an input lacks


class Activation(NamedTuple):
    """A function of a gate. gradient: of it, times its first argument, by one kernel that keeps nothing between."""

    value: Callable[[torch.Tensor], torch.Tensor]
    gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


ACTIVATIONS = {
    "silu": Activation(F.silu, torch.ops.aten.silu_backward),
    "gelu": Activation(partial(F.gelu, approximate="tanh"), partial(torch.ops.aten.gelu_backward, approximate="tanh")),
    "gelu_erf": Activation(F.gelu, torch.ops.aten.gelu_backward),
}
"""By the names of graph/pointwise.py."""


class RmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight over the last dim, computed in FP32 (or FP64).

    Keeps x and one number a row; torch's own, which is made of several functions on CPU, keeps two wide copies of x.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, scale = _some_rows_at_a_time(_rms_norm, x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        return *_rms_norm_backward(x, _as(weight, scale.dtype), scale, grads[0], weight.dtype), None


class OffsetRmsNorm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * (1 + weight) over the last dim, computed in FP32 (or FP64), in which 1 + weight loses
    nothing. Keeps x and one number a row. A weight of more dims than the last one, such as streams, is one for each of
    them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, scale = _some_rows_at_a_time(offset_rms_norm, x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        return *_rms_norm_backward(x, 1 + _as(weight, scale.dtype), scale, grads[0], weight.dtype), None


class OffsetLayerNorm(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * (1 + weight) + bias over the last dim, computed in FP32 (or FP64), in which
    1 + weight loses nothing. Keeps x and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        out, scale = _some_rows_at_a_time(partial(_offset_layer_norm, bias=bias), x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.bias_dtype = bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        grad_x, of_weight, of_bias = _layer_norm_backward(x, 1 + _as(weight, scale.dtype), scale, grads[0], biased=True)
        return grad_x, _as(of_weight, weight.dtype), _as(of_bias, ctx.bias_dtype), None


class WeighedLayerNorm(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight over the last dim, computed in FP32 (or FP64). Keeps x and one number
    a row. A weight of more dims than the last one, such as heads, is one for each of them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out, scale = _some_rows_at_a_time(_weighed_layer_norm, x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        grad_x, of_weight = _layer_norm_backward(x, _as(weight, scale.dtype), scale, grads[0], biased=False)
        return grad_x, _as(of_weight, weight.dtype), None


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch._fused_rms_norm(x, weight.shape, weight, eps)


def offset_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The RMS norm of x over its last dim, times 1 plus the weight, and the scale of each row, in FP32 or FP64."""
    accurate = at_least_fp32(x)
    scale = accurate.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return _as((accurate * scale).mul_(1 + _as(weight, scale.dtype)), x.dtype), scale


def _offset_layer_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    normal, scale = _normal(x, eps)
    normal = normal.mul_(1 + _as(weight, scale.dtype))
    return _as(normal.add_(_as(bias, scale.dtype)), x.dtype), scale


def _weighed_layer_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    normal, scale = _normal(x, eps)
    return _as(normal.mul_(_as(weight, scale.dtype)), x.dtype), scale


def _normal(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row less its mean times its scale, and that scale."""
    accurate = at_least_fp32(x)
    centred = accurate - accurate.mean(-1, keepdim=True)
    scale = centred.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return centred.mul_(scale), scale


def _layer_norm_backward(
    x: torch.Tensor, factors: torch.Tensor, scale: torch.Tensor, grad: torch.Tensor, biased: bool
) -> tuple[torch.Tensor, ...]:
    """Gradients of x, of the factors by which its columns are multiplied and, if biased, of what is added to them; all
    but the first in the dtype of `scale`. scale: of each row. Of many rows some at a time, as `_rms_norm_backward`."""
    if not has_pieces((x, grad)):
        grad_x, *sums = _layer_norm_of_rows(x, factors, scale, grad, biased)
        return _as(grad_x, x.dtype), *sums
    found, totals = torch.empty_like(x), [torch.zeros_like(factors) for _ in range(1 + biased)]
    for some, of_rows, grad_out, to_x in _rows_at_a_time(x, scale, grad, found, dims=factors.dim()):
        grad_x, *sums = _layer_norm_of_rows(some, factors, of_rows, grad_out, biased)
        to_x.copy_(grad_x)
        for total, one in zip(totals, sums, strict=True):
            total.add_(one)
    return found, *totals


def _layer_norm_of_rows(
    x: torch.Tensor, factors: torch.Tensor, scale: torch.Tensor, grad: torch.Tensor, biased: bool
) -> tuple[torch.Tensor, ...]:
    """`_layer_norm_backward` in the dtype of `scale`."""
    accurate, grad = at_least_fp32(x), _as(grad, scale.dtype)
    normal = (accurate - accurate.mean(-1, keepdim=True)).mul_(scale)
    weighted = grad * factors
    along = (weighted * normal).mean(-1, keepdim=True)
    grad_x = (weighted - weighted.mean(-1, keepdim=True)).sub_(normal * along).mul_(scale)
    rows = tuple(range(x.dim() - factors.dim()))
    return grad_x, (grad * normal).sum(rows), *([grad.sum(rows)] if biased else [])


def _some_rows_at_a_time(
    norm: Callable[[torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]],
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A norm and the scale of each row. Where torch has no kernel of it, it computes wide copies of x."""
    if (norm is _rms_norm and x.device.type == "cuda") or not has_pieces((x,)):
        return norm(x, weight, eps)
    found = torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.promote_types(x.dtype, torch.float32))
    for some, *to in _rows_at_a_time(x, *found, dims=weight.dim()):
        for part, value in zip(to, norm(some, weight, eps), strict=True):
            part.copy_(value)
    return found


def _rows_at_a_time(x: torch.Tensor, *others: torch.Tensor, dims: int = 1) -> Iterator[tuple[torch.Tensor, ...]]:
    """Some rows of x and the same rows of the others at a time. dims: those of a row, the last ones."""
    rows = max(1, at_once(x) // prod(x.shape[-dims:]))
    return zip(*(one.flatten(0, -1 - dims).split(rows) for one in (x, *others)), strict=True)


def _rms_norm_backward(
    x: torch.Tensor, factors: torch.Tensor, scale: torch.Tensor, grad: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x and of the factors by which its columns are multiplied. scale: of each row. dtype: of the second.
    Of many rows some at a time: what is computed in FP32 between takes six times the bytes of x in bfloat16."""
    if not has_pieces((x, grad)):
        grad_x, of_factors = _rms_norm_of_rows(x, factors, scale, grad)
        return _as(grad_x, x.dtype), _as(of_factors, dtype)
    found, total = torch.empty_like(x), torch.zeros_like(factors)
    for some, of_rows, grad_out, to_x in _rows_at_a_time(x, scale, grad, found, dims=factors.dim()):
        grad_x, of_factors = _rms_norm_of_rows(some, factors, of_rows, grad_out)
        to_x.copy_(grad_x)
        total.add_(of_factors)
    return found, _as(total, dtype)


def _rms_norm_of_rows(
    x: torch.Tensor, factors: torch.Tensor, scale: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`_rms_norm_backward` in the dtype of `scale`."""
    normal, grad = x * scale, _as(grad, scale.dtype)
    products = grad * normal
    of_rows, each = products.flatten(0, -1 - factors.dim()), factors.view(-1, factors.shape[-1])
    of_each = of_rows.view(len(of_rows), *each.shape).unbind(1)
    along = torch.stack([rows.mv(one) for rows, one in zip(of_each, each, strict=True)], 1)
    along, of_factors = along.view_as(scale), of_rows.sum(0)
    grad_x = torch.mul(grad, factors, out=products)  # which nobody reads again: three such tensors are there, not four
    return grad_x.addcmul_(normal, along, value=-1 / x.shape[-1]).mul_(scale), of_factors


class Rotate(torch.autograd.Function):
    """x cos + swap(x) sin, where swap exchanges the halves of the last dim. Keeps nothing but the tables.

    sin: minus the sine in the first half, the sine in the second, so the gradient is the opposite rotation.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.cos, ctx.sin = cos, sin
        return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (grad,) = grads
        swapped = grad.roll(grad.shape[-1] // 2, -1)
        return (grad * ctx.cos).addcmul_(swapped, ctx.sin, value=-1), None, None


class TimesTable(torch.autograd.Function):
    """x times a table, which may lack dims or have some of size 1. Keeps nothing but the table, which is no activation:
    torch's own saves it as one, and what is run again in backward then runs up to here."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.table = table
        return x * table

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * ctx.table, None


class LogScaled(torch.autograd.Function):
    """x [batch, seq, heads, width] times scale logs + bias, of two numbers of each head, which heads may have several
    dims of. logs: [batch or 1, seq, 1 for each dim of heads]. Keeps x and the two; backward makes one more tensor of
    x's size at a time, and none beside the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, scale, bias)
        ctx.logs = logs
        return x * LogScaled.factors(x, scale, bias, logs)

    @staticmethod
    def factors(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
        """scale logs + bias in x's dtype, with a last dim of size 1."""
        made = at_least_fp32(scale) * logs + at_least_fp32(bias)
        return made.to(x.dtype).unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, scale, bias = ctx.saved_tensors
        along = (grads[0] * x).sum(-1, dtype=at_least_fp32(scale).dtype)
        of_scale, of_bias = (along * ctx.logs).sum((0, 1)), along.sum((0, 1))
        of_x = grads[0] * LogScaled.factors(x, scale, bias, ctx.logs)
        return of_x, of_scale.to(scale.dtype), of_bias.to(bias.dtype), None


def weighed_sums(answers: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """[rows, embed]: in each row the sum of the answers [expert, batch, capacity, embed] that go there, times weight.

    rows [expert, batch, capacity]: the row that each answer goes to. count: number of rows. weight: like answers, with
    one column. Backward makes one more tensor of the answers' size, where torch's own makes three. What it reads is
    saved before anything is summed: a replay under recompute stops there, and has neither the sums nor the products.
    """
    place: torch.Tensor = _BeforeSums.apply(answers, weight, rows, count)
    sums: torch.Tensor = _Sums.apply(place, answers.detach(), weight.detach(), rows)
    return sums


class _BeforeSums(torch.autograd.Function):
    """Keeps what the backward of sums of weighed answers (`weighed_sums`) reads, and is that backward. Gives a tensor
    [rows, embed] without content, which stands for the sums that `_Sums` then makes."""

    @staticmethod
    def forward(ctx: Any, answers: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(answers if ctx.needs_input_grad[1] else None, weight, rows)
        return answers.new_empty(1).expand(count, answers.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        answers, weight, rows = ctx.saved_tensors
        pulled = grads[0].index_select(0, rows.flatten()).view(*weight.shape[:-1], -1)
        if not ctx.needs_input_grad[1]:
            return pulled.mul_(weight), None, None, None
        to_weight = torch.stack(
            [(one * answer).sum(-1, keepdim=True) for one, answer in zip(pulled, answers, strict=True)]
        )
        return pulled.mul_(weight), to_weight, None, None


class _Sums(torch.autograd.Function):
    """Sums of weighed answers (`weighed_sums`), whose gradient goes on to the tensor that stands for them."""

    @staticmethod
    def forward(
        ctx: Any, place: torch.Tensor, answers: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        places = rows.flatten().unsqueeze(-1).expand(-1, place.shape[1])
        return answers.new_zeros(place.shape).scatter_add_(0, places, (answers * weight).flatten(0, 2))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return grads[0], None, None, None


class WeighedRows(torch.autograd.Function):
    """weight [expert, batch, capacity, 1] times the rows [expert * batch * capacity] of x [tokens, embed]. Keeps x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, rows)
        return x.index_select(0, rows).view(*weight.shape[:-1], x.shape[-1]).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, rows = ctx.saved_tensors
        (grad,) = grads
        each = zip(rows.view(weight.shape[0], -1), grad, strict=True)  # by expert
        to_weight = torch.stack([(x.index_select(0, own) * one.flatten(0, -2)).sum(-1) for own, one in each])
        to_x = torch.zeros_like(x).index_add_(0, rows, (grad * weight).flatten(0, -2))
        return to_x, to_weight.view_as(weight), None


class WholeCrossEntropy(torch.autograd.Function):
    """Sum of -log p(label) / tokens over the rows; keeps the logarithms of all probabilities in FP32.

    Negative labels (data.NOT_LEARNED) add nothing.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tokens: int) -> torch.Tensor:
        scores = torch.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
        places, weights = labels.clamp(min=0).unsqueeze(-1), (labels >= 0).to(scores.dtype).div_(tokens).unsqueeze(-1)
        ctx.save_for_backward(scores, places, weights)
        ctx.dtype = logits.dtype
        return scores.gather(-1, places).mul_(weights).sum().neg_()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        scores, places, weights = ctx.saved_tensors
        grad = scores.exp()
        grad.scatter_add_(-1, places, grad.new_full((1,), -1.0).expand(places.shape))
        return grad.mul_(weights * grads[0]).to(ctx.dtype), None, None


class MaskedSoftmax(torch.autograd.Function):
    """softmax in FP32 over what the mask leaves, in the dtype of the scores; keeps that result and no mask.

    scores: [batch heads queries keys]; mask: [queries keys], or [batch, some, queries, keys], of which each is of as
    many heads that follow one another. One head at a time: all of them in FP32 would be twice the scores and more.
    Backward writes the gradients of scores over the result, which nobody reads after it. sinks [kvhead group]: one more
    score for each row of a head; its weight is left out of the result, and one number a row is kept.
    """

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, mask: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        masks = mask.shape[1] if mask.dim() > 2 else 1
        weights, hidden = torch.empty_like(scores), (~mask).expand(scores.shape[0], masks, *scores.shape[2:])
        lost = []
        for position, (score, weight) in enumerate(_heads(scores, weights)):
            batch, head = divmod(position, scores.shape[1])
            seen = at_least_fp32(score)
            hide = seen.masked_fill if seen is score else seen.masked_fill_
            seen = hide(hidden[batch, head * masks // scores.shape[1]], float("-inf"))
            if sinks is not None:
                more = _as(sinks.flatten()[head], seen.dtype).expand(len(seen), 1)
                seen = torch.cat((seen, more), -1)
            found = torch.softmax(seen, -1)
            weight.copy_(found if sinks is None else found[:, :-1])
            if sinks is not None:
                lost.append(found[:, -1].clone())
            del hide, seen, found  # before the next head's are made
        ctx.save_for_backward(weights, *(() if sinks is None else (sinks, torch.stack(lost))))
        return weights

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weights, *more = ctx.saved_tensors
        through = []
        for weight, grad in _heads(weights, grads[0]):
            accurate = at_least_fp32(weight)
            products = grad * accurate
            along = products.sum(-1, keepdim=True)
            if more:
                through.append(along.squeeze(-1))
            weight.copy_(products.addcmul_(accurate, along, value=-1))
            del accurate, products  # before the next head's are made
        if not more:
            return weights, None, None
        sinks, lost = more
        by_head = (torch.stack(through) * lost).view(weights.shape[0], *sinks.shape, -1).sum((0, -1))
        return weights, None, _as(by_head.neg_(), sinks.dtype)


class SoftCap(torch.autograd.Function):
    """cap * tanh(x / cap). Keeps its output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cap: float) -> torch.Tensor:
        out = torch.tanh(x / cap).mul_(cap)
        ctx.save_for_backward(out)
        ctx.cap = cap
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (out,) = ctx.saved_tensors
        slopes = (out / ctx.cap).square_().neg_().add_(1)
        return slopes.mul_(grads[0]), None


def _heads(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields the slices of one batch row and head from all tensors together."""
    yield from zip(*(tensor.flatten(0, 1).unbind(0) for tensor in tensors), strict=True)
