"""--why, --schedule, --operators and compare: small cases by hand, and sums."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard
from autoshard.backends.registry import BACKENDS, as_run_by
from autoshard.cli import main
from autoshard.cost.estimate import estimate
from autoshard.cost.values import Term
from autoshard.errors import AutoshardError
from autoshard.explanation.answers import DegreeRow, SizeRow, degree_row, problem_of, under_rules_of
from autoshard.explanation.compare import compare
from autoshard.explanation.describe import CAVEAT, OWN_CAVEAT, Description, Share, describe
from autoshard.explanation.doubt import Pair, doubt, pairs
from autoshard.explanation.doubt_text import (
    compare_page,
    number_rows,
    pair_cells,
    pair_lines,
    summed,
    verdict,
    why_page,
)
from autoshard.explanation.grid import grid, schedule_lines
from autoshard.explanation.held_against import held_against
from autoshard.explanation.markdown import comparison_markdown, render_markdown
from autoshard.explanation.measured import Measured, quantity_text
from autoshard.explanation.operators import by_block, operator_lines, operator_rows
from autoshard.explanation.own_constants import has_own_constants
from autoshard.explanation.page import LEAST_SHARE, more, paint, wrap
from autoshard.explanation.sensitivity import INSTANCES, _on_clusters, answers_so_far
from autoshard.explanation.sensitivity_text import degree_lines, degrees_note, price_lines, size_rows
from autoshard.explanation.text import render
from autoshard.explanation.why import why
from autoshard.planner.cached_search import Searches
from autoshard.planner.priced import Clock
from autoshard.planner.ranking import describe as in_a_sentence
from autoshard.planner.search import search
from autoshard.plans.layout_syntax import pinned_words, read_partial
from autoshard.plans.names import changed_words, recompute_words, short_name
from autoshard.plans.plan import Plan, SearchSummary, make_plan
from autoshard.plans.plan_json import write_plan
from autoshard.plans.search_result import Candidate, Pins
from autoshard.plans.timeline import planned_timeline
from autoshard.reports.comparison import comparison_report
from autoshard.reports.sections import body, term_pairs
from autoshard.reports.view import view_of
from autoshard.schedules import actions, simulate
from autoshard.spec.cluster import instances, load_cluster
from autoshard.spec.hardware_file import FOLDER, read_content
from autoshard.units import format_bytes, format_seconds
from tests.unit.explain_examples import answers_by_hand, recipe_plan
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device, strategy


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_autoshards_own_is_not_said_of_calibrated_constants(tmp_path: Path) -> None:
    """A price alone is none of the constants."""
    plan = replace(plan_70b(), search=SearchSummary(400, 67))
    content = read_content(FOLDER / "trn1.32xlarge.json")
    content["calibration"]["pass_launch_s"]["value"] *= 2
    (tmp_path / "mine.json").write_text(json.dumps(content))
    calibrated = load_cluster(None, plan.cluster.nodes, hardware_file=tmp_path / "mine.json")
    ours = replace(plan, cluster=replace(plan.cluster, price_per_node_hour_usd=1.0))
    theirs = replace(plan, cluster=calibrated)
    sentence = (
        "constants: this cluster's are not autoshard's own. The interval says how far those missed published results, "
        "not how far these miss; other instance types are not compared, because none has constants like these"
    )
    assert describe(ours).caveat == CAVEAT and sentence not in describe(ours).advice
    assert describe(theirs).caveat == OWN_CAVEAT and sentence in describe(theirs).advice
    assert has_own_constants(replace(plan, cluster=replace(plan.cluster, instance="their-own")))
    asked = {one.asked[0] for one in _on_clusters(ours, 0.9) if one.subject == INSTANCES}
    assert asked == {name for name in instances() if load_cluster(name, 1).platform.is_trainium} - {"trn1.32xlarge"}
    compared = [any(one.subject == INSTANCES for one in _on_clusters(of, 0.9)) for of in (ours, theirs)]
    assert compared == [True, False]


@pytest.mark.parametrize("instance", instances())
def test_the_constants_of_a_packaged_instance_are_autoshards_own(instance: str) -> None:
    for backend in BACKENDS:
        plan = replace(plan_70b(), cluster=as_run_by(load_cluster(instance, 1), backend), backend=backend)
        assert not has_own_constants(plan)


def test_a_renderer_is_a_function_of_a_description() -> None:
    """The one of CONTRIBUTING.md."""

    def one_line(d: Description) -> str:
        share = d.memory_bytes / d.memory_capacity_bytes
        return f"{d.model}: {d.layout}, {format_seconds(d.step_time_s)} a step, {share:.0%} of memory"

    expected = "llama3-70b: tp=32 pp=8 dp=2 mbs=1 recompute=core_attention, 180 s a step, 43% of memory"
    assert one_line(describe(plan_70b())) == expected


# --why


def test_words_of_a_layout() -> None:
    assert read_partial("tp=8 pp=16") == Pins(tp=8, pp=16)
    assert read_partial("vpp=2,mbs=4  recompute=full") == Pins(
        num_virtual_stages=2, microbatch_size=4, recompute="full"
    )
    assert read_partial("zero=3 order=dp-pp-cp-tp") == Pins(zero=3, axis_order="dp-pp-cp-tp")
    assert read_partial("schedule=1f1b attention=flash context=ring") == Pins(
        schedule="1f1b", attention_kernel="flash", context_parallel="ring"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp", "the layout 'tp' must be name=value with blanks between, such as 'tp=8 pp=16'"),
        ("", "the layout '' must be name=value with blanks between, such as 'tp=8 pp=16'"),
        (
            "zp=2",
            (
                "the layout has 'zp'; a layout has: tp, pp, dp, cp, ep, etp, vpp, mbs, dp_replicate, schedule, "
                "recompute, attention, context, order, zero, sp, stages"
            ),
        ),
        ("tp=8 tp=4", "the layout has tp twice"),
        ("tp=8 sp=off", "the layout has sp, which is searched with all that is not named; leave it out"),
        ("tp=8 sp=no", "the layout has sp=no; it must be one of: on, off"),
        ("pp=2 stages=9-7", "the layout has stages, which is searched with all that is not named; leave it out"),
        (
            "recompute=full*1,none*3",
            "the layout has recompute of single stages, which are searched: recompute=by-stage",
        ),
        ("recompute=full recompute=none", "the layout has recompute twice"),
        (
            "tp=9999999999",
            "the layout has tp=9999999999; it must be a whole number from 1 to 999,999,999",
        ),
        ("tp=eight", "the layout has tp=eight; it must be a whole number from 1 to 999,999,999"),
        ("tp=0", "the layout has tp=0; it must be a whole number from 1 to 999,999,999"),
    ],
)
def test_wrong_words(text: str, message: str) -> None:
    with pytest.raises(AutoshardError) as error:
        read_partial(text)
    assert str(error.value) == message


def test_sets_by_stage_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of the plan's layout, as the page has it, is a question."""
    assert read_partial("tp=8 recompute=by-stage") == Pins(tp=8)
    with pytest.raises(AutoshardError, match=r"^the layout has recompute twice$"):
        read_partial("recompute=by-stage recompute=full")
    plan = autoshard.plan("gpt-neox-20b", "trn2.48xlarge", nodes=1, global_batch=256, seq_len=8192, backend="nxd")
    asked = short_name(plan.strategy)
    assert " recompute=by-stage" in asked
    assert autoshard.why_not(plan, asked).answer.is_the_choice
    write_plan(plan, "plan.json")
    assert main(["explain", "plan.json", "--why", "tp=0"]) == 2
    said = "autoshard: error: the layout has tp=0; it must be a whole number from 1 to 999,999,999\n"
    assert capsys.readouterr().err == said
    assert main(["explain", "plan.json", "--why", "tp=32", "--schedule"]) == 2
    said = "autoshard: error: --why has a page of its own; ask for --schedule by itself\n"
    assert capsys.readouterr().err == said


