"""PlanBench: its scores by hand, its splits, its entries, and pages that regenerate to the same bytes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autoshard
from autoshard import AutoshardError
from autoshard.bench.metrics import Prediction, scores
from autoshard.bench.ours import autoshard_model
from autoshard.bench.page import curves_svg, results_page, timings_page
from autoshard.bench.predictors import PREDICTORS, regression, six_n_d
from autoshard.bench.problems import read_problems
from autoshard.bench.rows import FEWEST, LAST_KNOWN_YEAR, SPLITS, Fold, Measured, folds, read_measured
from autoshard.bench.run import read, write
from autoshard.bench.searchers import entries, summary
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.rows import read_rows
from autoshard.cli import main
from benchmarks.fitted import DATA, load
from benchmarks.predicted_vs_measured import gpu_scores
from benchmarks.scores import Scored
from tests.cases import some
from tests.unit.test_plugins import package

RESULTS = DATA.parent / "results"


@pytest.fixture(scope="module")
def rows() -> tuple[Measured, ...]:
    return read_measured(DATA)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Data with two small problems and every 80th result of a GPU."""
    folder = tmp_path / "data"
    folder.mkdir()
    problems = [
        {"name": "one", "model": "llama3-8b", "instance": "trn1.32xlarge", "seq_len": 2048, "global_batch": 64},
        {"name": "two", "model": "mixtral-8x7b", "instance": "trn1.32xlarge", "nodes": 4, "seq_len": 2048},
    ]
    (folder / "planbench_problems.json").write_text(json.dumps({"format_version": 1, "problems": problems}))
    for name in ("planbench_years.json", "fitted.json", "left_out.json"):
        shutil.copy(DATA / name, folder / name)
    for name in ("measured_gpu.csv", "measured_trainium.csv"):
        head, *lines = (DATA / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join([head, *lines[:: 80 if "gpu" in name else 10]]))
    return folder


def test_scores_by_hand(rows: tuple[Measured, ...]) -> None:
    def row(source: str, group: str, time_s: float | None) -> Measured:
        return replace(
            rows[0], source=source, group=group, time_s=time_s, fits=time_s is not None, capacity_bytes=100.0
        )

    asked = [row("a", "g", 10.0), row("a", "g", 5.0), row("a", "g", None), row("b", "h", 4.0), row("b", "i", 1.0)]
    said = [
        Prediction(8.0, 7.0, 9.0, 50.0),  # 20 % too short; outside its interval
        Prediction(10.0, 4.0, 16.0, 120.0),  # twice; said not to fit, wrongly
        Prediction(3.0, 2.0, 4.0, 130.0),  # rightly said not to fit
        Prediction(4.0, 2.0, 8.0, None),
        None,
    ]
    found = scores(asked, said)
    assert (found.rows, found.unpredicted) == (3, 1)
    assert found.mean_error == pytest.approx((0.2 + 1.0 + 0.0) / 3)
    assert found.median_error == pytest.approx(0.2)
    assert found.error_of_groups == pytest.approx((0.6 + 0.0) / 2)  # groups g and h; i has no answer
    assert found.error_of_sources == pytest.approx((0.6 + 0.0) / 2)
    assert found.bias == pytest.approx((0.8 * 2.0 * 1.0) ** (1 / 3) - 1)
    assert found.fits_right == pytest.approx(2 / 3)  # source b has no run out of memory
    assert found.regret == pytest.approx(10 / 5 - 1)  # of group g the first is picked; h has one run alone
    assert found.picks_out_of_memory == 0
    assert found.coverage == pytest.approx(2 / 3)
    assert found.width == pytest.approx(4.0)
    # two groups of source a and one of b: groups have a vote each, or sources
    both = [*asked, row("a", "j", 1.0), row("a", "j", 3.0), row("b", "k", 2.0), row("b", "k", 2.5)]
    more = [Prediction(one, one, one) for one in (2.0, 1.0, 2.0, 3.0)]  # picks 3 of 1, and 2 of 2
    found = scores(both, [*said, *more])
    assert found.regret == pytest.approx((1.0 + 2.0 + 0.0) / 3)
    assert found.regret_of_sources == pytest.approx((1.5 + 0.0) / 2)
    of_groups = (0.6, 0.0, (1.0 + 2 / 3) / 2, (0.0 + 0.2) / 2)  # g, h, j, k
    assert found.error_of_groups == pytest.approx(sum(of_groups) / 4)
    of_sources = ((0.2 + 1.0 + 1.0 + 2 / 3) / 4, (0.0 + 0.0 + 0.2) / 3)
    assert found.error_of_sources == pytest.approx(sum(of_sources) / 2)
    # equal predictions: each is as likely to be picked, the one out of memory too
    equal = scores(asked[:3], [Prediction(1.0, 1.0, 1.0)] * 3)
    assert equal.regret == pytest.approx((10 + 5) / 2 / 5 - 1)
    assert equal.picks_out_of_memory == pytest.approx(1 / 3)
    assert scores([], [])[2:] == (None,) * 11


