"""Bytes on one device of a pipeline rank at the worst moment of a step, as named terms that add up.

State lives all the time. The rest is either a microbatch in work or, when the last one is done, buckets of gradients
and parameters on their way: the larger of the two counts.
"""

from __future__ import annotations

from autoshard.cost.load import RankLoad
from autoshard.cost.software import COMPILED, Software
from autoshard.layout.mesh import ZERO1_AXES, Mesh
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
    load: RankLoad, precision: Precision, mesh: Mesh, zero1: bool, device: Device, software: Software = COMPILED
) -> tuple[float, ...]:
    """Bytes, in the order of MEMORY_TERMS.

    parameters: as forward and backward read them. gradients: their sum over microbatches, whole on every rank, and
    where that has a dtype of its own the gradients that one backward, a compiled graph, hands over at its end.
    optimizer state: master weights and two moments, under ZeRO-1 1/n of them on each of the n ranks that sum a
    gradient. kept activations: of every microbatch in flight, chunk by chunk. embedding, logits and loss: what the
    ends of the model keep.
    recompute: what replaying one segment keeps. working buffers: the largest operator's activations and as many
    gradients.
    """
    count, block = load.num_parameters, load.parts.block
    shards = mesh.size(ZERO1_AXES)
    whole = 1 if not software.sharded_parameters else 1 / shards
    summed = whole if not software.sharded_gradients else 1 / shards
    master = 0 if precision.master_dtype is None else DTYPE_BYTES[precision.master_dtype]
    state = owned_parameters(load, mesh, zero1) * (master + 2 * DTYPE_BYTES[precision.optimizer_dtype])
    norms = software.norm_copies * load.parts.hidden_bytes
    scores = software.score_copies * block.scores_bytes
    scale, replayed = software.activation_scale, max(part.replay_bytes for part in (block, *load.ends))
    only_inputs = block.kept_bytes <= load.parts.hidden_bytes  # of blocks that are replayed whole
    kept_bytes = (
        block.kept_bytes
        if only_inputs
        else scale * (block.kept_bytes + norms) + (0.0 if block.replay_bytes else scores)
    )
    kept = load.in_flight * max(load.blocks) * kept_bytes
    ends = sum(max(load.embeddings_in_flight, load.heads_in_flight) * end.kept_bytes for end in load.ends)
    if load.heads_in_flight:
        replayed_head = software.replays_head and only_inputs
        ends += (REPLAYED_LOGITS if replayed_head else 1.0) * software.logits_bytes * load.parts.num_logits
    replay = scale * (replayed + norms) if only_inputs else replayed
    replay += scores if block.replay_bytes else 0.0
    working = software.working_scale * max(part.working_bytes for part in (block, *load.ends))
    if software.sharded_parameters:  # two blocks whole at a time: one in work, the next on its way
        working += block.num_parameters * DTYPE_BYTES[precision.parameter_dtype]
    boundary = 0.0 if mesh.pp == 1 else BOUNDARY_BUFFERS * load.parts.hidden_bytes
    handed_over = _handed_over_bytes(load, precision) if software.hands_over_gradients else 0.0
    in_work = kept + ends + replay + 2 * working + boundary
    buckets = max(0.0, _bucket_bytes(count, precision, mesh) - in_work)
    return (
        float(count * DTYPE_BYTES[precision.parameter_dtype]) * whole,
        float(count * DTYPE_BYTES[precision.gradient_accumulation_dtype]) * summed + handed_over,
        state,
        kept,
        ends,
        replay,
        2 * working,
        boundary,
        buckets,
        device.reserved_memory_bytes + software.reserved_bytes,
    )


def _handed_over_bytes(load: RankLoad, precision: Precision) -> float:
    """Gradients of one chunk, which holds at most this share of the rank's blocks and all of its ends."""
    if precision.gradient_accumulation_dtype == precision.parameter_dtype:
        return 0.0
    count = max(load.blocks) * load.parts.block.num_parameters + sum(end.num_parameters for end in load.ends)
    return float(count * DTYPE_BYTES[precision.parameter_dtype])


def owned_parameters(load: RankLoad, mesh: Mesh, zero1: bool) -> float:
    """Elements whose optimizer state a rank keeps."""
    if not zero1:
        return float(load.num_parameters)
    return sum(count / mesh.size(zero1_axes(axes)) for axes, count in load.parameters.items())


def zero1_axes(gradient_axes: tuple[str, ...]) -> tuple[str, ...]:
    """Of the axes that sum a gradient, those that share its optimizer state; tensor-parallel ranks keep copies."""
    return tuple(axis for axis in gradient_axes if axis in ZERO1_AXES)


def _bucket_bytes(count: int, precision: Precision, mesh: Mesh) -> float:
    """One bucket of gradients and one of parameters; none where no rank shares them."""
    if mesh.size(ZERO1_AXES) == 1:
        return 0.0
    dtypes = (precision.gradient_reduce_dtype, precision.parameter_dtype)
    return sum(min(BUCKET_BYTES, float(count * DTYPE_BYTES[dtype])) for dtype in dtypes)
