"""The estimate of a layout: the step time and the memory of every pipeline rank, term by term."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from autoshard.cost.interval import base_regime, fits_probability, step_time_factors, unknown_of
from autoshard.cost.local_shape import strategy_mesh
from autoshard.cost.memory import MEMORY_TERMS, memory_values
from autoshard.cost.rank_load import rank_load, telling_ranks
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.stage import DenseBlocks, Parts, strategy_parts
from autoshard.cost.step import TIME_TERMS, time_values
from autoshard.cost.values import Estimate, StageMemory, Term
from autoshard.cost.zero_sharding import State, parts_state
from autoshard.graph.count import step_flops
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import OperatorChoices
from autoshard.layout.strategy import Strategy
from autoshard.models.stage import dim_sizes, routed_tokens, stage_graph
from autoshard.spec.cluster import Cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec

__all__ = ["Estimate", "StageMemory", "Term", "estimate", "fullest_bytes", "model_flops_per_step", "step_time_s"]


def estimate(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    strategy: Strategy,
    software: Software = COMPILED,
    operators: OperatorChoices = (),
    dense: DenseBlocks | None = None,
) -> Estimate:
    """The whole estimate of a legal layout (backends.rules.check_strategy); it need not fit in memory.

    operators: choices that differ from the rule of layout/sharding.py. dense: blocks of a mixture without experts.
    """
    mesh, parts, state, count = _placed(model, training, cluster, strategy, software, operators, dense)
    loads = tuple(rank_load(strategy, parts, count, rank) for rank in range(strategy.pp))
    telling = tuple(loads[rank] for rank in telling_ranks(strategy, parts, count))
    times = time_values(strategy, parts, telling, state, count, training.precision, mesh, cluster, software)
    step_time_s, flops = sum(times), model_flops_per_step(model, training)
    if dense is not None:
        flops = (1 - dense.share) * flops + dense.share * model_flops_per_step(dense.model, training)
    peak = cluster.world_size * cluster.device.peak_flops_per_s(training.precision.fastest_dtype)
    base = base_regime(cluster, model, training)
    low, high = step_time_factors(cluster, strategy, unknown_of(cluster, model, training), base)
    held = (state, training.precision, cluster.device, software)
    memory = tuple(StageMemory(load.rank, tuple(map(Term, MEMORY_TERMS, memory_values(load, *held)))) for load in loads)
    fullest_bytes = max(stage.total_bytes for stage in memory)
    return Estimate(
        step_time_s=step_time_s,
        time_terms=tuple(map(Term, TIME_TERMS, times)),
        memory=memory,
        memory_capacity_bytes=cluster.device.memory_bytes,
        tokens_per_s=training.tokens_per_step / step_time_s,
        mfu=flops / (peak * step_time_s),
        model_flops_per_step=flops,
        step_time_low_s=low * step_time_s,
        step_time_high_s=high * step_time_s,
        fits_probability=fits_probability(float(fullest_bytes), cluster.device.memory_bytes, cluster),
    )


def step_time_s(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    strategy: Strategy,
    software: Software = COMPILED,
    dense: DenseBlocks | None = None,
) -> float:
    """Seconds of a step, those of `estimate`, whatever the memory of a device is."""
    mesh, parts, state, count = _placed(model, training, cluster, strategy, software, (), dense)
    telling = tuple(rank_load(strategy, parts, count, rank) for rank in telling_ranks(strategy, parts, count))
    return sum(time_values(strategy, parts, telling, state, count, training.precision, mesh, cluster, software))


def fullest_bytes(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    strategy: Strategy,
    software: Software = COMPILED,
    dense: DenseBlocks | None = None,
) -> float:
    """Bytes on the fullest pipeline rank, those of `estimate`, whatever links and devices can do."""
    _, parts, state, count = _placed(model, training, cluster, strategy, software, (), dense)
    loads = (rank_load(strategy, parts, count, rank) for rank in range(strategy.pp))
    return max(sum(memory_values(load, state, training.precision, cluster.device, software)) for load in loads)


class _Placed(NamedTuple):
    """A layout as its estimate reads it. parts: of each virtual stage."""

    mesh: Mesh
    parts: tuple[Parts, ...]
    state: State
    num_microbatches: int


def _placed(
    model: ModelSpec,
    training: TrainingSpec,
    cluster: Cluster,
    strategy: Strategy,
    software: Software = COMPILED,
    operators: OperatorChoices = (),
    dense: DenseBlocks | None = None,
) -> _Placed:
    mesh = strategy_mesh(model, cluster, strategy)
    parts = strategy_parts(model, training, cluster, strategy, software, operators, dense)
    state = parts_state(parts, strategy.zero, training.precision, mesh, cluster, software.hands_over)
    return _Placed(mesh, parts, state, strategy.num_microbatches(training.global_batch_size))


@lru_cache(maxsize=256)
def model_flops_per_step(model: ModelSpec, training: TrainingSpec) -> float:
    """Forward and backward (twice the forward, once where weights are not learned) of all matrix products and of causal
    attention; no recompute, no padding.

    Experts count the tokens that are routed to them, not their slots.
    """
    sizes = dim_sizes(model, training.global_batch_size, training.sequence_length)
    routed = {"capacity": routed_tokens(model, training.sequence_length)} if model.is_moe else {}
    ends = step_flops(stage_graph(model, sizes, (), first=True, last=True), **routed)
    blocks = (
        count * step_flops(stage_graph(model, sizes, (kind,), first=False, last=False), **routed)
        for kind, count in model.kind_counts(0, model.num_hidden_layers)
    )
    return sum(blocks) + ends
