"""Runs this rank's actions in the plan's order, with what it receives for them and sends behind them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autoshard.errors import AutoshardError
from autoshard.graph.partition import Program
from autoshard.graph.states import REPLICATED
from autoshard.plans.plan import Plan, Stage
from autoshard.runtime.torch_backend.given import Given
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.runtime.torch_backend.transfers import Arriving, Sent, Transfers, received_inputs, room_for
from autoshard.runtime.torch_backend.weight_gradients import Work
from autoshard.schedules import Action, actions
from autoshard.schedules.receives import Receive, awaits, reader, received_by, with_receives
from autoshard.spec.traced import HIDDEN

StepInputs = dict[str, list[torch.Tensor]]
"""Name in the graph (token ids, labels and the like) -> one local piece for each microbatch of a step."""
Place = tuple[int, int]
"""(microbatch, chunk)."""


class Pipeline:
    """This rank's virtual stages and the order in which they run.

    turns: what each pipeline rank does in a step, in order; this one runs its own.
    on_action: told what the rank is about to do, once its input is there.
    Raises AutoshardError for orders that leave something out of the step or deadlock, and where a schedule puts weight
    gradients off and does not say so.
    """

    def __init__(
        self,
        plan: Plan,
        stages: tuple[Stage, ...],
        modules: dict[int, StageModule],
        programs: dict[int, Program],
        transfers: Transfers | None,
        device: torch.device,
        dtype: torch.dtype,
        on_action: Callable[[str], None],
    ):
        strategy, self._num_microbatches = plan.strategy, plan.num_microbatches
        self._stages, self._modules = stages, [modules[stage.index] for stage in stages]
        self._rank, self._pp = stages[0].pipeline_rank, strategy.pp
        self._transfers, self._device, self._dtype, self._on_action = transfers, device, dtype, on_action
        self._programs = programs
        orders = actions(strategy.schedule, strategy.pp, plan.num_microbatches, strategy.num_virtual_stages)
        self.turns = with_receives(orders, len(plan.stages), plan.num_microbatches)
        self._received = received_by(self.turns, self._rank)
        if self._modules[0].later is None and any(action.kind == "W" for action in orders[self._rank]):
            raise AutoshardError(f"schedule={strategy.schedule} has actions I and W: it must say weights_apart=True")
        last = programs[len(programs) - 1]
        copies = (a for a, entry in zip(last.axes, last.states[last.outputs[0]], strict=True) if entry == REPLICATED)
        self._copies = plan.mesh.size(copies)  # ranks whose gradients of the same loss are added up
        self._inputs: StepInputs = {}
        self._loss_weight = 0.0
        self._losses: list[torch.Tensor] = []
        self._arriving: dict[Action, Arriving] = {}
        self._held: dict[Place, tuple[torch.Tensor | None, torch.Tensor]] = {}
        self._left: dict[Place, Work] = {}

    def run(self, inputs: StepInputs, weight: float) -> list[torch.Tensor]:
        """Runs forward and backward of all microbatches; returns their local losses, empty where the last stage is not
        on this rank.

        weight: gradients are those of the microbatches' mean loss times this.
        """
        self._inputs, self._losses = inputs, []
        self._loss_weight = weight / self._num_microbatches / self._copies
        for turn in self.turns[self._rank]:
            if isinstance(turn, Receive):
                self._arriving[turn.action] = self._receive(turn)
            else:
                self._act(turn)
        if self._transfers is not None:
            self._transfers.settle()
        self._inputs = {}
        return self._losses

    def compute(self, action: Action, arrived: list[torch.Tensor]) -> Sent:
        """Runs one action of this rank -> what another stage waits for, if any does: outputs or a gradient.

        arrived: outputs of the stage before, or the gradient of its own; none at the ends of the model. The gradient is
        taken out of it: nobody but backward then holds it.
        """
        if action.kind == "F":
            return self._forward(action, tuple(arrived))
        if action.kind == "W":
            self._left.pop((action.microbatch, action.chunk))()
            return ()
        return self._backward(action, arrived)

    def _receive(self, turn: Receive) -> Arriving:
        forward = turn.action.kind == "F"
        stage = self._stages[turn.action.chunk].index - forward  # whose outputs they are, or their gradient
        into = room_for(self._programs[stage], forward, self._dtype, self._device)
        assert self._transfers is not None
        return self._transfers.receive(into, self._transfers.pipeline.ranks[turn.sender])

    def _act(self, action: Action) -> None:
        wait = self._arriving.pop(awaits(action), None)
        arrived = [] if wait is None else [*wait()]
        del wait  # which holds what arrived
        if self._transfers is not None:
            self._transfers.let_go(self._received.get(action, ()))
        self._on_action(str(action))
        made = self.compute(action, arrived)
        if not made:
            return
        receiver, name = reader(action, self._rank, self._pp)
        if receiver == self._rank:
            here = tuple(tensor.detach() for tensor in made)
            self._arriving[name] = lambda: here
        else:
            assert self._transfers is not None
            self._transfers.send(made, self._transfers.pipeline.ranks[receiver], action)

    def _forward(self, action: Action, received: Sent) -> Sent:
        module, stage = self._modules[action.chunk], self._stages[action.chunk]
        values = {name: pieces[action.microbatch] for name, pieces in self._inputs.items()}
        hidden = None
        if received:
            values |= received_inputs(self._programs[stage.index - 1], received)
            hidden = values[HIDDEN].requires_grad_()
        made = module(*(values[name] for name in module.input_names))
        outputs: Sent = made if isinstance(made, tuple) else (made,)
        self._held[action.microbatch, action.chunk] = hidden, outputs[0]
        if not stage.has_head:
            return outputs
        self._losses.append(outputs[0].detach())
        return ()

    def _backward(self, action: Action, arrived: list[torch.Tensor]) -> Sent:
        received, output = self._held.pop((action.microbatch, action.chunk))
        root: torch.Tensor = Given.apply(output, arrived.pop()) if arrived else output * self._loss_weight
        del output
        root.backward()
        sharded = self._modules[action.chunk].sharded
        if sharded is not None:
            sharded.lent.release()
        later = self._modules[action.chunk].later
        if later is not None:
            left = later.take()
            if action.kind == "I":
                self._left[action.microbatch, action.chunk] = left
            else:
                left()
        if received is None:
            return ()
        assert received.grad is not None
        return (received.grad,)
