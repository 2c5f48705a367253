"""Recompute sets that are worth a look."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

from autoshard.backends.native_neuron import recompute_objection
from autoshard.backends.registry import BACKENDS
from autoshard.backends.rules import KnownRules, Problem
from autoshard.cost.local_shape import LocalShape
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import (
    ATTENTION_UP,
    BLOCK_MODULES,
    COMMON_SETS,
    NO_RECOMPUTE,
    SELECTED,
    canonical,
    members,
)
from autoshard.planner.axis_orders import at_any_memory, at_any_speed
from autoshard.planner.beaten_path import precedent
from autoshard.planner.candidates import meshes, variants
from autoshard.plans.search_result import Pins
from autoshard.spec.model import ModelSpec

EVERY_SET = (
    NO_RECOMPUTE,
    *(canonical("+".join(names)) for count in range(1, 7) for names in combinations(BLOCK_MODULES, count)),
)
"""All subsets of the modules of a block."""
LATENT_SETS = tuple(
    canonical(f"{name}+{ATTENTION_UP}")
    for name in EVERY_SET
    if SELECTED in members(name) and "attention" not in members(name)
)
"""More subsets for blocks with latent or compressed attention: compressed vectors stay, and what they are brought up to
runs again with core attention, which would keep it."""


def every_set(model: ModelSpec) -> tuple[str, ...]:
    """All recompute sets that may be useful for a model's blocks, least recompute first."""
    if model.latent_attention is None and model.compressed_attention is None:
        return EVERY_SET
    return tuple(sorted((*EVERY_SET, *LATENT_SETS), key=lambda name: len(members(name))))


@lru_cache(maxsize=16)
def recompute_sets(problem: Problem, pins: Pins) -> tuple[str, ...]:
    """Names of the recompute sets to try, least recompute first: the pinned one, those of the backend, or else the
    subsets of modules that are useful for some way to shard a block: no other one repeats no more, and needs no more
    memory for what it keeps and for what it replays at once."""
    if pins.recompute is not None:
        wrong = recompute_objection(problem.cluster, canonical(pins.recompute))
        if wrong is not None:
            raise AutoshardError(wrong)
        return (canonical(pins.recompute),)
    if problem.cluster.compiles_stages:
        return (NO_RECOMPUTE,)
    of_backend = BACKENDS[problem.backend].recompute_sets
    if of_backend is None:
        of_backend = _useful_sets(problem._replace(cluster=at_any_memory(problem.cluster)), pins)
    path = precedent(problem, pins) if pins.beaten_path else None
    return of_backend if path is None else tuple(filter(path.set_is_known, of_backend))


@lru_cache(maxsize=16)
def _useful_sets(problem: Problem, pins: Pins) -> tuple[str, ...]:
    """The sets that are useful for some way to shard a block, with the common ones.

    problem: one for all memories of a device.
    """
    examples = _examples(problem._replace(cluster=at_any_speed(problem.cluster)), pins)
    useful = _useful(problem, examples) if examples else frozenset[str]()
    return tuple(name for name in every_set(problem.model) if name in useful or name in COMMON_SETS)


def sets_by_stage(pins: Pins) -> bool:
    """Whether stages may differ in what they recompute: both backends run any set in any stage."""
    return pins.recompute is None


@lru_cache(maxsize=16)
def _examples(problem: Problem, pins: Pins) -> list[LocalShape]:
    """One for each degree of tensor parallelism, with and without sequence parallelism: with the least context
    parallelism, so that a pinned degree leaves the same sets to choose from."""
    examples, rules = dict[tuple[int, bool], LocalShape](), KnownRules(problem)
    for mesh in sorted(meshes(problem, pins), key=lambda one: one.cp):
        if {(mesh.tp, mesh.tp > 1), (mesh.tp, False)} <= examples.keys():
            continue
        for draft in variants(problem, pins, mesh, rules)[0]:
            shape = LocalShape(
                draft.tp,
                draft.cp,
                draft.ep,
                1,
                draft.sequence_parallel,
                draft.attention_kernel,
                draft.context_parallel,
                etp=draft.etp,
            )
            examples.setdefault((draft.tp, draft.sequence_parallel), shape)
    return list(examples.values())


def _useful(problem: Problem, shapes: list[LocalShape]) -> set[str]:
    """Names of the recompute sets of which, for one of the shapes, no other is at most as slow, keeps no more, and
    replays no more at once, for blocks of every kind: of equal ones the smallest."""
    import numpy as np

    from autoshard.planner.grid.unit_costs import PARTS, part_numbers

    sets = every_set(problem.model)
    numbers = part_numbers(problem, shapes, sets)
    blocks = [0, *range(len(PARTS), numbers.shape[2])]
    useful = set[str]()
    for of_shape in numbers[:, :, blocks]:
        of_shape[:, :, 1] = [[float(f"{seconds:.9g}") for seconds in of_set] for of_set in of_shape[:, :, 1].tolist()]
        prices = of_shape[:, :, 1:4].transpose(0, 2, 1).reshape(len(sets), -1)  # backward_s, kept, replayed
        keys = [(price, len(members(name)), name) for price, name in zip(prices.tolist(), sets, strict=True)]
        order = sorted(range(len(sets)), key=keys.__getitem__)
        counted = prices[order]
        no_worse = np.tril((counted[None] <= counted[:, None]).all(2), -1).any(1)
        useful |= {sets[place] for place, beaten in zip(order, no_worse.tolist(), strict=True) if not beaten}
    return useful
