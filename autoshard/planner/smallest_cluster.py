"""How much larger a cluster would have to be where nothing fits, or why none would do; and whether the model would fit
on the same one with less training state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from autoshard.backends.mesh_rules import tp_is_a_group_size
from autoshard.backends.rules import Draft, KnownRules, Problem
from autoshard.cost.fit_probability import levels
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.cost.local_shape import hidden_bytes, local_shape
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, canonical
from autoshard.layout.strategy import Strategy
from autoshard.planner.bounded import Bounded
from autoshard.planner.candidates import check_pins, meshes, microbatch_sizes, variants, virtual_stages, zero_stages
from autoshard.planner.choice import one_that_fits
from autoshard.planner.layouts import MeshDrafts, Scheduled, state_at_least_bytes, state_dtypes_bytes
from autoshard.planner.obstacles import ROOM, Obstacles, obstacles
from autoshard.planner.priced import Clock, price_layouts
from autoshard.planner.ranking import Timed, describe
from autoshard.planner.rejections import Tally
from autoshard.planner.request import LARGEST_CLUSTER
from autoshard.planner.watching import goes_on, shown_to
from autoshard.plans.search_result import Pins
from autoshard.spec.state_dtypes import FIELDS, GRADIENTS, MOMENTS, takes_state_dtypes, text_of, with_state_dtypes
from autoshard.spec.training import EIGHT_BITS, MUON, TrainingSpec, load_precision
from autoshard.units import counted, format_bytes

if TYPE_CHECKING:
    from autoshard.planner.grid.whole import Priced

T = TypeVar("T")
BETWEEN = 16
"""Numbers of nodes between one that does not do and one that does, of which the smallest that does is looked for."""
AT_ONCE = 24
"""So many layouts are priced at once to find the fastest, or first to find the nearest miss."""
FEW = 2
"""So many layouts that may hold least are looked at first, to find one that fits."""
LOOKED_AT = 42
"""No more of them are looked at of one cluster: in sixteen refusals, looking at all found no smaller cluster."""
TRIES = 3
"""One of some layouts is priced first, then four, then 16: those of which a bound says that they hold least."""
SEARCHED = 200
"""The fastest is looked for among so many layouts that mostly hold least. A cluster that has no more of them is
searched with all its layouts."""


LEAST_STATE = "bf16_sr"
"""The precision with the least training state."""
NO_TIME = "no time was left to look for a larger cluster that would do"


class Attempt(NamedTuple):
    """One number of nodes. ways: layouts that mostly hold least, as far as one is legal and has room for its state,
    those first that seem to hold least. strategy: one that fits, of the first of these with a full recompute or else of
    more. frugal: what these first ones need, where none of them does."""

    nodes: int
    ways: Sequence[MeshDrafts] = ()
    strategy: Strategy | None = None
    frugal: Sequence[Bounded] = ()


class OutOfTime(Exception):
    """No time is left to look at another cluster."""


def _check_time(in_time: Callable[[], bool]) -> None:
    if not in_time():
        raise OutOfTime


def shortage(problem: Problem, pins: Pins, in_time: Callable[[], bool] = goes_on) -> str:
    """A clause for the end of an error: the larger cluster on which the model fits, or why none would do. in_time:
    whether there is time to look at another one."""
    try:
        tried = larger_clusters(problem, pins, in_time)
    except OutOfTime:
        return NO_TIME
    found = _larger_one(problem, tried)
    if found is not None:
        return found
    if not tried:
        return f"clusters of more than {LARGEST_CLUSTER:,} nodes are not looked at"
    sizes = f"{_listed([one.nodes for one in tried])} nodes"
    nearest = _nearest_miss(problem, pins, tried)
    if nearest is not None:
        needed, strategy, nodes = nearest
        where = f"{nodes:,} nodes with {describe(strategy)}"
        return f"no layout that was looked at on {sizes} would do: the nearest, {where}, needs {format_bytes(needed)}"
    refused = ((_refusal(problem, pins, one.nodes), one.nodes) for one in tried)
    why, nodes = min(refused, key=lambda one: (one[0].broken, -one[1]))
    return f"none of {sizes} would do: on {nodes:,} nodes {why.text}"


def larger_one(problem: Problem, pins: Pins, in_time: Callable[[], bool] = goes_on) -> str | None:
    """The clause of `shortage`; None where no larger cluster would do: to say why takes as long again."""
    try:
        return _larger_one(problem, larger_clusters(problem, pins, in_time))
    except OutOfTime:
        return NO_TIME


def with_less_state(
    problem: Problem, pins: Pins, needed_bytes: float, in_time: Callable[[], bool] = goes_on
) -> str | None:
    """A clause that the model would fit on the same nodes with less training state of each parameter, and how to ask
    for that; None where nothing of the layouts that mostly hold least does. needed_bytes: what the smallest layout
    needs of a device."""
    now, nodes = sum(state_dtypes_bytes(problem.training)), counted(problem.cluster.nodes, "node")
    for asked, training in _less_state(problem.training):
        then = sum(state_dtypes_bytes(training))
        most_bytes = now / then * problem.cluster.device.memory_bytes  # nothing else shrinks as much
        if now <= then or needed_bytes > most_bytes:
            continue
        if not in_time():
            return None
        fits = _frugal_attempt(problem._replace(training=training), pins, problem.cluster.nodes).strategy
        if fits is not None:
            return f"{asked} would fit on {nodes} ({describe(fits)})"
    return None


def _less_state(training: TrainingSpec) -> Iterator[tuple[str, TrainingSpec]]:
    """Yields what asks for less state, in words, and the training with it: that which changes least first. Without
    master weights there are no products in fewer bits, and no Muon."""
    precision = training.precision
    if takes_state_dtypes(precision):
        asked = {MOMENTS: precision.optimizer_dtype} if precision.optimizer_dtype in EIGHT_BITS else {}
        for text in dict.fromkeys(text_of(dict.fromkeys(names, "bfloat16") | asked) for names in (FIELDS, GRADIENTS)):
            yield f"state_dtypes={text}", replace(training, precision=with_state_dtypes(precision, text))
    if training.optimizer != MUON and precision.products is None:
        words = f"precision={LEAST_STATE}, which has no FP32 master weights,"
        yield words, replace(training, precision=load_precision(LEAST_STATE))


def _larger_one(problem: Problem, tried: Sequence[Attempt]) -> str | None:
    if not problem.cluster.can_have(problem.cluster.nodes + 1):
        return f"no more nodes of {problem.cluster.instance} can work together"
    if tried and (fits := tried[-1].strategy) is not None:
        return f"{tried[-1].nodes:,} nodes would fit ({describe(fits)})"
    return None


def _listed(numbers: Sequence[int]) -> str:
    """Several numbers, of more than four the first three and the last."""
    some = map("{:,}".format, numbers if len(numbers) <= 4 else numbers[:3])
    return ", ".join(some) if len(numbers) <= 4 else f"{', '.join(some)}, ... {numbers[-1]:,}"


def larger_clusters(problem: Problem, pins: Pins, in_time: Callable[[], bool] = goes_on) -> list[Attempt]:
    """Attempts with more nodes, up to LARGEST_CLUSTER; where a cluster does, the last one is of it, with the fastest
    that fits of the layouts that mostly hold least, as far as they are looked at, else with another one.

    Twice, four times, ... the nodes, and powers of two, until something fits; then the smallest of 16 numbers in
    between, by halving, as if more nodes always did where fewer do. One with other divisors may not: of those below,
    the one with the most factors of two is looked at, too.

    A search takes long where nothing fits: first, only layouts that mostly hold least are looked at. Of fewer nodes,
    more layouts are looked at then, those of the most nodes first: where that number does not do, none does. So a
    smaller cluster may do than the one that is found: it is one to plan for, not a bound.

    Raises OutOfTime where another one was to be looked at when in_time was False.
    """

    @cache
    def frugal(nodes: int) -> Attempt:
        _check_time(in_time)
        return _frugal_attempt(problem, pins, nodes)

    @cache
    def attempt(nodes: int) -> Attempt:
        one = frugal(nodes)
        _check_time(in_time)
        return _of_all(problem, pins, one)

    sizes = [*filter(problem.cluster.can_have, _sizes(problem.cluster.nodes))]
    tried = _until_one_does(sizes, frugal) or _until_one_does(sizes, attempt)
    if not tried:
        return [*map(attempt, sizes)]
    found = tried.pop()
    while True:  # the number before is looked at in full only where all between that one and this one do
        below = tried[-1].nodes if tried else problem.cluster.nodes
        step = max(1, (found.nodes - below) // BETWEEN)
        between = range(below + step, found.nodes, step)
        found = _smallest(between, frugal, attempt) or found
        if not tried or found.nodes > below + step or attempt(below).strategy is None:
            break
        tried.pop()
        found = attempt(below)
    fastest = _fastest(_with_nodes(problem, found.nodes), pins, found.ways[:SEARCHED])
    return [*tried, found._replace(strategy=fastest or found.strategy)]


def _until_one_does(sizes: Sequence[int], attempt: Callable[[int], Attempt]) -> list[Attempt]:
    """Attempts with these numbers of nodes up to the first one that does; none where none does."""
    tried: list[Attempt] = []
    for nodes in sizes:
        tried.append(attempt(nodes))
        if tried[-1].strategy is not None:
            return tried
    return []


def _smallest(sizes: range, frugal: Callable[[int], Attempt], attempt: Callable[[int], Attempt]) -> Attempt | None:
    """The smallest of these numbers of nodes that does, by halving; None where none does. frugal: an attempt with the
    layouts that mostly hold least. attempt: one with all."""
    found, fewer = _halved(sizes, frugal)
    roundest = max(fewer, key=lambda nodes: nodes & -nodes, default=0)  # 48 may do where 49 to 63 do not
    if roundest and (one := frugal(roundest)).strategy is not None:
        found, fewer = one, sizes[: sizes.index(roundest)]
    if fewer and (one := attempt(fewer[-1])).strategy is not None:
        found = _halved(fewer[:-1], attempt)[0] or one
    return found


def _halved(sizes: range, attempt: Callable[[int], Attempt]) -> tuple[Attempt | None, range]:
    """The attempt with the smallest of these numbers of nodes that does, None where none does; and all below it."""
    found, fewer, between = None, sizes, sizes
    while between:
        half = len(between) // 2
        one = attempt(between[half])
        if one.strategy is None:
            between = between[half + 1 :]
        else:
            found, between = one, between[:half]
            fewer = sizes[: sizes.index(one.nodes)]
    return found, fewer


def _sizes(nodes: int) -> list[int]:
    """Rising, more than there are."""
    octaves = range(LARGEST_CLUSTER.bit_length())
    return sorted(
        {size for one in (1, nodes) for size in (one << k for k in octaves) if nodes < size <= LARGEST_CLUSTER}
    )


def _refusal(problem: Problem, pins: Pins, nodes: int) -> Obstacles:
    larger = _with_nodes(problem, nodes)
    not_filled = _not_filled(larger, pins)
    return Obstacles(1, not_filled) if not_filled is not None else obstacles(larger, pins, (ROOM,))


def _not_filled(problem: Problem, pins: Pins) -> str | None:
    """Why the pinned degrees do not fill the cluster; None where they do."""
    try:
        check_pins(problem, pins)
    except AutoshardError as error:
        return str(error)
    return None


def _of_all(problem: Problem, pins: Pins, one: Attempt) -> Attempt:
    """The attempt with the layout that a search finds, where none of those that mostly hold least fits."""
    larger = _with_nodes(problem, one.nodes)
    if one.strategy is not None or _not_filled(larger, pins) is not None:
        return one
    return one._replace(strategy=_searched(larger, pins, one))


def _frugal_attempt(problem: Problem, pins: Pins, nodes: int) -> Attempt:
    """One with a layout that fits of those that mostly hold least, as far as one does."""
    larger = _with_nodes(problem, nodes)
    if _not_filled(larger, pins) is not None:
        return Attempt(nodes)
    ways = sorted(_frugal(larger, pins), key=partial(_about_bytes, larger))
    frugal: list[Bounded] = []
    for some in _more_and_more(ways[:LOOKED_AT], FEW):  # where any fits, one of the first mostly does
        bounded = _bounded(larger, pins, some)
        fits = _one_that_fits(larger, pins, bounded)
        if fits is not None:
            return Attempt(nodes, ways, fits)
        frugal += bounded
    return Attempt(nodes, ways, None, frugal)


def _searched(problem: Problem, pins: Pins, one: Attempt) -> Strategy | None:
    """A layout that fits, with any cut and any recompute sets; None where none does. Other sets may replay less at a
    time than a full one, and uneven stages hold less than even ones. To look at all layouts takes long of large
    clusters and of models with several kinds of blocks: only those that hold least are looked at there. Nobody is shown
    what is found on the way: it is of another cluster."""
    (level,) = levels(problem.cluster, FIT_PROBABILITY)[-1:]
    least = nsmallest(AT_ONCE, one.frugal, key=lambda bounded: bounded.memory_bytes)
    is_small = len(problem.blocks.kinds) == 1 and len(one.ways) <= SEARCHED
    legal = None if is_small else [bounded.layouts for bounded in least]
    with shown_to(lambda best: None):
        return one_that_fits(price_layouts(problem, pins, Tally(), Clock(inf), legal=legal), pins, level.memory_bytes)


def _about_bytes(problem: Problem, one: MeshDrafts) -> float:
    """Bytes that the first rank holds, roughly: its state, and what 1F1B keeps of the inputs of its blocks."""
    (draft,), layers = one.drafts, problem.model.num_hidden_layers
    num_microbatches = problem.training.global_batch_size // (draft.dp * draft.microbatch_size)
    input_bytes = hidden_bytes(problem.model, problem.training, local_shape(draft))
    return one.state_bytes + min(draft.pp, num_microbatches) * layers / draft.pp * input_bytes


def _with_nodes(problem: Problem, nodes: int) -> Problem:
    return problem._replace(cluster=problem.cluster.with_nodes(nodes))


def _recompute(pins: Pins) -> tuple[str, ...]:
    return (canonical(pins.recompute or FULL_RECOMPUTE),)


def _bounded(problem: Problem, pins: Pins, ways: Sequence[MeshDrafts]) -> list[Bounded]:
    from autoshard.planner.grid.mesh_bounds import layout_bounds

    if not ways:
        return []
    bounds = layout_bounds(problem, ways, _recompute(pins), problem.cluster.device.memory_bytes)
    columns = (column.tolist() for column in (bounds.step_time_s, bounds.memory_bytes, bounds.way))
    return [Bounded(own_s, 0.0, needed, ways[way]) for own_s, needed, way in zip(*columns, strict=True)]


def _prices(problem: Problem, pins: Pins, several: Sequence[Bounded]) -> list[Priced]:
    from autoshard.planner.grid.table import Table

    table = Table(problem, _recompute(pins))
    for one in several:
        for draft in one.layouts.drafts:
            table.add(draft)
    return [*table.price()]


def _one_that_fits(problem: Problem, pins: Pins, frugal: Sequence[Bounded]) -> Strategy | None:
    """One of these layouts that fits. Only some of those that hold least as far as bounds say are priced."""
    ranked = sorted((one for one in frugal if one.own_s < inf), key=lambda one: one.memory_bytes)
    for some in islice(_more_and_more(ranked, 1), TRIES):
        for priced in _prices(problem, pins, some):
            least = int(priced.memory_bytes.argmin())
            if priced.memory_bytes[least] <= problem.cluster.device.memory_bytes:
                return priced.strategy(least)
    return None


def _more_and_more(several: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """All in their order: `count` of them, then four times as many, and so on."""
    begin = 0
    while begin < len(several):
        yield several[begin : begin + count]
        begin, count = begin + count, 4 * count


def _fastest(problem: Problem, pins: Pins, ways: Sequence[MeshDrafts]) -> Strategy | None:
    """The fastest of these layouts that fits. Those of which a bound says that they do not, or are slower, are not
    priced."""
    from autoshard.planner.grid.order import fastest_first

    bounded = _bounded(problem, pins, ways)
    ranked = sorted((one for one in bounded if one.own_s < inf), key=lambda one: one.own_s)
    best: Timed | None = None
    for begin in range(0, len(ranked), AT_ONCE):
        if best is not None and best.step_time_s <= ranked[begin].own_s:
            break
        priced = _prices(problem, pins, ranked[begin : begin + AT_ONCE])
        first = next(fastest_first(priced, problem.cluster.device.memory_bytes), None)
        if first is not None and (best is None or first.step_time_s < best.step_time_s):
            best = first
    return None if best is None else best.strategy


def _nearest_miss(problem: Problem, pins: Pins, tried: Sequence[Attempt]) -> tuple[float, Strategy, int] | None:
    """(bytes, layout, nodes) of the smallest layout of attempts of which none fits; None where they have none."""
    ranked = sorted(
        ((bounded, one.nodes) for one in tried for bounded in one.frugal), key=lambda one: one[0].memory_bytes
    )
    nearest: tuple[float, Strategy, int] | None = None
    for some in _more_and_more(ranked, AT_ONCE):
        of_nodes: dict[int, list[Bounded]] = {}
        for bounded, nodes in some:
            if nearest is None or bounded.memory_bytes < nearest[0]:
                of_nodes.setdefault(nodes, []).append(bounded)
        for nodes, several in of_nodes.items():
            larger = _with_nodes(problem, nodes)
            for priced in _prices(larger, pins, several):
                miss = (*priced.nearest_miss(larger.cluster.device.memory_bytes), nodes)
                nearest = miss if nearest is None else min(miss, nearest, key=lambda one: one[0])
    return nearest


def _frugal(problem: Problem, pins: Pins) -> Iterator[MeshDrafts]:
    """Legal layouts that mostly hold least: the smallest microbatch, the fewest chunks, sequence parallelism and the
    highest stage of ZeRO."""
    capacity, rules = problem.cluster.device.memory_bytes, KnownRules(problem)

    @cache
    def scheduled(pp: int, dp: int) -> Scheduled | None:
        """The first schedule with the smallest microbatch, where that breaks no rule: the same for all such meshes."""
        mesh = Draft(1, pp, dp, 1, 1)
        first = (*virtual_stages(problem, pins, mesh)[0], microbatch_sizes(problem, pins, mesh)[0])
        return first if rules.layout(mesh.scheduled(*first)) is None else None

    def may_be_one(mesh: Draft) -> bool:
        if scheduled(mesh.pp, mesh.dp) is None or tp_is_a_group_size(problem, mesh) is not None:  # in no order of axes
            return False
        most_shared = mesh._replace(zero=max(zero_stages(problem, pins, mesh)))
        return state_at_least_bytes(problem, most_shared) <= capacity

    def legal(mesh: Draft, schedule: Scheduled) -> Iterator[MeshDrafts]:
        """The legal ways to use a mesh that have room for its state, those that hold least first."""
        for way in sorted(variants(problem, pins, mesh, rules)[0], key=lambda way: -way.zero):
            state_bytes = state_at_least_bytes(problem, way)
            if state_bytes <= capacity and rules.sending(way.scheduled(*schedule)) is None:
                yield MeshDrafts(state_bytes, way, (schedule,))

    for mesh in meshes(problem, pins, may_be_one):
        schedule = scheduled(mesh.pp, mesh.dp)
        assert schedule is not None
        yield from islice(legal(mesh, schedule), 1)
