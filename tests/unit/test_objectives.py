"""Money, the fewest nodes, the frontier, and what a logical core may be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.backends.rules import Problem
from autoshard.cli import main
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.explanation.frontier_page import frontier_page, frontier_to_list
from autoshard.planner import objectives
from autoshard.planner.answer import Answer, answer
from autoshard.planner.objectives import _powers_of_two, _sizes, best_answer, frontier, usd_per_billion_tokens
from autoshard.planner.operators.combine import Combined
from autoshard.planner.options import request_from
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.plans.search_result import Candidate, Pins
from autoshard.units import percent
from tests.unit.plan_examples import plan_70b, strategy

PINS = {"tp": 8, "cp": 1, "vpp": 1, "micro_batch": 1, "recompute": "none"}
"""So that each search takes a moment."""


def request(**changes: Any) -> PlanRequest:
    return PlanRequest(**{"model": "llama3-8b", "pins": PINS, "top": 0, **changes})


def test_usd_per_billion_tokens_by_hand() -> None:
    found = answer(request(nodes=4, price_per_node_hour=30.0))
    # 4 nodes x 30 USD/h, and a billion tokens take 1e9 / tokens_per_s seconds
    seconds = 1e9 / found.result.best.estimate.tokens_per_s
    assert usd_per_billion_tokens(found) == pytest.approx(4 * 30.0 * seconds / 3600)


def test_cheapest_is_the_least_of_all_sizes() -> None:
    found = best_answer(request(nodes=8, objective="cost"))
    costs = {nodes: usd_per_billion_tokens(answer(request(nodes=nodes))) for nodes in (1, 2, 4, 8) if nodes > 0}
    known = {nodes: cost for nodes, cost in costs.items() if cost is not None}
    assert found.problem.cluster.nodes == min(known, key=lambda nodes: known[nodes])
    assert found.notes[-1].startswith("objective cost: ") and found.notes[-1].endswith("the least of 1, 2, 4, 8 nodes")


def test_a_price_may_be_given_and_is_in_the_plan() -> None:
    plan = plan_for(request(nodes=4, objective="cost", price_per_node_hour=12.5))
    assert plan.cluster.price_per_node_hour_usd == 12.5


def test_cost_without_a_price_is_one_error() -> None:
    with pytest.raises(AutoshardError) as error:
        plan_for(request(instance="cpu", nodes=1, objective="cost"))
    assert str(error.value) == (
        "objective=cost needs a price, and the hardware file of cpu has none; --price-per-node-hour gives it"
    )


def test_fewest_nodes_that_meet_a_deadline() -> None:
    day = {"tokens": 1e11, "days": 5.0}
    found = best_answer(request(nodes=64, objective="nodes", **day))
    nodes, wanted = found.problem.cluster.nodes, 1e11 / (5 * 86400)
    assert found.result.best.estimate.tokens_per_s >= wanted
    fewer = frontier(request(nodes=nodes - 1))
    assert all(one.result.best.estimate.tokens_per_s < wanted for one in fewer)
    assert found.notes[-1].startswith(f"objective nodes: {nodes} nodes see 100 B tokens in ")


def test_the_fewest_nodes_are_some_that_the_plan_runs_on() -> None:
    """Three nodes have no layout of NxD's for this model, and one of torch's, which nothing runs on trn1."""

    def fewest(most: int) -> Answer:
        return best_answer(request(**{**asked, "nodes": most, "objective": "nodes", "tokens": 1e12, "days": 30.0}))

    asked = {"model": "llama3.2-1b", "seq_len": 2048, "pins": {}}
    found = fewest(8)
    assert (found.problem.backend, found.problem.cluster.nodes) == ("nxd", 4)
    three = answer(request(**asked, nodes=3))
    assert three.problem.backend == "torch"
    assert three.result.best.estimate.tokens_per_s > 1e12 / (30 * 86400)
    found = fewest(3)  # where none is run, that one is better than none
    assert (found.problem.backend, found.problem.cluster.nodes) == ("torch", 3)


@pytest.mark.parametrize("objective", ["nodes", "cost"])
def test_a_larger_cluster_whose_plan_fits_as_surely_as_asked_goes_first(objective: str) -> None:
    """A token costs a little less on one node, where no layout fits that surely, than on two."""
    asked: dict[str, Any] = {"nodes": 2, "objective": objective, "pins": {**PINS, "pp": 2}}
    if objective == "nodes":
        asked |= {"tokens": 1e9, "days": 30.0}
    assert best_answer(request(**asked, fit_probability=0.99)).problem.cluster.nodes == 1
    asked["fit_probability"] = 0.999999
    one = answer(request(pins=asked["pins"], fit_probability=0.999999))
    fits, usd = one.result.best.estimate.fits_probability, usd_per_billion_tokens(one)
    found = best_answer(request(**asked))
    assert found.problem.cluster.nodes == 2
    assert fits < 0.999999 < found.result.best.estimate.fits_probability
    said = "1 node would do" if objective == "nodes" else f"1 node {usd:,.2f} USD,"
    assert found.notes[-1].endswith(f"; {said} with a plan that fits with {percent(fits)} probability")


@pytest.mark.parametrize(
    ("doubts", "chosen", "looked_at"),
    [
        ({4: 0}, 4, 4),
        ({4: 2, 5: 1, 6: 1, 7: 0}, 7, 7),
        ({4: 2, 5: 1, 6: 1}, 5, 8),  # twice 4 nodes, and none fits as surely as is asked
        ({4: 1, 5: 1}, 4, 8),
    ],
)
def test_up_to_twice_the_nodes_are_looked_at_for_a_plan_that_fits_surely(
    doubts: dict[int, int], chosen: int, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node sees 1,000 tokens a second, and 4,000 are wanted. doubts: how unsurely a plan fits, 3 of the others."""
    one, tried = answer(request()), list[int]()

    def tried_fastest(asked: PlanRequest) -> Answer:
        tried.append(asked.nodes)
        estimate = replace(one.result.best.estimate, tokens_per_s=1000.0 * asked.nodes)
        result = replace(one.result, best=replace(one.result.best, estimate=estimate))
        problem = one.problem._replace(cluster=one.problem.cluster.with_nodes(asked.nodes))
        return replace(one, problem=problem, result=result, notes=())

    monkeypatch.setattr(objectives, "_least_nodes", lambda *_: 2)
    monkeypatch.setattr(objectives, "_tried_fastest", tried_fastest)
    monkeypatch.setattr(objectives, "unsureness", lambda found, _: doubts.get(found.problem.cluster.nodes, 3))
    found = best_answer(request(nodes=64, objective="nodes", tokens=4000.0 * 86_400, days=1.0))
    assert found.problem.cluster.nodes == chosen and tried == [*range(2, looked_at + 1)]
    (note,) = (note for note in found.notes if note.startswith("objective nodes: "))
    assert ("; 4 nodes would do with a plan that fits with " in note) == (chosen > 4)


