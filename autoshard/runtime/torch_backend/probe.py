"""A session as an audit sees it: buffers, orders, and each operator while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from autoshard.graph.partition import Step
from autoshard.models.stage import published_sizes
from autoshard.plans.plan import Plan
from autoshard.runtime.torch_backend.groups import MeshGroups
from autoshard.runtime.torch_backend.optimizer import ShardedOptimizer, piece_shapes
from autoshard.runtime.torch_backend.pipeline import Pipeline
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.schedules import Action

STATE_PARTS = ("parameters", "gradients", "master weights", "first moments", "second moments")


class SessionProbe:
    """Looks at the parts of a session as they are when asked: the optimizer has its moments from the first step on."""

    def __init__(
        self,
        plan: Plan,
        modules: Sequence[StageModule],
        optimizer: ShardedOptimizer,
        groups: MeshGroups | None,
        pipeline: Pipeline,
    ):
        self._plan, self._modules, self._optimizer = plan, modules, optimizer
        self._groups, self._pipeline = groups, pipeline

    @property
    def parameter_elements(self) -> int:
        """Elements of all flat buffers of parameters, padding included."""
        return sum(bucket.elements for bucket in self._optimizer.buckets)

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The flat buffers of weights."""
        return [bucket.parameters for bucket in self._optimizer.buckets]

    @property
    def gradients(self) -> Sequence[torch.Tensor]:
        """The flat buffers of gradients."""
        return [bucket.gradients for bucket in self._optimizer.buckets]

    @property
    def optimizer_tensors(self) -> Sequence[torch.Tensor]:
        """Everything that the optimizer holds: its buffers, masters and moments."""
        return tuple(_tensors(self._optimizer))

    @property
    def functions(self) -> int:
        """Functions of the gradient's norm and of the update that would be compiled: norms by size, updates by size
        and weight decay, or of weights that are rounded at random by kind of parameter."""
        plan = self._plan
        buckets = [bucket for bucket in self._optimizer.buckets if bucket.key.learned]
        norms = {bucket.master.numel() for bucket in buckets}
        buckets = [bucket for bucket in buckets if not bucket.key.orthogonal]  # Muon's update is not compiled
        if not plan.training.precision.rounds_at_random:
            return len(norms) + len({(bucket.master.numel(), bucket.key.decay) for bucket in buckets})
        shapes = piece_shapes(self._modules, plan.mesh, self._groups, published_sizes(plan.model))
        return len(norms) + len({piece.kind for bucket in buckets for piece in bucket.pieces(shapes)})

    @property
    def named_state(self) -> Mapping[str, torch.Tensor]:
        """The tensors that the optimizer keeps from step to step, by what they hold: 'gradients of ...'.

        Masters may share their storage with parameters.
        """
        optimizer, named = self._optimizer, dict[str, torch.Tensor]()
        for bucket, shards in zip(optimizer.buckets, optimizer.state(), strict=True):
            name = _bucket_name(bucket.key.unit, bucket.names)
            parts = (bucket.parameters, bucket.gradients, *shards)  # of what is not learned there are fewer
            named |= {f"{part} of {name}": tensor for part, tensor in zip(STATE_PARTS, parts, strict=False)}
        return named

    @property
    def weight_shards(self) -> Mapping[str, torch.Tensor]:
        """This rank's shards of the parameters under ZeRO-3, by the names of what is gathered from them."""
        buckets = self._optimizer.buckets
        return {
            _bucket_name(one.key.unit, one.names): one.parameters for one in buckets if getattr(one, "gathers", False)
        }

    @property
    def orders(self) -> Sequence[Sequence[str]]:
        """Actions that the runtime holds for a step, by pipeline rank, such as F3.1."""
        turns = self._pipeline.turns
        return [[str(turn) for turn in own if isinstance(turn, Action)] for own in turns]

    def watch(self, watched: Callable[[Step, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Run each step of the session's programs as watched(step, run) instead of as run; for good."""
        for module in self._modules:
            steps = iter(module.program.steps)
            module._sections = tuple(
                replace(
                    section,
                    instructions=tuple(
                        one if one.brings_weights else replace(one, run=watched(next(steps), one.run))
                        for one in section.instructions
                    ),
                )
                for section in module._sections
            )


def _bucket_name(unit: str, names: Sequence[str]) -> str:
    """A bucket's unit, its only parameter, or the first one and how many more."""
    more = f" and {len(names) - 1} more" if len(names) > 1 and not unit else ""
    return unit or names[0] + more


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors that an object of the runtime holds, directly or through others."""
    left, seen = [value], set()
    while left:
        one = left.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, torch.optim.Optimizer):
            left += [*one.state.keys(), *one.state.values()]
        elif isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (list, tuple, set)):
            left += one
        elif type(one).__module__.startswith("autoshard.runtime") and id(one) not in seen:
            seen.add(id(one))
            left += vars(one).values()
