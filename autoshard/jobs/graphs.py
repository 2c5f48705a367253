"""Predict which graphs the compiler will see for a plan: the distinct programs of its stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from autoshard.plans.plan import Plan, Stage


@dataclass(frozen=True)
class StageGraphs:
    """The graphs of a stage.

    graphs: how many; forward, backward, and a backward that accumulates if microbatches are several.
    same_as: the first stage with the same program, which is compiled for both; the stage's own index if it is the
    first.
    """

    stage: int
    graphs: int
    same_as: int


def stage_graphs(plan: Plan) -> tuple[StageGraphs, ...]:
    """The graphs of each stage. Without a pipeline forward and backward are one graph.

    Stages have the same program if they have equally many blocks and the same recompute set, and if both or neither has
    the embedding, and likewise the head.
    """
    backward = min(plan.num_microbatches, 2)
    graphs = backward if plan.strategy.pp == 1 else 1 + backward
    first: dict[tuple[int, bool, bool, str], int] = {}
    return tuple(
        StageGraphs(stage.index, graphs, first.setdefault(_key(plan, stage), stage.index)) for stage in plan.stages
    )


def num_distinct_graphs(plan: Plan) -> int:
    """Number of distinct graphs of a step: those of the stages, and a parameter update for each kind of pipeline rank.

    Left out: initial values, set-up of collectives and checkpoints, some twenty small ones (published runs count 22 for
    an 8B without pipeline and 36 for a 70B with 8 stages).
    """
    stages = sum(one.graphs for one in stage_graphs(plan) if one.same_as == one.stage)
    kinds = {
        tuple(_key(plan, stage) for stage in plan.stages if stage.pipeline_rank == rank)
        for rank in range(plan.strategy.pp)
    }
    return stages + len(kinds)


def _key(plan: Plan, stage: Stage) -> tuple[int, bool, bool, str]:
    return len(stage.layers), stage.has_embedding, stage.has_head, plan.strategy.recompute[stage.index]


def graph_changes(old: Plan, new: Plan) -> tuple[str, ...]:
    """The differences between two plans that make the compiler start anew, such as 'dp: 2 -> 4'; empty: the cache still
    serves.

    The schedule and the global batch only order the same graphs; one microbatch instead of several does change them.
    """
    before, after = dict(_compiled(old)), dict(_compiled(new))
    free = NOT_IN_REGIONS if old.cluster.stack == new.cluster.stack is not None else ()
    return tuple(
        f"{name}: {before[name]} -> {after[name]}" for name in after if name not in free and before[name] != after[name]
    )


NOT_IN_REGIONS = (
    *("pp", "dp", "dp_replicate", "num_virtual_stages", "zero", "stage_layers", "axis_order"),
    *("microbatches", "nodes"),
)
"""Names of `_compiled` that graphs of what ranks compute between collectives do not depend on."""


def _compiled(plan: Plan) -> Iterator[tuple[str, Any]]:
    strategy, training = plan.strategy, plan.training
    for name in ("tp", "pp", "dp", "cp", "ep", "etp", "dp_replicate", "num_virtual_stages", "microbatch_size"):
        yield name, getattr(strategy, name)
    yield "recompute", strategy.recompute_name
    for name in ("sequence_parallel", "zero", "attention_kernel", "context_parallel", "stage_layers", "axis_order"):
        yield name, getattr(strategy, name)
    yield "microbatches", "one" if plan.num_microbatches == 1 else "several"
    yield "sequence_length", training.sequence_length
    yield "precision", training.precision.name
    yield "expert_capacity_factor", plan.expert_slots
    yield "nodes", plan.cluster.nodes
    yield "instance", plan.cluster.instance
    yield "lnc", plan.cluster.lnc
    yield "stack", plan.cluster.stack or "one graph a pass"
    yield "model", plan.model.name
    yield "operators", _short_name(plan)


def _short_name(plan: Plan) -> str:
    """A short digest of the sizes of the model and the sharding of every operator, to tell two of them apart."""
    text = repr((plan.model, sorted((name, sorted(choice.items())) for name, choice in plan.operators.items())))
    return sha256(text.encode()).hexdigest()[:12]
