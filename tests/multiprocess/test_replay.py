"""What backward runs again is what torch.utils.checkpoint runs again, with the same gradients."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from autoshard.audits.recorder import Recorder
from autoshard.runtime.torch_backend import kernels
from autoshard.runtime.torch_backend.onlooker import Onlooker
from autoshard.runtime.torch_backend.profile import _Collectives as StepCollectives
from autoshard.runtime.torch_backend.recomputing_ops import weighed_sums
from autoshard.runtime.torch_backend.replay import replayed
from tests.multiprocess.compared import CollectiveCounter

Outputs = tuple[torch.Tensor, ...]
SIZE = 5


class Ran(Onlooker):
    """Names of the operators that run in here."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Recorder, StepCollectives, CollectiveCounter, Ran])
def test_torchs_compiler_has_no_part_in_what_sees_every_operator(mode: type[TorchDispatchMode]) -> None:
    class Plain(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    assert hasattr(Plain.__torch_dispatch__, "__wrapped__")  # so that the compiler leaves it alone
    assert not hasattr(mode.__torch_dispatch__, "__wrapped__")


def weight() -> torch.Tensor:
    return torch.randn(SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def a_part(w: torch.Tensor) -> Callable[..., Outputs]:
    """Saves inputs, outputs and what is between; its last product needs nothing that comes behind the exponential."""

    def run(x: torch.Tensor, y: torch.Tensor) -> Outputs:
        hidden = torch.softmax(x @ w, -1) * y
        return (hidden.exp() @ w).sum(0) + 1, hidden * 2

    return run


def gradients(again: Callable[..., Outputs]) -> tuple[list[torch.Tensor | None], list[str]]:
    """(gradients, operators that backward ran) of a part that runs again in backward."""
    w, x, y = weight(), weight(), torch.ones(SIZE, SIZE, dtype=torch.float64)
    one, other = again(a_part(w), x * 1, y)
    total = one.sum() + other.square().sum()
    with Ran() as ran:
        total.backward()
    return [w.grad, x.grad, y.grad], ran.names


def test_it_is_what_torch_does() -> None:
    def theirs(run: Callable[..., Outputs], *inputs: torch.Tensor) -> Outputs:
        found: Outputs = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=False)
        return found

    (ours, ran), (expected, expected_ran) = gradients(replayed), gradients(theirs)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)

    def computed(names: list[str]) -> list[str]:
        return [name for name in names if "detach" not in name and "empty" not in name]

    assert computed(ran) == computed(expected_ran)
    assert ran.count("aten.softmax.int") + ran.count("aten._softmax.default") == 1


def test_it_is_what_is_kept_otherwise() -> None:
    torch.testing.assert_close(gradients(replayed)[0], gradients(lambda run, *inputs: run(*inputs))[0], rtol=0, atol=0)


def test_nothing_is_kept_but_the_inputs_and_nothing_stays() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def run(x: torch.Tensor) -> Outputs:
        inside = torch.softmax(x, -1)
        made.append(weakref.ref(inside))
        return (inside.exp(),)

    gc.disable()  # reference counts alone free it
    try:
        x = weight()
        (out,) = replayed(run, x * 1)
        assert made[0]() is None
        out.sum().backward()
        del out
        assert len(made) == 2 and made[1]() is None
        assert x.grad is not None
    finally:
        gc.enable()


def test_hooks_around_see_the_inputs_alone() -> None:
    packed: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> int:
        packed.append(x)
        return len(packed) - 1

    x = weight()
    with saved_tensors_hooks(pack, lambda index: packed[index]):
        (out,) = replayed(lambda x: ((x.exp() * x).cos(),), x)
    assert [one is x or one.data_ptr() == x.data_ptr() for one in packed] == [True]
    out.sum().backward()
    y = weight()
    (y.exp() * y).cos().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=0, atol=0)


def test_a_mistake_in_the_part_is_raised_as_it_is() -> None:
    def run(x: torch.Tensor) -> Outputs:
        if torch._C._current_graph_task_id() != -1:
            raise ValueError("not again")
        return (x.exp(),)

    (out,) = replayed(run, weight())
    with pytest.raises(ValueError, match="not again"):
        out.sum().backward()


def test_a_number_that_is_not_learned_makes_nothing_run_up_to_its_product() -> None:
    """The exponential keeps its output, so it runs again; the sum behind it has nothing to keep, and the product only
    the number."""
    x, number = weight(), torch.tensor(3.0, dtype=torch.float64)
    (out,) = replayed(lambda x: (kernels._ELEMENTWISE["scaled_by"](x.exp() + 1, number),), x)
    with Ran() as ran:
        out.sum().backward()
    assert "aten.exp.default" in ran.names and "aten.add.Tensor" not in ran.names
    assert torch.equal(x.grad, 3 * x.detach().exp())  # type: ignore[arg-type]


def test_the_sums_of_experts_answers_do_not_run_again() -> None:
    """What their backward reads is there before them: a part that ends in them runs again up to the answers."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.rand(3, 2, 4, n, dtype=torch.float64, generator=generator).requires_grad_() for n in (SIZE, 1))
    rows = torch.randint(0, 7, (3, 2, 4), generator=generator)

    def run(x: torch.Tensor, weight: torch.Tensor) -> Outputs:
        return (weighed_sums(x.exp(), weight, rows, 7),)

    (expected,), (out,) = run(x, weight), replayed(run, x, weight)
    with Ran() as again:
        found = torch.autograd.grad(out.square().sum(), (x, weight))
    assert "aten.exp.default" in again.names and "aten.scatter_add_.default" not in again.names
    for one, other in zip(found, torch.autograd.grad(expected.square().sum(), (x, weight)), strict=True):
        torch.testing.assert_close(one, other)
