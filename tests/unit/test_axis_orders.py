"""The order of axes: which orders are worth a look, that the search finds the best of all 24, and where one pays."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from autoshard.backends.backend import AXIS_ORDERS
from autoshard.backends.problem import Draft, Problem
from autoshard.cost.collectives import GroupShape, collective_time_s, group_shape
from autoshard.cost.estimate import estimate
from autoshard.cost.local_shape import mesh_order
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.graph.recompute import NO_RECOMPUTE
from autoshard.layout.mesh import AXIS_ORDER, build_mesh
from autoshard.models.registry import load_model
from autoshard.planner import axis_orders
from autoshard.planner.axis_orders import order_laws, other_orders, undominated
from autoshard.planner.grid.faster_orders import faster_orders
from autoshard.planner.grid.table import Table
from autoshard.planner.layouts import by_way
from autoshard.planner.priced import Clock, price_layouts, table_of
from autoshard.planner.rejections import Tally
from autoshard.planner.search import search
from autoshard.plans.names import changed_words
from autoshard.plans.plan import make_plan
from autoshard.plans.plan_json import plan_to_json, write_plan
from autoshard.plans.search_result import Pins
from autoshard.plans.validate import read_plan
from autoshard.spec.cluster import Cluster, Link, load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from autoshard.units import GB
from tests.cases import some
from tests.unit.test_search import toy_model

MIXED = load_precision("mixed_precision")


def two_levels(nodes: int, devices: int, between: float = 2 * GB) -> Cluster:
    """Fast links in a node; its devices share one adapter. Launches take no time."""
    cluster = load_cluster("h100-80gb", nodes)
    links, network = ((devices, Link("inside", 100 * GB, 1e-6)),), Link("between", between, 1e-5)
    device = replace(cluster.device, pass_launch_s=0.0, operator_overhead_s=0.0)
    shape: dict[str, Any] = {
        "devices_per_node": devices,
        "devices_per_chip": 1,
        "adapters_per_node": 1,
        "collective_launch_s": 0.0,
    }
    return replace(cluster, intra_node=links, inter_node=network, device=device, **shape)


def test_what_is_moved_inside_stays_in_a_node() -> None:
    # 4 nodes of 8; pp 4, dp 4, tp 2: by default stages are a node apart and dp is in it; with dp outermost both turn
    cluster = load_cluster("h100-80gb", 4)
    usual = mesh_order(build_mesh(2, 4, 4, 1, 1, 8))
    turned = mesh_order(build_mesh(2, 4, 4, 1, 1, 8, order=("dp", "pp", "cp", "tp")))
    assert group_shape(usual, ("pp",), cluster) == group_shape(turned, ("dp",), cluster) == GroupShape(4, 1, 4, 8, 1, 8)
    assert group_shape(usual, ("dp",), cluster) == group_shape(turned, ("pp",), cluster) == GroupShape(4, 4, 1, 2, 7, 8)


@pytest.mark.parametrize("seed", range(12))
def test_a_dropped_order_has_another_that_is_no_worse_in_anything(seed: int) -> None:
    choose = random.Random(seed)
    cluster = load_cluster(*choose.choice([("h100-80gb", 8), ("a100-40gb", 3), ("cpu", 6), ("trn2u.48xlarge", 8)]))
    tp, cp, ep = choose.choice([1, 2, 4, 8]), choose.choice([1, 2]), choose.choice([1, 2])
    pp, dp = choose.choice([1, 2, 3, 4]), ep * choose.choice([1, 2, 4])
    laws = {order: order_laws(build_mesh(tp, pp, dp, cp, ep, 2, True, order), cluster) for order in AXIS_ORDERS}
    kept = undominated(laws)
    for order in AXIS_ORDERS:
        no_worse = [one for one in kept if all(x <= y for x, y in zip(laws[one], laws[order], strict=True))]
        assert no_worse
        assert (order in kept) == (no_worse == [order])
    assert AXIS_ORDER in kept or laws[AXIS_ORDER] not in [laws[one] for one in kept]


def test_rules_on_orders_are_asked_once_for_all_batches_and_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingSpec(4096, 64, load_precision("mixed_precision"))
    problem = Problem(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 3), "torch")
    draft = Draft(2, 2, 12, 2, 1)
    asked, check = list[Draft](), axis_orders._is_legal

    def is_legal(problem: Problem, draft: Draft, order: tuple[str, ...]) -> bool:
        asked.append(draft)
        return check(problem, draft, order)

    monkeypatch.setattr(axis_orders, "_is_legal", is_legal)
    axis_orders._legal_orders.cache_clear()
    other_orders(problem, Pins(), draft)
    first = len(asked)
    network = replace(problem.cluster.inter_node, bandwidth_bytes_per_s=1e9)
    slower = problem._replace(
        training=replace(training, global_batch_size=128), cluster=replace(problem.cluster, inter_node=network)
    )
    found = other_orders(slower, Pins(), draft._replace(microbatch_size=2, zero=3))
    assert first == len(asked) == len(AXIS_ORDERS)
    assert set(found) <= {order for order in AXIS_ORDERS if check(slower, draft, order)} < set(AXIS_ORDERS)
    other_orders(slower._replace(cluster=replace(slower.cluster, nodes=6)), Pins(), draft._replace(dp=24))
    assert len(asked) == 2 * first


def test_orders_of_axes_of_one_rank_are_one() -> None:
    problem = Problem(load_model("llama3-8b"), TrainingSpec(8192, 64, MIXED), load_cluster("h100-80gb", 2), "torch")
    assert other_orders(problem, Pins(), Draft(1, 1, 16, 1, 1)) == ()
    assert other_orders(problem, Pins(), Draft(8, 1, 2, 1, 1)) == (("pp", "cp", "tp", "dp"),)
    assert other_orders(problem, Pins(axis_order="dp-pp-cp-tp"), Draft(8, 1, 2, 1, 1)) == ()
    assert other_orders(problem._replace(backend="nxd"), Pins(), Draft(8, 1, 2, 1, 1)) == ()


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_search_finds_the_best_of_all_orders(seed: int) -> None:
    choose = random.Random(seed)
    kind = choose.choice(["llama3-8b", "mixtral-8x7b"])
    model = toy_model(kind, num_attention_heads=8, num_key_value_heads=choose.choice([2, 8]), num_hidden_layers=6)
    training = TrainingSpec(choose.choice([512, 4096]), choose.choice([8, 16]), MIXED)
    cluster = two_levels(*choose.choice([(2, 4), (4, 2), (3, 4)]), between=choose.choice([1, 10]) * GB)
    pins = Pins(zero=choose.choice([1, 3]), recompute="none", microbatch_size=1, pp=2)

    def fastest_s(pins: Pins) -> float:  # the chosen one may be a simpler one
        found = search(model, training, cluster, pins, "torch")
        return min(one.estimate.step_time_s for one in (found.best, *found.runners_up))

    each = [fastest_s(replace(pins, axis_order="-".join(order))) for order in AXIS_ORDERS]
    assert fastest_s(pins) == pytest.approx(min(each), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "instance"), [("llama3-8b", "h100-80gb"), ("mixtral-8x7b", "h100-80gb"), ("gemma2-9b", "trn2.48xlarge")]
)
def test_no_draft_is_dropped_that_may_be_faster_in_another_order(model: str, instance: str) -> None:
    """What is dropped takes no less with any recompute set, in any order that is worth a look."""
    training = TrainingSpec(4096, 256, MIXED)
    problem, pins = (
        Problem(load_model(model), training, load_cluster(instance, 2), "torch"),
        Pins(cp=1, schedule="1f1b"),
    )
    wholes = price_layouts(problem, pins, Tally(), Clock(inf), exhaustive=True).wholes
    drafts = [draft for whole in wholes for draft in whole.drafts.drafts]
    others = drafts[::2]  # as if they were not priced
    every = table_of(problem, pins)
    for draft in drafts:
        for order in other_orders(problem, pins, draft):
            every.add(draft._replace(axis_order=order))
    capacity_bytes, step_time_s = problem.cluster.device.memory_bytes, dict[Draft, float]()
    for chunk in every.price():
        for place, seconds, needed in zip(chunk.draft, chunk.step_time_s, chunk.memory_bytes, strict=True):
            draft = chunk.whole.drafts.drafts[place]
            if needed <= capacity_bytes:
                step_time_s[draft] = min(seconds, step_time_s.get(draft, inf))
    known_s = sorted(step_time_s.values())[len(step_time_s) // 4]
    priced = Table(problem, (NO_RECOMPUTE,))
    for draft in drafts[1::2]:
        priced.add(draft)
    found = [*faster_orders(problem, [*priced.wholes()], pins, known_s, by_way(others), fitting=set(drafts))]
    assert len(set(found)) == len(found) < len(step_time_s)
    assert {draft for draft, seconds in step_time_s.items() if seconds < known_s} <= set(found)


def test_by_hand_a_pipeline_inside_nodes_pays_for_long_batches() -> None:
    # 2 nodes of 4, pp 4, dp 2, and 1 MB for each. By default two stages are in a node and replicas are neighbours: two
    # ranks of a node send to the other one and share its 2 GB/s, 1 MB / 1 GB/s + 10 us; gradients stay inside, each
    # rank receives half of them at 100 GB/s. With dp outermost stages are neighbours, and for gradients 4 ranks share
    # the adapter.
    cluster = two_levels(2, 4)
    times = {}
    for order in (AXIS_ORDER, ("dp", "pp", "cp", "tp")):
        ranks = mesh_order(build_mesh(1, 4, 2, 1, 1, 8, order=order))
        hop, sums = (group_shape(ranks, axes, cluster) for axes in (("pp",), ("dp",)))
        times[order] = (
            collective_time_s("send_recv", 1e6, hop, cluster),
            collective_time_s("reduce_scatter", 1e6, sums, cluster),
        )
    assert times[AXIS_ORDER] == pytest.approx((1e-3 + 10e-6, 5e-6 + 1e-6))
    assert times["dp", "pp", "cp", "tp"] == pytest.approx((10e-6 + 1e-6, 1e-3 + 10e-6))
    # Gradients travel once a step, activations with each of 32 microbatches: the search turns the two around.
    model, training = toy_model("llama3-8b", hidden_size=512, num_attention_heads=8), TrainingSpec(4096, 64, MIXED)
    pins = Pins(tp=1, pp=4, dp=2, microbatch_size=1, zero=1, recompute="none", schedule="1f1b")
    usual = search(model, training, cluster, replace(pins, axis_order="pp-dp-cp-tp"), "torch").best
    best = search(model, training, cluster, pins, "torch").best
    assert best.strategy == replace(usual.strategy, axis_order=("dp", "pp", "cp", "tp"))
    before, after = ({term.name: term.value for term in one.estimate.time_terms} for one in (usual, best))
    unlike = {name for name, seconds in before.items() if seconds != pytest.approx(after[name])}
    assert unlike == {"pipeline transfers", "gradient reduce-scatter", "parameter all-gather"}
    assert after["pipeline transfers"] < 0.05 * before["pipeline transfers"]
    assert best.estimate.step_time_s < 0.9 * usual.estimate.step_time_s


def test_by_brute_force_an_8b_on_one_trn2_node_takes_another_order() -> None:
    # Pipeline neighbours on a chip, replicas apart: the other way round the two stages are as far apart as can be.
    model, training = load_model("llama3-8b"), TrainingSpec(4096, 1024, MIXED)
    cluster, pins = load_cluster("trn2.48xlarge", 1), Pins(tp=1, pp=2, cp=2, microbatch_size=1, zero=3)
    best = search(model, training, cluster, pins, "torch").best
    assert best.strategy.axis_order_name == "dp-pp-cp-tp"
    each = {}
    for order in AXIS_ORDERS:
        its = replace(best.strategy, axis_order=order)
        each[order] = estimate(model, training, cluster, its).step_time_s
    assert best.estimate.step_time_s == min(each.values()) < 0.98 * each[AXIS_ORDER]


def test_a_pinned_order_is_kept_and_wrong_ones_are_told() -> None:
    model, training = load_model("llama3-8b"), TrainingSpec(8192, 64, MIXED)
    gpus = load_cluster("h100-80gb", 1)
    pins = Pins(axis_order="tp-cp-dp-pp", tp=2, zero=1, recompute="full", microbatch_size=1)
    assert search(model, training, gpus, pins, "torch").best.strategy.axis_order == ("tp", "cp", "dp", "pp")
    trn1 = load_cluster("trn1.32xlarge", 1)
    for pins, backend, words in (
        (Pins(axis_order="pp-tp"), "torch", "axis_order=pp-tp must name each of pp, dp, cp, tp once, outermost first"),
        (
            Pins(axis_order="dp-pp-cp-tp"),
            "nxd",
            "axis_order=dp-pp-cp-tp: NxD builds its groups in the order pp-dp-cp-tp alone; use that or backend torch",
        ),
        (
            Pins(tp=8, cp=2, pp=1, axis_order="pp-dp-tp-cp"),
            "torch",
            "axis_order=pp-dp-tp-cp: cp=2 inside tp=8 makes groups of tp that trn1.32xlarge does not have; put tp last",
        ),
    ):
        with pytest.raises(AutoshardError) as caught:
            search(model, training, trn1, pins, backend)
        assert words in str(caught.value)


def test_explain_says_an_unusual_order(tmp_path: Path) -> None:
    model, training = load_model("llama3-8b"), TrainingSpec(8192, 64, MIXED)
    cluster = load_cluster("h100-80gb", 1)
    best = search(model, training, cluster, Pins(tp=2, pp=2, dp=2, axis_order="dp-pp-cp-tp"), "torch").best
    plan = make_plan(model, training, cluster, "torch", best.strategy, best.estimate)
    usual = make_plan(model, training, cluster, "torch", replace(best.strategy, axis_order=AXIS_ORDER), best.estimate)
    facts = [dict(describe(one).facts)["mesh"] for one in (plan, usual)]
    assert facts == [
        "dp 2 > pp 2 > tp 2 (tp varies fastest over ranks; the usual order is pp > dp > tp)",
        "pp 2 > dp 2 > tp 2 (tp varies fastest over ranks)",
    ]
    assert changed_words(usual.strategy, plan.strategy) == "order=dp-pp-cp-tp"
    assert changed_words(plan.strategy, usual.strategy) == "order=pp-dp-cp-tp"
    order = "dp outermost, then pp, cp, tp; neighbours along tp have neighbouring ranks"
    assert json.loads(plan_to_json(plan))["mesh"]["rank_order"] == order
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
