"""The layouts that are searched again where a quantity changes: few, and the winners among them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

import autoshard
from autoshard.backends.registry import as_run_by
from autoshard.backends.rules import Problem
from autoshard.cost.estimate import estimate
from autoshard.cost.fit_probability import levels
from autoshard.explanation import flips
from autoshard.explanation.answers import flip_row, price_row, problem_of
from autoshard.explanation.flips import FINE, Question, flip, winner
from autoshard.explanation.quantities import quantities
from autoshard.explanation.sensitivity import sensitivity
from autoshard.explanation.sensitivity_text import flips_heading
from autoshard.models.registry import load_model
from autoshard.planner import choice as choices
from autoshard.planner.cached_search import Searches
from autoshard.planner.choice import choose, passed_over, taken_of
from autoshard.planner.grid import refine as refinement
from autoshard.planner.priced import Clock
from autoshard.planner.promising import MANY, drafts_of, promising
from autoshard.planner.search import search
from autoshard.planner.toss_ups import GIVEN_AWAY
from autoshard.plans.names import short_name
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from tests.cases import some
from tests.unit.explain_examples import recipe_plan
from tests.unit.test_explain_flips import searched_plan, small_plan


def problem_70b() -> Problem:
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    return Problem(load_model("llama3-70b"), training, load_cluster("trn1.32xlarge", 16), "nxd")


def test_where_layouts_are_few_all_are_promising() -> None:
    searches, problem = Searches(), problem_70b()
    layouts = searches.layouts(problem, Pins(tp=8, pp=8))
    assert promising(layouts) is None
    assert 0 < sum(len(whole.drafts.drafts) for whole in layouts.wholes) <= MANY
    assert searches.promising(problem, Pins(tp=8, pp=8)) is None


def test_the_winner_where_a_quantity_changes_is_among_the_promising() -> None:
    """Problems beside the 70B one: the search among a few layouts finds what the search of all finds."""
    searches, problem = Searches(), problem_70b()
    few = searches.promising(problem, Pins())
    assert few is not None
    assert 20 < len(few) < 400
    ends = [(one, furthest) for one in quantities(problem) for furthest in (one.furthest, 1 / one.furthest)]
    compared = [(one, furthest) for one, furthest in ends if not one.needs_all(furthest)]
    assert len(compared) == 7
    for quantity, furthest in some(compared, step=2):
        other = quantity.scaled(problem, furthest)
        assert searches.best(other, Pins(), among=few) == searches.best(other, Pins()), (quantity.name, furthest)


def test_a_flip_to_a_layout_of_the_beaten_path_is_found_by_three_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search takes the layout that has run where the other's lead is small: looked for is where that is so, not where
    both are as fast."""
    training = TrainingSpec(4096, 1024, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 4), "nxd")
    searches = Searches()
    chosen = searches.best(problem, Pins()).strategy
    links = quantities(problem)[0]
    asked = Question(problem, Pins(), among=searches.promising(problem, Pins()))
    probes: list[float] = []

    def winner_of(searches: Searches, scaled: Problem, *how: Any, **named: Any) -> flips.Winner:
        probes.append(scaled.cluster.intra_node[0][1].bandwidth_bytes_per_s)
        return winner(searches, scaled, *how, **named)

    monkeypatch.setattr(flips, "winner", winner_of)
    found = flip(searches, asked, chosen, links, 4.0)
    assert found is not None and found.to is not None
    assert len(probes) == 3
    assert 1 < found.factor / found.holds <= FINE
    there = links.scaled(problem, found.factor)
    ours, theirs = (estimate(*there[:3], one).step_time_s for one in (chosen, found.to.strategy))
    assert ours < theirs, "it is predicted slower there, and has run"


def test_what_is_taken_of_some_layouts_is_what_the_search_took_of_all() -> None:
    problem = problem_70b()
    for pins in (Pins(), Pins(tp=8, pp=8), Pins(tp=32)):
        wanted = levels(problem.cluster, 0.9)
        choice = choose(Searches().layouts(problem, pins), pins, wanted, Clock(inf))
        assert choice is not None
        known = [*choice.fastest, *([choice.on_path] if choice.on_path else [])]
        ranked = sorted(known, key=lambda one: one.step_time_s)
        assert (
            taken_of(problem, passed_over(problem, pins), choice.level, ranked) == choice.fastest[choice.place].strategy
        )


