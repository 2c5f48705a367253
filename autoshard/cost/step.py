"""Seconds of one optimizer step as exposed terms that add up.

All microbatches run through the pipeline; then every rank sums its gradients, updates its share of the optimizer
state and gathers the new parameters. Nothing of that overlaps, as in NxD. Under ZeRO-2 and -3 most of it happens in
every microbatch, behind the work of blocks (cost/zero_sharding.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autoshard.cost.after import After, AfterLastMicrobatch
from autoshard.cost.collectives import CollectiveLaw, collective_law, group_shape, mean_hop_law
from autoshard.cost.compute import memory_s
from autoshard.cost.local_shape import mesh_order
from autoshard.cost.part import Part
from autoshard.cost.passes import block_passes, end_passes, exposed, stages_work, waiting_block, waiting_end
from autoshard.cost.rank import parts_ends, rank_of
from autoshard.cost.rank_load import RankLoad
from autoshard.cost.stacks import COMPILED, Software
from autoshard.cost.stage import Parts
from autoshard.cost.zero_sharding import State, parts_contents
from autoshard.layout.mesh import Mesh
from autoshard.layout.strategy import Strategy
from autoshard.rows import Number
from autoshard.schedules import Work, step_time_s
from autoshard.schedules.step_time import SAME
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
    state: State,
    num_microbatches: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    software: Software = COMPILED,
) -> tuple[float, ...]:
    """Seconds, in the order of TIME_TERMS. parts: of each virtual stage. loads: one of each kind of pipeline rank.
    state: of the mesh.

    The first nine are spent on all microbatches by the rank with most work; the bubble is what the pipeline takes
    beyond that, transfers are what it takes longer because stages send to each other. The last four are those of the
    rank for which they take longest.
    """
    vpp = strategy.num_virtual_stages
    accumulation_s = software.accumulation_share * accumulation_s_per_parameter(precision, cluster.device)
    work_s = pipeline_work(strategy, parts, state, num_microbatches, precision, mesh, cluster, software)
    with_transfers_s = step_time_s(strategy.schedule, *work_s)
    pipeline_s = with_transfers_s
    if mesh.pp > 1:
        without = work_s._replace(transfer_s=0.0)
        if software.transfer_share is not None:
            without = pipeline_work(
                strategy, parts, state, num_microbatches, precision, mesh, cluster, software, transfers=False
            )
        pipeline_s = step_time_s(strategy.schedule, *without)
    busiest, gathering_s, scattering_s, casting_s = busiest_rank(loads, state, num_microbatches, accumulation_s)
    launches_s = num_microbatches * (2 * vpp * cluster.device.pass_launch_s + busiest.waiting_s)
    products_s, *others_s = _work_values(busiest, num_microbatches, accumulation_s)
    work = (products_s + casting_s, *others_s, launches_s)
    contents = parts_contents(parts, mesh.pp)
    afterwards = AfterLastMicrobatch(contents, strategy.zero, precision, mesh, cluster, software)
    after = max(
        (afterwards.of_kinds(load.block_kinds, *load.has_ends) for load in loads), key=lambda of_rank: of_rank.total_s
    )
    if software is not COMPILED:
        after = _overlapped(after, busiest, (mesh.pp, num_microbatches, vpp), software)
    bubble_s = pipeline_s - sum(work) - gathering_s - scattering_s
    bubble_s = bubble_s if bubble_s > SAME * pipeline_s else 0.0
    after = after._replace(scatter_s=after.scatter_s + scattering_s, gather_s=after.gather_s + gathering_s)
    return (*work, bubble_s, max(0.0, with_transfers_s - pipeline_s), *after)


class Busiest(NamedTuple):
    """The pipeline rank with most work. gathering_s, scattering_s: of all microbatches, what it waits inside the
    pipeline for weights and gradients under ZeRO-2 and -3. casting_s: to cast the weights that it has gathered."""

    load: RankLoad
    gathering_s: float
    scattering_s: float
    casting_s: float


def busiest_rank(loads: tuple[RankLoad, ...], state: State, num_microbatches: int, accumulation_s: float) -> Busiest:
    """The rank whose work the terms of a step describe. loads: one of each kind of pipeline rank. state: of the mesh.
    accumulation_s: to add one element of a gradient to its sum."""
    waits = {load.rank: _travelling_s(load, state) for load in loads}
    load = max(loads, key=lambda rank: rank.work_s + accumulation_s * rank.num_parameters + sum(waits[rank.rank]))
    return Busiest(load, *(num_microbatches * seconds for seconds in waits[load.rank]))


def pipeline_work(
    strategy: Strategy,
    parts: tuple[Parts, ...],
    state: State,
    num_microbatches: int,
    precision: Precision,
    mesh: Mesh,
    cluster: Cluster,
    software: Software = COMPILED,
    transfers: bool = True,
) -> Work:
    """The work of one step's pipeline: seconds by virtual stage. parts: of each virtual stage. state: of the mesh.
    transfers: whether stages send to each other; else their output is there at once."""
    units = [state.of(part.kinds).block for part in parts]
    sent_bytes = parts[0].hidden_bytes * (1 + state.choice)
    return stages_work(
        strategy.schedule,
        (mesh.pp, num_microbatches, strategy.num_virtual_stages),
        strategy.stage_layers,
        [waiting_block(part.block, unit) for part, unit in zip(parts, units, strict=True)],
        tuple(map(waiting_end, parts_ends(parts, state, mesh.pp))),
        units,
        cluster.device,
        software.accumulation_share * accumulation_s_per_parameter(precision, cluster.device),
        software.link_slowdown * hop_s(sent_bytes, mesh, cluster, software) if transfers else 0.0,
        software,
    )


def _travelling_s(load: RankLoad, state: State) -> tuple[float, float, float]:
    """(gathering, scattering, casting) of one microbatch on one rank. What hides behind work is left out."""
    if not state.travels:
        return 0.0, 0.0, 0.0
    waits = []
    casting_s = 0.0
    for chunk in load.chunks:
        block = state.of(chunk.kinds).block
        moved = block.travelling
        waits.append((int(chunk.count > 0), (moved.gather_s + moved.again_s, moved.scatter_s)))
        waits.append((chunk.count, exposed(chunk.block, block, block_passes(chunk.block, block))))
        casting_s += 2 * chunk.count * moved.cast_s
    for end in rank_of(load, state).ends:
        waits.append((1, exposed(end.part, end.unit, end_passes(end.part, end.unit))))
        casting_s += 2 * end.unit.travelling.cast_s
    gathering_s, scattering_s = (sum(count * seconds[way] for count, seconds in waits) for way in (0, 1))
    return gathering_s, scattering_s, casting_s


def _overlapped(after: After, load: RankLoad, pipeline: tuple[int, int, int], software: Software) -> After:
    """The part of data-parallel transfers that nothing hides. pipeline: (pp, num_microbatches, vpp).

    They hide behind a share of the last microbatch's backward and of the next one's forward; with sharded parameters
    they run in every microbatch, twice the gathers, and hide behind a share of all its work, which takes longer
    meanwhile: both move through the same memory.
    """
    pp, num_microbatches, vpp = pipeline
    scatter_s, gather_s, other_s, update_s = after
    window_s = software.overlap * load.work_s
    if software.sharded_parameters or software.sharded_gradients:
        gathers = 2 if software.sharded_parameters else 1 / num_microbatches
        sent_s = num_microbatches * (scatter_s + gathers * gather_s)
        hidden_s = min(sent_s, num_microbatches * window_s)
        exposed_s = sent_s - (1 - software.contention) * hidden_s
    else:
        sent_s = scatter_s + gather_s
        exposed_s = unhidden_s(sent_s, window_s, vpp, min(pp, num_microbatches))
    share = exposed_s / (scatter_s + gather_s) if sent_s else 0.0
    return After(share * scatter_s, share * gather_s, other_s, update_s + software.step_overhead_s)


def unhidden_s(sent_s: float, window_s: float, num_chunks: int, run: int) -> float:
    """Seconds of a rank's data-parallel transfers that its work does not hide.

    sent_s: of all of them. window_s: of one microbatch's work in all chunks, what they hide behind. run: microbatches
    that pass through one chunk before the next chunk has its turn.

    A chunk's gradients leave after its last microbatch, while `run` microbatches pass through each chunk that follows;
    only the last chunk has no other to hide behind than itself. The parameters that the next step reads come likewise
    (megatron/core/pipeline_parallel/schedules.py: grad_sync_func and param_sync_func of the interleaved schedule).
    """
    turn_s = run * window_s / num_chunks
    waiting_s = max(sent_s / num_chunks, sent_s - (num_chunks - 1) * turn_s)
    return max(0.0, waiting_s - window_s / num_chunks)


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
    """Seconds to add one element of a microbatch's gradient to its sum: the gradient is read, the sum read and
    written."""
    gradient, total = DTYPE_BYTES[precision.compute_dtype], DTYPE_BYTES[precision.gradient_accumulation_dtype]
    return memory_s(gradient + 2 * total, device)


def hop_s(count: Number, mesh: Mesh, cluster: Cluster, software: Software = COMPILED) -> Number:
    """Seconds in which a stage sends so many bytes to the next one."""
    if not software.sends_beside or mesh.pp == 1:
        return hop_law(mesh, cluster).time_s(count)
    return mean_hop_law(group_shape(mesh_order(mesh), ("pp",), cluster), cluster).time_s(count)


def hop_law(mesh: Mesh, cluster: Cluster) -> CollectiveLaw:
    """Seconds over bytes of what a stage sends to the next one."""
    return collective_law("send_recv", group_shape(mesh_order(mesh), ("pp",), cluster), cluster)
