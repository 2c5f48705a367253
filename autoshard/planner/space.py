"""The layouts of a problem as a searcher sees them: numbered, with neighbours, each with a price that is counted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf
from random import Random
from time import process_time
from typing import NamedTuple

import numpy as np

from autoshard.backends.rules import Problem
from autoshard.cost.fit_probability import Level, levels
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy
from autoshard.planner.candidates import check_pins
from autoshard.planner.grid.arrays import Array
from autoshard.planner.grid.table import Table
from autoshard.planner.grid.whole import Priced
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.priced import PricedLayouts
from autoshard.planner.priced_columns import fit_columns, priced_columns
from autoshard.planner.ranking import degrees_of
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import recompute_sets
from autoshard.plans.search_result import Pins

CostModel = Callable[[Problem, Mapping[str, Array]], tuple[Array, Array]]
"""(problem, layouts as columns: those of priced_columns) -> (seconds of a step, bytes of the fullest device), by
layout."""
CHOICES = (
    *("mesh", "sequence_parallel", "zero", "attention_kernel", "context_parallel", "axis_order"),
    *("microbatch_size", "pipeline", "recompute", "cut"),
)
"""The choices that make a layout. mesh: all degrees. pipeline: the schedule with its chunks a rank. cut: which of those
that are tried, the even one first."""
DEGREES = ("tp", "pp", "dp", "cp", "ep")
_OF_DRAFT = CHOICES[1:7]
RULED_OUT = "does not fit in memory, whatever its recompute"
MOST_ASKED = 20
"""Times the budget that prices may be asked for, those that are known already among them."""


class BudgetSpent(Exception):
    """Raised by `Space.price` when no more layouts may be priced. A searcher need not catch it."""


class Price(NamedTuple):
    """The price of a layout. step_time_s: seconds of a step. memory_bytes: of the fullest device. fits: whether there
    is room for it, as surely as is wanted. cost: what a searcher makes small: seconds, and where it does not fit more
    than any layout that does, by how much room it lacks."""

    step_time_s: float
    memory_bytes: float
    fits: bool
    cost: float


class Space:
    """Every legal layout of a problem with pins; each is a number from 0 to len(space) - 1. Where autoshard's prices
    count, those are left out of which a bound says that they cannot fit. All stages recompute alike, and cuts are even
    or balanced. Mutable: counts what was priced and remembers the best.

    problem, pins: what is asked. level: how surely a layout must fit: as wanted, or less where none fits so surely.
    evaluations: layouts that were priced. best: the cheapest of them; None before the first.
    """

    def __init__(
        self,
        problem: Problem,
        pins: Pins,
        fit_probability: float,
        cost_model: CostModel | None = None,
        name: str = "",
    ) -> None:
        """cost_model: whose prices count, in place of autoshard's. name: its name, for errors.

        Raises AutoshardError for pins that contradict each other, and for prices that are none.
        """
        check_pins(problem, pins)
        self.problem, self.pins, self.tally = problem, pins, Tally()
        sets = recompute_sets(problem, pins)
        table, capacity = Table(problem, sets), problem.cluster.device.memory_bytes
        for mesh in legal_layouts(problem, pins, self.tally):
            for draft in mesh.drafts:
                if cost_model is not None or (mesh.state_bytes <= capacity and table.has_room(draft)):
                    table.add(draft)
                else:
                    self.tally.drop(
                        RULED_OUT,
                        f"{degrees_of(draft)}, microbatch {draft.microbatch_size}",
                        count=table.sets_of(draft),
                    )
        self.chunks: list[Priced] = [*table.price()]
        ends = np.cumsum([len(chunk.draft) for chunk in self.chunks])
        self._starts = [0, *ends.tolist()]
        self._other: tuple[Array, Array] | None = None
        if cost_model is not None and len(self):
            self._other = _checked(cost_model(problem, self.columns()), len(self), name)
        wanted = levels(problem.cluster, fit_probability)
        least = float(self.memory_bytes.min()) if len(self) else inf
        self.level: Level = next((one for one in wanted if least <= one.memory_bytes), wanted[-1])
        self._worst_s = 10 * float(self.at_least_s.max()) if len(self) else 0.0
        self.start()

    def start(self, evaluations: float = inf, cpu_s: float = inf) -> None:
        """Forgets what was priced and sets the budget: layouts to price, and CPU seconds from now on."""
        self._exact: dict[int, float] = {}
        self._neighbours: dict[int, list[int]] = {}
        self.most_evaluations, self.most_cpu_s = min(evaluations, len(self)), cpu_s
        self.prices: dict[int, Price] = {}
        self.improvements: list[tuple[int, float, int]] = []
        """(evaluations, CPU seconds, layout): each time a better one was found."""
        self.best: int | None = None
        self._asked, self._begin_s = 0, process_time()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def evaluations(self) -> int:
        return len(self.prices)

    @property
    def spent(self) -> float:
        """The share of the budget that is spent, 0 to 1."""
        return min(1.0, max(self.evaluations / self.most_evaluations, self._cpu_s / self.most_cpu_s))

    @property
    def _cpu_s(self) -> float:
        return process_time() - self._begin_s

    def price(self, layout: int) -> Price:
        """The price of a layout; the second time it costs nothing. Raises BudgetSpent where the budget is spent."""
        self._asked += 1
        if layout in self.prices and self._asked < MOST_ASKED * self.most_evaluations:
            return self.prices[layout]
        if self.evaluations >= self.most_evaluations or self._cpu_s > self.most_cpu_s or layout in self.prices:
            raise BudgetSpent
        if not 0 <= layout < len(self):
            raise IndexError(f"{layout} is no layout: 0 to {len(self) - 1:,}")
        self.prices[layout] = price = self.price_of(layout)
        if self.best is None or price.cost < self.prices[self.best].cost:
            self.best = layout
            self.improvements.append((self.evaluations, self._cpu_s, layout))
        return price

    def price_of(self, layout: int) -> Price:
        """The price of a layout, not counted: for who compares searchers."""
        seconds, needed = self._step_time_s(layout), float(self.memory_bytes[layout])
        room = self.level.memory_bytes
        fits = needed <= room
        return Price(seconds, needed, fits, seconds if fits else self._worst_s * (1 + needed / room))

    def _step_time_s(self, layout: int) -> float:
        if self._other is not None:
            return float(self._other[0][layout])
        if layout not in self._exact:
            chunk, row = self._place(layout)
            self._exact[layout] = float(chunk.exact_s([row])[0]) if chunk.at_least else float(chunk.step_time_s[row])
        return self._exact[layout]

    def _place(self, layout: int) -> tuple[Priced, int]:
        which = bisect_right(self._starts, layout) - 1
        return self.chunks[which], layout - self._starts[which]

    @cached_property
    def at_least_s(self) -> Array:
        """Seconds that a step takes at least, by layout: the step time where the cost model is not autoshard's."""
        if self._other is not None:
            return self._other[0]
        return _unwritable(np.concatenate([*(chunk.step_time_s for chunk in self.chunks), []]))

    @cached_property
    def memory_bytes(self) -> Array:
        """Bytes of the fullest device, by layout."""
        if self._other is not None:
            return self._other[1]
        return _unwritable(np.concatenate([*(chunk.memory_bytes for chunk in self.chunks), []]))

    def fastest(self) -> int | None:
        """The layout that is proven to be the fastest of those that fit; None where none fits. Not counted.

        Bounds are looked at from the lowest one, until the next is above the best that is known.
        """
        fitting = np.flatnonzero(self.memory_bytes <= self.level.memory_bytes)
        best: tuple[float, int] = (inf, -1)
        for layout in fitting[np.argsort(self.at_least_s[fitting], kind="stable")].tolist():
            if self.at_least_s[layout] > best[0]:
                break
            best = min(best, (self._step_time_s(layout), layout))
        return None if best[1] < 0 else best[1]

    def columns(self) -> dict[str, Array]:
        """All layouts as columns with an entry for each: the choices, and autoshard's prices; see priced_columns."""
        return priced_columns(PricedLayouts(self.problem, self.chunks))

    def table(self, layouts: Sequence[int]) -> dict[str, Array]:
        """Some layouts as columns, see `columns`, with the prices that count here: none is a bound."""
        rows = np.array(layouts, dtype=int)
        columns = {name: column[rows] for name, column in self.columns().items()}
        memory_bytes = self.memory_bytes[rows]
        return {
            **columns,
            "step_time_s": np.array([self._step_time_s(layout) for layout in layouts]),
            "step_time_is_bound": np.full(len(rows), False),
            "memory_bytes": memory_bytes,
            **fit_columns(memory_bytes, self.problem.cluster),
        }

    def strategy(self, layout: int) -> Strategy:
        """All choices of a layout, by name."""
        chunk, row = self._place(layout)
        return chunk.strategy(row)

    def random(self, rng: Random) -> int:
        """A layout; each is as likely as any other."""
        return rng.randrange(len(self))

    def alternatives(self, layout: int) -> dict[str, list[int]]:
        """By choice (CHOICES), the layouts that differ in this one alone. mesh: for each way to move a prime factor
        from one degree to another, or into or out of ep, the layout there that differs least in the rest."""
        mesh = int(self._choices[layout, 0])
        found: dict[str, list[int]] = {name: [] for name in CHOICES}
        members = self._members[mesh]
        differs = self._choices[members] != self._choices[layout]
        single = np.flatnonzero(differs.sum(1) == 1)
        for place, which in zip(members[single].tolist(), differs[single].argmax(1).tolist(), strict=True):
            found[CHOICES[which]].append(place)
        found["mesh"] = [self._nearest(other, self._choices[layout]) for other in self._next_meshes(mesh)]
        return found

    def neighbours(self, layout: int) -> list[int]:
        """The layouts that differ in one choice, see `alternatives`."""
        if layout not in self._neighbours:
            self._neighbours[layout] = [other for others in self.alternatives(layout).values() for other in others]
        return self._neighbours[layout]

    def crossed(self, one: int, other: int) -> int:
        """The layout with the mesh of the one that differs least from the other."""
        return self._nearest(int(self._choices[one, 0]), self._choices[other])

    @property
    def meshes(self) -> Sequence[tuple[int, ...]]:
        """The degrees (tp, pp, dp, cp, ep) of each mesh that some layout has."""
        return self._coded[1]

    def nearest(self, mesh: int, choices: Sequence[int]) -> int:
        """The layout of a mesh, by its place in `meshes`, that differs least from these values of CHOICES[1:]."""
        return self._nearest(mesh, np.array([mesh, *choices]))

    @property
    def counts(self) -> list[int]:
        """How many values each of CHOICES has."""
        return [int(count) for count in self._choices.max(0) + 1]

    def _nearest(self, mesh: int, choices: Array) -> int:
        members = self._members[mesh]
        return int(members[(self._choices[members] != choices).sum(1).argmin()])

    def _next_meshes(self, mesh: int) -> list[int]:
        degrees = self.meshes[mesh]
        places = self._mesh_places
        found = []
        for give in range(5):
            for factor in _primes(degrees[give]):
                for take in range(4) if give < 4 else ():
                    moved = [*degrees]
                    moved[give], moved[take] = moved[give] // factor, moved[take] * factor
                    fallback = (*moved[:4], 1)
                    if take != give:
                        found.append(places.get(tuple(moved), places.get(fallback)))
                if give == 4:
                    found.append(places.get((*degrees[:4], degrees[4] // factor)))
        wider = _primes(degrees[2] * degrees[3])
        found += [places.get((*degrees[:4], degrees[4] * factor)) for factor in wider]
        return [one for one in dict.fromkeys(found) if one is not None]

    @property
    def _choices(self) -> Array:
        """The value of each of CHOICES, numbered from 0: (layout, choice)."""
        return self._coded[0]

    @cached_property
    def _coded(self) -> tuple[Array, list[tuple[int, ...]]]:
        """(the choices of each layout as numbers, the degrees of each mesh)."""
        codes: list[dict[object, int]] = [{} for _ in CHOICES]
        parts, meshes = [], dict[tuple[int, ...], int]()
        for chunk in self.chunks:
            drafts = chunk.whole.drafts.drafts
            values = [
                [
                    meshes.setdefault(tuple(getattr(draft, name) for name in DEGREES), len(meshes)),
                    *(
                        code.setdefault(getattr(draft, name), len(code))
                        for name, code in zip(_OF_DRAFT, codes[1:7], strict=True)
                    ),
                    codes[7].setdefault((draft.schedule, draft.num_virtual_stages), len(codes[7])),
                ]
                for draft in drafts
            ]
            own = np.array(values, dtype=np.int32)[chunk.draft]
            cut = _places_among_equals(chunk.draft * len(chunk.whole.sets) + chunk.recompute)
            parts.append(np.column_stack([own, chunk.recompute.astype(np.int32), cut.astype(np.int32)]))
        return np.concatenate(parts), list(meshes)

    @cached_property
    def _mesh_places(self) -> dict[tuple[int, ...], int]:
        return {known: place for place, known in enumerate(self.meshes)}

    @cached_property
    def _members(self) -> list[Array]:
        """By mesh, its layouts."""
        meshes = self._choices[:, 0]
        order = np.argsort(meshes, kind="stable")
        return np.split(order, np.cumsum(np.bincount(meshes))[:-1])


def _places_among_equals(keys: Array) -> Array:
    """For each key, how many equal ones stand before it."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    counts = np.diff([*first, len(keys)])
    places = np.empty(len(keys), dtype=int)
    places[order] = np.arange(len(keys)) - np.repeat(first, counts)
    return places


def _primes(number: int) -> list[int]:
    found, factor = [], 2
    while factor * factor <= number:
        if number % factor == 0:
            found.append(factor)
            while number % factor == 0:
                number //= factor
        factor += 1
    return [*found, number] if number > 1 else found


def _unwritable(prices: Array) -> Array:
    """The prices, which a searcher may read and not change."""
    prices.setflags(write=False)
    return prices


def _checked(prices: object, count: int, name: str) -> tuple[Array, Array]:
    """The arrays that a cost model returned. Raises AutoshardError where they are none."""
    if not isinstance(prices, tuple) or len(prices) != 2:
        raise AutoshardError(f"cost model {name} must return (step_time_s, memory_bytes), not {type(prices).__name__}")
    found = []
    for field, values in zip(("step_time_s", "memory_bytes"), prices, strict=True):
        try:
            array = np.array(values, dtype=float)  # a copy: the cost model may keep its own
        except (TypeError, ValueError):
            array = np.array(np.nan)
        if array.shape != (count,):
            raise AutoshardError(
                f"cost model {name} returned {field} of shape {array.shape}; it wants ({count},), one for each layout"
            )
        wrong = np.flatnonzero(~(array > 0) | ~np.isfinite(array))
        if len(wrong):
            raise AutoshardError(
                f"cost model {name} returned {field}={array[wrong[0]]:g} for layout {wrong[0]}; "
                "it must be a finite number above 0"
            )
        found.append(_unwritable(array))
    return found[0], found[1]
