"""Computes each kind of operator on local tensors. One factory a kind: (context, step) -> function of the inputs.

Shapes are the operator's dims in the graph's order, local sizes. Nothing communicates but the vocabulary-parallel
cross-entropy and attention over shared sequences, with the collectives that the operator declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch import nn

from autoshard.graph.operators import KINDS, split_norm_dims
from autoshard.graph.partition import OperatorStep, projected
from autoshard.graph.pointwise import Expression, factor, parse
from autoshard.runtime.torch_backend.attention import attention
from autoshard.runtime.torch_backend.chunked_loss import chunked_loss
from autoshard.runtime.torch_backend.collectives import all_reduce
from autoshard.runtime.torch_backend.compressed import choose_entries, compress, compressed_attention
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.dropout import dropout
from autoshard.runtime.torch_backend.experts import combine, dispatch, sum_rest, top_k_gate
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.indexer import choose_blocks, choose_keys, choose_means, choose_pools
from autoshard.runtime.torch_backend.ngrams import gate_streams, hash_ngrams
from autoshard.runtime.torch_backend.pointwise import pointwise
from autoshard.runtime.torch_backend.recomputing_ops import (
    ACTIVATIONS,
    GatedMul,
    LogScaled,
    OffsetLayerNorm,
    OffsetRmsNorm,
    RmsNorm,
    TimesTable,
    WeighedLayerNorm,
    WholeCrossEntropy,
)
from autoshard.runtime.torch_backend.recurrences import (
    causal_conv,
    gated_delta_rule,
    lightning_attention,
    selective_scan,
    state_space_scan,
)
from autoshard.runtime.torch_backend.rotation import rotation
from autoshard.runtime.torch_backend.streams import (
    collapse_streams,
    expand_streams,
    mean_streams,
    repeat_streams,
    stream_weights,
)
from autoshard.runtime.torch_backend.weight_gradients import WeightGradients, later_linear


def kernel(context: Context, step: OperatorStep) -> Kernel:
    """The function that computes the operator on this rank: local inputs in the operator's order -> its local
    output."""
    return FACTORIES[step.operator.kind](context, step)


@dataclass(frozen=True)
class Projection:
    """An einsum that is x[..., C] w[O, C]^T: contracted dims come last in both operands, the weight's other dims last
    in the output."""

    num_contracted: int
    num_columns: int

    @staticmethod
    def of(x: tuple[str, ...], w: tuple[str, ...], out: tuple[str, ...]) -> Projection | None:
        counts = projected(x, w, out)
        return None if counts is None else Projection(*counts)

    def flat_input(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.num_contracted == 1 else x.flatten(-self.num_contracted)

    def flat_weight(self, w: torch.Tensor) -> torch.Tensor:
        flat = w if self.num_contracted == 1 else w.flatten(self.num_columns)
        return flat if self.num_columns == 1 else flat.flatten(0, -2)

    def unflatten(self, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return y if self.num_columns == 1 else torch.unflatten(y, -1, w.shape[: self.num_columns])

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return self.unflatten(F.linear(self.flat_input(x), self.flat_weight(w)), w)

    def leaving_weights(self, later: WeightGradients) -> Kernel:
        """The kernel whose backward leaves the gradient of a parameter in `later`."""

        def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            if not isinstance(w, nn.Parameter) or not w.requires_grad:
                return self(x, w)
            (y,) = later_linear(self.flat_input(x), None, None, later, (w,), (self.flat_weight(w),))
            return self.unflatten(y, w)

        return run


class _BatchedEinsum(torch.autograd.Function):
    """The products of an equation such as "eth,efh->etf", one for each expert e.

    The gradient of the weight is made in its order. torch.einsum makes it the other way round, as it multiplied with
    it: autograd then copies it before it can be added up, and it is there twice meanwhile.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, *equations: str) -> torch.Tensor:
        product, *ctx.equations = equations
        needs_x, needs_w, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_w else None, w if needs_x else None)
        return torch.einsum(product, x, w)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, w), (of_x, of_w), (grad,) = ctx.saved_tensors, ctx.equations, grads
        needs_x, needs_w, *_ = ctx.needs_input_grad
        of_input = torch.einsum(of_x, grad, w) if needs_x else None
        return of_input, torch.einsum(of_w, grad, x) if needs_w else None, None, None, None


