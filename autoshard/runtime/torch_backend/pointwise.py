"""Computes elementwise functions that a plan writes as an expression (graph/pointwise.py), on tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
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
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else x.clamp(min=y),
    "minimum": lambda x, y: torch.minimum(x, y) if isinstance(y, torch.Tensor) else x.clamp(max=y),
}
assert _FUNCTIONS.keys() >= FUNCTIONS.keys()

AT_ONCE, ON_GPU = 1 << 20, 1 << 24
"""Large tensors are computed in pieces of so many elements, on the host and on a GPU: of what lies between input and
output no more is there. No plan counts it: xIELU holds seven pieces, 15 MB in BF16. Pieces of four times as many take
a core no less time. A kernel over four million takes an H200 7 us, less than the host needs to launch the next."""
FEW = 3
"""Forward of expressions of so few functions is computed at once: pieces would take longer, and save little."""


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
        if _functions(expression) <= FEW or not has_pieces(values):
            found: torch.Tensor = _value(expression, values)
            return found
        whole = [x for x in values if x.dim()]
        found = torch.empty_like(whole[0], dtype=reduce(torch.promote_types, [x.dtype for x in whole]))
        for some in _pieces((*values, found)):
            some[-1].copy_(_value(expression, some[:-1]))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[1:]
        every = (*ctx.saved_tensors, grads[0])
        gradients = _gradients_in_pieces if has_pieces(every) else _gradients
        in_order = iter(gradients(ctx.expression, every, needed))
        return None, *(next(in_order) if use else None for use in needed)


def _functions(expression: Expression) -> int:
    return 1 + sum(map(_functions, expression[1:])) if isinstance(expression, tuple) else 0  # type: ignore[arg-type]


def has_pieces(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether the tensors go in pieces: they are large, of one shape and contiguous; single numbers aside. Not while a
    compiler traces: it makes one kernel of the whole, and thousands of operators of hundreds of pieces."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        return False
    whole = [x for x in tensors if x.dim()]
    return whole[0].numel() > at_once(whole[0]) and all(x.shape == whole[0].shape and x.is_contiguous() for x in whole)


def at_once(x: torch.Tensor) -> int:
    """Elements of a piece of x."""
    return ON_GPU if x.device.type == "cuda" else AT_ONCE


def _pieces(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors, flat, so many elements at a time; single numbers each time."""
    first = next(x for x in tensors if x.dim())
    size = at_once(first)
    count = -(-first.numel() // size)
    return zip(*(x.view(-1).split(size) if x.dim() else (x,) * count for x in tensors), strict=True)


def _gradients_in_pieces(
    expression: Expression, tensors: tuple[torch.Tensor, ...], needed: tuple[bool, ...]
) -> Sequence[torch.Tensor]:
    """Gradients of the inputs that need one, computed a piece at a time; those of single numbers are sums over all
    pieces, in FP32 at least. Arguments as of `_gradients`."""
    wanted = [x for x, use in zip(tensors, needed, strict=False) if use]
    found = [
        torch.empty_like(x) if x.dim() else x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        for x in wanted
    ]
    for some in _pieces((*tensors, *found)):
        gradients = _gradients(expression, some[: len(tensors)], needed)
        for whole, gradient in zip(some[len(tensors) :], gradients, strict=True):
            whole.copy_(gradient) if whole.dim() else whole.add_(gradient)
    return [total.to(x.dtype) for total, x in zip(found, wanted, strict=True)]


def _gradients(
    expression: Expression, tensors: tuple[torch.Tensor, ...], needed: tuple[bool, ...]
) -> Sequence[torch.Tensor]:
    """Gradients of the inputs that need one. tensors: the inputs, then the gradient of the output."""
    with torch.enable_grad():
        values = tuple(x.detach().requires_grad_(use) for x, use in zip(tensors, needed, strict=False))
        root = Given.apply(_value(expression, values), tensors[-1])
    return torch.autograd.grad(root, [x for x in values if x.requires_grad])
