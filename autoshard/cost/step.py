"""Seconds of one optimizer step as exposed terms that add up.

All microbatches run through the pipeline; then every rank sums its gradients, updates its share of the optimizer
state and gathers the new parameters. Nothing of that overlaps, as in NxD. Under ZeRO-2 and -3 most of it happens in
every microbatch, behind the work of blocks (cost/shards.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autoshard.cost.collectives import collective_time_s, group_shape
from autoshard.cost.compute import memory_s
from autoshard.cost.load import RankLoad, virtual_stage_s, weight_gradients_s
from autoshard.cost.memory import BUCKET_BYTES, owned_parameters
from autoshard.cost.program import Part
from autoshard.cost.shards import exposed_s, opening, slowed_down, zero_axes
from autoshard.cost.software import COMPILED, Software
from autoshard.cost.stage import Parts, mesh_order
from autoshard.layout.mesh import Mesh
from autoshard.layout.strategy import Strategy
from autoshard.schedules import Work, step_time_s
from autoshard.spec.cluster import Cluster, Device
from autoshard.spec.training import DTYPE_BYTES, Precision

TIME_TERMS = (
    "matrix products and vector operators",
    "attention",
    "recompute",
    "embedding and head",
    "tensor-parallel collectives",
    "context-parallel collectives",
    "expert-parallel collectives",
    "gradient accumulation",
    "launches",
    "pipeline bubble",
    "pipeline transfers",
    "gradient reduce-scatter",
    "parameter all-gather",
    "other gradient sums",
    "optimizer update",
)


def time_values(
    strategy: Strategy,
    parts: tuple[Parts, ...],
    loads: tuple[RankLoad, ...],
    num_microbatches: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    software: Software = COMPILED,
) -> tuple[float, ...]:
    """Seconds, in the order of TIME_TERMS. parts: of each virtual stage. loads: one of each kind of pipeline rank.

    The first nine are spent on all microbatches by the rank with most work; the bubble is what the pipeline takes
    beyond that, transfers are what it takes longer because stages send to each other. The last four are those of the
    rank for which they take longest.
    """
    vpp = strategy.num_virtual_stages
    accumulation_s = software.accumulation_share * accumulation_s_per_parameter(precision, cluster.device)
    work_s = pipeline_work(strategy, parts, num_microbatches, precision, mesh, cluster, software)
    with_transfers_s = step_time_s(strategy.schedule, *work_s)
    pipeline_s = with_transfers_s
    if mesh.pp > 1:
        without = pipeline_work(strategy, parts, num_microbatches, precision, mesh, cluster, software, transfers=False)
        pipeline_s = step_time_s(strategy.schedule, *without)
    busiest, gathering_s, scattering_s = busiest_rank(
        strategy, loads, num_microbatches, precision, mesh, cluster, accumulation_s
    )
    launches_s = num_microbatches * (2 * vpp * cluster.device.pass_launch_s + busiest.waiting_s)
    work = (*_work_values(busiest, num_microbatches, accumulation_s), launches_s)
    after = max((_after_values(load, strategy.zero, precision, mesh, cluster, software) for load in loads), key=sum)
    if software is not COMPILED:
        after = _overlapped(after, busiest, num_microbatches, software)
    bubble_s = max(0.0, pipeline_s - sum(work) - gathering_s - scattering_s)
    after = (after[0] + scattering_s, after[1] + gathering_s, *after[2:])
    return (*work, bubble_s, with_transfers_s - pipeline_s, *after)


class Busiest(NamedTuple):
    """The pipeline rank with most work. gathering_s, scattering_s: of all microbatches, what it waits inside the
    pipeline for weights and gradients under ZeRO-2 and -3."""

    load: RankLoad
    gathering_s: float
    scattering_s: float


def busiest_rank(
    strategy: Strategy,
    loads: tuple[RankLoad, ...],
    num_microbatches: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    accumulation_s: float,
) -> Busiest:
    """The rank whose work the terms of a step describe. loads: one of each kind of pipeline rank. accumulation_s: to
    add one element of a gradient to its sum."""
    waits = {load.rank: exposed_s(load, strategy, precision, mesh, cluster) for load in loads}
    load = max(loads, key=lambda one: one.work_s + accumulation_s * one.num_parameters + sum(waits[one.rank]))
    return Busiest(load, *(num_microbatches * seconds for seconds in waits[load.rank]))


def pipeline_work(
    strategy: Strategy,
    parts: tuple[Parts, ...],
    num_microbatches: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    software: Software = COMPILED,
    transfers: bool = True,
) -> Work:
    """The work of one step's pipeline: seconds by virtual stage. parts: of each virtual stage. transfers: whether
    stages send to each other; else their output is there at once."""
    accumulation_s = software.accumulation_share * accumulation_s_per_parameter(precision, cluster.device)
    forward_s, backward_s = stage_seconds(strategy, parts, precision, mesh, cluster, accumulation_s)
    transfer_s = software.link_slowdown * hop_s(parts[0], mesh, cluster) if transfers and mesh.pp > 1 else 0.0
    if software.transfer_share is not None:
        blocked_s, transfer_s = software.transfer_share * transfer_s, 0.0
        forward_s, backward_s = (tuple(one + blocked_s for one in passes) for passes in (forward_s, backward_s))
    weights_s = weight_gradients_s(strategy, parts)
    return Work(mesh.pp, num_microbatches, strategy.num_virtual_stages, forward_s, backward_s, transfer_s, weights_s)


def stage_seconds(
    strategy: Strategy,
    parts: tuple[Parts, ...],
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    accumulation_s: float,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(forward, backward) of one microbatch through each virtual stage, waits for what travels in every microbatch
    included. accumulation_s: to add one element of a gradient to its sum."""
    slower = slowed_down(strategy, parts, precision, mesh, cluster)
    opened, launch_s = opening(strategy, parts[0].block, precision, mesh, cluster), cluster.device.pass_launch_s
    passes_s = (launch_s + opened.forward_s, launch_s + opened.backward_s)
    return virtual_stage_s(strategy, slower, passes_s, accumulation_s)


