"""Forward alone through the pipeline, for a loss on data that are not learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from autoshard.graph.partition import Program
from autoshard.plans.plan import Plan, Stage
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.runtime.torch_backend.transfers import Sent, Transfers, received_inputs, room_for
from autoshard.schedules import Action

Pieces = list[torch.Tensor]
"""One a microbatch."""


class Evaluation:
    """Runs every stage of this rank on all microbatches, one stage after the other.

    No backward waits, so nothing is gained by the plan's order of actions. What goes back to a lower pipeline rank is
    sent when the stage is done: no rank waits for one that waits for it, however little a transport buffers.
    """

    def __init__(
        self,
        plan: Plan,
        pipeline_rank: int,
        modules: Mapping[int, StageModule],
        programs: Mapping[int, Program],
        transfers: Transfers | None,
        device: torch.device,
        dtype: torch.dtype,
        on_action: Callable[[str], None],
    ):
        self._stages, self._rank, self._modules, self._programs = plan.stages, pipeline_rank, modules, programs
        self._num_microbatches, self._transfers = plan.num_microbatches, transfers
        self._device, self._dtype, self._on_action = device, dtype, on_action

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Pieces]) -> Pieces:
        """-> the microbatches' local losses, where the last stage is here."""
        outputs: list[Sent] = []
        for stage in self._stages:
            if stage.pipeline_rank == self._rank:
                outputs = self._run_stage(stage, outputs, inputs)
                if self._transfers is not None:
                    self._transfers.let_go()
        if self._transfers is not None:
            self._transfers.settle()
        return [loss for (loss,) in outputs] if self._rank == self._stages[-1].pipeline_rank else []

    def _run_stage(self, stage: Stage, previous: list[Sent], inputs: Mapping[str, Pieces]) -> list[Sent]:
        """The outputs of a stage, by microbatch. previous: those of the stage before, where that one is here too."""
        module, outputs = self._modules[stage.index], list[Sent]()
        for microbatch in range(self._num_microbatches):
            self._on_action(f"evaluation, F{microbatch}.{stage.chunk}")
            values = {name: pieces[microbatch] for name, pieces in inputs.items()}
            if not stage.has_embedding:
                before = self._stages[stage.index - 1]
                values |= received_inputs(self._programs[before.index], self._received(before, previous, microbatch))
            made = module(*(values[name] for name in module.input_names))
            outputs.append(made if isinstance(made, tuple) else (made,))
            if self._goes_up(stage):
                self._send(stage, microbatch, outputs[-1])
        if not self._goes_up(stage):
            for microbatch, output in enumerate(outputs):
                self._send(stage, microbatch, output)
        return outputs

    def _received(self, before: Stage, previous: list[Sent], microbatch: int) -> Sent:
        if before.pipeline_rank == self._rank:
            return previous[microbatch]
        into = room_for(self._programs[before.index], True, self._dtype, self._device)
        assert self._transfers is not None
        return self._transfers.receive(into, self._transfers.pipeline.ranks[before.pipeline_rank])()

    def _goes_up(self, stage: Stage) -> bool:
        return not stage.has_head and self._stages[stage.index + 1].pipeline_rank > self._rank

    def _send(self, stage: Stage, microbatch: int, output: Sent) -> None:
        """To the next stage, unless that is here or there is none."""
        if stage.has_head or self._stages[stage.index + 1].pipeline_rank == self._rank:
            return
        assert self._transfers is not None
        to = self._transfers.pipeline.ranks[self._stages[stage.index + 1].pipeline_rank]
        self._transfers.send(output, to, Action("F", microbatch, stage.chunk))
