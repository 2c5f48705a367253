"""Expressions of elementwise functions on tensors: gradients in pieces are those of the whole."""

import pytest
import torch

from autoshard.runtime.torch_backend import pointwise as module
from autoshard.runtime.torch_backend.pointwise import pointwise

SOFTCAP, GATED = "(mul 30.0 (tanh (div x0 30.0)))", "(mul x0 (sigmoid x1))"


def gradients(expression: str, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    inputs = [x.detach().requires_grad_() for x in values]
    out = pointwise(expression)(*inputs)
    return torch.autograd.grad(out, inputs, torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))


@pytest.mark.parametrize(
    ("expression", "shapes"),
    [(SOFTCAP, ((3, 50),)), (GATED, ((3, 50), (3, 50))), (GATED, ((3, 50), (50,))), (SOFTCAP, ((7,),))],
    ids=["softcap", "gate", "a gate that broadcasts", "one piece"],
)
def test_gradients_in_pieces_are_those_of_the_whole(
    expression: str, shapes: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [20 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    whole = gradients(expression, *values)
    monkeypatch.setattr(module, "AT_ONCE", 7)
    torch.testing.assert_close(gradients(expression, *values), whole, rtol=1e-15, atol=0)
    if len(values) == 1:  # 1 - tanh(x / 30)^2, times the gradient of the output
        slopes = 1 - torch.tanh(values[0] / 30) ** 2
        torch.testing.assert_close(
            whole[0], slopes * torch.linspace(-1, 1, slopes.numel(), dtype=slopes.dtype).view_as(slopes)
        )
