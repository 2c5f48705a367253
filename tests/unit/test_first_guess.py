"""The best layout so far, shown while a search runs: sound, soon, and without a change of what is found."""

from __future__ import annotations

import pytest

from autoshard.backends.rules import Problem
from autoshard.planner.first_guess import AT_ONCE, TURNS, show_first_guess
from autoshard.planner.inputs import inputs_of
from autoshard.planner.layouts import legal_layouts
from autoshard.planner.rejections import Tally
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.planner.watching import BestSoFar, shown_to, who_is_shown
from autoshard.plans.search_result import Pins
from tests.cases import some

ASKED = [("llama3-8b", "trn1.32xlarge", 1, "nxd"), ("llama3-70b", "trn1.32xlarge", 4, "torch"),
         ("mixtral-8x7b", "p5.48xlarge", 2, "torch")]  # fmt: skip


def problem_of(model: str, instance: str, nodes: int, backend: str) -> Problem:
    request = PlanRequest(model=model, instance=instance, nodes=nodes, backend=backend, global_batch=256)
    return Problem(*inputs_of(request)[:3], backend)


@pytest.mark.parametrize("asked", some(ASKED, step=2), ids=lambda asked: asked[0])
def test_what_is_shown_is_sound_and_changes_nothing(asked: tuple[str, str, int, str]) -> None:
    problem = problem_of(*asked)
    shown: list[BestSoFar] = []
    alone = search(*problem[:3], Pins(), problem.backend)
    with shown_to(shown.append):
        watched = search(*problem[:3], Pins(), problem.backend)
    assert watched == alone
    assert watched.rejections == alone.rejections and watched.considered == alone.considered
    assert who_is_shown() is None
    assert shown
    for one in shown:
        assert one.problem == problem
        assert 0 < one.at_least_s <= alone.best.estimate.step_time_s * (1 + 1e-9)
    fastest_s = min(one.best.step_time_s for one in shown)
    assert fastest_s >= alone.best.estimate.step_time_s * (1 - 1e-9) or "toss-up" in " ".join(alone.notes)


def test_the_first_guess_is_the_fastest_of_a_few_that_split_least() -> None:
    problem = problem_of("llama3-8b", "p5.48xlarge", 1, "torch")
    legal, limit_bytes = legal_layouts(problem, Pins(), Tally()), problem.cluster.device.memory_bytes
    shown: list[BestSoFar] = []
    with shown_to(shown.append):
        show_first_guess(problem, Pins(), legal, limit_bytes)
        assert 1 <= len(shown) <= TURNS
        assert [one.best.step_time_s for one in shown] == sorted((one.best.step_time_s for one in shown), reverse=True)
        assert (shown[0].best.strategy.tp, shown[0].best.strategy.pp, shown[0].best.strategy.dp) == (1, 1, 8)
        shown.clear()
        show_first_guess(problem, Pins(), legal, 0.0)
        assert shown == []
    show_first_guess(problem, Pins(), legal, limit_bytes)  # nobody looks
    assert shown == [] and AT_ONCE > 0
