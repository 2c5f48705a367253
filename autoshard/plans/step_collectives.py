"""Every collective that a device issues in one optimizer step of a plan: the runtime executes these and no others."""

from __future__ import annotations

from collections import Counter

from autoshard.graph.count import Collective, backward_collectives, forward_collectives, parameter_elements
from autoshard.graph.partition import Program
from autoshard.graph.recompute import segments
from autoshard.layout.buckets import (
    bucket_elements,
    bucket_key,
    padded_elements,
    read_in_backward,
    tied_parameters,
    units,
)
from autoshard.layout.orthogonal import exchanges
from autoshard.plans.plan import Plan
from autoshard.spec.training import DTYPE_BYTES


def step_collectives(plan: Plan, pipeline_rank: int) -> Counter[Collective]:
    """Collectives of a step and how often each device of one pipeline rank issues them.

    Left out: transfers between stages, which the schedule gives, and the 8-byte sums of norm and loss.
    """
    programs = plan.stage_programs
    stages = [stage.index for stage in plan.stages if stage.pipeline_rank == pipeline_rank]
    total: Counter[Collective] = Counter()
    tied = tied_parameters(programs[0], programs[len(programs) - 1])
    for index in stages:
        counts = _microbatch(programs[index], plan.strategy.recompute[index])
        counts.update(_travelling(plan, programs[index], tied, plan.strategy.recompute[index]))
        for collective, count in counts.items():
            total[collective] += count * plan.num_microbatches
    total.update(_sync(plan, [programs[index] for index in stages], tied))
    return total


def _microbatch(program: Program, recompute: str) -> Counter[Collective]:
    counts: Counter[Collective] = Counter()
    for segment in segments(program, recompute):
        for position in range(segment.start, segment.stop):
            step = program.steps[position]
            forward = list(forward_collectives(program, step))
            counts.update(Collective("forward", *one) for one in forward)
            if segment.recomputed and position < segment.replay_stop:
                counts.update(Collective("recompute", *one) for one in forward)
            counts.update(Collective("backward", *one) for one in backward_collectives(program, step))
    return counts


def _travelling(plan: Plan, program: Program, tied: frozenset[str], recompute: str) -> list[Collective]:
    """Collectives of one microbatch that carry gradients and parameters under ZeRO-2 and -3.

    Every unit's gradients are scattered, where it is learned. Under ZeRO-3 its parameters are gathered for forward, and
    once more where backward reads them.
    """
    precision, zero = plan.training.precision, plan.strategy.zero
    elements, collectives = parameter_elements(program), []
    for key, names in units(program, plan.mesh, tied, zero).items():
        count = padded_elements(key, sum(elements[name] for name in names), plan.mesh, zero)
        size = count * DTYPE_BYTES[precision.parameter_dtype]
        if zero == 3:
            collectives.append(Collective("forward", "all_gather", key.shard_axes, size))
            if read_in_backward(program, names, recompute):
                collectives.append(Collective("backward", "all_gather", key.shard_axes, size))
        if key.learned:
            size = count * DTYPE_BYTES[precision.gradient_reduce_dtype]
            collectives.append(Collective("backward", "reduce_scatter", key.shard_axes, size))
    return collectives


def _sync(plan: Plan, programs: list[Program], tied: frozenset[str]) -> list[Collective]:
    """Gradient sums, matrices exchanged for Muon, and new parameters gathered. Left out: the 8-byte sums of norm and
    loss.

    What was summed over the data axes in every microbatch is summed over the others here, shard by shard; everything is
    summed over replicas of the shards.
    """
    precision, zero = plan.training.precision, plan.strategy.zero
    gradient_bytes = DTYPE_BYTES[precision.gradient_reduce_dtype]
    parameter_bytes = DTYPE_BYTES[precision.parameter_dtype]
    collectives = []
    for program in programs:
        for name, elements in parameter_elements(program).items():
            if name in tied:
                key = bucket_key(program, name, plan.mesh, tied, zero)
                shard = padded_elements(key, elements, plan.mesh, zero) // plan.mesh.size(key.shard_axes)
                size = (shard if key.unit else elements) * gradient_bytes
                collectives.append(Collective("sync", "all_reduce", ("pp",), size))
    for key, count in bucket_elements(programs, plan.mesh, tied, zero).items():
        if key.replica_axes:
            size = count // plan.mesh.size(key.shard_axes) * gradient_bytes
            collectives.append(Collective("sync", "all_reduce", key.replica_axes, size))
        if not key.learned:
            continue
        if key.unit:
            if key.sum_axes:
                size = count // plan.mesh.size(key.shard_axes) * gradient_bytes
                collectives.append(Collective("sync", "all_reduce", key.sum_axes, size))
            if zero == 2:
                collectives.append(Collective("sync", "all_gather", key.shard_axes, count * parameter_bytes))
            continue
        if key.sum_axes:
            collectives.append(Collective("sync", "all_reduce", key.sum_axes, count * gradient_bytes))
        if key.shard_axes and zero:
            collectives.append(Collective("sync", "reduce_scatter", key.shard_axes, count * gradient_bytes))
            collectives.append(Collective("sync", "all_gather", key.shard_axes, count * parameter_bytes))
        elif key.shard_axes:
            collectives.append(Collective("sync", "all_reduce", key.shard_axes, count * gradient_bytes))
    exchanged = (one for one in exchanges(programs, plan.mesh, tied, zero) if one.axes)
    for one in exchanged:  # with padding all ranks send as much as the one with most
        sizes = (count * parameter_bytes for count in (one.most_sent, one.most_owned))
        collectives += [Collective("sync", "all_to_all", one.axes, size) for size in sizes]
    return collectives
