"""The report: its numbers are the plan's, it asks for nothing from anywhere, and no text in it becomes HTML."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autoshard
from autoshard.cli import main
from autoshard.explanation.trace import measured_events
from autoshard.planner.priced_columns import priced_columns
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.reports.candidates import FILTERS, MOST_POINTS, candidates, known_front, pareto, thinned
from autoshard.reports.comparison import comparison_report
from autoshard.reports.html import LONG, Html, code, element, table
from autoshard.reports.machine import axes, drawn
from autoshard.reports.page import MOST_BYTES, report_page
from autoshard.reports.pipeline import (
    MOST_SPANS,
    TICKS,
    TOGETHER,
    Span,
    bubble_table,
    measured_rows,
    packed,
    predicted_rows,
)
from autoshard.reports.sections import body
from autoshard.reports.view import view_of
from autoshard.reports.words import in_words
from autoshard.units import format_bytes, format_seconds, percent
from tests.unit.plan_examples import plan_70b, plan_interleaved, plan_mixtral, plan_one_device
from tests.unit.test_explain_trace import run_json

SECTIONS = (
    "What was chosen",
    "The mesh on the machine",
    "The pipeline on a clock",
    "Memory of each stage",
    "Where the time goes",
    "All candidates",
    "A block, operator by operator",
)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Elements(HTMLParser):
    """Every element of a page with its attributes, the texts outside of scripts, and what the scripts hold."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.scripts if self.found and self.found[-1][0] == "script" and self.cdata_elem else self.texts).append(data)


@pytest.mark.parametrize("plan", [plan_70b(), plan_interleaved(), plan_mixtral(), plan_one_device()])
def test_every_plan_has_a_page_with_its_numbers(plan: Plan) -> None:
    page = report_page(view_of(plan, quick=True))
    text = " ".join(Elements(page).texts)
    assert [name for name in SECTIONS if name not in text] == []
    for term in plan.estimate.time_terms:
        assert term.value == 0 or f"~{format_seconds(term.value)}" in text, term
    assert format_bytes(plan.estimate.fullest.total_bytes) in text
    for stage in plan.estimate.memory:
        assert f"{stage.total_bytes / 1e9:.2f}" in text
    assert len(page.encode()) < MOST_BYTES


def test_the_whole_page_has_candidates_reasons_and_what_would_change_the_choice() -> None:
    plan = autoshard.plan("llama3-8b", nodes=4, tp=8)
    page = autoshard.report(plan, "report.html", time_limit=60)
    assert Path("report.html").read_text(encoding="utf-8") == page
    found = Elements(page)
    text = " ".join(found.texts)
    for name in (*SECTIONS, "Runners-up", "What would change the choice", "What was dropped"):
        assert name in text
    assert plan.search is not None
    for rejection in plan.search.rejections:
        assert rejection.example in text
    data = json.loads(next(one for one in found.scripts if one.startswith("{")))
    assert set(data) == {"machine", "timeline", "candidates"}
    assert set(data["candidates"]["tp"]) == {8}  # the plan's pins hold
    assert len(page.encode()) < MOST_BYTES