def _overlapped(
    after: tuple[float, ...], load: RankLoad, num_microbatches: int, software: Software
) -> tuple[float, ...]:
    """Data-parallel transfers hide behind a share of the last microbatch's backward and of the next one's forward; with
    sharded parameters they run in every microbatch, twice the gathers, and hide behind a share of all its work, which
    takes longer meanwhile: both move through the same memory."""
    scatter_s, gather_s, other_s, update_s = after
    window_s = software.overlap * load.work_s
    if software.sharded_parameters or software.sharded_gradients:
        gathers = 2 if software.sharded_parameters else 1 / num_microbatches
        sent_s = num_microbatches * (scatter_s + gathers * gather_s)
        hidden_s = min(sent_s, num_microbatches * window_s)
        exposed_s = sent_s - (1 - software.contention) * hidden_s
    else:
        sent_s = scatter_s + gather_s
        exposed_s = max(0.0, sent_s - window_s)
    share = exposed_s / (scatter_s + gather_s) if sent_s else 0.0
    return share * scatter_s, share * gather_s, other_s, update_s + software.step_overhead_s


def _work_values(load: RankLoad, num_microbatches: int, accumulation_s: float) -> tuple[float, ...]:
    """All but the last of the first nine terms. Collectives of replayed operators are collectives; the rest of a
    replay is 'recompute'."""
    ends, count = load.ends_seconds, num_microbatches

    def blocks_s(seconds: Callable[[Part], float]) -> float:
        return count * sum(kind.count * seconds(kind.block) for kind in load.kinds)

    return (
        blocks_s(lambda block: block.forward.compute + block.backward.compute),
        blocks_s(lambda block: block.forward.attention + block.backward.attention),
        blocks_s(lambda block: block.recompute.operators),
        count * ends.operators,
        blocks_s(lambda block: block.all_passes.tensor_parallel) + count * ends.tensor_parallel,
        blocks_s(lambda block: block.all_passes.context_parallel) + count * ends.context_parallel,
        blocks_s(lambda block: block.all_passes.expert_parallel) + count * ends.expert_parallel,
        count * accumulation_s * load.num_parameters,
    )


