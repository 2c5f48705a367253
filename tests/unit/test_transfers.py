"""Tensors between neighbouring stages."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autoshard.runtime.torch_backend.evaluation import Evaluation
from autoshard.runtime.torch_backend.groups import Group
from autoshard.runtime.torch_backend.pipeline import Pipeline
from autoshard.runtime.torch_backend.transfers import Transfers
from autoshard.schedules import Action, actions
from autoshard.schedules.receives import Receive, reader, received_by, with_receives


class Sending:
    """A send that holds its tensor until it is let go. It is over when it is said to be, or somebody waits for it."""

    def __init__(self, tensor: torch.Tensor, dst: int, group: object):
        self.tensor, self.over = tensor, False

    def is_completed(self) -> bool:
        return self.over

    def wait(self) -> None:
        self.over = True


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sends that are begun."""
    found: list[Any] = []

    def isend(tensor: torch.Tensor, dst: int, group: object) -> Any:
        found.append(Sending(tensor, dst, group))
        return found[-1]

    monkeypatch.setattr(dist, "isend", isend)
    return found


def transfers(rank: int = 1, pp: int = 2) -> Transfers:
    """Those of a rank of a pipeline."""
    handle: Any = None
    return Transfers(Group("pp", handle, tuple(range(pp)), rank), None)


def test_what_has_been_sent_is_let_go_whatever_is_not_yet(begun: list[Any]) -> None:
    of_rank, acts = transfers(), [Action("B", microbatch, 0) for microbatch in range(3)]
    for action in acts:
        of_rank.send((torch.zeros(1),), 0, action)
    of_rank.let_go()
    assert [*of_rank._sending] == acts
    begun[1].over = True
    of_rank.let_go()
    assert [*of_rank._sending] == [acts[0], acts[2]]
    of_rank.let_go([acts[0]])
    assert [*of_rank._sending] == [acts[2]] and begun[0].over and not begun[2].over
    of_rank.settle()
    assert not of_rank._sending and begun[2].over


def held(rank: int, size: tuple[str, int, int, int]) -> list[int]:
    """How many sends a rank holds at the beginning of each of its actions. size: schedule, pp, microbatches, chunks."""
    pp, found = size[1], list[int]()
    pipeline, of_rank = Pipeline.__new__(Pipeline), transfers(rank, pp)
    pipeline.turns = with_receives(actions(*size), pp * size[3], size[2])
    pipeline._received = received_by(pipeline.turns, rank)
    pipeline._transfers, pipeline._rank, pipeline._pp, pipeline._arriving = of_rank, rank, pp, {}
    sent = {(other, turn) for other, turns in enumerate(pipeline.turns) for turn in turns if isinstance(turn, Receive)}
    pipeline._on_action = lambda _: found.append(len(of_rank._sending))

    def compute(action: Action, arrived: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        receiver, name = reader(action, rank, pp)
        return (torch.zeros(1),) if (receiver, Receive(name, rank)) in sent and action.kind != "W" else ()

    pipeline.compute = compute  # type: ignore[method-assign]
    for turn in pipeline.turns[rank]:
        if isinstance(turn, Action):
            pipeline._act(turn)
    return found


def test_a_gradient_that_has_been_sent_is_gone_when_the_next_action_begins(
    begun: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rank sends no outputs: it held the gradient of one microbatch until that of the next one was sent."""
    monkeypatch.setattr(Sending, "is_completed", lambda _: True)
    assert held(1, ("1f1b", 2, 3, 1)) == [0] * 6


@pytest.mark.parametrize("size", [("1f1b", 4, 64, 1), ("interleaved", 4, 64, 2), ("zero_bubble", 4, 64, 1)])
def test_sends_do_not_heap_up_where_none_says_that_it_is_over(
    size: tuple[str, int, int, int], begun: list[Any]
) -> None:
    """With gloo no send does: all of a step, 64 or more, were held to its end."""
    _, pp, _, chunks = size
    for rank in range(pp):
        assert max(held(rank, size)) <= 2 * pp * chunks


def test_evaluation_lets_go_of_what_the_stage_before_has_sent(
    begun: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two ranks with three chunks of three microbatches each: what is held when each forward begins."""
    monkeypatch.setattr(Sending, "is_completed", lambda _: True)
    held, of_rank = list[int](), transfers(0)
    stages = [SimpleNamespace(index=i, pipeline_rank=i % 2, chunk=i // 2, has_embedding=True) for i in range(6)]
    for stage in stages:
        stage.has_head = stage.index == 5
    plan: Any = SimpleNamespace(stages=stages, num_microbatches=3)

    def module() -> torch.Tensor:
        return torch.zeros(1)

    module.input_names = ()  # type: ignore[attr-defined]
    modules: Any = dict.fromkeys(range(6), module)
    device = torch.device("cpu")
    evaluation = Evaluation(
        plan, 0, modules, {}, of_rank, device, torch.float32, lambda _: held.append(len(of_rank._sending))
    )
    assert evaluation.run({}) == [] and not of_rank._sending
    assert held == [0, 1, 2] * 3 and len(begun) == 9