@pytest.mark.parametrize("split", SPLITS)
def test_no_split_lets_test_rows_be_learned(rows: tuple[Measured, ...], split: str) -> None:
    parts = folds(rows, split, DATA)
    for fold in parts:
        assert len(fold.train) + len(fold.test) == len(rows) and fold.train and fold.test
        assert not {row.key for row in fold.train} & {row.key for row in fold.test}
        field = {"group": "group", "source": "source", "time": "year"}[split]
        assert not {getattr(row, field) for row in fold.train} & {getattr(row, field) for row in fold.test}
    tested = [row.key for fold in parts for row in fold.test]
    assert len(tested) == len(set(tested))
    if split == "group":
        assert len(tested) == len(rows)
        assert len(parts) == 5 and all(len(fold.test) >= 20 for fold in parts)
    if split == "time":
        assert {row.year > LAST_KNOWN_YEAR for row in parts[0].test} == {True}
    if split == "source":
        assert min(len(fold.test) for fold in parts) >= FEWEST


def test_ours_are_the_scoreboards_predictions(rows: tuple[Measured, ...]) -> None:
    gpu = [row for row in rows if isinstance(row.case, Case)][::150]
    keys = {row.key for row in gpu}
    asked = [row for row in read_rows(DATA / "measured_gpu.csv") if row["row_id"] in keys]
    expected = {one.key: one for one in gpu_scores(asked, load()) if isinstance(one, Scored)}
    for row, found in zip(gpu, autoshard_model(Fold("group", "", (), tuple(gpu), DATA)), strict=True):
        assert found is not None
        other = expected[row.key]
        assert found[:3] == pytest.approx((other.predicted_s, other.low_s, other.high_s), rel=1e-12)
        assert (found.memory_bytes or 0) / row.capacity_bytes == pytest.approx(other.predicted_share, rel=1e-12)


def test_baselines_learn_from_train_rows_alone(rows: tuple[Measured, ...]) -> None:
    whole = folds(rows, "time", DATA)[0]
    fold = replace(whole, test=tuple(some(whole.test, step=4)))
    hidden = tuple(replace(row, time_s=None, memory_bytes=None, fits=True) for row in fold.test)
    for name in ("regression", "megatron", "6ND", "roofline"):
        assert PREDICTORS[name](replace(fold, test=hidden)) == PREDICTORS[name](fold), name


