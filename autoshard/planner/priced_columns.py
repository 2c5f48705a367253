"""Priced layouts as columns: one entry a layout, under the names that a strategy has for its choices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np

from autoshard.backends.rules import Draft
from autoshard.cost.estimate import Estimate
from autoshard.cost.interval import fits_probability
from autoshard.layout.strategy import Strategy
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.whole import Priced
from autoshard.planner.priced import PricedLayouts
from autoshard.plans.names import BY_STAGE
from autoshard.spec.cluster import Cluster
from autoshard.spec.training import TrainingSpec

CHOICES = (
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "dp_replicate",
    "num_virtual_stages",
    "microbatch_size",
    "schedule",
    "zero",
    "sequence_parallel",
    "attention_kernel",
    "context_parallel",
)
"""Fields of a strategy that are one value."""
COLUMNS = (
    *CHOICES,
    "etp",
    "axis_order",
    "recompute",
    "stage_layers",
    "num_microbatches",
    "step_time_s",
    "step_time_is_bound",
    "memory_bytes",
    "fits",
    "fits_probability",
)


def priced_columns(
    priced: PricedLayouts, exact: Mapping[Strategy, Estimate] = MappingProxyType({})
) -> dict[str, Array]:
    """Column name -> array with an entry for each layout, in no order.

    exact: layouts that were estimated one by one, which stand in place of what is priced of them, maybe a bound, and
    beside that: other cuts and sets by stage are priced nowhere else. etp: 0 where it is not said. recompute: the set
    of all stages, or BY_STAGE. stage_layers: blocks of each virtual stage, '10-10-10-10'. step_time_s: seconds; a lower
    bound where step_time_is_bound (search simulates only those that may win). memory_bytes: of the fullest device.
    fits: whether that is no more than the device has. fits_probability: how surely it is.
    """
    priced.price_pairs()
    others = priced.others.chunks if priced.others else []
    chunks = (without(chunk, exact) for chunk in (*priced.chunks, *others))
    parts = [_columns(chunk, priced) for chunk in chunks if len(chunk.draft)]
    parts += [estimated_columns(exact, priced.problem.training)] if exact else []
    return {name: np.concatenate([part[name] for part in parts]) if parts else np.array([]) for name in COLUMNS}


def without(chunk: Priced, strategies: Collection[Strategy]) -> Priced:
    """The rows of a chunk that are none of these layouts."""
    drafts, sets, found = chunk.whole.drafts.drafts, chunk.whole.sets, list[int]()
    for one in strategies:
        draft = Draft.of(one)._replace(stage_layers=())
        if draft in drafts and one.uniform_recompute in sets:
            place = drafts.index(draft), sets.index(one.uniform_recompute)
            rows = np.flatnonzero((chunk.draft == place[0]) & (chunk.recompute == place[1]))
            found += [row for row in rows.tolist() if chunk.strategy(row) == one]
    return chunk.take(np.delete(np.arange(len(chunk.draft)), found)) if found else chunk


def estimated_columns(layouts: Mapping[Strategy, Estimate], training: TrainingSpec) -> dict[str, Array]:
    """The same columns of layouts that were estimated one by one; recompute is BY_STAGE where stages differ."""
    batch = training.global_batch_size
    columns: dict[str, list[object]] = {name: [getattr(one, name) for one in layouts] for name in CHOICES}
    columns |= {
        "etp": [one.etp or 0 for one in layouts],
        "axis_order": [one.axis_order_name for one in layouts],
        "recompute": [one.uniform_recompute or BY_STAGE for one in layouts],
        "stage_layers": ["-".join(map(str, one.stage_layers)) for one in layouts],
        "num_microbatches": [one.num_microbatches(batch) for one in layouts],
        "step_time_s": [one.step_time_s for one in layouts.values()],
        "step_time_is_bound": [False for _ in layouts],
        "memory_bytes": [one.fullest.total_bytes for one in layouts.values()],
        "fits": [one.fullest.total_bytes <= one.memory_capacity_bytes for one in layouts.values()],
        "fits_probability": [one.fits_probability for one in layouts.values()],
    }
    return {name: np.array(columns[name]) for name in COLUMNS}


def _columns(chunk: Priced, priced: PricedLayouts) -> dict[str, Array]:
    family, drafts = chunk.whole.family, chunk.whole.drafts
    columns = {name: np.array([getattr(draft, name) for draft in drafts.drafts])[chunk.draft] for name in CHOICES}
    orders = np.array(["-".join(draft.axis_order) for draft in drafts.drafts])
    cluster = priced.problem.cluster
    return {
        **columns,
        "etp": np.array([draft.etp or 0 for draft in drafts.drafts])[chunk.draft],
        "axis_order": orders[chunk.draft],
        "recompute": np.array(chunk.whole.sets)[chunk.recompute],
        "stage_layers": _stage_layers(chunk, family.pp, family.num_virtual_stages),
        "num_microbatches": np.array(drafts.num_microbatches)[chunk.draft],
        "step_time_s": chunk.step_time_s,
        "step_time_is_bound": np.full(len(chunk.draft), chunk.at_least),
        "memory_bytes": chunk.memory_bytes,
        **fit_columns(chunk.memory_bytes, cluster),
    }


def fit_columns(memory_bytes: Array, cluster: Cluster) -> dict[str, Array]:
    """The columns that follow from the memory of the fullest device: fits and fits_probability."""
    capacity_bytes = cluster.device.memory_bytes
    sizes, size = np.unique(memory_bytes, return_inverse=True)
    chances = np.array([fits_probability(needed, capacity_bytes, cluster) for needed in sizes.tolist()])
    return {"fits": memory_bytes <= capacity_bytes, "fits_probability": chances[size]}


def _stage_layers(chunk: Priced, pp: int, vpp: int) -> Array:
    """The words of each layout. Cuts that are alike are told by one number, stage after stage: to sort whole rows takes
    twenty times as long."""
    by_stage = chunk.cuts.of_stages(pp, vpp)
    by_stage = np.broadcast_to(by_stage, (pp * vpp, by_stage.shape[1]))
    cut, first = np.zeros(by_stage.shape[1], dtype=np.int64), np.zeros(1, dtype=np.int64)
    for layers in by_stage:
        _, first, cut = np.unique(cut * (layers.max() + 1) + layers, return_index=True, return_inverse=True)
    return np.array(["-".join(map(str, row)) for row in by_stage[:, first].T.tolist()])[cut]