def test_a_page_asks_for_nothing_and_its_policy_allows_its_own_script_alone() -> None:
    page = report_page(view_of(plan_70b(), quick=True))
    found = Elements(page)
    for tag, attributes in found.found:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form"), tag
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page and "@import" not in page and "http://" not in page and "https://" not in page
    script = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert len(script) == 1
    allowed = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    policy = next(a["content"] for tag, a in found.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; base-uri 'none'"


def test_no_text_becomes_html() -> None:
    plan, bad = plan_70b(), '</script><script>alert(1)</script><b onclick=x>"'
    plan = replace(plan, model=replace(plan.model, name=bad), notes=(bad,), made_by=bad)
    for page in (report_page(view_of(plan, quick=True)), comparison_report(plan, plan_70b(), (bad, "b"))):
        assert "<script>alert" not in page
        assert "<b onclick" not in page
        assert len([tag for tag, _ in Elements(page).found if tag == "script"]) == 2


def test_elements_escape_texts_and_attributes() -> None:
    assert element("p", "a < b", title='"', data_x=True, hidden=False) == '<p title="&quot;" data-x>a &lt; b</p>'
    assert element("p", Html("<br>"), None, [Html("<i></i>")]) == "<p><br><i></i></p>"
    made = table("c & d", ("x", "n"), [("<", "1")], right=(1,))
    assert "<caption>c &amp; d</caption>" in made
    assert '<th scope="row">&lt;</th><td class="number">1</td>' in made


@pytest.mark.parametrize("quick", [True, False])
def test_ids_are_unique_and_every_picture_is_named_and_reached_by_keys(quick: bool) -> None:
    one, other = autoshard.plan("llama3-8b", nodes=1, tp=8), autoshard.plan("llama3-8b", nodes=1, tp=32)
    pages = (report_page(view_of(one, quick=quick)), comparison_report(one, other, ("a", "b")))
    for page in pages:
        found = Elements(page)
        ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
        assert len(ids) == len(set(ids))
        data = json.loads(next(one for one in found.scripts if one.startswith("{")))
        for tag, attributes in found.found:
            if tag == "canvas":
                assert attributes["data-picture"] in data
                assert attributes["tabindex"] == "0"
                assert attributes["role"] == "application"
                assert attributes["aria-label"]
            if labels := attributes.get("aria-labelledby"):
                assert {*labels.split()} <= set(ids)


@pytest.mark.parametrize(
    ("sure", "close", "said"),
    [
        (0.9, False, "None of the runners-up is likely to be faster."),
        (0.9, True, "1 of the 2 runners-up is so close that only a measurement can tell which is faster."),
        (0.2, False, "1 of the 2 runners-up is likely to be faster."),
        (0.2, True, "1 of the 2 runners-up is likely to be faster. 1 of the 2 runners-up is so close that only"),
    ],
)
def test_runners_up_that_are_likely_to_be_faster_are_said_to_be(sure: float, close: bool, said: str) -> None:
    """The plan may be the slower one where a simpler layout, or one that has run, was wanted."""
    view = view_of(plan_70b(), quick=True)
    first, second = view.description.runners_up
    runners_up = (replace(first, chosen_is_faster=sure, toss_up=False), replace(second, toss_up=close))
    told = replace(view, description=replace(view.description, runners_up=runners_up))
    text = " ".join(Elements(report_page(told)).texts)
    assert f", of which 50 fit. {said}" in text
    assert ("slower with 90.0 % probability" if sure > 0.5 else "faster with 80.0 % probability") in text


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "It was chosen among 60 layouts, of which 50 fit."),
        (1, "fit. The runner-up is so close that only a measurement can tell which is faster."),
        (2, "fit. All 2 runners-up are so close that only a measurement can tell which is faster."),
    ],
)
def test_runners_up_that_are_all_alike_are_said_to_be(count: int, said: str) -> None:
    view = view_of(plan_70b(), quick=True)
    alike = tuple(replace(one, toss_up=True) for one in view.description.runners_up[:count])
    told = replace(view.description, runners_up=alike, considered=60, fitting=50)
    assert in_words(plan_70b(), told)[0][2].endswith(said)


# The pipeline


def unpacked(flat: Sequence[int]) -> list[tuple[int, int, int, int, int]]:
    found, at = [], 0
    for gap, length, kind, microbatch, chunk in zip(*[iter(flat)] * 5, strict=True):
        found.append((at + gap, at + gap + length, kind, microbatch, chunk))
        at += gap + length
    return found


def test_packed_spans_by_hand() -> None:
    rows = [("r", [Span("forward", 0.0, 1.0, 0, 0), Span("backward", 2.0, 4.0, 0, 0)])]
    assert packed("t", rows) == {
        "title": "t",
        "total_s": 4.0,
        "ticks": TICKS,
        "end": TICKS,
        "kinds": ["forward", "backward"],
        "several": -1,
        "rows": [{"name": "r", "spans": [0, 250_000, 0, 0, 0, 250_000, 500_000, 1, 0, 0], "mix": []}],
    }
    longer = packed("t", rows, 8.0)
    assert longer["rows"][0]["spans"][1] == 125_000 and longer["end"] == TICKS // 2
    assert bubble_table(rows) == [("r", 3.0, 0.0, 1.0)]


seconds = st.just(0.0) | st.floats(1e-6, 1)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=50))
def test_rounding_to_ticks_does_not_add_up(pairs: list[tuple[float, float]]) -> None:
    at, row = 0.0, []
    for gap, length in pairs:
        row.append(Span("forward", at + gap, at + gap + length))
        at += gap + length
    flat = packed("t", [("r", row)])
    scale = TICKS / at if at else 0.0
    for span, (start, end, *_) in zip(row, unpacked(flat["rows"][0]["spans"]), strict=True):
        assert abs(start - span.start_s * scale) <= 0.5001
        assert abs(end - span.end_s * scale) <= 0.5001