def test_no_money_is_compared_where_no_number_of_nodes_has_a_plan() -> None:
    with pytest.raises(AutoshardError, match=r"^ep=8 has no experts"):
        best_answer(request(nodes=2, objective="cost", pins={"ep": 8}))


def test_years_have_no_exponent() -> None:
    found = best_answer(request(nodes=64, objective="nodes", tokens=3e13, days=5000.0))
    days = 3e13 / found.result.best.estimate.tokens_per_s / 86400
    assert days > 1000
    assert f" tokens in {days:,.0f} days, 5,000 days allowed; " in found.notes[-1]


def test_one_node_is_one() -> None:
    found = best_answer(request(objective="nodes", tokens=1e9, days=30.0))
    assert found.notes[-1].startswith("objective nodes: 1 node sees 1.00 B tokens in ")


def test_one_node_is_a_limit_where_it_is_asked_for() -> None:
    """3e10 tokens in 10 days need more than one node; without --nodes larger clusters are looked at."""
    asked = {"model": "llama3-8b", "objective": "nodes", "tokens": 3e10, "days": 10.0, **PINS}
    assert plan_for(request_from(asked)).cluster.nodes > 1
    with pytest.raises(NoLayoutFits) as error:
        plan_for(request_from({**asked, "nodes": 1}))
    said, _, speed = str(error.value).rpartition(" ")
    assert said == (
        "no cluster of up to 1 node sees 30.0 B tokens in 10 days, 34,722 a second: the fastest, 1 node, does"
    )
    assert float(speed.replace(",", "")) == pytest.approx(answer(request()).result.best.estimate.tokens_per_s, abs=0.5)
    assert request_from({"model": "llama3-8b", "objective": "cost"}).nodes == 1


