"""Tensors of a sharded run against those of one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from autoshard.runtime.trainer.difference import differences_to


def alone(gradient: torch.Tensor, weight: torch.Tensor) -> Any:
    """A session of one process with one weight."""
    optimizer = SimpleNamespace(gradients=lambda: {"w": gradient}, masters=lambda: {"w": weight})
    return SimpleNamespace(optimizer=optimizer)


def test_gradients_of_nothing_but_zeros_are_compared() -> None:
    """A loss of exactly 0 has no others: training on text that repeats one letter ends there."""
    zero, one = torch.zeros(2), torch.ones(2)
    found = differences_to({"gradient": {"w": zero}, "parameter": {"w": 1.5 * one}}, alone(zero, one))
    assert found["gradient"] == {"relative_difference": 0.0, "tensor": "w"}
    assert found["parameter"] == {"relative_difference": 0.5, "tensor": "w"}
