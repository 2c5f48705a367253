"""The page while a search runs: the best layout so far, and how much faster another one can be at most."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from autoshard.cost.estimate import estimate
from autoshard.planner.watching import BestSoFar
from autoshard.plans.names import short_name
from autoshard.reports.html import Html, code, element
from autoshard.reports.sections import section
from autoshard.server.isolated import Say
from autoshard.units import format_bytes, format_number, format_seconds, percent


class BestShown:
    """Says each layout that is better than those before, or more is proven about. Mutable: the best one."""

    def __init__(self, say: Say, before: Sequence[str] = ()):
        """before: names of the plans that are found already, beside which this one will stand."""
        self._say, self._before = say, before
        self._best: BestSoFar | None = None

    def __call__(self, one: BestSoFar) -> None:
        known = self._best
        if known is not None and (one.best.step_time_s, -one.at_least_s) >= (known.best.step_time_s, -known.at_least_s):
            return
        self._best = one
        layout = short_name(one.best.strategy)
        html = "".join(
            [
                *(section("Found", "", element("p", code(name))) for name in self._before),
                section("Best so far", "Still looking: what follows is not the answer yet.", *_sentences(one)),
            ]
        )
        self._say({"html": html, "data": {}, "title": layout, "proven": proven(one), "open": True})


def proven(one: BestSoFar) -> str:
    """How much faster another layout can be at most, in words; rounded up."""
    return f"nothing is more than {ceil(100 * one.best.step_time_s / one.at_least_s - 1e-9) / 100:g} times as fast"


def _sentences(one: BestSoFar) -> list[Html]:
    model, training, cluster, _ = one.problem
    found = estimate(model, training, cluster, one.best.strategy)
    tokens_per_s = training.global_batch_size * training.sequence_length / one.best.step_time_s
    used, room = format_bytes(found.fullest.total_bytes), format_bytes(found.memory_capacity_bytes)
    return [
        element("p", code(short_name(one.best.strategy))),
        element(
            "p",
            f"~{format_seconds(one.best.step_time_s)} a step, ~{format_number(tokens_per_s)} tokens/s; "
            f"~{used} of {room} of memory, fits with {percent(found.fits_probability)} probability.",
        ),
        element(
            "p",
            f"As far as that is proven by now, {proven(one)}: every layout takes "
            f"{format_seconds(one.at_least_s)} a step or more.",
        ),
    ]