def test_the_page_says_on_how_many_rows_an_entry_is_ahead() -> None:
    keys = ("mean_error", "error_of_groups", "error_of_sources", "median_error", "regret", "regret_of_sources")
    others = {"bias": 0.0, "fits_right": None, "picks_out_of_memory": 0.0, "coverage": 0.9, "width": 2.0}
    ours = {"rows": 10, "unpredicted": 0, **dict.fromkeys(keys, 0.2), **others}
    peer = {**ours, "rows": 4, "unpredicted": 6, "error_of_groups": 0.1, "regret": None}
    found = {
        "rows": 10,
        "splits": {"group": {"autoshard": ours, "peer": peer}},
        "peers": {"Peer": "1.0", "Other": None},
    }
    sources = {"s": {"autoshard": [0.2, 0.3, 10], "peer": [0.1, 0.1, 4]}, "t": {"autoshard": [0.2, 0.3, 10]}}
    sources["t"]["peer"] = [0.1, 0.4, 10]
    page = results_page({"predictors": {**found, "by_source": sources}})
    assert (
        "* **peer is ahead of autoshard** in mean error of groups: 10.0 %, ours 20.0 %; it answers 4 of 10 rows."
        in page
    )
    assert page.count("is ahead of autoshard**") == 1
    text = " ".join(page.split())
    assert (
        "* peer picks better than autoshard in 1 of 2 sources, worse in 1: s (10.0 %, ours 30.0 %, 50% of the" in text
    )
    assert "of the rows; it answers 4 of 10 rows)." in text
    assert "Peers that were run: Peer (1.0); not run: Other." in text


def test_by_time_ours_is_fitted_to_earlier_results_alone(small: Path) -> None:
    """Every row is answered, and what was measured of later rows changes no answer."""
    fold = folds(read_measured(small), "time", small)[0]
    said = autoshard_model(fold)
    assert len(said) == len(fold.test) and None not in said
    hidden = tuple(
        replace(row, time_s=None, memory_bytes=None, case=replace(row.case, time_s=1e6)) for row in fold.test
    )
    assert autoshard_model(replace(fold, test=hidden)) == said
    fewer = tuple(row for row in fold.train if row.source != "nemo-docs")
    other = autoshard_model(replace(fold, train=fewer))
    assert [one and one.step_time_s for one in other] != [one and one.step_time_s for one in said]


def test_six_n_d_by_hand(rows: tuple[Measured, ...]) -> None:
    row = next(one for one in rows if one.source == "sc21-t1" and one.time_s)
    twin = replace(row, key="twin", time_s=3 * (row.time_s or 0))
    (found,) = six_n_d(Fold("group", "", (row, twin), (row,), DATA))
    assert found is not None and found.step_time_s == pytest.approx(2 * (row.time_s or 0))  # the middle of 1 and 3


def test_a_regression_finds_a_law(rows: tuple[Measured, ...]) -> None:
    """Times that are a power law of the features are met."""
    known = [row for row in rows if row.source == "ultrascale-ok"][::5]
    lawful = [
        replace(row, time_s=1e-6 * row.training.tokens_per_step / row.cluster.world_size**0.5, memory_bytes=None)
        for row in known
    ]
    train, test = tuple(lawful[::2]), tuple(lawful[1::2])
    found = regression(Fold("group", "", train, test, DATA))
    errors = [abs(np.log(one.step_time_s / (row.time_s or 1.0))) for one, row in zip(found, test, strict=True) if one]
    assert len(errors) == len(test) and np.median(errors) < 0.1


def test_the_problems_are_twenty() -> None:
    problems = read_problems(DATA)
    sizes = [one.problem.cluster.world_size for one in problems]
    assert (len(problems), min(sizes), max(sizes)) == (20, 8, 65_536)
    assert 5 <= sum(one.problem.model.is_moe for one in problems) <= 10
    assert len({one.name for one in problems}) == 20


def test_the_pages_regenerate_to_the_same_bytes(tmp_path: Path) -> None:
    results, timings = read(RESULTS)
    for name, text in (
        ("planbench.md", results_page(results)),
        ("planbench_timings.md", timings_page(timings)),
        ("planbench_searchers.svg", curves_svg(results["searchers"])),
    ):
        assert (RESULTS / name).read_text() == text, name
    for path in write(tmp_path, results, timings):
        assert path.read_bytes() == (RESULTS / path.name).read_bytes()