def _einsum(context: Context, step: OperatorStep) -> Kernel:
    op = step.operator
    left, right, out = (context.dims(name) for name in (*op.inputs, op.output))
    projection = Projection.of(left, right, out)
    if projection is not None:
        return projection if context.later is None else projection.leaving_weights(context.later)
    letters = {dim: chr(ord("a") + i) for i, dim in enumerate(op.loop_dims)}
    x, w, y = ("".join(letters[dim] for dim in dims) for dims in (left, right, out))
    equation, of_x, of_w = f"{x},{w}->{y}", f"{y},{w}->{x}", f"{y},{x}->{w}"
    if not set(left) & set(right) & set(out):
        return lambda x, w: torch.einsum(equation, x, w)
    return lambda x, w: _BatchedEinsum.apply(x, w, equation, of_x, of_w)


_ELEMENTWISE: dict[str, Kernel] = {
    "add": lambda *terms: reduce(torch.add, terms),
    "silu_mul": lambda gate, up: GatedMul.apply(gate, up, "silu"),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": lambda x: F.gelu(x),
    "scaled_by": TimesTable.apply,
    "sigmoid_mul": lambda x, gate: x * torch.sigmoid(gate),
}


def _function(name: str, attributes: Mapping[str, Any]) -> Kernel:
    if name == "pointwise":
        text = str(attributes["expression"])
        if (number := factor(text)) is not None:
            return _scaled(number)
        return _gated(parse(text)) or pointwise(text)
    if name == "scale":
        return _scaled(attributes["factor"])
    if name == "add" and "alpha" in attributes:
        alpha: float = attributes["alpha"]
        return lambda x, *branches: reduce(lambda total, branch: total.add(branch, alpha=alpha), branches, x)
    return _ELEMENTWISE[name]


def _scaled(number: float) -> Kernel:
    return lambda x: x * number


def _gated(expression: Expression) -> Kernel | None:
    """The kernel of an activated gate times another input, where torch has one of the activation's gradient: composed
    of several it holds up to five tensors more in backward, or pieces of them."""
    match expression:
        case ("mul", (str(function), str(gate)), str(up)) | ("mul", str(up), (str(function), str(gate))):
            if function in ACTIVATIONS and gate != up:
                return lambda *values: GatedMul.apply(*(values[int(one[1:])] for one in (gate, up)), function)
    return None


def _elementwise(context: Context, step: OperatorStep) -> Kernel:
    op = step.operator
    name, dims = str(op.attributes["function"]), context.dims(op.output)
    function = _function(name, op.attributes)
    inputs = [context.dims(name) for name in op.inputs]
    if all(dims[len(dims) - len(have) :] == have for have in inputs):
        return function
    indices = [tuple(slice(None) if dim in have else None for dim in dims) for have in inputs]
    return lambda *values: function(*(x[index] for x, index in zip(values, indices, strict=True)))


def _norm(context: Context, step: OperatorStep) -> Kernel:
    op = step.operator
    size = (context.graph.sizes[context.dims(op.inputs[0])[-1]],)
    eps: Any = op.attributes["eps"]
    if op.attributes.get("unit_offset"):
        if op.attributes["function"] == "layer":
            return lambda x, weight, bias: OffsetLayerNorm.apply(x, weight, bias, eps)
        return lambda x, weight: OffsetRmsNorm.apply(x, weight, eps)
    if op.attributes.get("over"):
        return _norm_over_several(context, step)
    if op.attributes["function"] == "rms":
        return lambda x, weight=None: RmsNorm.apply(x, x.new_ones(size) if weight is None else weight, eps)
    if any(len(context.dims(name)) > 1 for name in op.inputs[1:]):
        return lambda x, weight: WeighedLayerNorm.apply(x, weight, eps)
    return lambda x, weight=None, bias=None: F.layer_norm(x, size, weight, bias, eps)


