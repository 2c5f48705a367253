"""Tries random layouts of random requests at full size: none takes less time or memory than a bound of it says.

    python -m benchmarks.random_bounds                         five minutes
    python -m benchmarks.random_bounds --seconds 600 --seed 7
    python -m benchmarks.random_bounds --mixtures              mixtures of experts with what is hardest to bound pinned

A search leaves out what a bound says is slower than what it has, or does not fit: with a bound that is too high it
calls optimal what is not. Requests are those of `benchmarks.random_requests`, as far as prices know their options.
Layouts are any of the legal ones, in the usual order of axes and in another one, cut nearly evenly, with any recompute
sets, on devices with as much memory as they need or more. Each bound that is above the estimate is printed with its
layout. The exit code is 1 where there was any.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from itertools import accumulate
from math import inf
from random import Random
from time import perf_counter

from autoshard.backends.rules import Draft, Problem, check_strategy
from autoshard.cost.estimate import estimate
from autoshard.errors import AutoshardError
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import builtin_models, load_model
from autoshard.planner.axis_orders import other_orders
from autoshard.planner.grid.mesh_bounds import layout_bounds, ways_at_least_s
from autoshard.planner.inputs import backend_of, inputs_of, pins_of
from autoshard.planner.layouts import by_way, legal_layouts
from autoshard.planner.options import OF_A_SEARCH, OPTIONS, request_from
from autoshard.planner.rejections import Tally
from autoshard.planner.sets import EVERY_SET, recompute_sets
from autoshard.plans.search_result import Pins
from benchmarks.random_requests import request, words

WAYS, DRAWS = 6, 8
"""Of a request: ways to use a mesh, and layouts drawn of each."""
FEW_LAYOUTS, OFTEN_LEFT = ("seq-len", "tp", "pp", "vpp", "ep", "micro-batch", "axis-order"), 0.3
"""Of requests of mixtures: options that leave few layouts beside the pins, and how often they stay."""
ANY_BYTES = 1e15
"""More than any rank needs."""
ROUNDING = 1e-9
"""Share of a price by which a bound may be above it."""


def of_a_mixture(seed: int) -> dict[str, str]:
    """The request of a seed, of a mixture of experts with a pinned recompute set and context parallelism: no other set
    or degree needs less then and hides what is too high."""
    draw, given = Random(seed), request(seed)
    kept = {name: value for name, value in given.items() if name not in FEW_LAYOUTS or draw.random() < OFTEN_LEFT}
    pins = {"model": draw.choice(_mixtures()), "recompute": draw.choice(EVERY_SET), "cp": str(draw.choice((2, 4, 8)))}
    return {"backend": "torch"} | kept | pins


@cache
def _mixtures() -> list[str]:
    return [name for name in builtin_models() if load_model(name).is_moe]


def inputs(given: dict[str, str]) -> tuple[Problem, Pins]:
    """What a request asks for, with the rule's operators. Raises AutoshardError for a wrong one."""
    named = {name.replace("-", "_"): value for name, value in given.items()}
    asked = {name: value for name, value in named.items() if name in OPTIONS and name not in OF_A_SEARCH}
    of_request = request_from({name: OPTIONS[name].parse(value) for name, value in asked.items()})
    model, training, cluster, _ = inputs_of(of_request)
    return Problem(model, training, cluster, backend_of(of_request, cluster)), pins_of(of_request)


def drawn(draw: Random, problem: Problem, draft: Draft, sets: tuple[str, ...]) -> list[Strategy]:
    """Layouts with other cuts and sets that break no rule; none is slower and needs more than another: bounds are
    nearest to these."""
    found = list[tuple[float, float, Strategy]]()
    for _ in range(DRAWS):
        few = draw.choices(sets, k=draw.choice((1, 1, 2)))
        cut = _cut(draw, problem.model.num_hidden_layers, draft.pp * draft.num_virtual_stages)
        try:
            strategy = Strategy(
                **draft._replace(stage_layers=cut)._asdict(), recompute=(*draw.choices(few, k=len(cut)),)
            )
            check_strategy(*problem[:3], problem.backend, strategy)
        except AutoshardError:
            continue
        price = estimate(*problem[:3], strategy)
        found.append((price.step_time_s, price.fullest.total_bytes, strategy))
    found.sort(key=lambda one: one[:2])
    least = (inf, *accumulate((needed for _, needed, _ in found), min))
    return [strategy for (_, needed, strategy), before in zip(found, least, strict=False) if needed < before]


