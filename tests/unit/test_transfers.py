"""Tensors between neighbouring stages."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.pipeline import Pipeline
from autoshard.runtime.torch_backend.transfers import Transfers
from autoshard.schedules import Action


class Sending:
    """A send that holds its tensor until it is let go, and is over when it is said to be."""

    def __init__(self, tensor: torch.Tensor, dst: int, group: object):
        self.tensor, self.over = tensor, False

    def is_completed(self) -> bool:
        return self.over


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sends that are begun."""
    found: list[Any] = []

    def isend(tensor: torch.Tensor, dst: int, group: object) -> Any:
        found.append(Sending(tensor, dst, group))
        return found[-1]

    monkeypatch.setattr(dist, "isend", isend)
    return found


def transfers() -> Transfers:
    """Those of the last of two ranks."""
    handle: Any = None
    return Transfers(Group("pp", handle, (0, 1), 1), None)


def test_what_has_been_sent_is_let_go_whatever_is_not_yet(begun: list[Any]) -> None:
    of_rank = transfers()
    for _ in range(2):
        of_rank.send((torch.zeros(1),), 0)
    of_rank.let_go()
    assert of_rank._sending == begun
    begun[1].over = True
    of_rank.let_go()
    assert of_rank._sending == [begun[0]]
    begun[0].over = True
    of_rank.send((torch.zeros(1),), 0)
    assert of_rank._sending == [begun[2]]


def test_a_gradient_that_has_been_sent_is_gone_when_the_next_action_begins(begun: list[Any]) -> None:
    """The last rank sends no outputs: it held the gradient of one microbatch until that of the next one was sent."""
    pipeline = Pipeline.__new__(Pipeline)
    held: list[int] = []
    of_rank, made = transfers(), {"F": (), "B": (torch.zeros(1),)}
    pipeline._transfers, pipeline._rank, pipeline._pp, pipeline._arriving = of_rank, 1, 2, {}
    pipeline._on_action = lambda _: held.append(len(of_rank._sending))
    pipeline.compute = lambda action, arrived: made[action.kind]  # type: ignore[method-assign]
    for action in (Action("B", 0, 0), Action("F", 1, 0), Action("B", 1, 0)):
        pipeline._act(action)
        for one in begun:
            one.over = True
    assert held == [0, 0, 0]