def test_why_is_the_best_completion() -> None:
    plan = plan_70b()
    found = why(plan, "tp=32 pp=4", Pins(tp=32, pp=4))
    best = search(plan.model, plan.training, plan.cluster, Pins(tp=32, pp=4), "nxd", top=0).best
    assert found.best == best
    assert (found.refusal, found.is_the_choice) == ("", False)
    values = found.to_dict(plan.cluster)
    total = sum(values["time_differences_s"].values())
    assert total == pytest.approx(best.estimate.step_time_s - plan.estimate.step_time_s, rel=1e-4)


def test_why_looks_at_experts_as_the_search_of_the_plan_did() -> None:
    """Where it looked at etp, or the layout has one, the best completion may have one too; and so for another tp."""
    given = {"nodes": 1, "global_batch": 64, "seq_len": 2048, "backend": "torch", "tp": 4}
    for etp in ("auto", 1):
        plan = autoshard.plan("gpt-oss-20b", "h100-80gb", etp=etp, **given)  # type: ignore[arg-type]
        assert plan.strategy.etp == 1
        for words in ("tp=4", f"tp=4 pp={plan.strategy.pp} dp={plan.strategy.dp} ep={plan.strategy.ep}"):
            assert autoshard.why_not(plan, words).answer.is_the_choice
        row = degree_row(Searches(), plan, 4, 0.9)
        assert row.refusal == "" and row.slower == pytest.approx(0, abs=1e-5)
    plain = autoshard.plan("gpt-oss-20b", "h100-80gb", **given)  # type: ignore[arg-type]
    assert plain.strategy.etp is None and under_rules_of(plain, Pins(tp=8)) == Pins(tp=8)


@pytest.fixture(scope="module")
def on_the_path() -> Plan:
    """A plan whose layout is taken because it is known to run: faster ones are not."""
    plan = autoshard.plan("llama3-70b", "trn1.32xlarge", nodes=16, seq_len=4096)
    assert any(one.estimate.step_time_s < plan.estimate.step_time_s for one in plan.runners_up)
    return plan


