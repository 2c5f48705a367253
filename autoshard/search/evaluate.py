"""Asks the cost model about one layout: does it fit, how fast can it be at best, how fast is it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autoshard.cost.load import RankLoad, rank_load, telling_ranks
from autoshard.cost.memory import memory_values
from autoshard.cost.stage import LocalShape, Parts, stage_parts, strategy_mesh
from autoshard.cost.step import time_values
from autoshard.graph.recompute import members
from autoshard.layout.mesh import Mesh
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.stage import parameter_count
from autoshard.search.cuts import stage_cuts
from autoshard.search.rules import Draft, Problem
from autoshard.spec.training import DTYPE_BYTES


@dataclass(frozen=True)
class Evaluation:
    """A whole layout and the costs of its parts; everything else is computed when it is asked for."""

    problem: Problem
    strategy: Strategy
    mesh: Mesh
    parts: Parts

    @cached_property
    def num_microbatches(self) -> int:
        return self.strategy.num_microbatches(self.problem.training.global_batch_size)

    @cached_property
    def loads(self) -> tuple[RankLoad, ...]:
        """One of each kind of pipeline rank."""
        count = self.num_microbatches
        parts = (self.parts,) * len(self.strategy.stage_layers)
        return tuple(rank_load(self.strategy, parts, count, rank) for rank in telling_ranks(self.strategy))

    @cached_property
    def memory_bytes(self) -> float:
        """On the fullest rank."""
        precision, device = self.problem.training.precision, self.problem.cluster.device
        zero1 = self.strategy.zero1
        return max(sum(memory_values(load, precision, self.mesh, zero1, device)) for load in self.loads)

    @cached_property
    def at_least_s(self) -> float:
        """Not above its step time: the busiest rank's work, without waiting, transfers and what follows the last
        microbatch."""
        return self.num_microbatches * max(load.work_s for load in self.loads)

    @cached_property
    def step_time_s(self) -> float:
        precision, cluster = self.problem.training.precision, self.problem.cluster
        parts = (self.parts,) * len(self.strategy.stage_layers)
        return sum(time_values(self.strategy, parts, self.loads, self.num_microbatches, precision, self.mesh, cluster))

    @cached_property
    def simplicity(self) -> tuple[object, ...]:
        """Less is simpler: decides between equally fast layouts, and in every case."""
        s = self.strategy
        axes = sum(degree > 1 for degree in (s.tp, s.pp, s.cp, s.ep))
        recompute = sum(len(members(one)) for one in s.recompute)
        uneven = s.stage_layers != even_stage_layers(sum(s.stage_layers), len(s.stage_layers))
        degrees = (s.pp, s.num_virtual_stages, recompute, s.cp, s.ep, s.tp, s.microbatch_size)
        return (axes, *degrees, uneven, s.attention_kernel, s.stage_layers)

    @property
    def kind(self) -> tuple[object, ...]:
        """Layouts that differ in none of these are variants of one: the fastest stands for it."""
        s = self.strategy
        return (s.tp, s.pp, s.dp, s.cp, s.ep, s.schedule, s.recompute, s.microbatch_size)


def evaluations(problem: Problem, draft: Draft, recompute: str, parts: Parts) -> list[Evaluation]:
    """One for each way of cutting the stages that is worth a look. draft: legal but for its stage_layers."""
    block_s = parts.block.forward_s + parts.block.backward_s
    embedding, head = ((end.forward_s + end.backward_s) / block_s for end in (parts.embedding, parts.head))
    cuts = stage_cuts(problem.model.num_hidden_layers, draft.pp, draft.num_virtual_stages, embedding, head)
    strategies = [Strategy(**{**draft._asdict(), "recompute": recompute, "stage_layers": cut}) for cut in cuts]
    mesh = strategy_mesh(problem.model, problem.cluster, strategies[0])
    return [Evaluation(problem, strategy, mesh, parts) for strategy in strategies]


def draft_parts(problem: Problem, draft: Draft, recompute: str) -> Parts:
    """What the stages of a layout are made of."""
    shape = LocalShape(
        draft.tp,
        draft.cp,
        draft.ep,
        draft.microbatch_size,
        draft.sequence_parallel,
        draft.attention_kernel,
        draft.context_parallel,
    )
    return stage_parts(problem.model, problem.training, problem.cluster, shape, recompute)


def state_at_least_bytes(problem: Problem, draft: Draft) -> float:
    """Not above the memory of the fullest rank: parameters, gradients and optimizer state if all ranks held equal
    shares."""
    precision = problem.training.precision
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    parameter, gradient, moment = (
        DTYPE_BYTES[dtype]
        for dtype in (precision.parameter_dtype, precision.gradient_accumulation_dtype, precision.optimizer_dtype)
    )
    share = parameter_count(problem.model) / (draft.tp * draft.pp * draft.ep)
    owners = draft.dp * draft.cp if draft.zero1 else 1
    return (
        share * (parameter + gradient + (master + 2 * moment) / owners) + problem.cluster.device.reserved_memory_bytes
    )
