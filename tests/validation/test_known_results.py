"""Results that are made anew are what torch makes of the same arguments: their forms, their memory and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from autoshard.audits import known_results
from autoshard.audits.known_results import KnownResults

aten, functional = torch.ops.aten, torch.ops._c10d_functional
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Asked(TorchDispatchMode):
    """Counts what torch is asked. results: of the same fake mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.times = 0
        self.results = KnownResults(mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.times += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """In a process that knows nothing."""
    monkeypatch.setattr(known_results, "_KNOWN", {})
    mode = FakeTensorMode()
    with mode, Asked(mode) as asked:
        yield asked


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def tail() -> torch.Tensor:
    """A view that begins in the middle of its memory, its dimensions exchanged."""
    return x(6, 4)[2:].t()


KNOWN: dict[str, tuple[Any, Callable[[], Arguments]]] = {
    "a product": (aten.mm.default, lambda: ((x(4, 8), x(8, 2)), {})),
    "of a view": (aten.mul.Tensor, lambda: ((tail(), 2.0), {})),
    "of two types": (aten.add.Tensor, lambda: ((x(3, dtype=torch.bfloat16), x(3)), {"alpha": 2})),
    "with itself": (aten.add.Tensor, lambda: ((a := x(3), a), {})),
    "another type": (aten._to_copy.default, lambda: ((tail(),), {"dtype": torch.float64})),
    "of a list": (aten.cat.default, lambda: (([x(2, 3), x(4, 3)],), {})),
    "several": (aten.native_layer_norm.default, lambda: ((x(4, 8), [8], x(8), x(8), 1e-5), {})),
    "a view": (aten.transpose.int, lambda: ((x(3, 4), 0, 1), {})),
    "a view of a view": (aten.slice.Tensor, lambda: ((tail(), 0, 1, 3), {})),
    "views": (aten.split.Tensor, lambda: ((tail(), 2), {})),
    "a view that no name tells": (aten._unsafe_view.default, lambda: ((x(4, 6), [24]), {})),
    "in place": (aten.add_.Tensor, lambda: ((x(3), x(3)), {})),
    "in place, a value": (aten.zero_.default, lambda: ((tail(),), {})),
    "into another one": (aten.add.out, lambda: ((x(3), x(3)), {"out": x(3)})),
    "all from none": (aten.new_empty.default, lambda: ((x(3), [5, 2]), {"dtype": torch.int64})),
    "of no tensor": (aten.empty.memory_format, lambda: (([3, 4],), {})),
    "a value": (aten.promote_types.default, lambda: ((torch.bfloat16, torch.float32), {})),
    "from where its memory begins": (aten.as_strided.default, lambda: ((tail(), [2, 2], [2, 1], 3), {})),
    "a gathering": (functional.all_gather_into_tensor.default, lambda: ((x(3), 4, "ranks"), {})),
    "a gathering into another one": (
        functional.all_gather_into_tensor_out.default,
        lambda: ((x(3), 4, "ranks"), {"out": x(12)}),
    ),
}
ASKED: dict[str, tuple[Any, Callable[[], Arguments]]] = {
    "a view of another type": (aten.view.dtype, lambda: ((x(4, 2)[1:], torch.int16), {})),
    "at random": (aten.randn.generator, lambda: (([3],), {"generator": torch.Generator()})),
    "an exchange in place": (aten.t_.default, lambda: ((x(3, 4),), {})),
    "nothing": (aten._foreach_add_.Scalar, lambda: (([x(3), x(4)], 1.0), {})),
}


def described(out: Any, arguments: Arguments) -> list[Any]:
    """The forms of all results, which of the tensors in the arguments each is, and in whose memory it lies."""
    if isinstance(out, (list, tuple)):
        return [type(out), *(described(one, arguments) for one in out)]
    if not isinstance(out, torch.Tensor):
        return [out]
    assert type(out) is FakeTensor
    values = [*arguments[0], *arguments[1].values()]
    tensors = [
        one for value in values for one in (value if isinstance(value, list) else [value]) if torch.is_tensor(one)
    ]
    memory = out.untyped_storage()
    return [
        (out.shape, out.stride(), out.storage_offset(), out.dtype, out.device, memory.nbytes(), out.requires_grad),
        [out is one for one in tensors],
        [memory._cdata == one.untyped_storage()._cdata for one in tensors],
    ]


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_result_is_torchs(asked: Asked, name: str) -> None:
    func, make = KNOWN[name]
    results = asked.results
    results.of(func, *make())
    for _ in range(2):
        arguments, others = make(), make()
        before = asked.times
        found = described(results.of(func, *arguments), arguments)
        assert asked.times == before
        assert found == described(_told(func, others), others)


def _told(func: Any, arguments: Arguments) -> Any:
    """What torch returns, but for fake collectives, which do not return what they are to write into."""
    args, kwargs = arguments
    return kwargs.get("out", func(*args, **kwargs))


@pytest.mark.parametrize("name", ASKED)
def test_what_the_form_does_not_tell_is_asked_for_each_time(asked: Asked, name: str) -> None:
    func, make = ASKED[name]
    results = asked.results
    results.of(func, *make())
    arguments, others = make(), make()
    before = asked.times
    found = described(results.of(func, *arguments), arguments)
    assert asked.times > before
    assert found == described(func(*others[0], **others[1]), others)


@pytest.mark.parametrize(
    ("func", "first", "second"),
    [
        (aten.mul.Tensor, lambda: (x(3, dtype=torch.int32), 2), lambda: (x(3, dtype=torch.int32), 2.0)),
        (aten.mul.Tensor, lambda: (x(3, dtype=torch.int32), True), lambda: (x(3, dtype=torch.int32), 1.0)),
        (aten.clone.default, lambda: (x(3, 4),), lambda: (x(4, 3).t(),)),
        (aten.slice.Tensor, lambda: (x(6, 4), 0, 1, 3), lambda: (x(7, 4)[1:], 0, 1, 3)),
        (aten.view.default, lambda: (x(2, 6), [3, 4]), lambda: (x(2, 6), [4, 3])),
        (aten.stack.default, lambda: ([x(3), x(3)],), lambda: ([x(3), x(3), x(3)],)),
        (aten.sum.dim_IntList, lambda: (x(3, 4), [0], True), lambda: (x(3, 4), [0], False)),
    ],
)
def test_other_arguments_are_not_taken_for_known_ones(
    asked: Asked, func: Any, first: Callable[[], tuple[Any, ...]], second: Callable[[], tuple[Any, ...]]
) -> None:
    results = asked.results
    results.of(func, first(), {})
    arguments = second()
    assert described(results.of(func, arguments, {}), (arguments, {})) == described(func(*arguments), (arguments, {}))


def test_a_view_of_a_made_result_lies_in_its_memory(asked: Asked) -> None:
    results = asked.results
    made = [results.of(aten.neg.default, (x(3),), {}) for _ in range(2)][1]
    views = [results.of(aten.slice.Tensor, (made, 0, 1, 3), {}) for _ in range(2)]
    assert {one.untyped_storage()._cdata for one in views} == {made.untyped_storage()._cdata}


def test_a_view_is_known_wherever_its_tensor_begins(asked: Asked) -> None:
    asked.results.of(aten.slice.Tensor, (x(8, 4)[2:6], 0, 1, 3), {})
    before = asked.times
    arguments = x(8, 4)[3:7], 0, 1, 3
    made = asked.times - before  # by `x` and the view of it
    found = described(asked.results.of(aten.slice.Tensor, arguments, {}), (arguments, {}))
    assert asked.times == before + made
    assert found == described(aten.slice.Tensor(*arguments), (arguments, {}))


def test_a_view_from_where_memory_begins_is_not_known_by_its_tensors_form(asked: Asked) -> None:
    for start in (2, 3):
        arguments = x(8, 4)[start:], [2, 2], [2, 1]
        found = described(asked.results.of(aten.as_strided.default, arguments, {}), (arguments, {}))
        assert found == described(aten.as_strided.default(*arguments), (arguments, {}))


def test_another_mode_has_tensors_of_its_own(asked: Asked) -> None:
    asked.results.of(aten.neg.default, (x(3),), {})
    other = FakeTensorMode()
    with other:
        argument = x(3)
        before = asked.times
        made = KnownResults(other).of(aten.neg.default, (argument,), {})
        assert asked.times == before
        assert made.fake_mode is other
        assert torch.add(made, argument).shape == (3,)


def test_forms_are_forgotten_when_there_are_too_many(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_results, "_MOST_KNOWN", 2)
    for size in range(1, 6):
        assert asked.results.of(aten.neg.default, (x(size),), {}).shape == (size,)
        assert len(known_results._KNOWN) <= 2