def test_a_deadline_that_nothing_meets() -> None:
    with pytest.raises(NoLayoutFits) as error:
        plan_for(request(objective="nodes", nodes=4, tokens=1e12, days=0.5))
    assert str(error.value).startswith("no cluster of up to 4 nodes sees 1.00 T tokens in 12 hours")
    with pytest.raises(AutoshardError, match=r"^objective=nodes: .*; --days is missing$"):
        plan_for(request(objective="nodes", tokens=1e12))


def test_tokens_alone_say_how_long_the_training_takes() -> None:
    """By hand: in hours of two nodes."""
    plan = plan_for(request(nodes=2, tokens=15e12))
    speed, price = plan.estimate.tokens_per_s, plan.cluster.price_per_node_hour_usd
    assert price is not None
    usd = 15e12 / speed / 3600 * 2 * price
    said, _, cost = plan.notes[-1].removesuffix(" USD").rpartition(" ")
    assert said == f"tokens: 15.0 T take {15e12 / speed / 86400:,.0f} days at {speed:,.0f} a second and cost"
    assert float(cost.replace(",", "")) == pytest.approx(usd, rel=1e-5)  # a plan keeps six digits of its speed
    assert plan.strategy == plan_for(request(nodes=2)).strategy
    cpu = plan_for(request(instance="cpu", nodes=64, pins={}, tokens=1e9))
    assert cpu.notes[-1].endswith(" a second")  # nobody knows its price


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_deadline_needs_an_objective_that_has_one(objective: str) -> None:
    with pytest.raises(AutoshardError) as error:
        plan_for(request(objective=objective, tokens=1e12, days=30.0))
    assert str(error.value) == f"days=30 is a deadline, and objective={objective} has none; use objective=nodes"


@pytest.mark.parametrize(("given", "value"), [("tokens", 30.0), ("days", 30.0), ("objective", "cost")])
def test_a_frontier_takes_no_whole_training_and_no_objective(given: str, value: float | str) -> None:
    with pytest.raises(AutoshardError) as error:
        frontier(request(**{given: value}))
    assert str(error.value) == f"--pareto lists single steps and takes no --{given}; a plan without --pareto does"


def test_the_frontier_names_layouts_in_words_that_do_not_break() -> None:
    sets = ("full",) * 3 + ("attention_norm+attention+core_attention+mlp",) * 5
    by_stage = replace(plan_70b(), strategy=strategy(recompute=sets))
    point = answer(request(nodes=2))
    best = Candidate(by_stage.strategy, by_stage.estimate)
    page = frontier_page((replace(point, result=replace(point.result, best=best)),), 70, False)
    assert page.splitlines()[5].strip().endswith("recompute=by-stage")
    assert "attention_norm" not in page


def test_frontier_only_gets_faster() -> None:
    points = frontier(request(nodes=8))
    steps = [one.result.best.estimate.step_time_s for one in points]
    nodes = [one.problem.cluster.nodes for one in points]
    assert steps == sorted(steps, reverse=True) and len(set(steps)) == len(steps)
    assert nodes == sorted(nodes) and set(nodes) <= {1, 2, 4, 8}
    sure = [one["fits_probability"] for one in frontier_to_list(points)]
    assert sure == [one.result.best.estimate.fits_probability for one in points]
    printed = re.findall(r"\d%  +((?:more than )?[\d.]+ %)  ", frontier_page(points, 120, False))
    assert printed == [percent(one) for one in sure]