def test_a_timeline_ends_when_the_step_does() -> None:
    plan = autoshard.plan("llama3-8b", nodes=2, pp=4)
    rows = predicted_rows(plan)
    assert len(rows) == plan.strategy.pp
    assert max(span.end_s for _, row in rows for span in row) == pytest.approx(plan.estimate.step_time_s, rel=1e-3)
    assert {span.what for _, row in rows for span in row} >= {"forward", "backward"}


def test_in_a_long_timeline_several_actions_of_the_middle_are_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends are as they were, and the table of bubbles is."""
    whole = predicted_rows(plan_70b())
    monkeypatch.setattr("autoshard.reports.pipeline.MOST_SPANS", 40 * len(whole))
    short = predicted_rows(plan_70b())
    for (_, all_of_it), (_, some) in zip(whole, short, strict=True):
        actions = [span for span in all_of_it if span.microbatch >= 0]
        middle = [place for place, span in enumerate(some) if span.what == TOGETHER]
        assert middle == [*range(10, 10 + len(middle))] and 15 < len(middle) <= 20
        assert [span for span in some if span.microbatch >= 0] == [*actions[:10], *actions[-10:]]
        assert {some[place].start_s for place in middle} <= {span.start_s for span in actions[10:-10]}
        for place in middle:
            assert some[place].end_s <= some[place + 1].start_s + 1e-9
    for one, other in zip(bubble_table(whole), bubble_table(short), strict=True):
        assert one[0] == other[0] and one[1:] == pytest.approx(other[1:])
    assert MOST_SPANS > 10_000


def test_several_actions_as_one_span_keep_the_shares_of_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the middle of each rank: forwards take a third of it or less, backwards the rest, in one colour each."""
    whole = predicted_rows(plan_70b())
    monkeypatch.setattr("autoshard.reports.pipeline.MOST_SPANS", 40 * len(whole))
    found = packed("t", predicted_rows(plan_70b()))
    assert found["kinds"][found["several"]] == TOGETHER
    for (_, spans), row in zip(whole, found["rows"], strict=True):
        middle = [span for span in spans if span.microbatch >= 0][10:-10]
        seconds = {what: sum(s.end_s - s.start_s for s in middle if s.what == what) for what in ("forward", "backward")}
        shares = {found["kinds"][kind]: share for kind, share in row["mix"]}
        assert shares == pytest.approx({what: took / sum(seconds.values()) for what, took in seconds.items()}, abs=1e-4)
    view = replace(view_of(plan_70b(), quick=True), rows=predicted_rows(plan_70b()))
    assert TOGETHER not in body(view)[0]


def test_a_layout_breaks_between_its_parts_and_a_long_table_scrolls() -> None:
    assert code("recompute=a+b&c") == "<code>recompute=a+<wbr>b&amp;c</code>"
    rows = [(str(i), "x") for i in range(LONG + 1)]
    assert 'class="scroll"' in table("t", ("a", "b"), rows[:-1]) and 'class="scroll long"' in table(
        "t", ("a", "b"), rows
    )


def test_the_front_names_no_context_parallelism_where_there_is_none() -> None:
    plan = autoshard.plan("llama3-8b", nodes=4, tp=8)
    view = view_of(plan)
    assert view.found is not None
    columns, front = view.found.columns, list(view.found.front)
    assert len({*columns["context_parallel"][front].tolist()}) > 1
    rows = re.findall(r"<tr><th[^>]*>(?:at least )?[\d.,]+ m?s</th>(.*?)</tr>", body(view)[0])
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert len(cells) == len(front)
    for row, place in zip(cells, front, strict=True):
        named = {"ring", "zigzag_ring", "ulysses", "all_gather"} & {*row}
        assert bool(named) == (columns["cp"][place] > 1)
        assert row[0].endswith(f" GB, {percent(columns['fits_probability'][place])}")


def test_equal_times_are_no_wait() -> None:
    """Of one pipeline rank, which waits for nobody: a difference of sums is a rounding error there."""
    view = view_of(plan_one_device(), quick=True)
    row = "".join(re.findall(r"<tr><th scope=\"row\">pipeline rank 0</th>.*?</tr>", body(view)[0])[0])
    assert row.count('<td class="number">0 s</td>') == 2 and " us" not in row