def accumulation_s_per_parameter(precision: Precision, device: Device) -> float:
    """Adding one microbatch's gradient to the sum: the gradient is read, the sum read and written."""
    gradient, total = DTYPE_BYTES[precision.compute_dtype], DTYPE_BYTES[precision.gradient_accumulation_dtype]
    return memory_s(gradient + 2 * total, device)


def hop_s(parts: Parts, mesh: Mesh, cluster: Cluster) -> float:
    """The hidden activation of one microbatch from a stage to the next."""
    group = group_shape(mesh_order(mesh), ("pp",), cluster)
    return collective_time_s("send_recv", parts.hidden_bytes, group, cluster)


def _after_values(
    load: RankLoad, zero: int, precision: Precision, mesh: Mesh, cluster: Cluster, software: Software
) -> tuple[float, ...]:
    """The last four terms.

    Sums over tensor-parallel axes come first (norms, replicated key-value heads), then one reduce-scatter of all
    gradients over the axes that share the optimizer state and one all-gather of the new parameters; without ZeRO an
    all-reduce, counted under the first of both. Axes over which a gradient is whole on every rank are not summed over.
    """
    order, device = mesh_order(mesh), cluster.device
    reduce_bytes, parameter_bytes = (
        DTYPE_BYTES[dtype] for dtype in (precision.gradient_reduce_dtype, precision.parameter_dtype)
    )

    def buckets_s(kind: str, axes: tuple[str, ...], size: float) -> float:
        shape = group_shape(order, tuple(sorted(axes)), cluster)
        full, rest = divmod(size, BUCKET_BYTES)
        seconds = full * collective_time_s(kind, BUCKET_BYTES, shape, cluster)
        return software.link_slowdown * (seconds + collective_time_s(kind, rest, shape, cluster))

    scatter_s = gather_s = other_s = 0.0
    scattered: dict[tuple[str, ...], int] = {}
    gathered: dict[tuple[str, ...], int] = {}
    for axes, count in load.parameters.items():
        shared = zero_axes(axes)
        owners = mesh.size(shared)
        travels = load.matrices.get(axes, 0) if zero >= 2 and owners > 1 else 0
        scattered[shared] = scattered.get(shared, 0) + count - travels
        gathered[shared] = gathered.get(shared, 0) + count - (travels if zero == 3 else 0)
        within = tuple(axis for axis in axes if axis not in shared)
        if within:
            other_s += buckets_s("all_reduce", within, (count - travels + travels / owners) * reduce_bytes)
    for axes, count in scattered.items():
        scatter_s += buckets_s("reduce_scatter" if zero else "all_reduce", axes, count * reduce_bytes)
        if zero:
            gather_s += buckets_s("all_gather", axes, gathered[axes] * parameter_bytes)
            gather_s += software.copy_launch_s * load.num_tensors * mesh.size(axes)
    update_s = owned_parameters(load, mesh, zero) * update_s_per_parameter(precision, device)
    return scatter_s, gather_s, other_s, update_s


def update_s_per_parameter(precision: Precision, device: Device) -> float:
    """Memory traffic of AdamW for one parameter: the gradient read (twice: its norm first), the weights and both
    moments read and written, the parameter written where it is not the master itself."""
    gradient = 2 * DTYPE_BYTES[precision.gradient_accumulation_dtype]
    moments = 4 * DTYPE_BYTES[precision.optimizer_dtype]
    parameter = DTYPE_BYTES[precision.parameter_dtype]
    if precision.master_dtype is None:
        return memory_s(gradient + moments + 2 * parameter, device)
    return memory_s(gradient + moments + 2 * DTYPE_BYTES[precision.master_dtype] + parameter, device)
