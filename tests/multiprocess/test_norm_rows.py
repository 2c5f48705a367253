"""A norm of many rows: some at a time are what all are, forward and backward, and take less memory."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.runtime.torch_backend import pointwise
from autoshard.runtime.torch_backend.recomputing_ops import OffsetLayerNorm, OffsetRmsNorm, RmsNorm, WeighedLayerNorm

ROWS, WIDTH = (3, 10), 8


def drawn(norm: Any, dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(the input of a norm, its weight and its bias, if it has one; a gradient of its output). Where heads have weights
    of their own, the last rows are heads."""
    random = torch.Generator().manual_seed(0)
    weight = (*ROWS[1:], WIDTH) if norm is WeighedLayerNorm else (WIDTH,)
    shapes = ((*ROWS, WIDTH), (*ROWS, WIDTH), weight, (WIDTH,))
    x, grad, *weights = (torch.randn(*shape, generator=random).to(dtype) for shape in shapes)
    return [one.requires_grad_() for one in (x, *weights[: 1 + (norm is OffsetLayerNorm)])], grad


def normed(norm: Any, inputs: list[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """The norm, and the gradients of its inputs."""
    out: torch.Tensor = norm.apply(*inputs, 1e-5)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


@pytest.mark.parametrize("norm", [RmsNorm, OffsetRmsNorm, OffsetLayerNorm, WeighedLayerNorm])
@pytest.mark.parametrize("at_once", [1, 4 * WIDTH, 29 * WIDTH])  # fewer than a row has, and numbers that leave a rest
def test_some_rows_at_a_time_are_all(norm: Any, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = normed(norm, *drawn(norm, torch.float64))
    monkeypatch.setattr(pointwise, "AT_ONCE", at_once)
    torch.testing.assert_close(normed(norm, *drawn(norm, torch.float64)), whole, rtol=1e-12, atol=1e-12)
    assert [one.dtype for one in normed(norm, *drawn(norm, torch.bfloat16))] == [torch.bfloat16] * len(whole)


def test_a_layer_norm_with_a_weight_for_each_head_is_torchs_of_each() -> None:
    (x, weight), grad = drawn(WeighedLayerNorm, torch.float64)
    heads = zip(x.unbind(1), weight, strict=True)
    apart = torch.stack([F.layer_norm(head, (WIDTH,), own, None, 1e-5) for head, own in heads], 1)
    expected = [apart.detach(), *torch.autograd.grad(apart, (x, weight), grad)]
    torch.testing.assert_close(normed(WeighedLayerNorm, [x, weight], grad), expected, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """The most elements of a tensor in FP32 that an operator writes."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float32:
            self.elements = max(self.elements, found.numel())
        return found


@pytest.mark.parametrize("norm", [RmsNorm, OffsetLayerNorm])
def test_what_is_computed_between_is_of_some_rows(norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "AT_ONCE", 4 * WIDTH)
    given = drawn(norm, torch.bfloat16)
    with Largest() as largest:
        normed(norm, *given)
    assert largest.elements == 4 * WIDTH
