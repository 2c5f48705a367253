"""The loss in chunks: of the logits and all that is made of them, one chunk of rows is there at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.partition import OperatorStep
from autoshard.runtime.torch_backend.collectives import all_reduce
from autoshard.runtime.torch_backend.context import Context, Kernel
from autoshard.runtime.torch_backend.given import Given
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.pointwise import pointwise

Function = Callable[[torch.Tensor], torch.Tensor]


class _Loss(NamedTuple):
    """A loss in chunks as one rank has it. tokens: of the whole microbatch. columns: how many of the rank's columns of
    the vocabulary, from its first one on, are no padding. offset: the first one's place in the vocabulary. group: ranks
    that have the other pieces. function: of each logit, None for none."""

    chunks: int
    tokens: int
    columns: int
    offset: int
    group: Group | None
    function: Function | None

    def places(self, rows: int) -> Iterator[slice]:
        """The rows of each chunk, of so many."""
        size = -(-rows // self.chunks)
        return (slice(start, start + size) for start in range(0, rows, size))

    def hide_padding(self, scores: torch.Tensor) -> None:
        """Give columns that are padding no probability, in place."""
        if self.columns < scores.shape[-1]:
            scores[:, self.columns :] = float("-inf")


class _ChunkedLoss(torch.autograd.Function):
    """Sum of -log p(label) / tokens over local rows; keeps x, the weight and the logarithm of each row's sum.

    Negative labels (data.NOT_LEARNED) add nothing, in any piece of the vocabulary. The weight's gradient is added up
    over chunks in its own dtype.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, loss: _Loss) -> torch.Tensor:
        rows, local = x.flatten(0, -2), labels.flatten() - loss.offset
        accurate = torch.promote_types(x.dtype, torch.float32)
        tops, sums, picked = (rows.new_zeros(len(rows), dtype=accurate) for _ in range(3))
        held = (local >= 0) & (local < loss.columns)
        for at in loss.places(len(rows)):
            scores = _scores(rows[at], weight, loss)
            loss.hide_padding(scores)
            columns = local[at].clamp(0, scores.shape[-1] - 1).unsqueeze(-1)
            picked[at] = scores.gather(-1, columns).squeeze(-1).to(accurate)
            scores = scores.to(accurate)
            tops[at] = scores.amax(-1)
            sums[at] = scores.sub_(tops[at].clamp(min=_least(accurate)).unsqueeze(-1)).exp_().sum(-1)
            del scores  # before the next ones are made
        top = tops if loss.group is None else all_reduce(tops.clone(), loss.group, "max")
        parts = torch.stack((sums * (tops - top).exp(), torch.where(held, picked - top, 0.0)))
        total, label_score = (parts if loss.group is None else all_reduce(parts, loss.group)).unbind(0)
        learned = labels.flatten() >= 0
        ctx.save_for_backward(x, weight, labels, top + total.log())
        ctx.loss = loss
        return ((total.log() - label_score) * learned).sum() / loss.tokens

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, labels, log_sum_exp = ctx.saved_tensors
        loss: _Loss = ctx.loss
        rows, local = x.flatten(0, -2), labels.flatten() - loss.offset
        held = ((local >= 0) & (local < loss.columns)).to(log_sum_exp.dtype)
        scale = (labels.flatten() >= 0) * (grads[0] / loss.tokens)
        of_x = torch.empty_like(rows)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for at in loss.places(len(rows)):
            columns = local[at].clamp(0, len(weight) - 1).unsqueeze(-1)
            given = columns, held[at].unsqueeze(-1), scale[at].unsqueeze(-1), log_sum_exp[at].unsqueeze(-1)
            gradient = _of_logits(rows[at], weight, given, loss)
            torch.mm(gradient, weight, out=of_x[at])
            if of_weight is not None:
                of_weight.addmm_(gradient.t(), rows[at])
            del gradient  # before the next one is made
        return of_x.view_as(x), of_weight, None, None


def _least(dtype: torch.dtype) -> float:
    """The least finite number: a rank whose columns are all padding has no larger score."""
    return torch.finfo(dtype).min


def _scores(rows: torch.Tensor, weight: torch.Tensor, loss: _Loss) -> torch.Tensor:
    logits = F.linear(rows, weight)
    return logits if loss.function is None else loss.function(logits)


def _of_logits(rows: torch.Tensor, weight: torch.Tensor, given: tuple[torch.Tensor, ...], loss: _Loss) -> torch.Tensor:
    """The gradient of one chunk's logits. given: for each row the column of its label, 1 where this rank has that one,
    by what its gradient is scaled, and the logarithm of its sum."""
    columns, held, scale, log_sum_exp = given
    logits = F.linear(rows, weight)
    made = logits
    if loss.function is not None:
        with torch.enable_grad():
            logits = logits.requires_grad_()
            made = loss.function(logits)
    scores = made.detach().to(log_sum_exp.dtype)
    if loss.function is None:
        del logits
        made = None  # type: ignore[assignment]
    loss.hide_padding(scores)
    gradient = scores.sub_(log_sum_exp).exp_().scatter_add_(-1, columns, -held).mul_(scale).to(rows.dtype)
    if loss.function is None:
        return gradient
    del scores
    with torch.enable_grad():
        root = Given.apply(made, gradient)
    (found,) = torch.autograd.grad(root, logits)
    return found


def chunked_loss(context: Context, step: OperatorStep) -> Kernel:
    """The kernel of a loss in chunks: x [batch, seq, embed], w [vocab, embed], labels [batch, seq] and perhaps another
    loss -> the loss."""
    sizes, attributes = context.graph.sizes, step.operator.attributes
    position, count = context.piece(step, "vocab")
    columns = sizes["vocab"] // count
    valid: Any = attributes["valid_vocab"]
    chunks: Any = attributes["chunks"]
    expression: Any = attributes.get("expression")
    weight: Any = attributes.get("weight", 1.0)
    loss = _Loss(
        chunks,
        sizes["batch"] * sizes["seq"],
        min(columns, max(0, valid - position * columns)),
        position * columns,
        context.group(step, "vocab"),
        None if expression is None else pointwise(expression),
    )

    def run(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        own: torch.Tensor = _ChunkedLoss.apply(x, w, labels, loss)
        return own if other is None else other + weight * own

    return run
