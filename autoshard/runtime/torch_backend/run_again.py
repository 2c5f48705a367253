"""Functions of tensors that keep their inputs alone, and run again in backward; some a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autoshard.runtime.torch_backend.given import Given


@dataclass(frozen=True)
class Slices:
    """A function that is worked off in slices along one dim, because it holds much more for each than its inputs are.

    dims: of each input, the dim that is sliced, None where all slices need the whole; the output's is the first one's.
    size: of a slice.
    """

    dims: tuple[int | None, ...] = ()
    size: int = 0

    def of(self, values: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yields the inputs of each slice. values: those of the function, or its output alone."""
        dim = self.dims[0] if self.dims else None
        if dim is None:
            yield tuple(values)
            return
        dims = self.dims[: len(values)]
        for start in range(0, values[0].shape[dim], self.size):
            stop = min(start + self.size, values[0].shape[dim])
            yield tuple(x if d is None else x.narrow(d, start, stop - start) for x, d in zip(values, dims, strict=True))


WHOLE = Slices()


class Again(torch.autograd.Function):
    """A function of tensors that keeps its inputs and runs again in backward."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], slices: Slices, *values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*values)
        ctx.function, ctx.slices = function, slices
        parts = [function(*inputs) for inputs in slices.of(values)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, slices.dims[0] or 0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        needed, saved, slices = ctx.needs_input_grad[2:], ctx.saved_tensors, ctx.slices
        if slices is WHOLE:
            return None, None, *_gradients(ctx.function, saved, needed, grads[0])
        # sums over slices are not rounded in between
        wide = [
            torch.promote_types(x.dtype, torch.float32) if slices.dims[i] is None else x.dtype
            for i, x in enumerate(saved)
        ]
        sums = [torch.zeros_like(x, dtype=dtype) for x, dtype in zip(saved, wide, strict=True)]
        for inputs, targets, (grad,) in zip(slices.of(saved), slices.of(sums), slices.of(grads[:1]), strict=True):
            for target, found in zip(targets, _gradients(ctx.function, inputs, needed, grad), strict=True):
                if found is not None:
                    target.add_(found)
        return None, None, *(one.to(x.dtype) if use else None for one, x, use in zip(sums, saved, needed, strict=True))


def _gradients(
    function: Callable[..., torch.Tensor],
    values: Sequence[torch.Tensor],
    needed: Sequence[bool],
    grad: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of a function that is run again; None where none is needed."""
    with torch.enable_grad():
        inputs = tuple(x.detach().requires_grad_(use) for x, use in zip(values, needed, strict=True))
        root = Given.apply(function(*inputs), grad)
    found = iter(torch.autograd.grad(root, [x for x in inputs if x.requires_grad]))
    return tuple(next(found) if use else None for use in needed)