def test_why_is_the_fastest_layout_also_off_the_beaten_path(on_the_path: Plan) -> None:
    """No runner-up is faster that was asked for, and more words have no faster answer."""
    plan = on_the_path
    for pins in (Pins(num_virtual_stages=2), Pins(tp=8, pp=16), Pins(tp=8, pp=16, dp=4, microbatch_size=2)):
        found = why(plan, "these", pins)
        assert found.best is not None
        others = [one for one in plan.runners_up if all(getattr(one.strategy, n) == v for n, v in pins.fixed.items())]
        closer = why(plan, "closer", Pins(tp=8, pp=16, dp=4, microbatch_size=2)).best
        others += [closer] if closer is not None and pins.pp == 16 else []
        assert others
        assert found.best.estimate.step_time_s <= min(one.estimate.step_time_s for one in others) * 1.00001
    (note,) = found.notes
    assert note.startswith("nobody is known to have run microbatch=2, recompute=mlp and ")
    assert note.endswith(" on trn1 with backend nxd: it may not compile, or not be as fast as predicted")
    assert found.to_dict(plan.cluster)["notes"] == [note]
    assert note in " ".join(why_page(found, plan.cluster, 100, False).split())
    plan = autoshard.plan("gpt-neox-20b", "trn1.32xlarge", nodes=4)
    own = why(plan, "its own", Pins(tp=8, pp=2, dp=8, microbatch_size=1, recompute="none"))
    assert own.is_the_choice and own.notes == ()


def test_another_tp_is_the_fastest_too_and_said_to_be_off_the_path(on_the_path: Plan) -> None:
    row = degree_row(Searches(), on_the_path, 32, 0.9)
    asked = why(on_the_path, "tp=32", Pins(tp=32)).best
    assert asked is not None
    assert (row.layout, row.step_time_s) == (short_name(asked.strategy), asked.estimate.step_time_s)
    assert row.but == "off the beaten path"
    (line,) = degree_lines(replace(answers_by_hand(), degrees=(row,)))
    assert f"; {row.layout}, off the beaten path: +" in line


def test_a_graph_that_may_be_refused_is_held_against_a_layout() -> None:
    """The head of tp=1 with a microbatch of 8 sequences."""
    plan = autoshard.plan("llama3-8b", "trn2.48xlarge", nodes=2, backend="torch")
    problem = problem_of(plan)
    assert [*held_against(problem, plan.strategy)] == []
    large = replace(plan.strategy, tp=1, dp=plan.strategy.dp * plan.strategy.tp, microbatch_size=8)
    (against,) = held_against(problem, large)
    assert against.words == "expected not to compile"
    assert against.sentence.startswith("its graph ") and against.sentence.endswith(" is expected to be refused")


def test_of_a_plan_that_keeps_to_the_path_only_layouts_on_it_are_asked(on_the_path: Plan) -> None:
    plan = replace(on_the_path, pins=Pins(beaten_path=True))
    off = "is off the beaten path of trn1 with backend nxd, which has"
    assert why(plan, "vpp=2", Pins(num_virtual_stages=2)).refusal == f"num_virtual_stages=2 {off}: 1"
    found = why(plan, "tp=32", Pins(tp=32))
    assert found.best is not None and found.notes == ()
    row = degree_row(Searches(), plan, 32, 0.9)
    assert (row.layout, row.but) == (short_name(found.best.strategy), "")
    assert degree_row(Searches(), plan, 2, 0.9).refusal == f"tp=2 {off}: 8, 32"


def test_why_not_what_does_not_fit() -> None:
    """The nearest to fitting stands in: it needs what is said that the smallest needs, whatever its time is."""
    plan = plan_70b()
    for pins in (Pins(tp=2, pp=4), Pins(tp=1), Pins(pp=1)):
        found = why(plan, "these", pins)
        assert found.best is not None and not found.best.estimate.fits
        assert all(getattr(found.best.strategy, name) == value for name, value in pins.fixed.items())
        needed = format_bytes(found.best.estimate.fullest.total_bytes)
        named = " ".join(f"{name}={value}" for name, value in pins.fixed.items())
        where = f"llama3-70b on 16 x trn1.32xlarge with {named}"
        assert found.refusal.startswith(f"no layout fits {where}: the smallest looked at needs {needed} a device, ")


def test_why_not_what_is_illegal() -> None:
    found = why(plan_70b(), "tp=16", Pins(tp=16))
    assert found.best is None
    assert "tp=16 is not a group of trn1.32xlarge at lnc 1; degrees that are: 1, 2, 8, 32" in found.refusal


def test_why_not_is_told_near_the_plan() -> None:
    """Also where a rule stands against other degrees just as well: a far mesh was named."""
    plan = autoshard.plan("llama3-8b", nodes=2, tp=8, pp=2, dp=4)
    asked = "no layout of llama3-8b on 2 x trn1.32xlarge with num_virtual_stages={0} is legal: "
    rule = "pp=2 x vpp={0} must divide the 32 blocks of llama3-8b; vpp that fits here: 1, 2, 4, 8, 16"
    for vpp in (3, 5):
        found = why(plan, "these", Pins(num_virtual_stages=vpp))
        assert (found.best, found.refusal) == (None, f"{asked}{rule}".format(vpp))
    other = why(plan, "these", Pins(pp=4, num_virtual_stages=3))
    rule = "pp=4 x vpp=3 must divide the 32 blocks of llama3-8b; vpp that fits here: 1, 2, 4, 8"
    assert other.refusal.endswith(f" is legal: {rule}")


