"""In which orders ranks may count through the axes, and which of them are worth a look.

An order decides nothing but which links each axis crosses, so it is as good as the laws of its collectives: seconds of
latency and seconds a byte, of every kind over every set of axes. Orders with equal laws are one; the first stands for
them, the default if it is among them. An order whose laws are nowhere better and somewhere worse than another's is
dropped. That is exact: which actions a rank runs, and in which order, does not depend on times, a step takes as long as
the longest chain of what waits for what, and in such a chain every collective is added: with laws that are no better,
no layout with these degrees is faster, and none needs less memory, which knows nothing of links.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from weakref import WeakKeyDictionary, ref

from autoshard.backends.mesh_rules import ORDER_RULES
from autoshard.backends.problem import Draft, Problem
from autoshard.backends.registry import BACKENDS
from autoshard.cost.collectives import KINDS, GroupShape, collective_law, group_shapes
from autoshard.cost.local_shape import LocalShape, mesh_order, stage_mesh
from autoshard.layout.mesh import AXIS_ORDER, Mesh, build_mesh
from autoshard.models.padding import key_value_heads
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import Cluster
from autoshard.spec.training import of_any_batch

Order = tuple[str, ...]
Laws = tuple[float, ...]
"""Seconds of latency and seconds a byte, alternating."""


def orders_are_free(problem: Problem, pins: Pins) -> bool:
    """Whether there is an order to choose: no pin names one, and the backend runs several."""
    return len(BACKENDS[problem.backend].axis_orders) > 1 and pins.axis_order is None


def first_order(problem: Problem, pins: Pins, draft: Draft) -> Order:
    """The order of a draft's axes: the pinned one, else the first that the rules accept; the default where they accept
    none."""
    if pins.axis_order is not None:
        return tuple(pins.axis_order.split("-"))
    if not problem.cluster.platform.has_adjacent_tp_ranks:
        return AXIS_ORDER
    orders = BACKENDS[problem.backend].axis_orders
    return next((order for order in orders if _is_legal(problem, draft, order)), AXIS_ORDER)


def _is_legal(problem: Problem, draft: Draft, order: Order) -> bool:
    ordered = draft._replace(axis_order=order)
    return all(rule.check(problem, ordered) is None for rule in ORDER_RULES)


@lru_cache(maxsize=4096)
def _legal_orders(problem: Problem, mesh: Draft) -> tuple[Order, ...]:
    """The orders of a mesh's axes that the rules accept. problem: of any batch and speed."""
    return tuple(order for order in BACKENDS[problem.backend].axis_orders if _is_legal(problem, mesh, order))


def other_orders(problem: Problem, pins: Pins, draft: Draft) -> tuple[Order, ...]:
    """The orders of axes, other than the draft's own, in which some layout with the draft's degrees may be faster."""
    if not orders_are_free(problem, pins):
        return ()
    if sum(degree > 1 for degree in (draft.tp, draft.pp, draft.dp, draft.cp)) < 2:
        return ()
    mesh = Draft(*draft[:5], etp=draft.etp, dp_replicate=draft.dp_replicate)
    any_speed = at_any_speed(problem.cluster)
    legal = _legal_orders(problem._replace(training=of_any_batch(problem.training), cluster=any_speed), mesh)
    kv_heads, kv_inner = key_value_heads(problem.model, draft.tp), problem.cluster.platform.kv_heads_innermost
    split = tuple(min(count, draft.tp) for count in kv_heads)
    degrees = (draft.tp, draft.pp, draft.dp, draft.cp, draft.ep, split, kv_inner)
    useful = _useful(links_of(problem.cluster), degrees, legal, draft.dp_replicate, draft.etp)
    return tuple(order for order in useful if order != draft.axis_order)


@lru_cache(maxsize=64)
def links_of(cluster: Cluster) -> Cluster:
    """A cluster with the same links, one for all that differ in the memory and the peak of their devices alone: laws of
    collectives read neither, nor does what a rank holds or does behind the last microbatch."""
    device = cluster.device
    peaks = tuple((dtype, 1.0) for dtype, _ in device.flops_per_s)
    device = replace(device, flops_per_s=peaks, memory_bytes=1 + device.reserved_memory_bytes)
    return _first_equal(replace(cluster, device=device))