def _norm_over_several(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of an RMS norm over several dims, some of which ranks may share."""
    op = step.operator
    eps: Any = op.attributes["eps"]
    width: Any = op.attributes["width"]
    count = len(split_norm_dims(op)) + 1
    groups = [group for dim in split_norm_dims(op) if (group := context.group(step, dim)) is not None]
    return lambda x, weight: SharedRmsNorm.apply(x, weight, eps, count, width, groups)


class SharedRmsNorm(torch.autograd.Function):
    """x / sqrt(sum(x^2) / width + eps) * weight over the last `count` dims, computed in FP32 (or FP64).

    groups: of ranks that hold the other parts of a row. Keeps x and one number a row.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float, count: int, width: int, groups: list[Group]
    ) -> torch.Tensor:
        ctx.dims, ctx.width, ctx.groups = tuple(range(-count, 0)), width, groups
        accurate = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = SharedRmsNorm._sum(accurate.square(), ctx).div_(width).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (accurate * scale * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normal, grad = x * scale, grads[0].to(scale.dtype)
        products = grad * normal
        along = SharedRmsNorm._sum(products * weight, ctx)
        grad_x = (grad * weight).addcmul_(normal, along, value=-1 / ctx.width).mul_(scale)
        rows = tuple(range(x.dim() - weight.dim()))
        return grad_x.to(x.dtype), products.sum(rows).to(weight.dtype), None, None, None, None

    @staticmethod
    def _sum(values: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The sum of each row, with that of the other ranks."""
        total = values.sum(ctx.dims, keepdim=True)
        for group in ctx.groups:
            total = all_reduce(total, group)
        return total


def _rope(context: Context, step: OperatorStep) -> Kernel:
    return rotation(context, step, context.dims(step.operator.output))


def _slice(context: Context, step: OperatorStep) -> Kernel:
    first: Any = step.operator.attributes["first"]
    length = context.graph.sizes[context.dims(step.operator.output)[-1]]
    return lambda x: x.narrow(-1, first, length).contiguous()


def _concat(context: Context, step: OperatorStep) -> Kernel:
    left, right = (context.dims(name) for name in step.operator.inputs)
    assert right[:-1] == tuple(dim for dim in left[:-1] if dim in right), step.operator
    index = tuple(slice(None) if dim in right else None for dim in left[:-1])

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, y[index].expand(*x.shape[:-1], y.shape[-1])), -1)

    return run


def _log_scale(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of heads times a function of their place's logarithm."""
    logs, lacking = context.logarithms(step), (1,) * (len(context.dims(step.operator.output)) - 3)

    def run(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *starts: torch.Tensor) -> torch.Tensor:
        found = logs(x, *starts)
        out: torch.Tensor = LogScaled.apply(x, scale, bias, found.view(*found.shape, *lacking))
        return out

    return run


def _position_scale(context: Context, step: OperatorStep) -> Kernel:
    op, dims = step.operator, context.dims(step.operator.output)
    floor_scale: Any = op.attributes["floor_scale"]
    attn_scale: Any = op.attributes["attn_scale"]
    first: Any = op.attributes.get("first", 1)
    places = context.positions(step).double()
    factors = 1 + attn_scale * torch.log1p(torch.floor((places + first) / floor_scale))
    shape = [len(factors) if dim == "seq" else 1 for dim in dims]

    def run(x: torch.Tensor) -> torch.Tensor:
        key = ("position_scale", context.piece(step, "seq"), floor_scale, attn_scale, first, x.dtype, x.device)
        if key not in context.tables:
            context.tables[key] = factors.to(x)
        out: torch.Tensor = TimesTable.apply(x, context.tables[key].view(shape))
        return out

    return run


class _TakesGradient(torch.autograd.Function):
    """`takes_gradient`. That gradient ends here; a tensor that requires one itself would be kept for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, empty: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None]:
        return None, None


def takes_gradient(x: torch.Tensor) -> torch.Tensor:
    """The tensor, which takes a gradient from here on, though nothing before it is learned."""
    found: torch.Tensor = _TakesGradient.apply(x, torch.empty(0, requires_grad=True))
    return found


def _embedding(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of rows by token ids; the row `padding_idx` gets no gradient here. Rows of a table that is not learned
    take one all the same: the blocks behind it are as all others then."""
    position, count = context.piece(step, context.dims(step.operator.inputs[1])[0])
    unlearned: Any = step.operator.attributes.get("padding_idx", -1)

    def look_up(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        table = table.flatten(0, -2)
        rows = table.shape[0]
        row = unlearned - position * rows
        padding = row if 0 <= row < rows else None
        if count == 1:
            return F.embedding(ids, table, padding)
        local = ids - position * rows
        held = (local >= 0) & (local < rows)
        return F.embedding(local.clamp(0, rows - 1), table, padding) * held.unsqueeze(-1)

    if context.graph.tensors[step.operator.inputs[1]].differentiable:
        return look_up
    return lambda ids, table: takes_gradient(look_up(ids, table))


def _position_embedding(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of learned positions; they count from the start of the document where that start is an input too."""
    rows = context.positions(step)
    if not step.operator.attributes.get("documents"):
        return lambda x, table: x + table[rows.to(table.device)]

    def look_up(x: torch.Tensor, table: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        here = rows.to(starts.device)
        return x + table[here - starts[:, here]]

    return look_up


class _CrossEntropy(torch.autograd.Function):
    """Sum of -log p(label) / tokens over local rows, vocabulary split or padded; probabilities are kept in FP32.

    Negative labels (data.NOT_LEARNED) add nothing, in any vocabulary piece.
    offset: first vocabulary entry of this rank; group: ranks that hold the other pieces.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, tokens: int, valid: int, offset: int, group: Group | None
    ) -> torch.Tensor:
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        columns = scores.shape[-1]
        if valid < offset + columns:
            scores[..., max(valid - offset, 0) :] = float("-inf")
        top = scores.amax(-1)
        if group is not None:
            top = all_reduce(top, group, "max")
        exponentials = scores.sub_(top.unsqueeze(-1)).exp_()
        local = labels - offset
        held = (local >= 0) & (local < columns)
        local = local.clamp(0, columns - 1)
        picked = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).to(top.dtype)
        sums = torch.stack((exponentials.sum(-1), (picked - top) * held))
        total, label_score = (sums if group is None else all_reduce(sums, group)).unbind(0)
        learned = labels >= 0
        ctx.save_for_backward(exponentials.div_(total.unsqueeze(-1)), local, held, learned)
        ctx.tokens, ctx.dtype = tokens, logits.dtype
        return ((total.log() - label_score) * learned).sum() / tokens

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        probabilities, local, held, learned = ctx.saved_tensors
        grad = probabilities.clone()
        grad.scatter_add_(-1, local.unsqueeze(-1), -held.unsqueeze(-1).to(grad.dtype))
        scale = (grads[0] / ctx.tokens * learned).unsqueeze(-1)
        return grad.mul_(scale).to(ctx.dtype), None, None, None, None, None


def _cross_entropy(context: Context, step: OperatorStep) -> Kernel:
    sizes = context.graph.sizes
    tokens = sizes["batch"] * sizes["seq"]
    position, count = context.piece(step, "vocab")
    offset = position * (sizes["vocab"] // count)
    valid: Any = step.operator.attributes["valid_vocab"]
    group = context.group(step, "vocab")
    weight: Any = step.operator.attributes.get("weight", 1.0)

    def run(logits: torch.Tensor, labels: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        loss: torch.Tensor
        if count == 1 and valid == sizes["vocab"]:
            loss = WholeCrossEntropy.apply(logits, labels, tokens)
        else:
            loss = _CrossEntropy.apply(logits, labels, tokens, valid, offset, group)
        return loss if other is None else other + weight * loss

    return run


FACTORIES: dict[str, Callable[[Context, OperatorStep], Kernel]] = {
    "einsum": _einsum,
    "elementwise": _elementwise,
    "norm": _norm,
    "rope": _rope,
    "scaled_rope": _rope,
    "log_scale": _log_scale,
    "slice": _slice,
    "concat": _concat,
    "dropout": dropout,
    "attention": attention,
    "choose_keys": choose_keys,
    "choose_pools": choose_pools,
    "choose_means": choose_means,
    "choose_blocks": choose_blocks,
    "compress": compress,
    "compressed_attention": compressed_attention,
    "choose_entries": choose_entries,
    "embedding": _embedding,
    "position_embedding": _position_embedding,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": chunked_loss,
    "top_k_gate": top_k_gate,
    "sum_rest": sum_rest,
    "dispatch": dispatch,
    "combine": combine,
    "position_scale": _position_scale,
    "causal_conv": causal_conv,
    "gated_delta_rule": gated_delta_rule,
    "state_space_scan": state_space_scan,
    "selective_scan": selective_scan,
    "lightning_attention": lightning_attention,
    "repeat_streams": repeat_streams,
    "mean_streams": mean_streams,
    "stream_weights": stream_weights,
    "collapse_streams": collapse_streams,
    "expand_streams": expand_streams,
    "hash_ngrams": hash_ngrams,
    "gate_streams": gate_streams,
}
assert FACTORIES.keys() == KINDS.keys()
