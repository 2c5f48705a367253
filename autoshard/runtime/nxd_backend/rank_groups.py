"""The process groups that neuronx-distributed 0.18.0 makes, without it (its parallel_layers/parallel_state.py).

Ranks are a list, reshaped to [PP, DP, CP, TP]; experts see it as [PP, DP x CP / EP, EP, TP]. Three lists of ranks:

| platform                          | the list                                                                       |
|-----------------------------------|--------------------------------------------------------------------------------|
| any                               | 0, 1, 2, ...: a tensor-parallel group is consecutive                           |
| trn1, tp=4                        | strided within a node of 32: [0, 8, 16, 24], [1, 9, 17, 25], ...               |
| trn2, lnc 1 tp=64 and lnc 2 tp=32 | rows 0, 3, 1, 2 of each node's four rows ("LOGIC2"), because chips form a torus |

Under LOGIC2 the expert view keeps the first list, so with dp > 1 its groups mix different tensor-parallel shards: with
ep=1 those over which gradients are summed without ZeRO-1, and of which one rank saves the model. Groups of ranks that
share key-value heads are consecutive too. `library.py` puts the plan's groups in the place of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod

from autoshard.errors import AutoshardError
from autoshard.layout.mesh import TENSOR_PARALLEL_AXES
from autoshard.plans.plan import Plan
from autoshard.spec.platform import TRN2_TORUS, Fold

Groups = tuple[tuple[int, ...], ...]

PLATFORMS = ("trn1", "trn2", "trn3", "inf2")
FOLDED = (("trn2", 1, 64), ("trn2", 2, 32))
"""(platform, lnc, tp) whose groups are folded."""
FOLDED_MIN_WORLD = 64
"""With fewer ranks than this at lnc 2, NxD falls back to consecutive groups."""
FOLDED_NODE_SIZE = 64
"""The LOCAL_WORLD_SIZE that NxD assumes for folded groups where the variable is not set."""
STRIDED_TP = 4


@dataclass(frozen=True)
class GroupCase:
    """The degrees and the place that NxD makes groups for. platform: 'trn1', 'trn2', ...; None for no platform's
    special cases.

    local_world_size: ranks of a node (LOCAL_WORLD_SIZE); None where the launcher does not say. Degrees beyond the world
    are clamped to it, as NxD does without a word.
    """

    world_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    platform: str | None = None
    lnc: int = 1
    local_world_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("world_size", "tp", "pp", "cp", "ep", "lnc", "local_world_size"):
            value = getattr(self, name)
            if (type(value) is not int or value < 1) and not (name == "local_world_size" and value is None):
                raise AutoshardError(f"{name}={value!r} must be a whole number of at least 1")
        if self.platform is not None and self.platform not in PLATFORMS:
            raise AutoshardError(f"platform={self.platform!r} is not one of: {', '.join(PLATFORMS)}")
        for name in ("tp", "pp", "cp", "ep"):
            object.__setattr__(self, name, min(getattr(self, name), self.world_size))
        for inner in ("cp", "ep"):
            span = self.tp * self.pp * getattr(self, inner)
            if self.world_size % span:
                raise AutoshardError(
                    f"tp={self.tp} x pp={self.pp} x {inner}={getattr(self, inner)} is {span} ranks, "
                    f"which must divide the world of {self.world_size}"
                )

    @property
    def dp(self) -> int:
        return self.world_size // (self.tp * self.pp * self.cp)

    @property
    def is_folded(self) -> bool:
        """Whether NxD chooses LOGIC2."""
        enough = self.lnc != 2 or self.world_size >= FOLDED_MIN_WORLD
        return (self.platform, self.lnc, self.tp) in FOLDED and enough

    @property
    def is_strided(self) -> bool:
        return self.platform == "trn1" and self.tp == STRIDED_TP


@dataclass(frozen=True)
class RankGroups:
    """The groups of each kind, under NxD's name for the kind; every rank is in exactly one group of a kind."""

    tp_groups: Groups
    dp_groups: Groups
    pp_groups: Groups
    ep_model_groups: Groups
    ep_data_groups: Groups
    cp_groups: Groups

    def by_name(self) -> dict[str, Groups]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def plan_case(plan: Plan) -> GroupCase:
    """The case that NxD is asked for under a plan."""
    strategy, cluster = plan.strategy, plan.cluster
    platform = cluster.platform.name if cluster.platform.name in PLATFORMS else None
    return GroupCase(
        cluster.world_size,
        strategy.tp,
        strategy.pp,
        strategy.cp,
        strategy.ep,
        platform,
        cluster.lnc,
        cluster.devices_per_node,
    )


