"""Computes elementwise functions that a plan writes as an expression (graph/pointwise.py), on tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses

from autoshard.graph.pointwise import FUNCTIONS, Expression, parse
from autoshard.runtime.torch_backend.given import Given

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in FUNCTIONS if hasattr(torch, name)},
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "neg": lambda x: -x,
    "maximum": lambda x, y: torch.maximum(x, _like(x, y)),
    "minimum": lambda x, y: torch.minimum(x, _like(x, y)),
}
assert _FUNCTIONS.keys() >= FUNCTIONS.keys()

AT_ONCE = 1 << 22
"""Backward is in pieces of so many elements: of what lies between input and output no more is there."""


def _like(x: torch.Tensor, y: Any) -> torch.Tensor:
    return y if isinstance(y, torch.Tensor) else x.new_tensor(y)


def pointwise(text: str) -> Callable[..., torch.Tensor]:
    """The expression as a function of its inputs x0, x1, ..., which broadcast."""
    expression = parse(text)
    return lambda *values: _Pointwise.apply(expression, *values)


def _value(expression: Expression, values: tuple[torch.Tensor, ...]) -> Any:
    if isinstance(expression, tuple):
        function, *operands = expression
        return _FUNCTIONS[str(function)](*(_value(one, values) for one in operands))  # type: ignore[arg-type]
    return values[int(expression[1:])] if isinstance(expression, str) else expression


class _Pointwise(torch.autograd.Function):
    """The expression as an autograd function. It keeps only its inputs and computes again in backward, as a compiler
    would."""

    @staticmethod
    def forward(ctx: Any, expression: Expression, *values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*values)
        ctx.expression = expression
        found: torch.Tensor = _value(expression, values)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[1:]
        every = (*ctx.saved_tensors, grads[0])
        if grads[0].numel() <= AT_ONCE or any(x.shape != grads[0].shape or not x.is_contiguous() for x in every):
            found = _gradients(ctx.expression, every, needed)
        else:
            found = [torch.empty_like(x) for x, use in zip(every, needed, strict=False) if use]
            pieces = zip(*(x.view(-1).split(AT_ONCE) for x in every), strict=True)
            into = zip(*(x.view(-1).split(AT_ONCE) for x in found), strict=True)
            for tensors, wholes in zip(pieces, into, strict=True):
                for whole, gradient in zip(wholes, _gradients(ctx.expression, tensors, needed), strict=True):
                    whole.copy_(gradient)
        in_order = iter(found)
        return None, *(next(in_order) if use else None for use in needed)


def _gradients(
    expression: Expression, tensors: tuple[torch.Tensor, ...], needed: tuple[bool, ...]
) -> Sequence[torch.Tensor]:
    """Gradients of the inputs that need one. tensors: the inputs, then the gradient of the output."""
    with torch.enable_grad():
        values = tuple(x.detach().requires_grad_(use) for x, use in zip(tensors, needed, strict=False))
        root = Given.apply(_value(expression, values), tensors[-1])
    return torch.autograd.grad(root, [x for x in values if x.requires_grad])
