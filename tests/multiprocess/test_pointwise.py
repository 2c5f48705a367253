"""Expressions of elementwise functions on tensors: gradients in pieces are those of the whole."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # the name that torch's own documentation uses
from torch.fx.experimental.proxy_tensor import make_fx

from autoshard.graph.pointwise import factor
from autoshard.graph.xielu import BETA, EPS, EXPRESSION, LEARNED, PARTS
from autoshard.runtime.torch_backend import kernels
from autoshard.runtime.torch_backend import pointwise as module
from autoshard.runtime.torch_backend.pointwise import pointwise
from tests.multiprocess.held import Held

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


def xielu(x: torch.Tensor, alpha_p: torch.Tensor, alpha_n: torch.Tensor) -> torch.Tensor:
    """As transformers has it."""
    above, below = F.softplus(alpha_p), BETA + F.softplus(alpha_n)
    least = torch.tensor(EPS, dtype=x.dtype)
    return torch.where(x > 0, above * x * x + BETA * x, (torch.expm1(torch.minimum(x, least)) - x) * below + BETA * x)


@pytest.mark.parametrize("at_once", [7, 1 << 22], ids=["in pieces", "at once"])
def test_xielu_and_its_gradients(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    x = torch.linspace(-3, 4, 150, dtype=torch.float64).view(3, 50)
    found = [one.clone().requires_grad_() for one in (x, torch.tensor(0.3).double(), torch.tensor(-0.7).double())]
    wanted = [one.detach().clone().requires_grad_() for one in found]
    constants = [torch.tensor(PARTS[part], dtype=x.dtype) for part in PARTS if part not in LEARNED]
    value, expected = pointwise(EXPRESSION)(*found, *constants), xielu(*wanted)
    torch.testing.assert_close(value, expected, rtol=1e-14, atol=1e-14)
    weights = torch.linspace(-1, 2, 150, dtype=torch.float64).view(3, 50)
    value.backward(weights)
    expected.backward(weights)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-14)


def test_numbers_of_bf16_have_gradients_that_are_summed_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 300 pieces adds 1: in BF16 the sum would stay at 256."""
    monkeypatch.setattr(module, "AT_ONCE", 1)
    factor = torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True)
    x = torch.ones(300, dtype=torch.bfloat16)
    pointwise("(mul x0 x1)")(x, factor).sum().backward()
    assert factor.grad is not None
    assert float(factor.grad) == 300


def test_values_in_pieces_have_the_dtype_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in FP32, which those that are not learned are, change nothing."""
    numbers = [torch.tensor(value) for value in PARTS.values()]
    x = torch.linspace(-3, 4, 150).bfloat16()
    whole = pointwise(EXPRESSION)(x, *numbers)
    monkeypatch.setattr(module, "AT_ONCE", 7)
    found = pointwise(EXPRESSION)(x, *numbers)
    assert (found.dtype, found.equal(whole)) == (torch.bfloat16, True)


def test_a_compiler_sees_no_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would get a few operators for each of 30 pieces."""
    monkeypatch.setattr(module, "AT_ONCE", 5)
    graph = make_fx(lambda x: gradients(SOFTCAP, x))(torch.ones(3, 50))
    assert 5 < len(graph.graph.nodes) < 30


def test_xielu_of_padding_is_nothing() -> None:
    numbers = [torch.tensor(value, dtype=torch.float64) for value in PARTS.values()]
    x = torch.zeros(4, dtype=torch.float64)
    assert pointwise(EXPRESSION)(x, *numbers).count_nonzero() == 0


@pytest.mark.parametrize(
    "expression", ["(mul (gelu x0) x1)", "(mul x1 (gelu_erf x0))", "(mul (silu x1) x0)", "(mul x0 (gelu x1))"]
)
def test_an_activated_gate_holds_five_tensors_in_backward(expression: str) -> None:
    """Gate, what it is multiplied with, and the output's gradient; the gate's gradient and what that is made of, or the
    other's. Written out, activation, product and gradients between are there as well."""
    generator = torch.Generator().manual_seed(0)
    gate, up, grad = (torch.randn(64, 128, generator=generator).bfloat16() for _ in range(3))
    expected = torch.autograd.grad(pointwise(expression)(one := gate.clone().requires_grad_(), up), one, grad)
    kernel = kernels._function("pointwise", {"expression": expression})
    inputs = gate.requires_grad_(), up.requires_grad_()
    out = kernel(*inputs)
    assert out.equal(pointwise(expression)(*inputs))
    with Held([*inputs, grad]) as held:
        found = torch.autograd.grad(out, inputs, grad)
    assert found[0].equal(expected[0])
    assert held.most == 5 * gate.nbytes


def test_a_constant_multiple_keeps_nothing() -> None:
    """Gemma scales what it embeds: for its gradient backward needs the number alone."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda x: x):
        out = kernels._function("pointwise", {"expression": "(mul 45.25 x0)"})(torch.ones(3, requires_grad=True))
    out.sum().backward()
    assert (out.tolist(), kept) == ([45.25] * 3, [])
    texts = "(mul 45.25 x0)", "(mul x0 -2)", "(mul x0 x1)", "(div x0 2.0)", "(mul 2.0 (tanh x0))", "x0"
    assert list(map(factor, texts)) == [45.25, -2.0, None, None, None, None]


@pytest.mark.parametrize("expression", ["(mul (gelu x0) x1)", "(mul x0 (gelu x1))", "(mul (silu x1) x0)"])
def test_an_activated_gate_and_what_it_multiplies_may_lack_dims(expression: str) -> None:
    inputs = [torch.linspace(-2, 3, count, dtype=torch.float64) for count in (30, 5)]
    values = [inputs[0].view(2, 3, 5).requires_grad_(), inputs[1].requires_grad_()]
    found, expected = (
        torch.autograd.grad(function(*values).square().sum(), values)
        for function in (kernels._function("pointwise", {"expression": expression}), pointwise(expression))
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("expression", "slopes"), [("(minimum x0 2.0)", [1, 1, 0]), ("(maximum x0 2.0)", [0, 1, 1])])
def test_a_number_cuts_off_as_clamp_does(expression: str, slopes: list[float]) -> None:
    """Right at the number, too, the gradient goes on."""
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (found,) = torch.autograd.grad(pointwise(expression)(x).sum(), x)
    assert found.tolist() == slopes
