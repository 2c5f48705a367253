"""Bytes on one device of a pipeline rank at the worst moment of a step, as named terms that add up.

State lives all the time. The rest is either a microbatch in work or, when the last one is done, buckets of gradients
and parameters on their way: the larger of the two counts.
"""

from __future__ import annotations

from autoshard.cost.load import RankLoad
from autoshard.cost.program import Part
from autoshard.cost.shards import held_elements, in_turns, in_work_bytes, travelling_elements, zero_axes
from autoshard.cost.software import COMPILED, Software
from autoshard.layout.mesh import ZERO_AXES, Mesh
from autoshard.spec.cluster import Device
from autoshard.spec.training import DTYPE_BYTES, Precision
from autoshard.units import MIB

BUCKET_BYTES = 1024 * MIB
"""Largest buffer that gradients or parameters are joined in for one collective: bucket_size_collectives of NxD
Training."""

BOUNDARY_BUFFERS = 4
"""Hidden activations on their way between stages: one received and one sent, forward and backward."""

REPLAYED_LOGITS = 0.6
"""Share of the buffers of the loss that a head holds whose forward runs again in backward. Set by hand to which
published runs fit."""

MEMORY_TERMS = (
    "parameters",
    "gradients",
    "optimizer state",
    "kept activations",
    "embedding, logits and loss",
    "recompute",
    "working buffers",
    "pipeline buffers",
    "collective buckets",
    "runtime and compiler reserve",
)


def memory_values(
    load: RankLoad, precision: Precision, mesh: Mesh, zero: int, device: Device, software: Software = COMPILED
) -> tuple[float, ...]:
    """Bytes, in the order of MEMORY_TERMS.

    parameters: as forward and backward read them, under ZeRO-3 the rank's share. gradients: their sum over
    microbatches, under ZeRO-2 and -3 the rank's share, else whole and where that has a dtype of its own with the
    gradients that one backward, a compiled graph, hands over at its end.
    optimizer state: master weights and two moments, under ZeRO-1 1/n of them on each of the n ranks that sum a
    gradient. kept activations: of every microbatch in flight, chunk by chunk, and what waits for gradients of weights.
    embedding, logits and loss: what the ends of the model keep; where blocks run backward, the loss is over.
    recompute: what replaying one segment keeps. working buffers: gradients and gathered activations of one operator;
    under ZeRO-2 and -3 what travels (cost/shards.py).
    pipeline buffers: hidden activations on their way, and the outputs of all microbatches in flight, which both
    runtimes keep for their backward.
    """
    shards = mesh.size(ZERO_AXES)
    whole = 1 if not software.sharded_parameters else 1 / shards
    summed = whole if not software.sharded_gradients else 1 / shards
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    state = owned_parameters(load, mesh, zero) * (master + 2 * DTYPE_BYTES[precision.optimizer_dtype])
    replay, worked, over = _in_work(load, software)
    kept = _kept_bytes(load, software)
    kept += load.weights_waiting * load.most_blocks * load.parts.block.weights_waiting_bytes
    ends = sum(max(load.embeddings_in_flight, load.heads_in_flight) * end.kept_bytes for end in load.ends)
    ends += load.weights_waiting * sum(end.weights_waiting_bytes for end in load.ends) - over
    if load.heads_in_flight:
        replayed_head = software.replays_head and _keeps_only_inputs(load, load.chunks[-1].block)
        ends += (REPLAYED_LOGITS if replayed_head else 1.0) * software.logits_bytes * load.parts.num_logits
    working = software.working_scale * worked
    if software.sharded_parameters:  # two blocks whole at a time: one in work, the next on its way
        working += load.parts.block.num_parameters * DTYPE_BYTES[precision.parameter_dtype]
    if zero >= 2:
        working = max(working, _travelling_bytes(load, zero, precision, mesh, kept) - replay + over)
    leaving = load.in_flight - load.heads_in_flight
    boundary = 0.0 if mesh.pp == 1 else (BOUNDARY_BUFFERS + leaving) * load.parts.hidden_bytes
    handed_over = _handed_over_bytes(load, precision, mesh, zero) if software.hands_over_gradients else 0.0
    in_work = kept + ends + replay + working + boundary
    staying = load.num_parameters - (travelling_elements(load.matrices, mesh) if zero >= 2 else 0)
    buckets = max(0.0, _bucket_bytes(staying, precision, mesh) - in_work)
    weights, sums = (held_elements(load.parameters, load.matrices, mesh, zero >= stage) for stage in (3, 2))
    return (
        weights * DTYPE_BYTES[precision.parameter_dtype] * whole,
        sums * DTYPE_BYTES[precision.gradient_accumulation_dtype] * summed + handed_over,
        state,
        kept,
        ends,
        replay,
        working,
        boundary,
        buckets,
        device.reserved_memory_bytes + software.reserved_bytes,
    )


