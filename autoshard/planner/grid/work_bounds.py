"""Seconds of a step, at least, by what one microbatch takes in all stages, whatever its cut and recompute sets are."""

from __future__ import annotations

import numpy as np

from autoshard.backends.rules import Problem, ends_may_be_bare
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import (
    equal_chunks_at_least_s,
    put_off_at_least_s,
    share_at_least_s,
    slowest_stage_at_least_s,
    unlike_chunks_work_at_least_s,
    unlike_stages_at_least_s,
)
from autoshard.planner.grid.price import Family
from autoshard.rows import Number, largest


def by_work_at_least_s(
    problem: Problem,
    family: Family,
    m: Array,
    block_s: Array,
    ends_s: tuple[Array, Array],
    hop_s: Number = 0.0,
    slowest_s: Number = 0.0,
    opening_s: Number = 0.0,
    forward_s: Number = 0.0,
    back_s: Number = 0.0,
) -> Array:
    """Seconds of the pipelines of one family, by row.

    m: microbatches. block_s: work of a block of one microbatch, nothing recomputed; of blocks of several kinds, their
    mean. ends_s: alike, of the ends of the model. hop_s: from a stage to the next one, at least. slowest_s: work of the
    slowest rank, at least. forward_s: of a block, at least, where blocks are of one kind: a part of block_s. back_s:
    another part of it, the backward that no schedule puts off, at least. opening_s: of each stage with blocks, beside
    these.
    """
    pp, vpp, apart = family.pp, family.num_virtual_stages, family.rules.weights_apart
    layers, launch_s = problem.model.num_hidden_layers, problem.cluster.device.pass_launch_s
    bare = ends_may_be_bare(problem, pp, vpp)
    stages_s = layers * block_s + pp * vpp * 2 * launch_s + (pp * vpp - 2 * bare) * opening_s
    work_s = stages_s + ends_s[0] + ends_s[1]
    has_kinds = len(problem.blocks.kinds) > 1
    waits, at_once = (False, False) if apart else (family.waits_for_all(m), family.is_at_once(m))
    if vpp == 1 and not has_kinds:  # some stage has no fewer blocks than the mean
        slowest_s = largest(slowest_s, -(-layers // pp) * block_s + 2 * launch_s + opening_s)
    seconds: Array
    if has_kinds:
        seconds = unlike_stages_at_least_s(pp, vpp, m, work_s, hop_s, waits, at_once, apart)
    elif apart:
        blocks_s, beside_s = (layers * forward_s, layers * (block_s - forward_s)), 2 * launch_s + (not bare) * opening_s
        waiting_s = put_off_at_least_s(family.all_warm_ups(m), m, *blocks_s, beside_s, *ends_s, layers * back_s, hop_s)
        seconds = np.maximum(share_at_least_s(pp, m, work_s), waiting_s)
    elif vpp > 1:
        alike_s = equal_chunks_at_least_s(pp, vpp, m, stages_s / (pp * vpp), *ends_s, hop_s)
        seconds = largest(alike_s, unlike_chunks_work_at_least_s(pp, vpp, m, work_s, hop_s, waits, at_once))
    else:
        seconds = slowest_stage_at_least_s(pp, m, work_s, largest(work_s / pp, slowest_s), hop_s, waits, at_once)
    if pp > 1:  # those ranks have no less than the ends
        slowest_s = largest(slowest_s, largest(*ends_s) + 2 * vpp * launch_s)
    return np.maximum(seconds, m * slowest_s)