def test_quantities_that_make_other_layouts_promising() -> None:
    needing = {(one.name, up) for one in quantities(problem_70b()) for up in (2.0, 0.5) if one.needs_all(up)}
    batch, length = "batch, sequences", "sequence length, tokens"
    assert needing == {("memory, each device", 2.0), *((one, up) for one in (batch, length) for up in (2.0, 0.5))}


def test_a_larger_batch_flips_to_a_microbatch_that_does_not_divide_today_s() -> None:
    plan = searched_plan("qwen3-1.7b", 1, 16, Pins(), 0.9, "torch", "h100-80gb", 2048)
    problem = problem_of(plan)
    (batch,) = (one for one in quantities(problem) if one.name == "batch, sequences")
    row = flip_row(Searches(), plan, batch, 4.0, 0.9)
    assert (plan.strategy.microbatch_size, row.holds, row.value) == (2, 16.0, 32.0)
    there = Searches().best(batch.scaled(problem, 2.0), Pins()).strategy
    assert there.microbatch_size == 4
    assert (row.layout, row.change) == (short_name(there), "mbs=4")


def test_a_schedule_that_a_search_takes_for_having_run_is_promising() -> None:
    """zero_bubble is the fastest of its mesh at any bandwidth; of gpipe it is known that it runs."""
    cluster = load_cluster("h100-80gb", 2)
    cluster = replace(cluster, inter_node=replace(cluster.inter_node, bandwidth_bytes_per_s=1.5e9))
    training = TrainingSpec(4096, 32, load_precision("mixed_precision"))
    searches, problem = Searches(), Problem(load_model("llama3.2-1b"), training, cluster, "torch")
    (network,) = (one for one in quantities(problem) if one.name.startswith("network"))
    few, slower = searches.promising(problem, Pins()), network.scaled(problem, 0.25)
    best = searches.best(slower, Pins())
    assert best.strategy.schedule == "gpipe"
    found = searches.best(slower, Pins(), among=few)  # of a mesh and a schedule one kind of ring is taken
    assert found.strategy == replace(best.strategy, context_parallel=found.strategy.context_parallel)
    assert found.estimate.step_time_s < 1.01 * best.estimate.step_time_s


def test_where_none_of_some_layouts_fits_all_are_searched() -> None:
    searches, problem = Searches(), problem_70b()
    best = searches.best(problem, Pins())
    assert searches.best(problem, Pins(), among=frozenset()) == best


def test_a_search_among_one_layout_finds_it_with_its_best_cut() -> None:
    searches, problem = Searches(), problem_70b()
    best = searches.best(problem, Pins())
    (draft,) = drafts_of([best.strategy])
    assert searches.best(problem, Pins(), among=frozenset({draft})) == best


def test_prices_of_some_layouts_do_not_serve_others() -> None:
    searches, problem = Searches(), problem_70b()
    one, other = (frozenset(drafts_of([searches.best(problem, Pins(tp=tp)).strategy])) for tp in (2, 32))
    assert [searches.best(problem, Pins(), among=few).strategy.tp for few in (one, other)] == [2, 32]


def test_layouts_that_were_found_stay_in_view() -> None:
    searches, problem = Searches(), problem_70b()
    slow = searches.best(problem, Pins(tp=2)).strategy
    searches.remember(problem, slow)
    (draft,) = drafts_of([slow])
    assert draft in (searches.promising(problem, Pins()) or ())
    assert searches.remembered(problem, Pins(tp=2)) == [slow]
    assert searches.remembered(problem, Pins(tp=8)) == []
    faster = replace(problem.cluster, inter_node=problem.cluster.intra_node[-1][1])
    assert searches.remembered(problem._replace(cluster=faster), Pins()) == [slow]
    assert searches.remembered(problem._replace(cluster=problem.cluster.with_nodes(8)), Pins()) == []


def test_the_page_says_what_was_searched() -> None:
    found = sensitivity(small_plan())
    assert found is not None
    assert found.tried is None
    assert "the search runs again. Of the layout" in flips_heading(found)
    among = (
        "the search runs again among the 1,234 layouts that promise most (for other batches and lengths and the most "
    )
    assert among in flips_heading(replace(found, tried=1234))


@pytest.mark.parametrize("up", [2.0, 0.5])
def test_less_memory_needs_no_other_layouts(up: float) -> None:
    (memory,) = (one for one in quantities(problem_70b()) if one.makes_room)
    assert memory.needs_all(up) == (up > 1)