def _travelling_bytes(load: RankLoad, zero: int, precision: Precision, mesh: Mesh, kept: float) -> float:
    """cost/shards.py of one rank."""
    parts, has_loss = load.parts, load.heads_in_flight > 0
    table = parts.tied_ends if any(end is parts.tied_ends for end in load.ends) else parts.embedding
    first, last = (
        sum(travelling_elements(end.matrices, mesh) for end in load.ends if (end is table) is is_table)
        for is_table in (True, False)
    )
    block_work = max(
        max(part.replay_bytes for part in (kind.block, *load.ends)) + kind.block.working_bytes for kind in load.kinds
    )
    at_ends = max((end.working_bytes for end in load.ends), default=0.0)
    return float(
        in_work_bytes(
            max,
            int(zero == 3),
            (DTYPE_BYTES[precision.parameter_dtype], DTYPE_BYTES[precision.gradient_reduce_dtype]),
            mesh.size(ZERO_AXES),
            (in_turns(parts.block.matrices, mesh, parts.block.moments), first, last),
            int(table is parts.tied_ends),
            (block_work, at_ends if has_loss else 0.0),
            (kept / load.in_flight, load.ends[-1].kept_bytes if has_loss else 0.0),
            load.most_blocks,
            1.0,
        )
    )


def _keeps_only_inputs(load: RankLoad, block: Part) -> bool:
    """Whether the block is replayed whole."""
    return block.kept_bytes <= load.parts.hidden_bytes


def _kept_bytes(load: RankLoad, software: Software) -> float:
    """Of all blocks, at the moment when most is held."""
    norms = software.norm_copies * load.parts.hidden_bytes

    def of(block: Part) -> float:
        if _keeps_only_inputs(load, block):
            return block.kept_bytes
        scores = 0.0 if block.replay_bytes else software.score_copies * block.scores_bytes
        return software.activation_scale * (block.kept_bytes + norms) + scores

    if len(load.kinds) == 1:
        return load.in_flight * load.most_blocks * of(load.parts.block)
    sizes = [chunk.count * of(chunk.block) for chunk in load.chunks]
    return max(sum(count * size for count, size in zip(held, sizes, strict=True)) for held in load.held)


def _in_work(load: RankLoad, software: Software) -> tuple[float, float, float]:
    """(replay, working, what the loss of this microbatch no longer keeps) of the part that holds most in backward: of a
    block, or of an end of the model.

    What the block behind the embedding replays more than others is charged to the embedding.
    """
    found = [_in_work_with(load, kind.block, software) for kind in load.kinds]
    return max(found, key=lambda one: one[0] + one[1] - one[2])


def _in_work_with(load: RankLoad, block: Part, software: Software) -> tuple[float, float, float]:
    replayed = max(part.replay_bytes for part in (block, *load.ends))
    at_ends = max((end.working_bytes for end in load.ends), default=0.0)
    worked = block.working_bytes
    if load.weights_apart:  # what the other blocks of the microbatch in work leave, for what they kept
        worked += max(0.0, (load.most_blocks - 1) * (block.weights_waiting_bytes - block.kept_bytes))
    over = 0.0
    if load.heads_in_flight and not software.keeps_loss:
        loss = load.ends[-1]
        over = max(0.0, loss.kept_bytes - (loss.weights_waiting_bytes if load.weights_apart else 0.0))
    if at_ends > replayed + worked - over:
        replayed, worked, over = 0.0, at_ends, 0.0
    if _keeps_only_inputs(load, block):
        replayed = software.activation_scale * (replayed + software.norm_copies * load.parts.hidden_bytes)
    return replayed + (software.score_copies * block.scores_bytes if block.replay_bytes else 0.0), worked, over


def _handed_over_bytes(load: RankLoad, precision: Precision, mesh: Mesh, zero: int) -> float:
    """Gradients of one chunk, which holds at most this share of the rank's blocks and all of its ends; without those
    that travel unit by unit."""
    if precision.gradient_accumulation_dtype == precision.parameter_dtype:
        return 0.0

    def elements(part: Part) -> int:
        return part.num_parameters - (travelling_elements(part.matrices, mesh) if zero >= 2 else 0)

    count = load.most_blocks * elements(load.parts.block) + sum(map(elements, load.ends))
    return float(count * DTYPE_BYTES[precision.parameter_dtype])


def owned_parameters(load: RankLoad, mesh: Mesh, zero: int) -> float:
    """Elements whose optimizer state a rank keeps."""
    if not zero:
        return float(load.num_parameters)
    return sum(count / mesh.size(zero_axes(axes)) for axes, count in load.parameters.items())


def _bucket_bytes(count: int, precision: Precision, mesh: Mesh) -> float:
    """One bucket of gradients and one of parameters; none where no rank shares them."""
    if mesh.size(ZERO_AXES) == 1:
        return 0.0
    dtypes = (precision.gradient_reduce_dtype, precision.parameter_dtype)
    return sum(min(BUCKET_BYTES, float(count * DTYPE_BYTES[dtype])) for dtype in dtypes)