def test_what_is_legal_with_other_degrees_alone_says_so() -> None:
    plan = autoshard.plan("llama3-70b", nodes=16, tp=8, pp=16, dp=4)
    found = why(plan, "vpp=2", Pins(num_virtual_stages=2))
    assert found.best is not None and found.best.strategy.pp != 16 and not found.refusal
    assert found.notes[-1] == (
        "with the degrees of the chosen layout it is not legal: pp=16 x vpp=2 must divide the 80 blocks of llama3-70b; "
        "vpp that fits here: 1, 5"
    )
    ring = why(plan, "context=ring", Pins(context_parallel="ring"))
    assert ring.notes[-1] == (
        "with the degrees of the chosen layout it is not legal: context_parallel=ring needs cp of 2 or more; "
        "16 x trn1.32xlarge has 512 devices, which tp=8 x pp=16 x dp=4 takes"
    )
    for pins in (Pins(tp=32), Pins(num_virtual_stages=5), Pins(tp=8, pp=8, num_virtual_stages=2)):
        assert not any("chosen layout it is not legal" in note for note in why(plan, "these", pins).notes)


def test_why_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_70b()
    best = search(plan.model, plan.training, plan.cluster, Pins(tp=32), "nxd", top=0).best
    inputs = (plan.model, plan.training, plan.cluster, plan.backend)
    write_plan(make_plan(*inputs, best.strategy, best.estimate), "plan.json")
    assert main(["explain", "plan.json", "--why", "tp=32"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Why not tp=32?\n  It is the choice: its best completion is tp=32 ")


def test_why_asks_for_as_much_room_as_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """At the usual 90 % another completion would be the best one."""
    asked = ["plan", "--model", "llama3-8b", "--nodes", "2", "--tp", "8", "--fit-probability", "0.4"]
    assert main(asked) == 0
    capsys.readouterr()
    assert main(["explain", "plan.json", "--why", "tp=8"]) == 0
    assert capsys.readouterr().out.startswith("Why not tp=8?\n  It is the choice")


def test_why_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(plan_70b(), "plan.json")
    assert main(["explain", "plan.json", "--why", "tp=16", "--format", "markdown"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("```text\nWhy not tp=16?\n  Because no layout of llama3-70b")
    assert main(["explain", "plan.json", "--why", "tp=16", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] is None


def test_what_changes_in_a_name() -> None:
    one = strategy(num_virtual_stages=2, stage_layers=(5,) * 16, schedule="interleaved")
    assert changed_words(one, strategy(tp=8, dp=8)) == "tp=8 dp=8 no vpp"
    ring = strategy(tp=16, cp=2, context_parallel="zigzag_ring", schedule="zero_bubble", attention_kernel="plain")
    assert changed_words(ring, strategy()) == "tp=32 no cp schedule=1f1b attention=flash"
    mixed = strategy(recompute=("full",) + ("mlp_norm+mlp",) * 3 + ("none",) * 4)
    change = "recompute by stage: 0 all of a block; 1-3 MLP norm and MLP; 4-7 nothing"
    assert changed_words(strategy(), mixed) == change
    assert changed_words(mixed, mixed) == ""
    assert changed_words(ring, mixed) == "tp=32 recompute=by-stage no cp schedule=1f1b attention=flash"
    assert changed_words(mixed, strategy(pp=4, dp=4, stage_layers=(20,) * 4)) == "pp=4 dp=4 recompute=core_attention"


def test_sets_by_stage_are_not_listed_in_a_sentence() -> None:
    mixed = strategy(recompute=("full",) + ("mlp_norm+mlp",) * 3 + ("none",) * 4)
    words = [in_a_sentence(one) for one in (mixed, strategy(recompute="none"), strategy(recompute="full"))]
    assert words == [f"tp=32 pp=8 dp=2, microbatch 1, {sets} recompute" for sets in ("by-stage", "no", "full")]


def test_recompute_in_words() -> None:
    sets = {
        "none": "nothing",
        "full": "all of a block",
        "mlp": "MLP",
        "core_attention+mlp": "core attention and MLP",
        "attention_norm+attention": "attention norm and attention projections",
        "attention_norm+attention+core_attention+mlp_norm+mlp": "both norms, attention projections, core attention "
        "and MLP",
        "mlp+self_attn.q_proj": "MLP and self_attn.q_proj",
    }
    assert {name: recompute_words(name) for name in sets} == sets


def test_two_equal_layouts_are_a_toss_up() -> None:
    plan = plan_70b()
    chosen = Candidate(plan.strategy, plan.estimate)
    found = doubt(plan.cluster, chosen, chosen)
    assert (found.low, found.high, found.first_is_faster, found.toss_up) == (1.0, 1.0, 0.5, True)
    slow = replace(plan.estimate, step_time_s=10 * plan.estimate.step_time_s)
    found = doubt(plan.cluster, chosen, Candidate(strategy(pp=4, dp=4, stage_layers=(20,) * 4), slow))
    assert found.first_is_faster > 0.99
    assert not found.toss_up


def test_pairs_have_every_term() -> None:
    found = pairs((Term("a", 1.0), Term("b", 2.0)), (Term("b", 5.0), Term("c", 0.5)))
    assert [(pair.name, pair.one, pair.other, pair.difference) for pair in found] == [
        ("b", 2.0, 5.0, 3.0),
        ("a", 1.0, 0.0, -1.0),
        ("c", 0.0, 0.5, 0.5),
    ]


def test_a_word_that_is_longer_than_a_line_breaks_between_its_parts() -> None:
    """Others stay whole, and a part that is longer than a line alone breaks anywhere."""
    assert wrap("mbs=1 recompute=attention_norm+attention+mlp zero=3", 28) == [
        "mbs=1 recompute=",
        "attention_norm+attention+mlp",
        "zero=3",
    ]
    assert wrap("mbs=1 recompute=mlp+residual zero=3", 24) == ["mbs=1", "recompute=mlp+residual", "zero=3"]
    assert wrap("a=1 bbbbbbbbbbbb", 8, "", "  ") == ["a=1 bbbb", "  bbbbbb", "  bb"]


def test_terms_side_by_side_as_text() -> None:
    """What one of two has alone, and a difference that rounds to nothing, which has no sign of its own."""
    found = (Pair("one", 2.0, 1.0), Pair("two", 0.0, 0.5), Pair("three", 2.0, 2.0 - 1e-12))
    cells = [
        ("one", "~2.00 s", "~1.00 s", "-1.00 s"),
        ("two", "-", "~500 ms", "+500 ms"),
        ("three", "~2.00 s", "~2.00 s", "+0 s"),
    ]
    assert [pair_cells(pair, format_seconds) for pair in found] == cells
    text = comparison_markdown(replace(compare(plan_70b(), plan_70b()), time=found), ("x", "y"))
    page = paint(pair_lines("step", found, ("x", "y"), format_seconds, 100), 100, False)
    html = term_pairs(found, format_seconds, "")
    for name, one, other, difference in cells:
        assert f"\n| {name} | {one} | {other} |\n" in text
        assert re.search(rf" {name} +{one} +{other} +{re.escape(difference)}\n", page)
        assert "".join(f'<td class="number">{cell}</td>' for cell in (one, other, difference)) in html


def test_sums_and_numbers_of_a_comparison_are_in_every_form() -> None:
    """Terms add up to the sum in each: 2 + 1 ms + 0.5 ms against 1 + 0.5 ms + 0.5 ms."""
    found = (Pair("one", 2.0, 1.0), Pair("two", 1e-3, 5e-4), Pair("three", 5e-4, 5e-4))
    compared = replace(compare(plan_70b(), plan_interleaved()), time=found)
    assert summed("sum", found) == Pair("sum", 2.0015, 1.001)
    html = term_pairs(found, format_seconds, "")
    for name, *cells in (
        ("one", "~2.00 s", "~1.00 s", "-1.00 s"),
        ("2 smaller terms", "~1.50 ms", "~1.00 ms", "-500 us"),
        ("sum", "~2.00 s", "~1.00 s", "-1.00 s"),
    ):
        assert f'<th scope="row">{name}</th>' + "".join(f'<td class="number">{cell}</td>' for cell in cells) in html
    text = comparison_markdown(compared, ("x", "y"))
    assert "\n| two | ~1.00 ms | ~500 us |\n| three | ~500 us | ~500 us |\n| sum | ~2.00 s | ~1.00 s |\n" in text
    page = compare_page(compared, ("x", "y"), 100, False)
    whole = comparison_report(plan_70b(), plan_interleaved())
    names = [name for name, *_ in number_rows(compared)]
    assert {"tokens/s", "MFU", "memory, fullest device", "probability to fit"} < set(names)
    for name, *cells in number_rows(compared):
        assert f"\n| {name} | {' | '.join(cells)} |\n" in text
        assert re.search(rf"\n  {name} +{' +'.join(map(re.escape, cells))}\n", page)
        assert f'<th scope="row">{name}</th>' + "".join(f'<td class="number">{cell}</td>' for cell in cells) in whole


SECONDS = st.lists(st.floats(0, 1e4), min_size=1, max_size=12)


@given(SECONDS, SECONDS)
@settings(max_examples=60, deadline=None)
def test_terms_beside_each_other_add_up(one: list[float], other: list[float]) -> None:
    """Both columns, their differences, and the last line of the table."""
    ours, theirs = ([Term(f"term {place}", value) for place, value in enumerate(values)] for values in (one, other))
    found = pairs(ours, theirs)
    assert sum(pair.one for pair in found) == pytest.approx(sum(one))
    assert sum(pair.other for pair in found) == pytest.approx(sum(other))
    assert sum(pair.difference for pair in found) == pytest.approx(sum(other) - sum(one), abs=1e-6)
    last = paint(pair_lines("step", found, ("one", "other"), format_seconds, 100), 100, False).splitlines()[-1]
    for total in (sum(one), sum(other)):
        assert format_seconds(total) in last or total == 0


@given(SECONDS)
@settings(max_examples=60, deadline=None)
def test_terms_of_a_page_add_up(values: list[float]) -> None:
    """Shares are those of the sum, and what is too small to show is on the page as one line."""
    whole = sum(values) + 1e-3
    terms = (*(Term(f"term {place}", value) for place, value in enumerate(values)), Term("rest", 1e-3))
    plan = plan_70b()
    estimated = replace(plan.estimate, step_time_s=whole, time_terms=terms)
    found = describe(replace(plan, estimate=estimated, runners_up=()))
    assert sum(term.value for term in found.time_terms) == pytest.approx(whole)
    assert sum(term.share for term in found.time_terms) == pytest.approx(1)
    shown = sum(term.value for term in found.time_terms if term.share >= LEAST_SHARE)
    small = sum(term.value for term in found.time_terms if term.share < LEAST_SHARE)
    assert shown + small == pytest.approx(whole)
    assert (f"~{format_seconds(small)}" in render(found, 100)) or not small


def test_one_of_a_thing_is_one() -> None:
    plan = plan_one_device()
    training = replace(plan.training, global_batch_size=1)
    plan = replace(plan, training=training, strategy=replace(plan.strategy, stage_layers=(1,)))
    d = describe(plan)
    assert dict(d.facts)["stages"] == "1 with the only layer"
    assert ", 1 process; 1 sequence of 256 tokens = 256 tokens a step;" in render(d, 120)
    assert ", 1 x process; 1 sequence of 256 tokens = 256 tokens a step;" in render_markdown(d)
    page = "".join(body(view_of(plan, quick=True))[0])
    assert ", 1 process, 1 sequence of 256 tokens a step" in page and ", which has 1 device. One device" in page
    assert "Each square is one device of 1; " in page and "1 device in 1 node. " in page
    assert ", 8 processes; 8 sequences of 256 tokens" in render(describe(plan_interleaved()), 120)


def test_slow_rates_have_three_digits_on_every_page() -> None:
    """Less than 100 tokens a second, of a toy on processes: whole numbers would say 3 and 4 of 2.6 and 3.6."""
    plan = plan_one_device()
    slow = replace(plan, estimate=replace(plan.estimate, tokens_per_s=3.14159))
    d = describe(slow)
    assert "~3.14 tokens/s (2.51-3.49)" in render(d, 120)
    assert "; ~3.14 tokens/s; " in render_markdown(d)
    assert "3.14" in compare_page(compare(slow, slow), ("a", "b"), 120, False)
    assert "<strong>~3.14</strong><span>90 %: 2.51 to 3.49</span>" in "".join(body(view_of(slow, quick=True))[0])
    row = SizeRow(1, 1.0, 0.9, 1.1, 3.14159, 0.0, 1.0, None, "tp=1", "")
    assert size_rows(replace(answers_by_hand(), sizes=(row,)))[0][3] == "~3.14"
    assert quantity_text(Measured("tokens", "tokens/s", 3.14159, 3.0), 3.14159) == "3.14"


def test_bars_of_more_than_the_whole_are_as_long_as_their_shares() -> None:
    """The longest takes the room that is left of 100 columns, so that the others are on its scale."""
    whole = describe(plan_70b()).memory_capacity_bytes
    terms = tuple(Share(name, share * whole, share) for name, share in (("a", 3.0), ("b", 1.5), ("c", 0.5)))
    lines = render(replace(describe(plan_70b()), memory_terms=terms), 100).splitlines()
    bars = [line for line in lines if re.match("  [abc]  ~", line)]
    assert len(bars[0]) == 100
    assert [line.count("#") for line in bars] == [77, 38, 13]


# --schedule


def test_a_grid_by_hand() -> None:
    """Two ranks, two microbatches, forward 1 s, backward 2 s: 9 s in 27 columns, 3 a second."""
    orders = actions("1f1b", 2, 2)
    found = grid(orders, simulate(orders, [1.0, 1.0], [2.0, 2.0]), 27)
    assert [text for text, _ in found.rows] == [
        "F0-F1-......B0----...B1----",
        "...F0-B0----F1-B1----......",
    ]
    assert [style for _, style in found.rows][1] == "...FFFBBBBBBFFFBBBBBB......"
    assert found.seconds_per_column == pytest.approx(1 / 3)


def test_a_grid_of_several_chunks_a_rank_names_them() -> None:
    """An action of one digit each has room for both: which chunk runs when is what such a schedule is about."""
    orders = actions("interleaved", 2, 2, 2)
    found = grid(orders, simulate(orders, [1.0] * 4, [2.0] * 4), 20)
    text = " ".join(row for row, _ in found.rows)
    assert {str(action) for order in orders for action in order} <= {*re.findall(r"[FB]\d\.\d", text)}


@pytest.mark.parametrize("make", [plan_70b, plan_interleaved, plan_mixtral, plan_one_device])
@pytest.mark.parametrize("width", [80, 120])
def test_a_grid_keeps_its_width(make: Any, width: int) -> None:
    plan: Plan = make()
    page = paint(schedule_lines(*planned_timeline(plan), width, plan.strategy.schedule), width, False)
    lines = page.splitlines()
    assert max(map(len, lines)) <= width
    ranks = [line for line in lines if line.startswith("  rank ")]
    assert len(ranks) == plan.strategy.pp
    assert ("cut at" in page) == any(" ~ " in line for line in ranks)
    if plan.strategy.pp > 1:
        assert "F0" in ranks[0]


def test_ranks_of_which_a_grid_shows_no_action_share_a_line() -> None:
    """Of 63 ranks the forwards of 20 begin in what 120 columns show: 43 rows of dots said nothing."""
    orders = actions("1f1b", 63, 512)
    page = paint(schedule_lines(orders, simulate(orders, [1.0] * 63, [2.0] * 63), 120, "1f1b"), 120, False)
    lines = page.splitlines()
    (together,) = [line for line in lines if "wait in both parts" in line]
    first = int(together.split()[1])
    assert together == f"  rank {first} to rank 62 wait in both parts and run in the middle"
    drawn = [line for line in lines if line.startswith("  rank ") and line != together]
    assert len(drawn) == first
    assert all("F0" in line for line in drawn)


# --operators


def test_operators_add_up_to_the_terms() -> None:
    """tp=32 with plain 1F1B and no recompute: blocks times microbatches of one block are the plan's terms."""
    plan = plan_70b()
    chosen = strategy(recompute="none")
    plan = replace(plan, strategy=chosen)
    rows = operator_rows(plan)
    terms = {term.name: term.value for term in estimate(plan.model, plan.training, plan.cluster, chosen).time_terms}
    times = 10 * plan.num_microbatches
    attention = sum(row.forward_s + row.backward_s for row in rows if row.kind == "attention")
    others = sum(row.forward_s + row.backward_s for row in rows if row.kind != "attention")
    assert times * attention == pytest.approx(terms["attention"], rel=1e-6)
    assert times * others == pytest.approx(terms["matrix products and vector operators"], rel=1e-6)
    moved = times * sum(move.seconds for row in rows for move in row.moves)
    assert moved <= terms["tensor-parallel collectives"]
    assert moved == pytest.approx(terms["tensor-parallel collectives"], rel=0.05)  # embedding and head have a few more


def test_operators_of_several_kinds_of_blocks_are_listed_apart() -> None:
    """A block of each kind, with sums of its own, not the sum of both as one block: of Gemma-2, whose blocks take
    turns."""
    plan = autoshard.plan("gemma2-2b", "trn2.48xlarge", backend="torch", tp=4, seq_len=8192, global_batch=64)
    blocks = plan.training.blocks_of(plan.model.blocks)
    assert (blocks.kinds, blocks.counts) == ((0, 1), (13, 13))
    found = by_block(plan)
    assert [which for which, _ in found] == ["block 0, one of 13 alike", "block 1, one of 13 alike"]
    assert [rows[0].name for _, rows in found] == ["input_layernorm"] * 2
    page = paint(operator_lines(plan, 100), 100, False)
    sums = [format_seconds(sum(row.forward_s + row.backward_s for row in rows)) for _, rows in found]
    for (which, _), work in zip(found, sums, strict=True):
        assert f"Block   {which}, one microbatch, one rank: ~{work} of operators" in page
    html = autoshard.report(plan, quick=True)
    assert all(f"<caption>Operators of {which}</caption>" in html for which, _ in found)
    assert "One block of each of 2 kinds on one rank" in html


def test_operators_say_their_sharding(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row.name: row for row in operator_rows(plan_70b()) if row.kind != "redistribute"}
    assert rows["mlp.gate_proj"].sharding == "batch/dp ffn/tp1*tp0"
    assert rows["mlp.gate_proj"].local == (("batch", 1), ("seq", 8192), ("ffn", 28672 // 32))
    down = next(row for row in operator_rows(plan_70b()) if row.kind == "redistribute" and row.name == "mlp.down_proj")
    assert down.sharding == "batch/dp partial/tp1*tp0 -> batch/dp seq/tp1*tp0"
    assert [(move.direction, move.kind) for move in down.moves] == [
        ("forward", "reduce_scatter"),
        ("backward", "all_gather"),
    ]
    # a microbatch of 8192 tokens of 8192 numbers of 2 bytes
    assert {move.bytes for move in down.moves} == {8192 * 8192 * 2}
    write_plan(plan_70b(), "plan.json")
    assert main(["explain", "plan.json", "--operators", "--schedule", "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert set(values) == {"schedule", "operators"}
    assert len(values["schedule"]) == 8


# compare


def test_differences_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = plan_70b(), plan_mixtral()
    found = compare(one, other)
    assert found.doubt is None
    different = {what: (a, b) for what, a, b in found.different}
    assert different["model"] == ("llama3-70b", "mixtral-8x7b")
    assert different["sequences"] == ("1,024", "128")
    assert ("precision", "mixed_precision") in found.same
    assert sum(pair.difference for pair in found.time) == pytest.approx(
        other.estimate.step_time_s - one.estimate.step_time_s, rel=1e-4
    )
    write_plan(one, "a.json")
    write_plan(replace(one, strategy=one.runners_up[0].strategy, estimate=one.runners_up[0].estimate), "b.json")
    assert main(["compare", "a.json", "b.json"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("a.json beside b.json\n  the second takes ~202 s a step, the first ~180 s: 11.8 % slower")
    assert printed.index("recompute") < printed.index("Same")
    assert main(["compare", "a.json", "b.json", "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["step_time_s"]["other"] > values["step_time_s"]["one"]
    assert values["doubt"]["first_is_faster"] > 0.5


def test_dropout_differs_where_either_plan_has_some() -> None:
    asked: dict[str, Any] = {"model": "llama3.2-1b", "nodes": 1, "backend": "torch", "tp": 1, "zero": 1, "lora": 8}
    one, other = (autoshard.plan(**asked, dropout=rate) for rate in ("0", "lora=0.05"))
    assert compare(one, other).different == (("dropout", "0", "lora=0.05"),)
    assert ("dropout", "lora=0.05") in compare(other, other).same
    assert "dropout" not in dict(compare(one, one).same)


def test_a_plan_beside_itself(capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(plan_70b(), "a.json")
    assert main(["compare", "a.json", "a.json"]) == 0
    printed = capsys.readouterr().out
    assert "Differ" not in printed
    assert printed.startswith("a.json beside a.json\n  the second takes ~180 s a step, the first ~180 s: as fast\n")


@pytest.mark.parametrize(
    ("ratio", "text"), [(2900.4, "2,900"), (999.96, "1,000"), (99.96, "100"), (0.00345, "0.00345")]
)
def test_how_many_times_as_long(ratio: float, text: str) -> None:
    one, other = plan_70b(), plan_mixtral()
    estimates = (replace(one.estimate, step_time_s=1.0), replace(other.estimate, step_time_s=ratio))
    found = compare(replace(one, estimate=estimates[0], runners_up=()), replace(other, estimate=estimates[1]))
    assert verdict(found).endswith(f" the first ~1.00 s: {text} times as long, but the inputs differ")
    found = compare(replace(one, estimate=estimates[0], runners_up=()), replace(other, estimate=estimates[0]))
    assert verdict(found).endswith(" the first ~1.00 s: as long, but the inputs differ")


@pytest.mark.parametrize("probability", [0.0, 1e-9])
def test_a_plan_that_cannot_fit_has_no_ratio_of_probabilities(
    probability: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """A layout that somebody wrote may be so far above the memory that no probability is left."""
    plan = plan_70b()
    write_plan(replace(plan, estimate=replace(plan.estimate, fits_probability=probability)), "a.json")
    write_plan(plan, "b.json")
    found = []
    for names in (("a.json", "b.json"), ("b.json", "a.json"), ("a.json", "a.json")):
        assert main(["compare", *names]) == 0
        found += re.findall(r"probability to fit +(\S.*?%) +(\S.*?%) +(\S+)", capsys.readouterr().out)
    assert found == [
        ("less than 0.1 %", "97.0 %", "-"),
        ("97.0 %", "less than 0.1 %", "0.00"),
        ("less than 0.1 %", "less than 0.1 %", "-"),
    ]


def test_a_fact_that_one_plan_has_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the plan for UltraServers names the links of its axes."""
    asked = ["plan", "--model", "llama3-8b", "--nodes", "2", "--out"]
    assert main([*asked, "a.json"]) == 0
    assert main([*asked, "b.json", "--instance", "trn2u.48xlarge"]) == 0
    for files in (("a.json", "b.json"), ("b.json", "a.json")):
        capsys.readouterr()
        assert main(["compare", *files]) == 0
        links = capsys.readouterr().out.partition("  links\n")[2].splitlines()[:2]
        assert [line[:7] for line in links] == (
            ["    < -", "    > t"] if files[0] == "a.json" else ["    < t", "    > -"]
        )


def test_next_to_nothing_has_no_minus() -> None:
    assert [more(share) for share in (0.021, -0.0004, 0.0, -0.0006)] == ["+2.1%", "+0.0%", "+0.0%", "-0.1%"]


def test_another_tp_is_refused_by_its_own_rule() -> None:
    """tp=64 of 32 heads is a group of the device, which the refusal of tp=2 and tp=8 says."""
    groups = "tp={} is not a group of trn2.48xlarge at lnc 2; degrees that are: 1, 4, 16, 32, 64"
    heads = "tp=64 would pad num_attention_heads=32 of mixtral-8x7b to 64"
    said = ((2, groups.format(2)), (8, groups.format(8)), (64, heads))
    rows = tuple(DegreeRow(tp, "", 0.0, 0.0, 0.0, 0.0, False, "", refusal, legal=False) for tp, refusal in said)
    assert degree_lines(replace(answers_by_hand(), degrees=rows)) == [
        f"tp=2, tp=8: not legal here: {groups.format(2)}",
        f"tp=64: not legal here: {heads}",
    ]


def test_what_was_given_and_is_searched_all_the_same_is_said() -> None:
    """Another tp, and other instances, are searched without the plan's pins; the page did not say so."""
    plan = recipe_plan("llama3_8b_trn1_4nodes")
    (found,) = answers_so_far(plan, Clock(0))
    assert found.pinned == pinned_words(plan.pins) == ("tp=32", "mbs=1")
    told = replace(answers_by_hand(), pinned=("tp=8", "pp=4", "mbs=1"))
    note = "given for the plan, but searched here: pp=4 mbs=1"
    assert degrees_note(told) == note
    assert [degrees_note(replace(told, pinned=pinned)) for pinned in ((), ("tp=8",))] == ["", ""]
    sentence, *others = price_lines(told)
    plain, *same = price_lines(replace(told, pinned=()))
    assert sentence == f"{plain}. Other instances are searched without what was given for the plan: tp=8 pp=4 mbs=1"
    assert others == same and price_lines(replace(told, prices=())) == [plain]
    page = describe(plan, told)
    assert f"any layout; {note}" in " ".join(render(page, 120, False).split())
    assert f"## Why not another tp\n\n{note.capitalize()}\n\n* tp=1" in render_markdown(page)


def test_nodes_that_are_better_left_idle_are_named() -> None:
    found = answers_by_hand()
    slower = replace(found.sizes[1], more=-0.162)
    rows = size_rows(replace(found, sizes=(found.sizes[0], slower)))
    assert [row[-1] for row in rows] == [
        "tp=8 pp=8 dp=8 mbs=1 recompute=none",
        "tp=8 pp=17 dp=4 mbs=1 recompute=none; faster if the extra nodes stay idle",
    ]