def test_a_price_is_that_of_all_layouts_of_the_other_instance() -> None:
    plan = recipe_plan("llama3_8b_trn1_4nodes")
    row = price_row(Searches(), plan, "trn1n.32xlarge", 0.9)
    assert row is not None
    there = load_cluster("trn1n.32xlarge", row.nodes, sdk=plan.cluster.sdk)
    best = search(plan.model, plan.training, there, Pins(), plan.backend, top=0).best
    assert (row.step_time_s, row.layout) == (best.estimate.step_time_s, short_name(best.strategy))


@pytest.mark.parametrize("rules", [{"fit_probability": 0.9999}, {"beaten_path": True}])
def test_a_price_is_found_under_the_rules_of_the_plans_search(rules: dict[str, Any]) -> None:
    """trn1n.32xlarge has the memory of the plan's instance; trn2.48xlarge has no beaten path, which is no error."""
    plan = autoshard.plan("llama3-8b", nodes=4, **rules)
    found = sensitivity(plan)
    assert found is not None
    rows = {row.instance: row for row in found.prices}
    there = autoshard.plan("llama3-8b", "trn1n.32xlarge", nodes=4, **rules)
    assert rows["trn1n.32xlarge"].layout == short_name(there.strategy)
    assert rows["trn1n.32xlarge"].step_time_s == pytest.approx(there.step_time_s, rel=1e-5)
    usual = price_row(Searches(), autoshard.plan("llama3-8b", nodes=4), "trn1n.32xlarge", 0.9)
    assert usual is not None and usual.layout != rows["trn1n.32xlarge"].layout
    assert "trn2.48xlarge" in rows


def test_layouts_that_were_priced_sparingly_do_not_say_which_are_promising() -> None:
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-70b"), training, load_cluster("trn1.32xlarge", 16), "torch")
    searches, other = Searches(), Searches()
    best = searches.best(problem, Pins())
    assert best == other.best(problem, Pins(), sparing=False)
    few, more = (
        sum(len(chunk.step_time_s) for chunk in one.layouts(problem, Pins()).chunks) for one in (searches, other)
    )
    assert 0 < few < more
    found, alone = searches.promising(problem, Pins()), Searches().promising(problem, Pins())
    assert found is not None and alone is not None
    assert found - {*drafts_of([best.strategy])} == alone - {*drafts_of([best.strategy])}


def test_where_one_of_the_fastest_compiles_none_are_looked_for_further_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest layout of 70B on four trn3 nodes is expected not to compile, and one that is 0.6 % slower is."""
    looked: list[float] = []
    choice_at = choices._choice_at

    def counted(*how: Any) -> choices.Choice | None:
        looked.append(how[1].behind)
        return choice_at(*how)

    monkeypatch.setattr(choices, "_choice_at", counted)
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    cluster = as_run_by(load_cluster("trn3-gen1", 4), "torch")
    problem = Problem(load_model("llama3-70b"), training, cluster, "torch")
    best = Searches().best(problem, Pins())
    assert looked == [1 + GIVEN_AWAY]
    found = search(*problem[:3], Pins(), "torch", top=2)
    assert best == found.best
    assert found.fastest is not None
    assert 1 < best.estimate.step_time_s / estimate(*problem[:3], found.fastest).step_time_s < 1.01


@pytest.mark.parametrize("backend", ["nxd", "torch"])
def test_a_search_that_knows_layouts_solves_fewer_and_takes_the_same(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken at other bandwidths says what is too slow. Of torch's layouts no cut may be faster here anyway."""
    solved: list[object] = []
    fastest = refinement._fastest

    def counted(*asked: Any) -> Any:
        solved.append(asked)
        return fastest(*asked)

    monkeypatch.setattr(refinement, "_fastest", counted)
    searches, problem = Searches(), problem_70b()._replace(backend=backend)
    few = searches.promising(problem, Pins())
    searches.best(problem, Pins())
    (links, *_) = quantities(problem)
    of_knowing, of_others = 0, 0
    for factor in (2.0, 1.9, 0.5):
        scaled = links.scaled(problem, factor)
        solved.clear()
        best = searches.best(scaled, Pins(), among=few)
        of_knowing += len(solved)
        solved.clear()
        assert Searches().best(scaled, Pins(), among=few) == best
        of_others += len(solved)
    assert of_knowing < of_others or (backend == "torch" and of_others == 0)