def pays_on_one_node(problem: Problem, pins: Pins, known_s: float, limit_bytes: float, exhaustive: bool) -> Combined:
    """A solver whose operators make the step of one node ten times as fast, and no other step faster."""
    if problem.cluster.nodes > 1:
        return Combined(None, (), None, 0, 0, gap=0.01)
    best = search(*problem[:3], pins, problem.backend, top=0).best
    tokens_per_s = 10 * best.estimate.tokens_per_s
    return Combined(
        best.strategy, (), replace(best.estimate, step_time_s=known_s / 10, tokens_per_s=tokens_per_s), 1, 1, gap=0.0
    )


def test_objectives_compare_what_the_solver_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron's operators are fastest on 4 nodes and need several to see 1e11 tokens in 30 days; the notes are of the
    plan that is written."""
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", pays_on_one_node)
    solver = {"nodes": 4, "operators": "solver", "backend": "torch"}
    cheapest = plan_for(request(**solver, objective="cost"))
    assert cheapest.cluster.nodes == 1
    cost = usd_per_billion_tokens(answer(request(**{**solver, "nodes": 1})))
    assert any(note.startswith(f"objective cost: {cost:,.2f} USD ") for note in cheapest.notes)
    assert not any("with Megatron's operators: objective" in note for note in cheapest.notes)
    fewest = {"objective": "nodes", "tokens": 1e11, "days": 30.0}
    assert plan_for(request(**solver, **fewest)).cluster.nodes == 1
    assert plan_for(request(**{**solver, "operators": "megatron"}, **fewest)).cluster.nodes > 1
    assert [one.problem.cluster.nodes for one in frontier(request(**solver))] == [1]
    assert [one.problem.cluster.nodes for one in frontier(request(**{**solver, "operators": "megatron"}))] == [1, 2, 4]


@pytest.mark.parametrize("objective", ["cost", "nodes"])
def test_what_the_solver_cannot_do_is_refused_before_any_cluster_is_searched(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoshard.planner.answer.search_backends", None)
    asked = request(operators="solver", objective=objective, tokens=1e9, pins={"etp": 1})
    with pytest.raises(AutoshardError) as error:
        plan_for(replace(asked, days=30.0 if objective == "nodes" else None))
    assert str(error.value) == "etp with operators=solver: the integer program places experts itself; leave one out"


def test_rows_of_the_frontier_say_what_was_chosen_beside_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: what all points share stands above them, what differs is a column, a note once."""
    monkeypatch.setattr("autoshard.planner.operators.combine.combine", pays_on_one_node)
    trn2 = {"instance": "trn2.48xlarge", "global_batch": 256, "pins": {**PINS, "tp": 4}}
    points = frontier(request(**trn2, nodes=2, lnc="auto", precision="auto"))
    refused = (
        "precision cfp8: backend nxd cannot multiply in cfp8, the plan is a price; mixed_precision, bf16_sr, fp32 run"
    )
    lnc = points[0].problem.cluster.lnc
    chosen = {"precision": "cfp8", "lnc": lnc, "backend": "nxd", "stack": None, "operators": "megatron"}
    for one in frontier_to_list(points):
        assert {name: one[name] for name in chosen} == chosen and one["notes"] == [refused]
    page = frontier_page(points, 120, False)
    assert page.splitlines()[0] == f"Pareto  llama3-8b on trn2.48xlarge: precision cfp8, lnc {lnc}, backend nxd"
    assert page.splitlines()[1].split()[-4:] == ["a", "billion", "tokens", "layout"] and page.count(refused) == 1
    torch = answer(request(**trn2, nodes=2, backend="torch"))
    page = frontier_page((points[0], torch), 120, False)
    assert page.splitlines()[0] == f"Pareto  llama3-8b on trn2.48xlarge: lnc {lnc}"
    words = " ".join(page.split())
    assert " tokens precision backend stack layout 1 " in words
    gpus = answer(request(nodes=1, instance="h100-80gb", backend="torch"))
    first = "Pareto  llama3-8b on h100-80gb: precision mixed_precision, backend torch"  # GPUs have no lnc
    assert frontier_page((gpus,), 120, False).splitlines()[0] == first
    assert " ? cfp8 nxd - tp=4 " in words and " ? mixed_precision torch neuron-compiled tp=4 " in words
    assert " nodes 1: precision cfp8: " in words
    solved = answer(request(nodes=1, operators="solver", backend="torch"))
    assert frontier_to_list((solved,))[0]["operators"] == "solver"
    assert frontier_page((solved,), 120, False).splitlines()[0].endswith(", backend torch, operators solver")