@lru_cache(maxsize=64)
def at_any_memory(cluster: Cluster) -> Cluster:
    """A cluster that does as much, one for all that differ in the memory of their devices alone: no step takes longer
    or less long for that."""
    device = cluster.device
    return _first_equal(replace(cluster, device=replace(device, memory_bytes=1 + device.reserved_memory_bytes)))


@lru_cache(maxsize=64)
def at_any_speed(cluster: Cluster) -> Cluster:
    """A cluster with the same devices, one for all that differ in memory, peak and bandwidths alone: no rule on layouts
    reads these."""
    cluster = links_of(cluster)
    near = cluster.intra_domain
    return _first_equal(
        replace(
            cluster,
            intra_node=tuple((count, replace(link, bandwidth_bytes_per_s=1.0)) for count, link in cluster.intra_node),
            intra_domain=None if near is None else replace(near, bandwidth_bytes_per_s=1.0),
            inter_node=replace(cluster.inter_node, bandwidth_bytes_per_s=1.0),
        )
    )


_FIRST: WeakKeyDictionary[Cluster, ref[Cluster]] = WeakKeyDictionary()


def _first_equal(cluster: Cluster) -> Cluster:
    """The first of equal clusters, as long as somebody has it: what is known of it is found by the object."""
    known = _FIRST.get(cluster)
    first = None if known is None else known()
    if first is None:
        _FIRST[cluster] = ref(cluster)
    return first or cluster


@lru_cache(maxsize=4096)
def _useful(
    cluster: Cluster,
    degrees: tuple[int, int, int, int, int, tuple[int, ...], bool],
    legal: tuple[Order, ...],
    dp_replicate: int,
    etp: int | None,
) -> tuple[Order, ...]:
    size = dict(zip(("tp", "pp", "dp", "cp"), degrees[:4], strict=True))
    different = {tuple(axis for axis in order if size[axis] > 1): order for order in reversed(legal)}  # the first stays

    def laws(order: Order) -> Laws:
        return order_laws(build_mesh(*degrees, order, dp_replicate=dp_replicate, etp=etp), cluster)

    return undominated({order: laws(order) for order in legal if order in different.values()})


def undominated(laws: dict[Order, Laws]) -> tuple[Order, ...]:
    """The orders that no other order beats, in the given order: of several with equal laws the first alone, and none
    that another is nowhere worse and somewhere better than.

    laws: of each order, all of the same length.
    """
    first: dict[Laws, Order] = {}
    for order, its in laws.items():
        first.setdefault(its, order)

    def is_better(one: Laws, other: Laws) -> bool:
        return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))

    return tuple(order for its, order in first.items() if not any(is_better(one, its) for one in first))


def order_laws(mesh: Mesh, cluster: Cluster) -> Laws:
    """The laws of every kind of collective over every set of axes that has more than one rank: the pipeline by itself,
    since only neighbouring stages talk, and all sets of a stage's axes."""
    pipeline = (("pp",),) if mesh.pp > 1 else ()
    return _laws(mesh, (*pipeline, *_sets(tuple(mesh.stage_axes))), cluster)


def stage_laws(problem: Problem, shape: LocalShape) -> Laws:
    """The laws of the collectives among the ranks of a stage with this local shape during a microbatch. Along dp there
    are some only where routers tell each other their loads."""
    mesh = stage_mesh(problem.model, problem.cluster, shape)
    axes = tuple(axis for axis in mesh.stage_axes if axis != "dp" or problem.model.router_aux_loss_coef)
    return _laws(mesh, _sets(axes), links_of(problem.cluster))


@lru_cache(maxsize=64)
def _sets(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Every set of some axes, sorted by name."""
    return tuple(axes for count in range(1, len(names) + 1) for axes in combinations(sorted(names), count))


def _laws(mesh: Mesh, sets: tuple[tuple[str, ...], ...], cluster: Cluster) -> Laws:
    laws = list[float]()
    for shape in group_shapes(mesh_order(mesh), sets, cluster):
        laws += _laws_of(shape, cluster)
    return tuple(laws)


@lru_cache(maxsize=4096)
def _laws_of(shape: GroupShape, cluster: Cluster) -> Laws:
    """The laws of every kind of collective over groups of one shape."""
    several = (collective_law(kind, shape, cluster) for kind in KINDS)
    return tuple(number for law in several for number in (law.latency_s, law.seconds_per_byte))
