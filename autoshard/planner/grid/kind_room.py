"""Whether the ranks of a layout have time and memory for all blocks, where these are of several kinds: a bound of all
cuts and sets, for many layouts at once."""

from __future__ import annotations

import numpy as np

from autoshard.cost.memory import BOUNDARY_BUFFERS, living_bytes
from autoshard.cost.step import accumulation_s_per_parameter
from autoshard.cost.zero_sharding import Unit
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.bounds import after_any_cut_at_least_s
from autoshard.planner.grid.interleaved_bounds import warm_up_visits
from autoshard.planner.grid.table import Whole

PRICES = np.array(
    [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        *((a, 0, 1 - a) for a in (0.3, 0.6, 0.8)),
        *((0, a, 1 - a) for a in (0.3, 0.6, 0.8)),
    ]
)
"""Prices that are tried: of a rank's time, of its time beside one microbatch's way, of its memory."""
SMALLEST = 1e-30
"""Less than anything costs."""
ROUNDING = 1e-9
"""Share of a block by which a number of them may be off for rounding."""


def may_hold_all(whole: Whole, drafts: Array, limit_bytes: float, limit_s: float) -> Array:
    """Whether some cut and some sets may fit and take less than limit_s, by draft. drafts: places of some.

    Why: with any prices of its time and of its memory, the blocks of a rank cost no more than it has, and each block no
    less than on the chunk, with the kind and the set, where it costs least. So no rank has more blocks than it can pay;
    all ranks together must have all blocks, and all of each kind. A rank's time is that of all its microbatches; what
    one microbatch takes through all stages and back, and the rank's work on all but those of its warm-up, come one
    after the other. Where weight gradients are put off, that microbatch counts on its way up, and all of backward.
    """
    family, problem = whole.family, whole.problem
    pp, vpp, device = family.pp, family.num_virtual_stages, problem.cluster.device
    apart = family.rules.weights_apart
    if family.rules.warm_up is None:
        return np.ones(len(drafts), dtype=bool)
    sets, kinds, m = len(whole.sets), problem.model.kinds, whole.count[drafts]
    rows, of_set = np.repeat(drafts, sets), np.tile(np.arange(sets), len(drafts))
    per_parameter = accumulation_s_per_parameter(problem.training.precision, device)
    state = whole.state_columns.take(drafts)

    def lives(unit: Unit) -> Array:
        held = living_bytes(1, 1, unit, (), problem.training.precision)
        return np.asarray(held.parameters + held.gradients + held.optimizer_state)

    blocks = whole.blocks_of(rows, of_set)
    units = [state.kinds[kind] for kind in kinds]
    forward_s, backward_s = (
        np.stack([getattr(block, name).reshape(-1, sets) for block in blocks]) for name in ("forward_s", "backward_s")
    )
    backward_s += per_parameter * np.stack([unit.parameters for unit in units])[..., None]
    kept_bytes = np.stack([block.kept_bytes.reshape(-1, sets) for block in blocks])
    state_bytes = np.stack([lives(unit) for unit in units])[..., None]
    working_bytes = np.min([block.working_bytes.reshape(-1, sets).min(1) for block in blocks], axis=0)
    _, first, last, _ = whole.least_parts_of(drafts)
    waiting_bytes = np.stack([block.weights_waiting_bytes.reshape(-1, sets) for block in blocks]) if apart else 0.0
    ends_s = [
        np.stack([part.forward_s, part.backward_s + per_parameter * unit.parameters])
        for part, unit in ((first, state.first), (last, state.last))
    ]
    counts, launch_s = whole.kind_counts, device.pass_launch_s
    up_s, down_s = (
        np.array(counts) @ seconds.min(2) + sum(end[way] for end in ends_s) + pp * vpp * launch_s
        for way, seconds in enumerate((forward_s, backward_s))
    )
    hops_s = (pp * vpp - 1) * whole.hop_s[drafts]
    way_s = up_s + hops_s if apart else up_s + down_s + 2 * hops_s
    time_s = limit_s - after_any_cut_at_least_s(counts, whole.states, whole.state[drafts])
    holds, ends = family.holds(m), (lives(state.first), lives(state.last))
    may, of_all, of_kinds = np.ones(len(drafts), dtype=bool), np.zeros(len(drafts)), np.zeros((len(kinds), len(drafts)))
    for rank in range(pp):
        if vpp > 1:
            held = np.broadcast_to(np.array(warm_up_visits(family, rank))[:, None], (vpp, len(drafts)))
        else:
            held = np.broadcast_to(holds[rank].in_flight, (1, len(drafts)))
        has = (rank == 0, rank == pp - 1)
        ahead = np.maximum(m - held, 0)  # of all passes, those behind the warm-up, (chunk, draft)
        back = np.broadcast_to(m, ahead.shape) if apart else ahead
        of_ends_s = sum((m * end.sum(0) for end, it in zip(ends_s, has, strict=True) if it), np.zeros(len(drafts)))
        own_s = time_s - of_ends_s - 2 * m * vpp * launch_s
        beside_s = time_s - way_s - (ahead + back).sum(0) * launch_s
        for end, chunk, it in zip(ends_s, (0, -1), has, strict=True):
            beside_s = beside_s - it * (ahead[chunk] * end[0] + back[chunk] * end[1])
        room = limit_bytes - device.reserved_memory_bytes - working_bytes
        room = room - (BOUNDARY_BUFFERS + holds[rank].in_flight - holds[rank].heads) * whole.hidden_bytes(drafts)
        room = room - has[0] * ends[0] - has[1] * ends[1]
        there = np.stack([own_s, beside_s, room])
        may &= (there > 0).all(0)
        shares = PRICES[:, :, None] / np.maximum(there, SMALLEST)  # (price, resource, draft)
        of_waiting = holds[rank].waiting * np.ones(len(drafts))
        costs = np.stack(  # (chunk, price, kind, draft)
            [
                (
                    _by(shares[:, 0] * m + shares[:, 1] * forwards, forward_s)
                    + _by(shares[:, 0] * m + shares[:, 1] * backwards, backward_s)
                    + _by(shares[:, 2], state_bytes + count[:, None] * kept_bytes + of_waiting[:, None] * waiting_bytes)
                ).min(3)
                for forwards, backwards, count in zip(ahead, back, held, strict=True)
            ]
        )
        costs = np.maximum(costs, SMALLEST)  # a rank may have all microbatches in its warm-up
        of_kinds += np.floor((1 / costs.min(0)).min(0) + ROUNDING)
        of_any = costs.min(2)  # (chunk, price, draft)
        pinned = np.ones(vpp)
        if whole.bare_ends:
            pinned[0] -= has[0]
            pinned[-1] -= has[1]
        spare = 1 - np.tensordot(pinned, of_any, 1)
        may &= (spare >= -ROUNDING).all(0)
        of_all += np.floor(pinned.sum() + (np.maximum(spare, 0.0) / of_any.min(0)).min(0) + ROUNDING)
    enough: Array = may & (of_all >= sum(counts)) & (of_kinds >= np.array(counts)[:, None]).all(0)
    return enough


def _by(prices: Array, amounts: Array) -> Array:
    """Costs by (price, kind, draft, set). prices: (price, draft). amounts: (kind, draft, set)."""
    costs: Array = prices[:, None, :, None] * amounts
    return costs
