"""Gradients of what several ranks gather of several sequences: piece by piece, without a copy that outlives its use."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autoshard.audits.recorder import Recorder
from autoshard.runtime.torch_backend.collectives import Gathering, Lent
from autoshard.runtime.torch_backend.stage_module import _GatherLinear, _in_pieces

SEQUENCES, RANKS, LENGTH, WIDTH = 2, 4, 8, 6
GROUP: Any = SimpleNamespace(size=RANKS)


def pieces(*tensors: torch.Tensor) -> torch.Tensor:
    """Of a piece of each sequence, two gradients and the weights that they are multiplied with."""
    piece, *gradients, first, second = tensors
    return _in_pieces(Gathering(GROUP, 1), piece, [grad.flatten(0, 1) for grad in gradients], [first, second])


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (SEQUENCES, LENGTH // RANKS, WIDTH), (SEQUENCES, LENGTH, 3), (SEQUENCES, LENGTH, 5), (3, WIDTH), (5, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_gradients_of_gathered_sequences_lie_in_the_order_of_ranks() -> None:
    _, *gradients, first, second = inputs()
    whole = gradients[0] @ first + gradients[1] @ second
    expected = torch.cat(whole.chunk(RANKS, 1), 0)
    assert pieces(*inputs()).view(expected.shape).numpy() == pytest.approx(expected.numpy(), rel=1e-12)


def test_they_are_made_without_a_copy_of_what_comes_in() -> None:
    mode = FakeTensorMode()
    recorder = Recorder(mode, {}, lambda name: ())
    given, memory = [mode.from_tensor(one) for one in inputs()], recorder.memory
    for one in given:
        memory.see(one, -1, "")
    with mode, recorder:
        made = pieces(*given)
    assert [one.size for one in memory.allocations[len(given) :]] == [made.nbytes]


def test_pieces_are_gone_when_they_are_joined() -> None:
    """Else they are beside the gradients of weights, as large as what was gathered."""
    x, *gradients, first, second = inputs()
    there = []

    def gather(piece: torch.Tensor) -> Lent:
        arrived = torch.cat([piece] * RANKS, 0)
        known = weakref.ref(arrived)

        @contextmanager
        def joined(whole: torch.Tensor) -> Iterator[torch.Tensor]:
            there.append(known() is not None)
            yield whole

        return lambda: joined(torch.cat(arrived.chunk(RANKS, 0), 1))

    scattering: Any = SimpleNamespace(
        dim=1,
        group=GROUP,
        gather=gather,
        has_pieces=Gathering(GROUP, 1).has_pieces,
        whole_shape=Gathering(GROUP, 1).whole_shape,
        scatter=lambda partial, in_pieces: lambda: partial.chunk(RANKS, 0)[0],
    )
    kept = SimpleNamespace(tensors=(x, first, second))
    context = SimpleNamespace(kept=kept, gathering=scattering, contracted=(1, 1))
    *_, of_first, of_second = _GatherLinear.backward(context, *gradients)
    assert there == [False]
    assert (of_first.shape, of_second.shape) == (first.shape, second.shape)