def test_measured_actions_and_what_comes_after_them() -> None:
    def event(category: str, name: str, ts: int, dur: int) -> dict[str, Any]:
        return {"pid": 7, "ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}

    events = [
        {"pid": 7, "ph": "M", "name": "process_name", "args": {"name": "rank 0, measured"}},
        event("step", "profiled step 1", 900_000, 2_000_000),
        event("action", "F3.1", 1_000_000, 500_000),
        event("collective", "all_reduce", 1_100_000, 100_000),
        event("action", "B3.1", 1_500_000, 250_000),
        event("optimizer", "optimizer step", 1_750_000, 200_000),
        event("optimizer", "gradient sync", 1_750_000, 100_000),
    ]
    forward, backward = Span("forward", 0.0, 0.5, 3, 1), Span("backward", 0.5, 0.75, 3, 1)
    assert measured_rows(events) == [("rank 0, measured", [forward, backward, Span("optimizer step", 0.75, 0.95)])]


# The machine


def test_axes_on_the_machine_by_hand() -> None:
    """tp 32 fills a trn1 node, so dp and pp leave it: dp 2 at 32 ranks, pp 8 at 64, over 2 and 8 nodes."""
    plan = plan_70b()
    assert (plan.strategy.tp, plan.strategy.pp, plan.strategy.dp, plan.cluster.devices_per_node) == (32, 8, 2, 32)
    found = [(one.name, one.size, one.apart, one.nodes, one.link) for one in axes(plan)]
    network = plan.cluster.inter_node.name
    assert found[:2] == [("pp", 8, (64,), 8, network), ("dp", 2, (32,), 2, network)]
    assert all(one[3] == 1 and one[4] != network for one in found[2:])
    assert drawn(plan)["shown"] == plan.cluster.nodes == 16


def test_what_ranks_send_along_an_axis_on_the_machine() -> None:
    """Of 8 groups of experts, 2 are ranks that share a sequence: tokens go along both axes."""
    plan = autoshard.plan("qwen3-30b-a3b", "h100-80gb", nodes=8, global_batch=128, tp=1, pp=8, dp=4, cp=2, ep=8)
    assert {one.name: one.what for one in axes(plan)} == {
        "pp": "activations of neighbouring stages",
        "ep": "tokens of experts, gradients and updated weights",
        "cp": "keys and values of parts of a sequence, tokens of experts, gradients and updated weights",
    }
    own = {one.name: one.what for one in axes(autoshard.plan("qwen3-30b-a3b", "h100-80gb", nodes=1, tp=4, etp=2, ep=4))}
    assert own["tp"] == "parts of every matrix product, tokens of experts"
    assert own["etp"] == "parts of every matrix product"


def test_ranks_apart_on_a_folded_mesh_are_those_of_its_groups() -> None:
    """Two groups of tp 32 share a trn2 node, whose rows of 16 ranks are counted 0, 3, 1, 2: the first has 0 and 3."""
    plan = autoshard.plan("llama3-70b", "trn2.48xlarge", nodes=4, tp=32, dp=2, pp=4, global_batch=128)
    found = {one.name: one.apart for one in axes(plan)}
    assert plan.mesh.fold is not None
    assert found == {"pp": (64,), "dp": (16,), "tp0": (4, 36), "tp1": (1,)}
    for name, apart in found.items():
        groups = plan.mesh.groups((name,))
        assert {abs(after - before) for ranks in groups for before, after in pairwise(ranks)} == {*apart}
    assert '<td class="number">4 or 36</td>' in report_page(view_of(plan, quick=True))


# Candidates

points = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=30)


@given(points)
def test_the_front_is_that_of_brute_force(found: list[tuple[int, int, bool]]) -> None:
    seconds, size, fits = (np.array([one[i] for one in found], dtype) for i, dtype in enumerate((float, float, bool)))
    places = pareto(seconds, size, fits).tolist()
    ours = {(seconds[i], size[i]) for i in places}
    fit = {(s, m) for s, m, f in found if f}
    better = {one for one in fit if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in fit)}
    assert ours == better
    assert len(places) == len(ours)
    assert sorted(seconds[places].tolist()) == seconds[places].tolist()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans()), max_size=30))
