"""Gradients of weights that a schedule puts off hold what they are made of, and nothing else."""

from __future__ import annotations

from weakref import ref

import torch
from torch import nn

from autoshard.runtime.torch_backend.weight_gradients import WeightGradients, later_linear


def test_what_a_stage_has_received_does_not_wait_for_gradients_of_weights() -> None:
    """A projection's input is one step from it, by a graph that backward is through with."""
    later, weight, sums = WeightGradients(), nn.Parameter(torch.ones(3, 4)), list[torch.Tensor]()
    later.accumulate[weight] = sums.append
    received = torch.ones(2, 4, requires_grad=True)
    (made,) = later_linear(2 * received, None, None, later, (weight,), (weight,))
    made.sum().backward()
    work, there = later.take(), ref(received)
    del received, made
    assert there() is None
    work()
    assert torch.equal(sums.pop(), torch.full((3, 4), 4.0)) and not sums
