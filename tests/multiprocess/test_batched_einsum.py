"""Products of experts: torch.einsum's values and gradients, and a weight's gradient that lies as the weight does."""

import pytest
import torch

from autoshard.runtime.torch_backend.kernels import _BatchedEinsum

SIZES = {"e": 3, "b": 2, "t": 5, "h": 7, "f": 4}


def random(dims: str) -> torch.Tensor:
    return torch.randn([SIZES[dim] for dim in dims], dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("equation", ["ebth,efh->ebtf", "ebtf,ehf->ebth", "ebtf,efh->ebth", "ebth,ehf->ebtf"])
def test_values_and_gradients_are_einsums(equation: str) -> None:
    (x, w), y = equation.split("->")[0].split(","), equation.split("->")[1]
    inputs = random(x), random(w)
    out = _BatchedEinsum.apply(*inputs, equation, f"{y},{w}->{x}", f"{y},{x}->{w}")
    expected = torch.einsum(equation, *inputs)
    assert torch.allclose(out, expected, rtol=1e-12)
    weighs = torch.randn_like(expected)
    found = torch.autograd.grad((out * weighs).sum(), inputs)
    for one, other in zip(found, torch.autograd.grad((expected * weighs).sum(), inputs), strict=True):
        assert torch.allclose(one, other, rtol=1e-12)
    assert found[1].is_contiguous()


def test_no_copy_of_the_gradient_is_made() -> None:
    """Autograd hands over the tensor that backward made, where torch.einsum's is copied."""
    x, w = random("eth"), random("efh")
    made: list[int] = []
    w.register_hook(lambda gradient: made.append(gradient.data_ptr()))
    for product, is_copied in (
        (lambda: _BatchedEinsum.apply(x, w, "eth,efh->etf", "etf,efh->eth", "etf,eth->efh"), False),
        (lambda: torch.einsum("eth,efh->etf", x, w), True),
    ):
        product().square().sum().backward()
        gradient, w.grad = w.grad, None
        assert isinstance(gradient, torch.Tensor)
        assert (gradient.data_ptr() != made[-1]) == is_copied