def _cut(draw: Random, layers: int, stages: int) -> tuple[int, ...]:
    """Blocks of each stage: as many in each, but for some that are moved."""
    cut = [*even_stage_layers(layers, stages)]
    for _ in range(draw.choice((0, 0, 1, 2, 4, stages)) if stages > 1 else 0):
        fewer, more = draw.sample(range(stages), 2)
        moved = min(cut[fewer], 1)
        cut[fewer], cut[more] = cut[fewer] - moved, cut[more] + moved
    return tuple(cut)


def compared(problem: Problem, sets: tuple[str, ...], usual: Draft, draft: Draft, strategy: Strategy) -> Iterator[str]:
    """Bounds that are above the estimate of a layout, in words. usual: its draft in the order of axes that is first.
    draft: in its own."""
    found, is_usual = estimate(*problem[:3], strategy), draft == usual
    step_time_s, needed = found.step_time_s, found.fullest.total_bytes
    of_way = ways_at_least_s(problem, by_way([usual])).each(0)
    bounds = [("seconds of its way", of_way.own_s if is_usual else of_way.any_s, step_time_s)]
    for memory, limit_bytes in (("any memory", ANY_BYTES), ("just its memory", needed * (1 + ROUNDING))):
        own = layout_bounds(problem, by_way([draft]), sets, limit_bytes, in_any_order=True)
        bounds += [
            (f"seconds with {memory}", own.step_time_s, step_time_s),
            (f"seconds in any order with {memory}", own.any_order_s, step_time_s),
            (f"bytes with {memory}", own.memory_bytes, needed),
        ]
        if not is_usual:
            others = layout_bounds(problem, by_way([usual]), sets, limit_bytes, in_other_orders=True)
            bounds.append((f"seconds in other orders with {memory}", others.step_time_s, step_time_s))
    for what, (bound,), price in bounds:
        if bound > price * (1 + ROUNDING):
            yield f"{what}: at least {bound:.6g}, {bound / price - 1:.3%} above {price:.6g}"


def bounded(draw: Random, problem: Problem, pins: Pins) -> Iterator[tuple[Strategy, list[str]]]:
    """Yields (layout, bounds that are above its estimate) of some layouts of a request."""
    sets = recompute_sets(problem, pins)
    ways = [way for way in legal_layouts(problem, pins, Tally()) if way.schedules]
    for way in draw.sample(ways, min(WAYS, len(ways))):
        usual = way.way.scheduled(*draw.choice(way.schedules))
        orders = other_orders(problem, pins, usual)
        for order in (usual.axis_order, *draw.sample(orders, min(1, len(orders)))):
            draft = usual._replace(axis_order=order)
            for strategy in drawn(draw, problem, draft, sets):
                yield strategy, [*compared(problem, sets, usual, draft, strategy)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first request; each one after it has the next")
    parser.add_argument("--mixtures", action="store_true", help="of experts, with recompute and cp pinned")
    arguments = parser.parse_args()
    ask = of_a_mixture if arguments.mixtures else request
    start, seed, requests, count, wrong = perf_counter(), arguments.seed, 0, 0, 0
    while perf_counter() - start < arguments.seconds:
        given = ask(seed)
        try:
            problem, pins = inputs(given)
            for strategy, faults in bounded(Random(seed), problem, pins):
                count, wrong = count + 1, wrong + bool(faults)
                if faults:
                    print(f"seed {seed}: {' '.join(words(given))}\n  {strategy}", *faults, sep="\n  ", flush=True)
            requests += 1
        except AutoshardError:  # a request that nothing can do
            pass
        seed += 1
    print(f"{requests:,} of {seed - arguments.seed:,} requests, {count:,} layouts, {wrong} with a bound too high")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
