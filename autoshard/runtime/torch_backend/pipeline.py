"""Runs the plan's lists of actions on every rank, in the plan's order, with torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from autoshard.graph.partition import Program
from autoshard.graph.redistribute import local_sizes
from autoshard.plans.plan import Plan, Stage
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.runtime.torch_backend.transfers import Transfers
from autoshard.schedules import Action, actions

if TYPE_CHECKING:
    from autoshard.runtime.torch_backend.pipeline_runtime import Runtime

StepInputs = dict[str, list[torch.Tensor]]
"""Name in the graph (token ids, labels and the like) -> one local piece for each microbatch of a step."""


class Entered(nn.Module):
    """A stage as torch's runtime calls it: token ids and the like come from this step's lists, not through the
    pipeline."""

    def __init__(self, module: StageModule, stage: Stage, on_action: Callable[[str], None]):
        super().__init__()
        self.module, self._stage, self._on_action = module, stage, on_action
        self.inputs: StepInputs = {}
        self.losses: list[torch.Tensor] = []
        self._microbatch = 0

    def begin(self, inputs: StepInputs) -> None:
        self.inputs, self.losses, self._microbatch = inputs, [], 0

    def tell(self, kind: str, microbatch: int) -> None:
        self._on_action(str(Action(kind, microbatch, self._stage.chunk)))

    def forward(self, received: torch.Tensor) -> torch.Tensor:
        """The stage's output. received: the previous stage's output; for the first stage only the runtime's token for a
        microbatch."""
        microbatch, self._microbatch = self._microbatch, self._microbatch + 1
        self.tell("F", microbatch)
        values = {"hidden": received, **{name: pieces[microbatch] for name, pieces in self.inputs.items()}}
        out = self.module(*(values[name] for name in self.module.input_names))
        if self._stage.has_head:
            self.losses.append(out.detach())
            return out.view(1)  # the runtime's stages give tensors with at least one dim
        return out


class Pipeline:
    """This rank's virtual stages and the order in which they run."""

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
        self._num_microbatches = plan.num_microbatches
        self._weight = 1.0
        self._entered = [Entered(modules[stage.index], stage, on_action) for stage in stages]
        self._runtime: Runtime | None = None
        self._device, self._transfers = device, transfers
        if transfers is not None:
            self._runtime = self._connect(plan, stages, programs, transfers, dtype)

    def run(self, inputs: StepInputs, weight: float) -> list[torch.Tensor]:
        """Runs forward and backward of all microbatches; returns their local losses, empty where the last stage is not
        on this rank.

        weight: gradients are those of the microbatches' mean loss times this.
        """
        self._weight = weight
        for one in self._entered:
            one.begin(inputs)
        if self._runtime is None:
            self._run_alone()
        else:
            starts = any(one._stage.has_embedding for one in self._entered)
            ends = any(one._stage.has_head for one in self._entered)
            token = torch.zeros(self._num_microbatches, 1, device=self._device)
            arguments: tuple[Any, ...] = (token,) if starts else ()
            raised: BaseException | None = None
            try:
                self._runtime.step(*arguments, target=token if ends else None, return_outputs=False)
            except RuntimeError as error:
                raised = _of_stage(error)
            if raised is None and self._transfers is not None:
                self._transfers.settle()
            if raised is not None:  # out here: in there Python would make the wrapper its context
                raise raised
        return [loss for one in self._entered for loss in one.losses]

    def _run_alone(self) -> None:
        (only,) = self._entered
        for microbatch in range(self._num_microbatches):
            loss = only(torch.empty(0))
            only.tell("B", microbatch)
            self._scaled(loss).backward()

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * (self._weight / self._num_microbatches)

    def _connect(
        self,
        plan: Plan,
        stages: tuple[Stage, ...],
        programs: dict[int, Program],
        transfers: Transfers,
        dtype: torch.dtype,
    ) -> Runtime:
        # here and not above: importing it takes a second, and a rank without a pipeline starts without
        from autoshard.runtime.torch_backend.pipeline_runtime import Runtime, ScheduledStage, spelled

        count = len(plan.stages)
        pieces = [
            ScheduledStage(
                one,
                stage.index,
                count,
                self._device,
                input_args=(self._example(programs, stage.index - 1, dtype),),
                output_args=(self._example(programs, stage.index, dtype),),
                group=transfers.pipeline.handle,
                transfers=transfers,
                dw_builder=None if one.module.later is None else one.module.later.take,
            )
            for one, stage in zip(self._entered, stages, strict=True)
        ]
        number = self._num_microbatches
        runtime = Runtime(pieces, number, loss_fn=lambda loss, target: self._scaled(loss), scale_grads=False)
        strategy = plan.strategy
        order = actions(strategy.schedule, strategy.pp, number, strategy.num_virtual_stages)
        runtime._prepare_schedule_with_comms({rank: spelled(own, rank, strategy.pp) for rank, own in enumerate(order)})
        return runtime

    def _example(self, programs: dict[int, Program], index: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor like the one that leaves stage `index`, from which the runtime derives its receive buffers."""
        if index < 0:
            return torch.zeros(1, 1, device=self._device)
        if index == len(programs) - 1:
            return torch.zeros(1, device=self._device, requires_grad=True)
        program = programs[index]
        view = program.outputs[0]
        shape = local_sizes(program.graph, program.tensor(view).dims, program.states[view], program.axes)
        assert prod(shape) > 0
        return torch.zeros(shape, dtype=dtype, device=self._device, requires_grad=True)


def _of_stage(error: BaseException) -> BaseException:
    """The error that a stage raised, taken out of torch's wrapping."""
    while error.__cause__ is not None and "failed to run" in str(error).lower():
        error = error.__cause__
    return error