def test_sizes() -> None:
    assert _powers_of_two(1) == (1,) and _powers_of_two(12) == (1, 2, 4, 8, 12)
    sizes = list(_sizes(1, 70))
    assert sizes[:33] == [*range(1, 33), 34] and sizes[-2:] == [64, 68]
    assert list(_sizes(30, 36)) == [30, 31, 32, 34, 36]


def test_why_no_cluster_will_do() -> None:
    """What stands against a layout, or the devices' peak: 1e15 tokens in 864 s at 8e9 x 6 FLOP and 3e15 FLOP/s a node
    are some 18 million nodes."""
    asked = request(nodes=4, objective="nodes", tokens=1e9, days=30.0, pins={"ep": 8})
    with pytest.raises(
        NoLayoutFits, match=r"^no cluster of up to 4 nodes sees 1.00 B tokens in 30 days: ep=8 has no exp"
    ):
        plan_for(asked)
    with pytest.raises(NoLayoutFits, match=r"at the peak of their devices \d+,\d+,\d+ nodes would just do$"):
        plan_for(replace(asked, tokens=1e15, days=0.01, pins={}))


def test_lnc_auto_names_what_stands_against_each() -> None:
    trn2 = {"instance": "trn2.48xlarge", "nodes": 1, "lnc": "auto"}
    with pytest.raises(AutoshardError, match=r"^at lnc 1 .* tp=16 is not a group .*; at lnc 2 tp=16 x pp=8 is 128 "):
        plan_for(request(**trn2, pins={"tp": 16, "pp": 8}))


def test_lnc_auto_takes_the_faster_and_says_so() -> None:
    trn2 = {"instance": "trn2.48xlarge", "pins": {"cp": 1, "vpp": 1, "micro_batch": 1, "recompute": "none"}}
    best = plan_for(request(**trn2, lnc="auto"))
    each = {lnc: plan_for(request(**trn2, lnc=lnc)).estimate.step_time_s for lnc in (1, 2)}
    assert best.cluster.lnc == min(each, key=lambda lnc: each[lnc])
    assert any(note.startswith(f"lnc {best.cluster.lnc}: ") for note in best.notes)
    assert plan_for(request(nodes=1, lnc="auto")).cluster.lnc == 1  # trn1 has one kind


def test_lnc_auto_passes_over_the_faster_where_it_fits_less_surely() -> None:
    pins = {"tp": 4, "pp": 4, "cp": 1, "vpp": 1, "micro_batch": 1, "recompute": "none", "schedule": "1f1b"}
    trn2 = {"instance": "trn2.48xlarge", "seq_len": 4096, "pins": pins, "fit_probability": 0.999999}
    each = {lnc: answer(request(**trn2, lnc=lnc)).result.best.estimate for lnc in (1, 2)}
    assert each[1].step_time_s < each[2].step_time_s
    assert each[1].fits_probability < 0.999999 < each[2].fits_probability
    best = best_answer(request(**trn2, lnc="auto"))
    assert best.problem.cluster.lnc == 2
    fits = percent(each[1].fits_probability)
    assert best.notes[-1].endswith(f" at lnc 1, which fits less surely, with {fits} probability")


def test_pareto_on_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "--model llama3-8b --nodes 4 --tp 8 --cp 1 --vpp 1 --micro-batch 1 --recompute none --pareto"
    flags = text.split()
    assert main(["plan", *flags]) == 0
    page = capsys.readouterr().out
    shared = "precision mixed_precision, lnc 1, backend nxd"
    assert page.startswith(f"Pareto  llama3-8b on trn1.32xlarge: {shared}\n  nodes ")
    assert main(["plan", *flags, "--format", "json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["nodes"] for point in points][-1] == 4 and list(tmp_path.iterdir()) == []