def test_a_bound_does_not_beat_a_known_time(found: list[tuple[int, int, bool, bool]]) -> None:
    kinds = (float, float, bool, bool)
    columns = [np.array([one[i] for one in found], dtype) for i, dtype in enumerate(kinds)]
    places = known_front(*columns).tolist()
    fit = [one for one in found if one[2]]

    def is_beaten(one: tuple[int, int, bool, bool]) -> bool:
        others = (o for o in fit if o[:2] != one[:2] and (one[3] or not o[3]))
        return any(o[0] <= one[0] and o[1] <= one[1] for o in others)

    assert {found[i][:2] for i in places} == {one[:2] for one in fit if not is_beaten(one)}
    assert [found[i][:2] for i in places] == sorted(found[i][:2] for i in places)


def test_the_best_layout_and_the_plan_are_on_the_front() -> None:
    best = autoshard.plan("gpt-neox-20b", "trn2.48xlarge", nodes=1, global_batch=256, seq_len=8192, backend="nxd")
    assert best.strategy.uniform_recompute is None
    for plan in (best, autoshard.edit_plan(best, ["strategy.recompute=full"]).plan):
        found = candidates(plan, 60)
        assert found is not None
        front = {name: column[list(found.front)] for name, column in found.columns.items()}
        place = front["recompute"].tolist().index("by-stage")  # faster ones fit less surely
        assert front["step_time_s"][place] == pytest.approx(best.estimate.step_time_s, rel=1e-5)
        assert (front["memory_bytes"][place + 1 :] < front["memory_bytes"][place]).all()
        known = front["memory_bytes"][~front["step_time_is_bound"]]
        assert np.isclose(known, plan.estimate.fullest.total_bytes, rtol=1e-5).any()


def test_a_layout_alone_is_its_front() -> None:
    one: dict[str, Any] = {
        "cp": 1,
        "ep": 1,
        "vpp": 1,
        "micro_batch": 1,
        "zero": 1,
        "schedule": "1f1b",
        "attention_kernel": "flash",
    }
    plan = autoshard.plan("llama3.2-1b", nodes=1, tp=1, pp=1, seq_len=2048, recompute="full", **one)
    found = candidates(plan, 60)
    assert found is not None
    assert (found.total, found.front, found.columns["recompute"].tolist()) == (1, (0,), ["full"])


def test_the_front_tells_layouts_apart_by_what_differs() -> None:
    view = view_of(autoshard.plan("llama3-8b", nodes=1, tp=8, pp=1, cp=1), time_limit_s=60)
    found = view.found
    assert found is not None
    zero = found.columns["zero"].copy()
    zero[found.front[0]] = 3
    other = replace(view, found=replace(found, columns={**found.columns, "zero": zero}))
    header = '<th scope="col">recompute</th>'
    assert f"{header}</tr>" in report_page(view)
    assert f'{header}<th scope="col">zero</th></tr>' in report_page(other)


def test_thinning_keeps_the_front_and_the_fastest_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    result = autoshard.search("llama3-8b", nodes=2, seq_len=16384)
    plan, priced = result.plan, getattr(result.answer.result, "priced", None)
    monkeypatch.setattr("autoshard.reports.candidates.MOST_POINTS", 200)
    assert priced is not None
    columns = priced_columns(priced)
    assert plan.strategy.uniform_recompute is None  # one more layout
    found = thinned(priced, {plan.strategy: plan.estimate})
    assert (found.total, len(found.columns["tp"])) == (len(columns["tp"]) + 1, 200)
    names, best = ("step_time_s", "memory_bytes", "fits", "step_time_is_bound"), plan.estimate
    own = best.step_time_s, best.fullest.total_bytes, True, False
    prices = [np.append(columns[name], value) for name, value in zip(names, own, strict=True)]
    front = known_front(*prices)
    assert found.columns["step_time_s"][list(found.front)].tolist() == prices[0][front].tolist()
    fastest: dict[tuple[Any, ...], float] = {}
    for i in np.flatnonzero(columns["fits"]):
        kind = tuple(columns[name][i] for name in FILTERS)
        fastest[kind] = min(fastest.get(kind, np.inf), columns["step_time_s"][i])
    shown = {(*(found.columns[name][i] for name in FILTERS), found.columns["step_time_s"][i]) for i in range(200)}
    assert len(fastest) < 150
    assert {(*kind, seconds) for kind, seconds in fastest.items()} <= shown
    assert MOST_POINTS >= 1000


# The commands


def test_what_a_measured_rank_waited_is_a_bubble_and_no_work() -> None:
    """Of a profile that has sums alone."""
    plan = plan_interleaved()
    rows = measured_rows(measured_events(plan, run_json(plan)))
    assert [[span.what for span in spans] for _, spans in rows] == 2 * [
        ["compute", "exposed communication", "gradient sums", "parameter all-gather", "optimizer update"]
    ]
    first = rows[0][1]
    assert first[2].start_s - first[1].end_s == pytest.approx(2.0)
    assert autoshard.report(plan, measured=run_json(plan), quick=True).count("</span>bubble</li>") == 2