def mesh_groups(plan: Plan) -> RankGroups:
    """The groups of the plan's own mesh, in NxD's kinds."""
    kinds = (TENSOR_PARALLEL_AXES, ("dp", "ep"), ("pp",), ("ep",), ("dp", "cp"), ("cp",))
    return RankGroups(*(tuple(map(tuple, plan.mesh.groups(axes))) for axes in kinds))


def mended_groups(plan: Plan) -> RankGroups:
    """NxD's groups for a plan after library.py has mended them. Raises AutoshardError where NxD fails."""
    case = plan_case(plan)
    found = rank_groups(case)
    return replace(found, ep_data_groups=mesh_groups(plan).ep_data_groups) if case.is_folded else found


def rank_groups(case: GroupCase) -> RankGroups:
    """NxD's groups. Raises AutoshardError where NxD fails."""
    ranks = _ranks(case)
    expert_ranks = range(case.world_size) if case.is_folded else ranks
    sizes = (case.pp, case.dp, case.cp, case.tp)
    expert_sizes = (case.pp, case.dp * case.cp // case.ep, case.ep, case.tp)
    return RankGroups(
        tp_groups=_along(ranks, sizes, 3),
        dp_groups=_along(ranks, sizes, 1),
        pp_groups=_along(ranks, sizes, 0),
        ep_model_groups=_along(expert_ranks, expert_sizes, 2),
        ep_data_groups=_along(expert_ranks, expert_sizes, 1),
        cp_groups=_along(ranks, sizes, 2),
    )


def _ranks(case: GroupCase) -> Sequence[int]:
    if case.is_folded:
        return list(_folded(case))
    if case.is_strided:
        return list(_strided(case))
    return range(case.world_size)


def _folded(case: GroupCase) -> Iterator[int]:
    node = case.local_world_size or FOLDED_NODE_SIZE
    if case.world_size % node or node // case.tp not in (1, 2) or node % len(TRN2_TORUS.row_order):
        raise AutoshardError(
            f"tp={case.tp} at lnc {case.lnc} on trn2 is folded over nodes of {case.tp} or {2 * case.tp} ranks that "
            f"fill the world of {case.world_size}; local_world_size={node} does not"
        )
    return map(Fold(node, TRN2_TORUS.row_order).rank, range(case.world_size))


def _strided(case: GroupCase) -> Iterator[int]:
    """Yields the ranks of groups whose rank i is i * node / 4 further on. NxD leaves out experts and context
    parallelism here."""
    for name in ("ep", "cp"):
        if getattr(case, name) > 1:
            raise AutoshardError(f"{name}={getattr(case, name)} with tp={STRIDED_TP} on trn1 is not implemented in NxD")
    groups = (case.local_world_size or case.world_size) // STRIDED_TP
    if not groups or case.dp % groups:
        raise AutoshardError(
            f"tp={STRIDED_TP} on trn1 puts {groups} groups into a node, so dp={case.dp} must be a multiple of {groups}"
        )
    for start in range(0, case.world_size, STRIDED_TP * groups):
        for first in range(start, start + groups):
            yield from range(first, first + STRIDED_TP * groups, groups)


def _along(ranks: Sequence[int], sizes: tuple[int, ...], dim: int) -> Groups:
    """Groups of the ranks that differ in one dim of the row-major shape `sizes` only."""
    stride = prod(sizes[dim + 1 :])
    starts = product(*(range(1 if position == dim else size) for position, size in enumerate(sizes)))
    strides = [prod(sizes[position + 1 :]) for position in range(len(sizes))]
    offsets = (sum(map(int.__mul__, start, strides)) for start in starts)
    return tuple(tuple(ranks[offset + i * stride] for i in range(sizes[dim])) for offset in offsets)
