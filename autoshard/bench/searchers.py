"""Searchers on the same problems, spaces and cost model: how far from the proven optimum after so many layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from math import inf
from statistics import mean, median
from time import process_time
from typing import Any

from autoshard.bench.problems import Asked
from autoshard.cost.interval import FIT_PROBABILITY
from autoshard.cost.values import six_digits
from autoshard.errors import AutoshardError
from autoshard.planner.other_search import searched
from autoshard.planner.search import search
from autoshard.planner.searchers import SEARCHERS
from autoshard.planner.space import Space
from autoshard.plugins.found import installed

EVALUATIONS, SEEDS = 300, 2
BUDGETS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
"""Layouts priced at which a search is looked at."""
CPU_BUDGETS_S = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
NEEDS = {"optuna": "optuna"}
"""Searcher -> the package that it needs."""

Json = dict[str, Any]


def entries(wanted: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """(names of searchers to compare, those whose package is not installed). wanted: those alone; else all, those of
    plug-ins too. Raises AutoshardError for a name that is none."""
    every = [*SEARCHERS, *(name for name in installed("searchers") if name not in tuple(SEARCHERS))]
    for name in wanted:
        if name not in every:
            raise AutoshardError(f"entries: {name} is no searcher; known: {', '.join(every)}")
    names = [name for name in every if name in wanted or not wanted]
    missing = [name for name in names if name in NEEDS and find_spec(NEEDS[name]) is None]
    return [name for name in names if name not in missing], missing


def compare(
    problems: Iterable[Asked],
    names: Sequence[str],
    evaluations: int = EVALUATIONS,
    seeds: int = SEEDS,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Json, Json]:
    """(results, timings) of searchers on problems; results are the same each time, timings are not.

    names: of SEARCHERS. evaluations: layouts that each may price. seeds: runs of each. say: is told how it goes.
    """
    found, timed = [], []
    for asked in problems:
        try:
            result, timing = _on(asked, names, evaluations, seeds)
        except AutoshardError as error:
            raise AutoshardError(f"problem {asked.name}: {error}") from None
        found.append(result)
        timed.append(timing)
        say(f"{asked.name}: {result['layouts']:,} layouts, {timing['exact_s']:.2f} CPU s for the exact search")
    budgets = [budget for budget in BUDGETS if budget <= evaluations]
    return (
        {"evaluations": evaluations, "seeds": seeds, "budgets": budgets, "problems": found},
        {"cpu_budgets_s": list(CPU_BUDGETS_S), "problems": timed},
    )


def _on(asked: Asked, names: Sequence[str], evaluations: int, seeds: int) -> tuple[Json, Json]:
    problem = asked.problem
    begin_s = process_time()
    whole = search(*problem[:3], asked.pins, problem.backend, top=0)
    exact_s = process_time() - begin_s
    begin_s = process_time()
    space = Space(problem, asked.pins, FIT_PROBABILITY)
    space_s = process_time() - begin_s
    best = space.fastest()
    assert best is not None, asked.name
    optimum_s, runs, times = space.price_of(best).step_time_s, {}, {}
    for name in names:
        own = [_run(space, name, seed, evaluations, optimum_s) for seed in range(seeds)]
        runs[name] = [curve for curve, _ in own]
        times[name] = [timing for _, timing in own]
    result = {
        "name": asked.name,
        "model": problem.model.name,
        "devices": problem.cluster.world_size,
        "instance": f"{problem.cluster.nodes} x {problem.cluster.instance}",
        "backend": problem.backend,
        "layouts": len(space),
        "optimum_s": six_digits(optimum_s),
        "planned_s": six_digits(whole.best.estimate.step_time_s),
        "optimality": whole.optimality,
        "regret": runs,
    }
    return result, {"name": asked.name, "exact_s": exact_s, "space_s": space_s, "searchers": times}


def _run(space: Space, name: str, seed: int, evaluations: int, optimum_s: float) -> tuple[list[float | None], Json]:
    """(regret at each of BUDGETS, timing). Regret: how much slower than the optimum the best is that was priced; None
    while nothing that fits was."""
    space.start(evaluations)
    begin_s = process_time()
    searched(space, name, seed)
    cpu_s = process_time() - begin_s

    def regret(place: int, most: float) -> float | None:
        known = [space.prices[one[2]] for one in space.improvements if one[place] <= most]
        if not known or not known[-1].fits:
            return None
        return six_digits(max(0.0, known[-1].step_time_s / optimum_s - 1))

    curve = [regret(0, budget) for budget in BUDGETS if budget <= evaluations]
    by_time = [regret(1, budget_s) for budget_s in CPU_BUDGETS_S]
    return curve, {"cpu_s": cpu_s, "evaluations": space.evaluations, "regret": by_time}


def summary(curves: Sequence[float | None]) -> tuple[float | None, float | None, float]:
    """(median regret, mean regret of the runs that have a layout that fits, share of runs that have one). None: of
    what no run has; a run without a layout counts as infinite in the median."""
    known = [one for one in curves if one is not None]
    middle = median(inf if one is None else one for one in curves)
    return None if middle == inf else middle, mean(known) if known else None, len(known) / len(curves)
