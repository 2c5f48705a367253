"""Ways to look for a good layout in a space too large to price, as people do: baselines for the exact search.

A searcher is a function of (space, rng): it prices layouts until `Space.price` raises BudgetSpent, or until it is done,
and returns the layout that it takes, or None for the best that it priced. Each loops for ever: the budget ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log
from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.plugins.table import Table

if TYPE_CHECKING:
    from random import Random

    from autoshard.planner.space import Space

Searcher = Callable[["Space", "Random"], "int | None"]
HOT, COLD = 0.3, 0.003
"""Temperatures of annealing at its begin and end: differences of the logarithm of the cost."""
POPULATION, TOURNAMENT, WIDTH = 24, 3, 8
"""Layouts of a generation; those of which the best is a parent; those that a beam keeps."""


def random_search(space: Space, rng: Random) -> None:
    """Prices layouts at random."""
    while True:
        space.price(space.random(rng))


def hill_climbing(space: Space, rng: Random) -> None:
    """Goes to the first better neighbour; from a layout without one, to a random layout."""
    while True:
        here, better = space.random(rng), True
        cost = space.price(here).cost
        while better:
            better = False
            for other in _shuffled(space.neighbours(here), rng):
                if space.price(other).cost < cost:
                    here, cost, better = other, space.price(other).cost, True
                    break


def simulated_annealing(space: Space, rng: Random) -> None:
    """Goes to a random neighbour if that is better, and if it is worse with a probability that falls with the budget
    that is left."""
    here = space.random(rng)
    cost = space.price(here).cost
    while True:
        temperature = HOT * (COLD / HOT) ** space.spent
        neighbours = space.neighbours(here)
        other = rng.choice(neighbours) if neighbours else space.random(rng)
        found = space.price(other).cost
        if found <= cost or rng.random() < exp(-log(found / cost) / temperature):
            here, cost = other, found


def evolutionary(space: Space, rng: Random) -> None:
    """Keeps a population; a child has the mesh of one parent and the rest of another, and changes in one choice."""

    def parent() -> int:
        return min((rng.choice(population) for _ in range(TOURNAMENT)), key=lambda one: space.price(one).cost)

    population = [space.random(rng) for _ in range(POPULATION)]
    while True:
        children = []
        for _ in range(POPULATION):
            child = space.crossed(parent(), parent())
            neighbours = space.neighbours(child)
            child = rng.choice(neighbours) if neighbours and rng.random() < 0.8 else child
            space.price(child)
            children.append(child)
        best = sorted({*population, *children}, key=lambda one: (space.price(one).cost, one))[:POPULATION]
        population = [*best, *(space.random(rng) for _ in range(POPULATION - len(best)))]
        population[-1] = space.random(rng)


def beam(space: Space, rng: Random) -> None:
    """Keeps the best few layouts and prices all their neighbours; where none is better, begins anew."""
    while True:
        kept = [space.random(rng) for _ in range(WIDTH)]
        before: list[int] = []
        while kept != before:
            before = kept
            wider = {*kept, *(other for one in kept for other in space.neighbours(one))}
            kept = sorted(wider, key=lambda one: (space.price(one).cost, one))[:WIDTH]


def coordinate_descent(space: Space, rng: Random) -> None:
    """Tunes one choice after the other, each to its best value, as people tune by hand; then begins anew."""
    while True:
        here, before = space.random(rng), -1
        while here != before:
            before = here
            for name in space.alternatives(here):
                others = space.alternatives(here)[name]
                here = min((here, *others), key=lambda one: space.price(one).cost)


def optuna_search(space: Space, rng: Random) -> None:
    """Asks Optuna's TPE sampler for a value of each choice and prices the nearest layout. Raises AutoshardError where
    optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise AutoshardError("search=optuna needs optuna: pip install 'autoshard[optuna]'") from None
    from autoshard.planner.space import CHOICES

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=rng.getrandbits(32)))
    while True:
        trial = study.ask()
        mesh = trial.suggest_categorical("mesh", list(range(len(space.meshes))))
        choices = [
            trial.suggest_categorical(name, list(range(count)))
            for name, count in zip(CHOICES[1:], space.counts[1:], strict=True)
        ]
        study.tell(trial, log(space.price(space.nearest(mesh, choices)).cost))


def _shuffled(layouts: list[int], rng: Random) -> Iterator[int]:
    yield from rng.sample(layouts, len(layouts))


SEARCHERS = Table[Searcher](
    "searchers",
    callable,
    "a function of (space, rng)",
    {
        "random": random_search,
        "hill_climbing": hill_climbing,
        "annealing": simulated_annealing,
        "evolutionary": evolutionary,
        "beam": beam,
        "coordinate_descent": coordinate_descent,
        "optuna": optuna_search,
    },
)
"""By name, those of plug-ins too; the exact search is not among them."""
