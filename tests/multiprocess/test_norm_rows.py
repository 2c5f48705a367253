"""A norm of many rows: some at a time are what all are, forward and backward, and take less memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.runtime.torch_backend import pointwise
from autoshard.runtime.torch_backend.recomputing_ops import OffsetRmsNorm, RmsNorm

ROWS, WIDTH = (3, 10), 8


def normed(norm: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    """The norm, and the gradients of its input and its weight."""
    random = torch.Generator().manual_seed(0)
    x, weight, grad = (
        torch.randn(*shape, generator=random).to(dtype) for shape in ((*ROWS, WIDTH), (WIDTH,), (*ROWS, WIDTH))
    )
    inputs = [x.requires_grad_(), weight.requires_grad_()]
    out = norm(*inputs, 1e-5)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


@pytest.mark.parametrize("norm", [RmsNorm, OffsetRmsNorm])
@pytest.mark.parametrize("at_once", [1, 4 * WIDTH, 29 * WIDTH])  # fewer than a row has, and numbers that leave a rest
def test_some_rows_at_a_time_are_all(norm: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = normed(norm.apply, torch.float64)
    monkeypatch.setattr(pointwise, "AT_ONCE", at_once)
    torch.testing.assert_close(normed(norm.apply, torch.float64), whole, rtol=1e-12, atol=1e-12)
    assert [one.dtype for one in normed(norm.apply, torch.bfloat16)] == [torch.bfloat16] * 3


class Largest(TorchDispatchMode):
    """The most elements of a tensor in FP32 that an operator writes."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float32:
            self.elements = max(self.elements, found.numel())
        return found


def test_what_is_computed_between_is_of_some_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "AT_ONCE", 4 * WIDTH)
    x = torch.randn(*ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with Largest() as largest:
        out = RmsNorm.apply(x, torch.ones(WIDTH, dtype=torch.bfloat16), 1e-5)
        out.backward(torch.ones_like(out))
    assert largest.elements == 4 * WIDTH