def test_devices_are_called_by_their_name_once() -> None:
    """Of a machine of one's own they are devices alone."""
    for plan, words in ((plan_70b(), "512 NeuronCores"), (plan_one_device(), "1 process")):
        text = " ".join(Elements(report_page(view_of(plan, quick=True))).texts)
        assert f" parameters, {words}, " in re.sub(r"\s+", " ", text)
    own = replace(plan_70b(), cluster=replace(plan_70b().cluster, layout_rules="none", instance="mine", sdk=None))
    assert " parameters, 512 devices, " in " ".join(Elements(report_page(view_of(own, quick=True))).texts)


def test_mfu_stands_on_the_page_that_explains_the_word() -> None:
    plan = plan_70b()
    estimate = replace(plan.estimate, step_time_low_s=4 / 5, step_time_s=1.0, step_time_high_s=2.0, mfu=0.4)
    text = " ".join(Elements(report_page(view_of(replace(plan, estimate=estimate), quick=True))).texts)
    assert "MFU ~40.0% of 95 TFLOP/s bfloat16 a NeuronCore; 90 %: 20.0% to 50.0%" in re.sub(r"\s+", " ", text)


def test_a_comparison_links_to_each_section_once() -> None:
    page = comparison_report(plan_70b(), plan_interleaved(), ("a.json", "b.json"))
    links = re.findall(r'<a href="#([^"]*)">([^<]*)</a>', page)
    assert links == [
        ("what-differs", "What differs"), ("time", "Time"), ("memory", "Memory"), ("numbers", "Numbers"),
        ("plan-1", "First: a.json"), ("plan-2", "Second: b.json"), ("what-is-the-same", "What is the same"),
    ]  # fmt: skip
    assert all(f'id="{anchor}"' in page for anchor, _ in links)


def test_a_screen_reader_tells_the_parts_of_two_plans_apart() -> None:
    page = comparison_report(plan_70b(), plan_interleaved(), ("a.json", "b.json"))
    named = re.findall(r' (?:aria-label|aria-labelledby)="([^"]*)"', page)
    assert len(named) == len(set(named)) > 20
    assert {"First plan: Table: Work and bubbles by rank", "plan-2 memory-of-each-stage_1"} <= set(named)


def test_measured_and_predicted_are_on_one_page() -> None:
    plan = plan_interleaved()
    page = autoshard.report(plan, measured=run_json(plan), quick=True)
    text = " ".join(Elements(page).texts)
    for words in ("What was measured", "step time, median", "measured peak"):
        assert words in text


def test_commands_write_pages_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(plan_70b(), "plan.json")
    write_plan(plan_one_device(), "other.json")
    assert main(["report", "plan.json", "--quick"]) == 0
    assert re.fullmatch(r"wrote report.html, \d+ KB; open it in a browser\n", capsys.readouterr().out)
    assert main(["compare", "plan.json", "other.json", "--html"]) == 0
    assert capsys.readouterr().out == "wrote compare.html; open it in a browser\n"
    text = " ".join(Elements(Path("compare.html").read_text(encoding="utf-8")).texts)
    assert "plan.json beside other.json" in text
    assert "First: plan.json" in text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("compare plan.json plan.json -o x.html", "-o x.html is where a page goes; add --html"),
        (
            "compare plan.json plan.json --html --format json",
            "--html writes a page and --format json prints; leave one out",
        ),
        ("report nope.json", "plan nope.json does not exist"),
        ("report plan.json --measured nope.json", "measured run nope.json does not exist"),
        ("report plan.json -o no/x.html", "report no/x.html cannot be written: no is not a folder"),
        ("report plan.json --quick -o .", "report . is a directory; name a file in it"),
        ("report broken.json", "plan broken.json, line 1, column 2: the JSON ends too early; the file was cut off"),
        (
            "compare plan.json plan.json --html -o no/x.html",
            "page no/x.html cannot be written: No such file or directory",
        ),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    autoshard.plan("llama3-8b").save("plan.json")
    Path("broken.json").write_text("{")
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"autoshard: error: {error}\n"
    assert sorted(file.name for file in Path().iterdir()) == ["broken.json", "plan.json"]