def test_the_names_of_searchers_have_room_beside_their_curves() -> None:
    """DejaVu Sans, a wide font, takes 0.54 em a letter for the longest name."""
    drawn = curves_svg(read(RESULTS)[0]["searchers"])
    wide = int(re.findall(r'viewBox="0 0 (\d+) ', drawn)[0])
    labels = re.findall(r'<text x="([\d.]+)" [^>]*font-size="11" text-anchor="start" fill="#\w+">(\w+)</text>', drawn)
    assert "coordinate_descent" in {label for _, label in labels}
    for left, label in labels:
        assert float(left) + 0.6 * 11 * len(label) <= wide, label


def test_the_committed_searchers_never_beat_the_optimum() -> None:
    found = read(RESULTS)[0]["searchers"]
    assert len(found["problems"]) == 20
    for problem in found["problems"]:
        for runs in problem["regret"].values():
            for curve in runs:
                known = [one for one in curve if one is not None]
                assert known == sorted(known, reverse=True) and all(one >= 0 for one in known)


def test_two_runs_are_equal_but_for_timings(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", str(small), "--evaluations", "60", "--seeds", "1"]
    for out in ("a", "b"):
        assert main(["bench", "searchers", *options, "-o", str(tmp_path / out)]) == 0
    assert "planbench.json" in capsys.readouterr().out
    for name in ("planbench.json", "planbench.md", "planbench_searchers.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    found = json.loads((tmp_path / "a" / "planbench.json").read_text())["searchers"]
    assert found["budgets"] == [10, 30] and [one["name"] for one in found["problems"]] == ["one", "two"]
    assert list(found["problems"][0]["regret"]) == sorted(entries()[0])
    page = (tmp_path / "a" / "planbench.md").read_text()
    assert "| exact (autoshard) | - | 0.0 %, proven, all bounded |" in page and "## Predictors" not in page


def test_plugins_enter_with_one_command(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from autoshard.bench.predictors import six_n_d\ndef short(fold): return six_n_d(fold)[:1]\n"
    package(tmp_path, "their-formula", "predictors", "theirs = autoshard.bench.predictors:six_n_d", "")
    package(tmp_path, "short-list", "predictors", "short = short_list:short", code)
    package(tmp_path, "their-search", "searchers", "first = their_search:go", "def go(space, rng): return 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "out"
    options = ["--data", str(small), "-o", str(out)]
    assert main(["bench", "predictors", *options, "--entries", "autoshard,6ND,theirs"]) == 0
    found = json.loads((out / "planbench.json").read_text())["predictors"]["splits"]
    assert found["group"]["theirs (their-formula 1.0)"] == found["group"]["6ND"] != found["group"]["autoshard"]
    page = (out / "planbench.md").read_text()
    assert "Nobody is ahead of autoshard in" in page or "is ahead of autoshard** in" in page
    assert main(["bench", "searchers", *options, "--entries", "first,random", "--evaluations", "20"]) == 0
    both = json.loads((out / "planbench.json").read_text())
    assert both["predictors"]["splits"] == found
    assert set(both["searchers"]["problems"][0]["regret"]) == {"first", "random"}
    assert main(["bench", "predictors", *options, "--entries", "short"]) == 2
    assert "predictor short returned 1 predictions of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "None; it must return a list, an entry for each row"),
        ("[1.0] * len(f.test)", "1.0 of row "),
        (
            "[P(float('nan'), 1, 1)] * len(f.test)",
            "Prediction(step_time_s=nan, low_s=1, high_s=1, memory_bytes=None) of",
        ),
        ("[P(-1, -2, -1)] * len(f.test)", "Prediction(step_time_s=-1, low_s=-2, high_s=-1, memory_bytes=None) of row "),
        ("[P(1, 2, 1)] * len(f.test)", "Prediction(step_time_s=1, low_s=2, high_s=1, memory_bytes=None) of row "),
        ("[P(1, 1, 1, 0.0)] * len(f.test)", "Prediction(step_time_s=1, low_s=1, high_s=1, memory_bytes=0.0) of row "),
    ],
)
def test_predictions_that_are_none_are_refused(
    returned: str, said: str, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from autoshard.bench.metrics import Prediction as P\ndef go(f): return {returned}\n"
    package(tmp_path, "wrong-predictor", "predictors", "wrong = wrong_predictor:go", code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_predictor", raising=False)
    PREDICTORS._loaded.clear()
    with pytest.raises(AutoshardError) as refused:
        autoshard.planbench("predictors", data=small, out=tmp_path / "out", entries=("wrong",))
    told = "; it wants None or a Prediction of finite numbers above 0, with low_s at most high_s"
    assert str(refused.value).startswith(f"predictor wrong returned {said}")
    assert str(refused.value).endswith(told) or returned == "None"


def test_wrong_numbers_are_said(small: Path, tmp_path: Path) -> None:
    for number, least in ({"seeds": 0}, 1), ({"seeds": 1.5}, 1), ({"problems": 0}, 1), ({"evaluations": 9}, 10):
        ((name, value),) = number.items()
        told = f"^{name}={value} of planbench must be a whole number from {least} to 1,000,000,000$"
        with pytest.raises(AutoshardError, match=told):
            autoshard.planbench("searchers", data=small, out=tmp_path / "out", **number)


def test_a_file_in_place_of_the_results_is_said_before_the_work(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("autoshard.bench.run.predict", None)
    with pytest.raises(AutoshardError, match=r"^out=\S*/file is no folder$"):
        autoshard.planbench("predictors", data=small, out=tmp_path / "file")


def test_an_entry_that_is_named_twice_runs_once(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    autoshard.planbench("predictors", data=small, out=out, entries=("roofline", "roofline"))
    assert list(json.loads((out / "planbench.json").read_text())["predictors"]["splits"]["group"]) == ["roofline"]
    assert "autoshard was left out." in (out / "planbench.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["searchers", "--entries", "luck"], "entries: luck is no searcher; known: random, hill_climbing,"),
        (["predictors", "--entries", "luck"], "entries: luck is no predictor; known: autoshard, regression,"),
        (["--entries", "random"], "entries are of one track; name it: predictors or searchers"),
        (["players"], "TRACK: players must be one of: predictors, searchers"),
        (["--data", "nowhere"], "data=nowhere is no folder; autoshard's own is benchmarks/data of its repository"),
    ],
)
def test_wrong_options_are_said(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--data", str(DATA), "-o", str(tmp_path / "out"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_results_of_another_version_are_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = '{"predictors": {}}'
    (tmp_path / "planbench.json").write_text(older)
    assert main(["bench", "searchers", "--data", str(DATA), "-o", str(tmp_path)]) == 2
    said = (
        f"{tmp_path / 'planbench.json'} has format_version None, this autoshard writes 2; remove it or name another -o"
    )
    assert capsys.readouterr().err == f"autoshard: error: {said}\n"
    assert (tmp_path / "planbench.json").read_text() == older and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "must have format_version 1 and a list of problems"),
        ('{"format_version": 1, "problems": [{"model": "llama3-8b"}]}', "a problem has a name, a model and options"),
        (
            '{"format_version": 1, "problems": [{"name": "x", "node": 1}]}',
            "'node' of x is not an option of autoshard plan",
        ),
        (
            '{"format_version": 1, "problems": [{"name": "x", "nodes": 0}]}',
            "nodes of x: 0 must be a whole number of at",
        ),
    ],
)
def test_wrong_problems_are_said(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "planbench_problems.json").write_text(content)
    with pytest.raises(AutoshardError, match=r"planbench_problems\.json") as refused:
        autoshard.planbench("searchers", data=tmp_path, out=tmp_path / "out")
    assert said in str(refused.value)


def test_a_summary_counts_runs_without_a_layout() -> None:
    middle, mean_of_known, share = summary([0.1, 0.3, None])
    assert (middle, share) == (0.3, 2 / 3) and mean_of_known == pytest.approx(0.2)
    assert summary([None, None, 0.1])[0] is None
