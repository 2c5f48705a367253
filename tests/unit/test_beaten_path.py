"""The beaten path: which features of a layout are known to have run, and what follows from that for plans."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import pytest

from autoshard.backends.problem import Draft, Problem
from autoshard.cli import main
from autoshard.cost.interval import difference_factors, picks
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.files.codec import to_json
from autoshard.layout.mesh import AXIS_ORDER
from autoshard.layout.strategy import Strategy
from autoshard.models.registry import load_model
from autoshard.planner.beaten_path import (
    GIVEN_AWAY,
    Precedent,
    best_on_path,
    expected_fastest,
    longer,
    new_choices,
    path_notes,
    precedent,
    wins,
)
from autoshard.planner.cached_search import Searches
from autoshard.planner.planning import plan_for
from autoshard.planner.ranking import Timed, describe
from autoshard.planner.request import PlanRequest
from autoshard.planner.search import search
from autoshard.plans.plan_json import plan_to_dict
from autoshard.plans.search_result import Pins, SearchResult
from autoshard.plans.validate import plan_from_dict
from autoshard.precedents import runs
from autoshard.precedents.graph_size import TILE_FLOPS, GraphSize, graph_size
from autoshard.precedents.runs import (
    BETWEEN,
    FEATURES,
    INSIDE,
    BeatenPath,
    Compiled,
    InstructionFit,
    Known,
    Run,
    fitted_instructions,
    packaged,
    pipeline_place,
    read_known,
)
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.training import TrainingSpec, load_precision
from benchmarks.beaten_path import DATA, known
from benchmarks.path_surprise import Missed, Surprise, lines, surprise_of
from tests.unit import plan_examples
from tests.unit.published_plans import published_plans

LLAMA_7B, NODE = load_model("llama2-7b"), load_cluster("trn1.32xlarge", 1)
TRAINING = TrainingSpec(4096, 1024, load_precision("mixed_precision"))
PROBLEM = Problem(LLAMA_7B, TRAINING, NODE, "nxd")
OWN = plan_examples.strategy(tp=8, pp=1, dp=4, recompute="none", stage_layers=(32,))
"""A layout of llama2-7b on one node whose features have all run."""


def made_up(**changes: object) -> Known:
    """A file with one run: OWN, on trn1 with nxd."""
    run = Run("a model", 8, 1, 1, 1, 1, "none", "none", GraphSize(2000, 2e6, 1e8), 1, ("somebody",))
    path = BeatenPath("trn1", "nxd", (replace(run, **changes),), GraphSize(2000, 2e6, 1e8))  # type: ignore[arg-type]
    return Known("hand", (path,), (), InstructionFit(10.0, 0.1, 1e5, 3e6))


@pytest.fixture
def one_run(monkeypatch: pytest.MonkeyPatch) -> Precedent:
    monkeypatch.setattr(runs, "packaged", made_up)
    found = precedent(PROBLEM, Pins())
    assert found is not None
    return found


def one_node(pins: Pins = Pins()) -> SearchResult:  # noqa: B008  a frozen value
    return search(*PROBLEM[:3], pins, "nxd")


def test_a_layout_of_known_features_has_nothing_unknown(one_run: Precedent) -> None:
    assert one_run.unknown(OWN) == ()
    assert one_run.known(OWN)


def test_every_feature_that_has_not_run_is_named(one_run: Precedent) -> None:
    other = plan_examples.strategy(
        tp=2, pp=8, dp=1, cp=2, microbatch_size=4, recompute="mlp", stage_layers=(4,) * 8, context_parallel="ring"
    )
    assert one_run.unknown(other) == (
        "tp=2",
        "cp=2",
        "microbatch=4",
        "a pipeline inside a node",
        "recompute=mlp",
        "a graph of 131,072,000 logits",
    )


def test_what_is_pinned_is_not_held_against_a_layout(one_run: Precedent) -> None:
    found = precedent(PROBLEM, Pins(tp=2, recompute="mlp", pp=1))
    assert found is not None and one_run.excused == frozenset()
    assert found.excused == {"tp", "recompute", "pipeline"}
    pinned = plan_examples.strategy(tp=2, pp=1, dp=16, recompute="mlp", stage_layers=(32,))
    assert found.unknown(pinned) == ("a graph of 5,297,920 matrix tiles",)
    ruled = precedent(PROBLEM, Pins(tp=2, beaten_path=True))
    assert ruled is not None and ruled.excused == frozenset()


@pytest.mark.parametrize(
    ("degrees", "place"),
    [((8, 1, 4), "none"), ((8, 4, 1), INSIDE), ((8, 4, 4), BETWEEN), ((8, 4, 2), INSIDE), ((32, 2, 1), BETWEEN)],
)
def test_a_pipeline_lies_inside_a_node_where_its_neighbours_do(degrees: tuple[int, int, int], place: str) -> None:
    assert pipeline_place(Draft(*degrees, 1, 1), 32) == place


def test_the_order_of_axes_decides_where_a_pipeline_lies() -> None:
    draft = Draft(8, 4, 4, 1, 1, axis_order=AXIS_ORDER)
    assert pipeline_place(draft, 32) == BETWEEN
    assert pipeline_place(draft._replace(axis_order=("dp", "pp", "cp", "tp")), 32) == INSIDE


def test_tiles_are_flops_of_products_and_all_scores_where_these_are_written_out() -> None:
    strategy = replace(OWN, attention_kernel="plain")
    rows, block = 4096, 4 * 4096 * 4096 + 3 * 4096 * 11008
    products = 2 * rows * (32 * block + 4096 * 32000) / 8
    causal = 32 * 4 * rows * 4096 * (4096 + 1) / 2 / 8
    size = graph_size(*PROBLEM[:3], strategy)
    assert size.tiles == pytest.approx(3 * (products + 2 * causal) / TILE_FLOPS, rel=1e-3)
    assert size.logits == rows * 32000 / 8


def test_stages_are_compiled_apart_and_forward_and_backward_of_each() -> None:
    whole = graph_size(*PROBLEM[:3], replace(OWN, attention_kernel="plain"))
    quarter = plan_examples.strategy(
        tp=8, pp=4, dp=1, recompute="none", attention_kernel="plain", stage_layers=(8,) * 4
    )
    stage = graph_size(*PROBLEM[:3], quarter)
    head = 2 * 2 * 4096 * 4096 * 32000 / 8 / TILE_FLOPS
    assert stage.tiles - head == pytest.approx((whole.tiles * 2 / 3 - head) / 4)
    assert stage.operators < whole.operators / 7
    assert stage.logits == whole.logits


def test_instructions_follow_tiles_and_are_unknown_beyond_the_pairs() -> None:
    graphs = tuple(
        Compiled("a graph", "trn1", GraphSize(1, tiles, 1), instructions, 5e6, False, "somebody")
        for tiles, instructions in ((1e6, 1e7), (2e6, 8e7), (5e5, None))
    )
    fit = fitted_instructions(graphs)
    assert fit.per_tile == pytest.approx(sqrt(10 * 40))
    assert fit.left_out_error == pytest.approx((3 + 0.75) / 2)
    assert fit.instructions(GraphSize(1, 5e5, 1)) == pytest.approx(20 * 5e5)
    assert fit.instructions(GraphSize(1, 4e5, 1)) is None
    assert fit.instructions(GraphSize(1, 3e6, 1)) is None


def test_within_a_toss_up_the_path_wins_where_it_gives_away_little(one_run: Precedent) -> None:
    off = replace(OWN, dp=2, cp=2, context_parallel="ring")
    _, high = difference_factors(NODE, off, OWN)
    longer = exp(picks()["new_features"] - picks()["measured_features"])
    assert high > 1 + GIVEN_AWAY, "the toss-up is wider than what is given away"
    chosen = Timed(1.0, off)
    assert wins(one_run, chosen, Timed(0.99 * longer * (1 + GIVEN_AWAY), OWN))
    assert not wins(one_run, chosen, Timed(1.01 * longer * (1 + GIVEN_AWAY), OWN))
    assert not wins(one_run, chosen, None)
    assert not wins(one_run, Timed(1.0, OWN), Timed(1.0, replace(OWN, zero=0)))


def test_what_is_expected_to_be_as_fast_wins_however_sure_the_order_is(
    one_run: Precedent, monkeypatch: pytest.MonkeyPatch
) -> None:
    off, longer = replace(OWN, zero=0, recompute=("mlp",)), exp(picks()["new_features"] - picks()["measured_features"])
    monkeypatch.setattr("autoshard.planner.beaten_path.toss_up", lambda *_: False)
    assert wins(one_run, Timed(1.0, off), Timed(0.999 * longer, OWN))
    assert not wins(one_run, Timed(1.0, off), Timed(1.001 * longer, OWN))


def test_a_toss_up_of_expected_times_is_what_counts(one_run: Precedent, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def never(cluster: Cluster, a: Strategy, a_s: float, b: Strategy, b_s: float) -> bool:
        seen.append(a_s)
        return False

    monkeypatch.setattr("autoshard.planner.beaten_path.toss_up", never)
    assert not wins(one_run, Timed(1.0, replace(OWN, recompute=("mlp",))), Timed(1.08, OWN))
    assert seen == [pytest.approx(exp(picks()["new_features"] - picks()["measured_features"]))]


def test_features_that_nobody_ran_are_what_is_new_of_a_pick(one_run: Precedent) -> None:
    """Where runs are known, by these; elsewhere by what results have."""
    off = replace(OWN, recompute=("mlp",), microbatch_size=4)
    assert new_choices(PROBLEM, off)[:2] == ("microbatch=4", "recompute=mlp")
    assert new_choices(PROBLEM, OWN) == ()
    assert new_choices(PROBLEM._replace(backend="torch"), off) == ("microbatch=4",)
    assert new_choices(PROBLEM._replace(cluster=load_cluster("trn2.48xlarge", 1)), off) == ()


def test_what_ran_without_a_published_time_is_new_too() -> None:
    """cp=2 is in a published layout, which says that it runs, and in no result."""
    layout, path = replace(OWN, cp=2, dp=2, context_parallel="ring"), precedent(PROBLEM, Pins())
    assert path is not None and path.unknown(layout) == ()
    assert new_choices(PROBLEM, layout) == ("cp=2",)


def test_the_best_on_the_path_is_the_fastest_of_both_lists(one_run: Precedent) -> None:
    off = Timed(1.0, replace(OWN, dp=2, cp=2, context_parallel="ring"))
    first, second = Timed(2.0, OWN), Timed(3.0, replace(OWN, zero=0))
    assert best_on_path(one_run, [off, second], iter([off, first])) == first
    assert best_on_path(one_run, [off, first], iter([off, second])) == first
    assert best_on_path(one_run, [off], iter([off])) is None


def test_of_layouts_off_the_path_the_best_known_is_taken_where_it_is_expected_to_take_least(one_run: Precedent) -> None:
    new = exp(picks()["new_features"] - picks()["measured_features"])
    one, two = replace(OWN, recompute=("mlp",)), replace(OWN, recompute=("mlp",), microbatch_size=4)
    many, other = longer(one_run, two) / longer(one_run, one), replace(one, zero=0)
    assert longer(one_run, one) == pytest.approx(new) and many > 1
    chosen = Timed(1.0, two)
    assert expected_fastest(one_run, chosen, [chosen, Timed(0.99 * many, one)]) == Timed(0.99 * many, one)
    assert expected_fastest(one_run, chosen, [chosen, Timed(1.01 * many, one)]) == chosen
    assert expected_fastest(one_run, Timed(1.0, one), [Timed(0.9, other)]) == Timed(1.0, one), "as much of it is new"
    assert expected_fastest(one_run, chosen, [Timed(0.9, OWN)]) == chosen, "it is on the path"


def test_the_path_does_not_win_where_a_layout_of_which_less_is_new_is_faster() -> None:
    """Llama-3-8B on two nodes: the best on the path takes 14 % longer than the fastest by prediction and 12 % longer
    than one with a single new feature. A faster network makes no plan slower there."""
    model, training = load_model("llama3-8b"), TrainingSpec(8192, 256, load_precision("mixed_precision"))
    cluster = load_cluster("trn1.32xlarge", 2)
    link = replace(cluster.inter_node, bandwidth_bytes_per_s=2 * cluster.inter_node.bandwidth_bytes_per_s)
    before = search(model, training, cluster, Pins(zero=1), top=0)
    problem = Problem(model, training, replace(cluster, inter_node=link), "nxd")
    result = search(*problem[:3], Pins(zero=1), top=20)
    assert result.best.strategy == before.best.strategy
    assert result.best.estimate.step_time_s <= before.best.estimate.step_time_s
    path, found = result.beaten_path, precedent(problem, Pins(zero=1))
    assert path is not None and found is not None and path.best is not None and path.instead_of is not None
    assert path.unknown == ("a graph of 131,334,144 logits",)
    seconds = {one.strategy: one.estimate.step_time_s for one in result.runners_up}
    taken, left = Timed(result.best.estimate.step_time_s, result.best.strategy), path.instead_of
    left_s = seconds[left]
    assert wins(found, Timed(left_s, left), Timed(path.best_step_time_s, path.best)), "against the fastest it does"
    assert not wins(found, taken, Timed(path.best_step_time_s, path.best))
    faster = taken.step_time_s / left_s
    expected = longer(found, left) / longer(found, taken.strategy) / faster
    new = ", ".join(found.unknown(left))
    assert (
        f"beaten path: {describe(left)} is predicted {100 * (faster - 1):.1f} % faster, but nobody is known to have "
        f"run {new}: it is expected to take {100 * (expected - 1):.1f} % longer than the chosen layout; pins take it "
        "all the same"
    ) in result.notes
    assert search(*problem[:3], Pins(zero=1), top=0).best == result.best, "however many runners-up are asked for"


def test_notes_say_what_leaving_the_path_gains_and_risks(one_run: Precedent) -> None:
    off = Timed(1.0, replace(OWN, dp=2, cp=2, context_parallel="ring"))
    (note,) = path_notes(one_run, off, Timed(2.0, OWN), None)
    low, high = (100 * (2 * factor - 1) for factor in difference_factors(NODE, off.strategy, OWN))
    assert note == (
        "beaten path: nobody is known to have run cp=2 on trn1 with backend nxd: it may not compile, or not be as fast "
        "as predicted; the best layout on the path, tp=8 dp=4, microbatch 1, no recompute, is predicted 100.0 % slower "
        f"(90 %: {low:+.1f}% to {high:+.1f}%), more than the 10 % that are given away for it; --beaten-path takes it"
    )
    (note,) = path_notes(one_run, Timed(1.1, OWN), Timed(1.1, OWN), off)
    assert note == (
        "beaten path: the chosen layout has only features of 1 published results on trn1 with backend nxd; it is "
        "predicted 10.0 % slower than tp=8 dp=2 cp=2, microbatch 1, no recompute, less than the model can tell, of "
        "which nobody is known to have run cp=2: such picks are expected to take "
        f"{100 * (longer(one_run, off.strategy) - 1):.1f} % longer than predicted, and up to 10 % more are given away; "
        "pins take it all the same"
    )
    assert list(path_notes(one_run, Timed(1.0, OWN), Timed(1.0, OWN), None)) == []


def test_beyond_the_largest_graph_a_note_names_the_repair(one_run: Precedent) -> None:
    _, note = path_notes(one_run, Timed(1.0, replace(OWN, microbatch_size=8)), None, None)
    assert note.startswith("largest graph: 1,098 operators, 10,595,840 matrix tiles, 131,072,000 logits, an unknown ")
    assert note.endswith(
        "the largest known to compile on trn1 have 2,000, 2,000,000 and 100,000,000. If the compiler refuses: a "
        "smaller microbatch, more tensor parallelism or more stages make it smaller"
    )


def test_llama2_7b_on_one_node_shows_both_layouts() -> None:
    result = one_node()
    path = result.beaten_path
    assert path is not None and path.unknown == () and path.instead_of is not None
    assert (result.best.strategy.tp, result.best.strategy.dp) == (8, 4)
    assert (path.instead_of.tp, path.instead_of.pp, path.instead_of.cp) == (2, 8, 2)
    (note,) = (note for note in result.notes if note.startswith("beaten path: "))
    assert "tp=2 pp=8 cp=2, microbatch 4" in note and "a pipeline inside a node" in note


def test_beyond_a_toss_up_the_best_on_the_path_stands_beside_the_chosen_one() -> None:
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    result = search(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 4))
    path = result.beaten_path
    assert path is not None and path.unknown and path.best is not None and path.instead_of is None
    assert path.best_step_time_s > result.best.estimate.step_time_s
    ruled = search(load_model("llama3-8b"), training, load_cluster("trn1.32xlarge", 4), Pins(beaten_path=True))
    assert ruled.best.estimate.step_time_s <= path.best_step_time_s * (1 + 1e-6)


@pytest.mark.parametrize(("model", "nodes", "length"), [("llama3-70b", 16, 4096), ("llama3-70b", 16, 8192)])
def test_the_best_on_the_path_is_no_slower_than_where_the_path_is_the_rule(model: str, nodes: int, length: int) -> None:
    """Its stages may recompute different sets, as there."""
    training = TrainingSpec(length, 1024, load_precision("mixed_precision"))
    problem = load_model(model), training, load_cluster("trn1.32xlarge", nodes)
    free, rule = (search(*problem, Pins(beaten_path=one), "nxd", top=0) for one in (False, True))
    assert free.beaten_path is not None and free.beaten_path.instead_of is not None, "the path wins"
    assert free.best.estimate.step_time_s <= rule.best.estimate.step_time_s * (1 + 1e-9)
    assert free.best.strategy.uniform_recompute is None


def test_the_cached_search_finds_the_same() -> None:
    assert Searches().best(PROBLEM, Pins()) == one_node().best


def test_as_a_rule_only_known_features_are_looked_at(one_run: Precedent) -> None:
    result = one_node(Pins(beaten_path=True))
    assert all(one_run.known(one.strategy) for one in (result.best, *result.runners_up))
    assert result.beaten_path is not None and result.beaten_path.unknown == ()
    assert result.best.strategy.tp == 8 and result.considered < one_node().considered
    assert any(one.reason == "off the beaten path" for one in result.rejections)


@pytest.mark.parametrize(("model", "length", "batch"), [("llama2-7b", 2004, 1024), ("mixtral-8x7b", 4100, 96)])
def test_sequences_that_tp_does_not_divide_have_graphs_too(model: str, length: int, batch: int) -> None:
    training = TrainingSpec(length, batch, load_precision("mixed_precision"))
    result = search(load_model(model), training, load_cluster("trn1.32xlarge", 8), top=0)
    assert result.beaten_path is not None


def test_where_nothing_on_the_path_fits_one_sentence_says_so() -> None:
    training = TrainingSpec(8192, 1024, load_precision("mixed_precision"))
    with pytest.raises(NoLayoutFits) as caught:
        search(load_model("llama3-70b"), training, NODE, Pins(beaten_path=True))
    assert str(caught.value) == (
        "no layout of llama3-70b on 1 x trn1.32xlarge fits whose features are all known to have run on trn1 with "
        "backend nxd; leave beaten_path out, or use more nodes"
    )


def test_a_model_that_breaks_a_rule_everywhere_is_told_of_the_rule() -> None:
    """Neither more nodes nor layouts off the path would help."""
    training = TrainingSpec(2048, 64, load_precision("mixed_precision"))
    with pytest.raises(AutoshardError) as caught:
        search(load_model("phi-2"), training, NODE, Pins(beaten_path=True))
    assert str(caught.value) == (
        "no layout of phi-2 on 1 x trn1.32xlarge is legal: backend=nxd has no layers for model_type=phi of phi-2; "
        "use backend torch"
    )


def test_the_rule_and_a_pin_that_leaves_the_path_contradict_each_other() -> None:
    with pytest.raises(AutoshardError) as caught:
        one_node(Pins(tp=2, beaten_path=True))
    assert str(caught.value) == "tp=2 is off the beaten path of trn1 with backend nxd, which has: 8, 32"


def test_where_nothing_is_published_nothing_is_said_and_the_rule_is_refused() -> None:
    chip = load_cluster("trn2.48xlarge", 1)
    result = search(LLAMA_7B, TRAINING, chip)
    assert result.beaten_path is None and not any("path" in note for note in result.notes)
    with pytest.raises(AutoshardError) as caught:
        search(LLAMA_7B, TRAINING, chip, Pins(beaten_path=True))
    assert str(caught.value) == (
        "beaten_path: no published runs of trn2.48xlarge with backend nxd are known; there are some of: trn1 with "
        "backend nxd"
    )


def test_a_node_of_one_chip_has_no_path() -> None:
    chip = replace(NODE, devices_per_node=2, intra_node=NODE.intra_node[:1])
    assert chip.devices_per_chip == 2
    assert precedent(PROBLEM._replace(cluster=chip), Pins()) is None


def test_the_surprise_is_how_much_wider_errors_are_without_a_feature() -> None:
    one = Surprise(10, 5, 0.1, 0.15, 1.3)
    assert one.wider == pytest.approx(1.5)
    assert lines({"tp=4": one})[-1] == "| tp=4 | 10 | 5 | 0.100 | 0.150 | 1.50 | 1.30 |"


def test_intervals_of_unseen_features_are_as_wide_as_holds_nine_in_ten() -> None:
    """Of residuals that are 0.05, 0.15, ... 0.95 of their intervals nine in ten are within 0.9; two features count the
    same, however many results they have."""
    few = [Missed(f"g{i}", 0.0, 0.1, 0.05 + 0.1 * i, 0.1) for i in range(10)]
    many = [Missed(f"h{i}", 0.0, 0.1, 1.05 + 0.01 * i, 0.01) for i in range(100)]
    assert surprise_of(few).covering == pytest.approx(0.9)
    assert surprise_of([*few, *many]).covering == pytest.approx(1.85, abs=0.01)


def test_the_path_is_in_plan_json_and_old_plans_are_read() -> None:
    plan = plan_for(PlanRequest("llama2-7b", beaten_path=True))
    values = plan_to_dict(plan)
    assert values["inputs"]["pins"]["beaten_path"] is True
    assert values["search"]["beaten_path"]["unknown"] == []
    assert plan_from_dict(values) == plan
    old = plan_to_dict(plan_examples.plan_70b())
    assert "beaten_path" not in old["search"] and "beaten_path" not in old["inputs"]["pins"]
    assert plan_from_dict(old) == plan_examples.plan_70b()


def test_the_option_plans_on_the_path_and_a_recipe_may_hold_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "plan.json"
    recipe.write_text("model: llama2-7b\nnodes: 1\nbeaten_path: true\n", encoding="utf-8")
    for given in (["--model", "llama2-7b", "--beaten-path"], ["--config", str(recipe)]):
        assert main(["plan", *given, "--verbose", "--out", str(out)]) == 0
        assert json.loads(out.read_text(encoding="utf-8"))["search"]["beaten_path"]["unknown"] == []
        assert "off the beaten path" in capsys.readouterr().out


def test_the_page_shows_the_chosen_layout_and_the_other_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama2-7b", "--verbose", "--out", str(tmp_path / "plan.json")]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "Layout tp=8 pp=1 dp=4 mbs=1" in page
    assert "beaten path: the chosen layout has only features of" in page
    assert main(["explain", str(tmp_path / "plan.json")]) == 0
    assert "nobody is known to have run tp=2, microbatch=4, a pipeline" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", published_plans())
def test_every_published_layout_is_on_the_path(name: str) -> None:
    plan = published_plans()[name]
    found = precedent(Problem(plan.model, plan.training, plan.cluster, "nxd"), Pins())
    assert found is not None and found.unknown(plan.strategy) == ()


@pytest.mark.parametrize(
    ("model", "nodes", "length", "layout"),
    [
        ("gpt-neox-20b", 4, 2048, {"tp": 32, "recompute": "full"}),  # tp_dp_gpt_neox_20b_hf_pretrain
        ("mistral-7b", 1, 4096, {"tp": 8, "recompute": "core_attention"}),  # megatron_mistral_config.yaml
    ],
)
def test_examples_of_aws_are_on_the_path(model: str, nodes: int, length: int, layout: dict[str, Any]) -> None:
    pins = {"pp": 1, "cp": 1, "microbatch_size": 1, "attention_kernel": "plain", **layout}
    plan = plan_for(PlanRequest(model, "trn1.32xlarge", nodes, seq_len=length, fit_probability=0.01, top=0, pins=pins))
    found = precedent(Problem(plan.model, plan.training, plan.cluster, "nxd"), Pins())
    assert plan.backend == "nxd" and found is not None and found.unknown(plan.strategy) == ()


def test_the_packaged_file_has_all_that_the_data_say() -> None:
    now = known(
        sorted(DATA.glob("measured_trainium*.csv")),
        sorted(DATA.glob("published_layouts*.csv")),
        [DATA / "compiler_graphs.csv"],
    )
    by_name = {path.name: path for path in packaged().paths}
    for path in now.paths:
        for name in FEATURES:
            assert path.values[name] <= by_name[path.name].values[name], name
        assert not path.largest_graph.beyond(by_name[path.name].largest_graph)
    assert (now.compiled, now.instructions) == (packaged().compiled, packaged().instructions)


def written(tmp_path: Path, content: object) -> Path:
    file = tmp_path / "known.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_a_file_of_known_runs_is_read_strictly(tmp_path: Path) -> None:
    content = to_json(made_up())
    assert read_known(written(tmp_path, content)) == made_up()
    with pytest.raises(AutoshardError, match=r"known runs: trn1 with backend nxd stands there twice"):
        read_known(written(tmp_path, {**content, "paths": content["paths"] * 2}))
    content["paths"][0]["runs"][0]["tp"] = 0
    with pytest.raises(AutoshardError) as caught:
        read_known(written(tmp_path, content))
    assert str(caught.value) == ("known runs.paths[0].runs[0].tp is 0; it must be a whole number of at least 1")
