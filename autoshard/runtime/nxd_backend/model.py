"""Builds the plan's model from NxD layers: NxD's pipeline cuts it behind blocks, its checkpointing wraps sections.

Blocks, embedding and head are leaves when the pipeline traces `NxdModel`. Parts that another pipeline rank holds are
empty here, so nothing is built that does not run on this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from autoshard.graph.partition import Program
from autoshard.graph.recompute import NO_RECOMPUTE, segments
from autoshard.plans.plan import Plan
from autoshard.runtime.nxd_backend.layers import Builder, Call, Held, sequence_first
from autoshard.runtime.nxd_backend.lowering import CROSS_ENTROPY, Lowered, lower
from autoshard.runtime.torch_backend.context import Context
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.parameters import each_parameter


class Section(nn.Module):
    """Lowered steps that run one after another. held: what its parameters hold."""

    def __init__(self, steps: list[Lowered], inputs: tuple[str, ...], outputs: tuple[str, ...], builder: Builder):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self._calls: list[Call] = []
        self.held: list[Held] = []
        for number, step in enumerate(steps):
            call, held = builder.build(self, number, step)
            self._calls.append(call)
            self.held += held

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        env = dict(zip(self.inputs, inputs, strict=True))
        for call in self._calls:
            values = [env[view] for view in call.inputs]
            if call.layer:
                values = [self._through(call.layer, values[0])]
            found = call.run(*values, *(self._parameters[name] for name in call.parameters))
            env.update(zip(call.outputs, found if isinstance(found, tuple) else (found,), strict=True))
        return tuple(env[view] for view in self.outputs)

    def _through(self, layer: str, x: torch.Tensor) -> Any:
        """The output of a layer for x, which is given three dims; they and the gradient have no gaps for NxD."""
        found = self._modules[layer]((x if x.dim() <= 3 else x.flatten(2)).contiguous())  # type: ignore[misc]
        return tuple(map(_Dense.apply, found)) if isinstance(found, tuple) else _Dense.apply(found)


class RecomputedSection(Section):
    """A section that backward runs again: the class that activation_checkpoint_config names."""


class Part(nn.Module):
    """Sections of one program, run in turn; empty where the part belongs to another pipeline rank."""

    def __init__(self) -> None:
        super().__init__()
        self.sections = nn.ModuleList()
        self._views: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        self.output = ""

    def add(self, section: Section) -> None:
        self.sections.append(section)
        self._views.append((section.inputs, section.outputs))

    def run(self, env: dict[str, torch.Tensor]) -> torch.Tensor:
        for section, (inputs, outputs) in zip(self.sections, self._views, strict=True):
            env.update(zip(outputs, section(*(env[view] for view in inputs)), strict=True))
        return env[self.output]


class NxdEmbedding(Part):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return _Dense.apply(self.run({"input_ids": input_ids}))


class NxdBlock(Part):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return _Dense.apply(self.run({"hidden": _Dense.apply(hidden)}))


class NxdHead(Part):
    """The head, which computes the loss. weights [batch, seq]: the weight of each token's loss."""

    def forward(self, hidden: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.run({"hidden": _Dense.apply(hidden), "labels": labels, "weights": weights})


class NxdModel(nn.Module):
    """The whole model as NxD's pipeline sees it; only this rank's part of it is built.

    groups: with the context-parallel group, for ring attention in CPU mode.
    """

    def __init__(
        self, plan: Plan, rank: int, groups: MeshGroups, seed: int, dtype: torch.dtype, cpu_mode: bool
    ) -> None:
        super().__init__()
        self._plan, self._rank, self._groups = plan, rank, groups
        self._seed, self._dtype, self._cpu_mode = seed, dtype, cpu_mode
        pipeline_rank, _ = plan.mesh.coordinates(rank)
        self.embedding, self.head = NxdEmbedding(), NxdHead()
        blocks = []
        for stage in plan.stages:
            here = stage.pipeline_rank == pipeline_rank
            if here and stage.has_embedding:
                self._fill(self.embedding, plan.program(range(0), True, False), NO_RECOMPUTE)
            for layer in stage.layers:
                blocks.append(NxdBlock())
                if here:
                    program = plan.program(range(layer, layer + 1), False, False)
                    self._fill(blocks[-1], program, plan.strategy.recompute[stage.index])
            if here and stage.has_head:
                self._fill(self.head, plan.program(range(0), False, True), NO_RECOMPUTE)
        self.layers = nn.ModuleList(blocks)
        self._tie()

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(input_ids)
        for block in self.layers:
            hidden = block(hidden)
        loss: torch.Tensor = self.head(hidden, labels, weights)
        return loss

    def _fill(self, part: Part, program: Program, recompute: str) -> None:
        plan = self._plan
        index = self._groups.index
        pieces = dict(
            each_parameter(plan.model, program, plan.mesh, index, self._seed, self._dtype, torch.device("cpu"))
        )
        steps = lower(program)
        context = Context(sequence_first(program), self._groups)
        builder = Builder(context, pieces, self._dtype, self._cpu_mode, plan.cluster.lnc)
        part.output = program.outputs[0]
        for is_recomputed, own, inputs, outputs in _sections(program, steps, recompute):
            kind = RecomputedSection if is_recomputed else Section
            part.add(kind(own, inputs, outputs, builder))

    def _tie(self) -> None:
        """Makes embedding and head share one parameter where they are on one rank."""
        held = {
            name: (section, one.attribute)
            for section in sections_of(self.embedding)
            for one in section.held
            for name in one.names
        }
        for section in sections_of(self.head):
            for one in list(section.held):
                if one.names[0] in held:
                    source, attribute = held[one.names[0]]
                    module, _, name = one.attribute.rpartition(".")
                    setattr(section.get_submodule(module), name, source.get_parameter(attribute))
                    section.held.remove(one)


def sections_of(module: nn.Module) -> Iterator[Section]:
    """Yields the sections in the order of the model, those inside the wrappers that NxD puts around recomputed ones
    too."""
    return (one for one in module.modules() if isinstance(one, Section))


def _sections(
    program: Program, steps: tuple[Lowered, ...], recompute: str
) -> list[tuple[bool, list[Lowered], tuple[str, ...], tuple[str, ...]]]:
    """Runs of steps that are recomputed together or not at all: (recomputed, steps, views that come in, views that go
    out)."""
    cut = segments(program, recompute)
    number = {index: place for place, one in enumerate(cut) for index in range(one.start, one.stop)}
    runs: list[tuple[int, list[Lowered]]] = []
    for step in steps:
        place = number[step.position]
        if runs and runs[-1][0] == place:
            runs[-1][1].append(step)
        else:
            runs.append((place, [step]))
    needed = set(program.outputs)
    found = []
    for place, own in reversed(runs):
        written = [view for step in own for view in step.outputs]
        read = dict.fromkeys(view for step in own for view in _reads(step) if view not in written)
        found.append((cut[place].recomputed, own, tuple(read), tuple(view for view in written if view in needed)))
        needed |= set(read)
    return found[::-1]


def _reads(step: Lowered) -> tuple[str, ...]:
    return (*step.inputs, "weights") if step.layer == CROSS_ENTROPY else step.inputs


class _Dense(torch.autograd.Function):
    """The identity, with values and gradients that lie in memory without gaps: gloo and NxD's `view` want that."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].contiguous()
