"""Runs a part of a stage again in backward instead of keeping what its operators save (Chen et al. 2016).

torch.utils.checkpoint does the same and more, such as random states, and imports torch._dynamo for it: 0.8 s of every
rank's first step. Here there are no random states: dropout's mask depends on the element's place alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

import torch
from torch.autograd.graph import saved_tensors_hooks

Outputs = tuple[torch.Tensor, ...]


Hook = Callable[[Any], Any]


def _same(x: Any) -> Any:
    return x


def replayed(
    run: Callable[..., Outputs], *inputs: torch.Tensor, weights: tuple[Hook, Hook] = (_same, _same)
) -> Outputs:
    """run(*inputs), of which only the inputs are kept. The first time that backward needs what was saved in there, it
    runs again, up to the last tensor that it saved; each of these is gone when backward has read it.

    weights: what autograd keeps of a weight that is not learned, and from that to the weight."""
    replay = _Replay(run, inputs, weights)
    with saved_tensors_hooks(replay.leave_out, replay.give):
        return run(*inputs)


class _Slot:
    """The place of a saved tensor, which autograd holds instead of it. value: the tensor, once it is computed again."""

    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None


class _Replay:
    def __init__(self, run: Callable[..., Outputs], inputs: tuple[torch.Tensor, ...], weights: tuple[Hook, Hook]):
        self._run, self._slots = run, list[ref[_Slot]]()
        self._pack, self._unpack = weights
        self._inputs: torch.Tensor | None = _Inputs.apply(torch.empty(0, requires_grad=True), *inputs)

    def leave_out(self, x: torch.Tensor) -> Any:
        """A slot in place of a tensor that is computed."""
        if _stays(x):
            return self._pack(x)
        slot = _Slot()
        self._slots.append(ref(slot))  # weak: what autograd has released is not computed for it
        return slot

    def give(self, slot: Any) -> torch.Tensor:
        """The tensor of a slot, once."""
        if not isinstance(slot, _Slot):
            weight: torch.Tensor = self._unpack(slot)
            return weight
        if self._inputs is not None:
            self._fill()
        value, slot.value = slot.value, None
        assert value is not None, "a part that runs again saves as many tensors, and each is read once"
        return value

    def _fill(self) -> None:
        assert self._inputs is not None
        inputs, self._inputs = self._inputs.grad_fn.saved_tensors, None  # type: ignore[union-attr]
        left = self._slots[::-1]

        def fill(x: torch.Tensor) -> torch.Tensor:
            if _stays(x):
                return x
            slot, x = left.pop()(), x.detach()  # an operator that kept its own output would never be freed
            if slot is not None:
                slot.value = x
            if not left:
                raise _Filled
            return x

        with suppress(_Filled), torch.enable_grad(), saved_tensors_hooks(fill, lambda x: x):
            self._run(*inputs)


def _stays(x: torch.Tensor) -> bool:
    """Whether it is a weight that is not learned, or a view of one: nothing runs again for it."""
    whole = x if x._base is None else x._base
    return isinstance(whole, torch.nn.Parameter) and not whole.requires_grad


class _Filled(Exception):
    """Everything is there; the rest need not run."""


class _Inputs(torch.autograd.Function):
    """Saves tensors as an operator does, so that hooks around may leave out what they leave out of others."""

    @staticmethod
    def forward(ctx: Any, empty: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return empty.view_as(empty)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise AssertionError("nothing depends on it")
