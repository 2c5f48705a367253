"""A sweep plans what is missing, keeps its table whole, draws it, and says what is wrong with its file in one line."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import main
from autoshard.errors import AutoshardError, NoLayoutFits
from autoshard.planner.options import OPTIONS
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan
from autoshard.sweeps.grid import Sweep, read_sweep, sweep_of
from autoshard.sweeps.outcome import (
    DOES_NOT_FIT,
    EXECUTED,
    FAILED,
    LOST,
    OK,
    REHEARSED,
    Outcome,
    asked_of,
    outcome_of,
)
from autoshard.sweeps.page import sweep_page
from autoshard.sweeps.plot import efficiencies, lines, write_plot, x_option
from autoshard.sweeps.point import Task
from autoshard.sweeps.run import run_sweep
from autoshard.sweeps.table import key_of, read_table, row_of, write_table
from autoshard.units import percent
from tests.unit.plan_examples import plan_70b, strategy

REPOSITORY = Path(__file__).parents[2]
SWEEP = Sweep("toy", {"model": "llama3-70b"}, {"nodes": (8, 16), "global_batch": (512, 1024)})


class Planner:
    """Stands in for the search: 8 nodes are too few for a batch of 512, and it remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, request: PlanRequest) -> Plan:
        self.asked.append((request.nodes, request.global_batch))
        if (request.nodes, request.global_batch) == (8, 512):
            raise NoLayoutFits("no layout fits: 8 nodes are too few, 9 would do")
        plan = plan_70b()
        return replace(plan, cluster=replace(plan.cluster, nodes=request.nodes))


def run(folder: Path, plan_for: Callable[[PlanRequest], Plan], sweep: Sweep = SWEEP) -> tuple[Sequence[Any], int]:
    return run_sweep(sweep, folder, plan_for, lambda word: None)


def test_every_point_in_grid_order(tmp_path: Path) -> None:
    planner = Planner()
    outcomes, planned = run(tmp_path, planner)
    assert planner.asked == [(8, 512), (8, 1024), (16, 512), (16, 1024)]
    assert planned == 4
    assert [outcome.status for _, outcome in outcomes] == [DOES_NOT_FIT, OK, OK, OK]
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["reason"] == "no layout fits: 8 nodes are too few, 9 would do"
    assert rows[0]["step_time_s"] == ""
    assert (rows[1]["nodes"], rows[1]["global_batch"], rows[1]["devices"]) == ("8", "1024", "256")
    assert rows[1]["layout"] == "tp=32 pp=8 dp=2 mbs=1 recompute=core_attention"
    assert float(rows[1]["step_time_s"]) == plan_70b().estimate.step_time_s


def test_a_second_run_plans_what_is_missing(tmp_path: Path) -> None:
    first, _ = run(tmp_path, Planner())
    again = Planner()
    assert run(tmp_path, again) == (first, 0)
    wider = replace(SWEEP, grid={**SWEEP.grid, "nodes": (8, 16, 32)})
    outcomes, planned = run(tmp_path, again, wider)
    assert again.asked == [(32, 512), (32, 1024)]
    assert (len(outcomes), planned) == (6, 2)


def test_what_is_done_survives_an_interrupt(tmp_path: Path) -> None:
    planner = Planner()

    def interrupted(request: PlanRequest) -> Plan:
        if len(planner.asked) == 2:
            raise KeyboardInterrupt
        return planner(request)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, interrupted)
    again = Planner()
    run(tmp_path, again)
    assert again.asked == [(16, 512), (16, 1024)]


def test_another_version_and_another_file_plan_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    point = {"model": str(config), "nodes": 1}
    keys = {key_of(point)}
    config.write_text('{"hidden_size": 1}')
    keys.add(key_of(point))
    monkeypatch.setattr("autoshard.sweeps.table.version_with_plugins", lambda: "9.9.9")
    keys.add(key_of(point))
    assert len(keys) == 3


def test_another_module_in_a_file_plans_anew(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("HIDDEN = 512\n")
    point = {"model": f"{file}:MyModel", "nodes": 1}
    before = key_of(point)
    assert key_of(point) == before
    file.write_text("HIDDEN = 2048\n")
    assert key_of(point) != before


def test_the_table_reads_back(tmp_path: Path) -> None:
    run(tmp_path, Planner())
    rows = read_table(tmp_path / "results.csv")
    write_table(tmp_path / "again.csv", rows)
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "results.csv").read_text()
    assert rows[3].outcome == outcome_of(plan_70b())
    assert not set(OPTIONS) & {field.name for field in fields(Outcome)}, "columns must not share a name"


def test_a_torn_last_line_is_planned_again(tmp_path: Path) -> None:
    first, _ = run(tmp_path, Planner())
    table = tmp_path / "results.csv"
    whole = table.read_text()
    table.write_text(whole[:-5])
    again = Planner()
    assert run(tmp_path, again) == (first, 1) and again.asked == [(16, 1024)]
    assert table.read_text() == whole


def test_the_time_of_a_row_does_not_grow_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole table is written twice: at the beginning and at the end."""
    written: list[int] = []
    whole = write_table
    monkeypatch.setattr(
        "autoshard.sweeps.run.write_table",
        lambda *given: (written.append(len(given[1])), whole(*given)),  # type: ignore[func-returns-value]
    )
    run(tmp_path, Planner())
    assert written == [0, 4]


def test_of_a_shard_s_row_and_the_folder_s_own_the_one_that_is_done_holds(tmp_path: Path) -> None:
    """A point that was only planned, lost or failed here may have been executed by a shard, and the other way round."""
    sweep = replace(SWEEP, grid={"nodes": (8,), "global_batch": (1024,)})
    shard, table = tmp_path / "shards/1-of-1/results.csv", tmp_path / "results.csv"
    shard.parent.mkdir(parents=True)
    options = {"steps": 1}
    ran = replace(outcome(256, 100.0), run=EXECUTED, run_options=json.dumps(options), measured_step_time_s=2.0)
    failed = replace(ran, run=FAILED, measured_step_time_s=None)
    otherwise = replace(ran, run_options=json.dumps({"steps": 2}))
    for worse in (outcome(256, 100.0), Outcome(LOST, "killed"), failed):
        for of_shard, own in ((ran, worse), (worse, ran)):
            write_table(shard, [row_of(sweep.points[0], of_shard)])
            for asked in (None, options):
                write_table(table, [row_of(sweep.points[0], own)])
                outcomes, done = run_sweep(sweep, tmp_path, Planner(), lambda word: None, run=asked)
                assert (outcomes[0][1], done) == (ran, 0)
                assert [row.outcome for row in read_table(table)] == [ran]
    for asked, expected in ((options, ran), ({"steps": 2}, otherwise), (None, otherwise)):
        write_table(shard, [row_of(sweep.points[0], ran)])
        write_table(table, [row_of(sweep.points[0], otherwise)])
        assert run_sweep(sweep, tmp_path, Planner(), lambda word: None, run=asked)[0][0][1] == expected


@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize("option", ["data", "weights", "tokenizer", "eval_data"])
def test_other_content_of_a_file_that_the_run_names_is_executed_anew(tmp_path: Path, option: str, folder: bool) -> None:
    sweep = replace(SWEEP, grid={"nodes": (8,), "global_batch": (1024,)})
    named = file = tmp_path / "named"
    if folder:
        named.mkdir()
        file = named / "inner"
    file.write_text("one")
    asked = {"steps": 1, option: str(named)}
    ran: list[Outcome] = []

    def spread(tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            ran.append(replace(outcome(256, 100.0), run=EXECUTED, **asked_of(task.run or {})))
            yield task, ran[-1]

    for content, done in (("one", 1), ("one", 0), ("two", 1), ("two", 0)):
        if file.read_text() != content:
            file.write_text(content)
            os.utime(file, (1e9, 1e9))
        found = run_sweep(sweep, tmp_path / "out", Planner(), lambda word: None, spread, run=asked)
        assert (found[0][0][1], found[1]) == (ran[-1], done)
    assert len(ran) == 2


def test_a_table_that_a_spreadsheet_saved_keeps_its_first_column(tmp_path: Path) -> None:
    first, _ = run(tmp_path, Planner())
    table = tmp_path / "results.csv"
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert run(tmp_path, Planner()) == (first, 0)


def test_a_column_of_no_sweep_is_not_dropped(tmp_path: Path) -> None:
    run(tmp_path, Planner())
    table = tmp_path / "results.csv"
    table.write_text(table.read_text().replace("model,", "modle,", 1))
    with pytest.raises(AutoshardError) as caught:
        run(tmp_path, Planner())
    assert str(caught.value) == (
        f"table {table} has the column 'modle', which is not that of a sweep; choose another --out or remove it"
    )


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "status\nfine\n", "\x00\n", '"open'])
def test_a_foreign_table_is_not_overwritten(content: str, tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text(content)
    with pytest.raises(AutoshardError, match=r"^table .*results.csv.*choose another --out or remove it$"):
        run(tmp_path, Planner())
    assert table.read_text() == content


def test_nothing_can_be_planned(tmp_path: Path) -> None:
    def wrong(request: PlanRequest) -> Plan:
        raise AutoshardError("model='nope' is not known")

    with pytest.raises(AutoshardError, match=r"^no point of the sweep can be planned: model='nope' is not known$"):
        run(tmp_path / "sweeps" / "one", wrong)
    assert not list(tmp_path.iterdir())


def test_null_stands_for_what_is_not_named(tmp_path: Path) -> None:
    """As in a recipe: a pin is the planner's choice then, another option has its default."""
    sweep = sweep_of({"model": "llama3-8b", "pp": None, "tp": [None, 8], "nodes": (None, 2)}, "by_tp")
    assert "pp" not in sweep.fixed and sweep.grid == {"tp": (None, 8), "nodes": (None, 2)}
    asked: list[tuple[Any, int]] = []

    def plan_for(request: PlanRequest) -> Plan:
        asked.append((request.pins.get("tp"), request.nodes))
        return plan_70b()

    outcomes, done = run(tmp_path, plan_for, sweep)
    assert (asked, done) == ([(None, 1), (None, 2), (8, 1), (8, 2)], 4)
    assert run(tmp_path, plan_for, sweep) == (outcomes, 0)
    assert [row.values["tp"] for row in read_table(tmp_path / "results.csv")] == ["", "", "8", "8"]
    rows = [line.split()[:2] for line in sweep_page(sweep, outcomes, 120, False).splitlines() if " tp=" in line]
    assert rows == [["default", "default"], ["default", "2"], ["8", "default"], ["8", "2"]]
    for nameless in ({"model": None, "tp": [1]}, {"model": [None, "llama3-8b"]}):
        with pytest.raises(AutoshardError, match=r"^sweep by_tp names no model$"):
            sweep_of(nameless, "by_tp")


def test_a_model_that_is_no_text_is_told_what_is_one() -> None:
    with pytest.raises(AutoshardError) as raised:
        sweep_of({"model": {"model_type": "llama"}, "nodes": [1, 2]}, "sweep")
    assert str(raised.value) == (
        "model of sweep sweep: {'model_type': 'llama'} must be a text, a built-in name, the path of a config.json or "
        "my_file.py:MyModel: a later sweep knows its rows by it"
    )


def test_rows_of_before_stay_where_nothing_can_be_planned(tmp_path: Path) -> None:
    run(tmp_path, Planner())
    before = (tmp_path / "results.csv").read_text()

    def wrong(request: PlanRequest) -> Plan:
        raise AutoshardError("tp=3 is 3 devices, which must divide the 256 of 8 x trn1.32xlarge")

    with pytest.raises(AutoshardError, match=r"^no point of the sweep can be planned: tp=3 is 3 devices"):
        run(tmp_path, wrong, replace(SWEEP, grid={"tp": (3, 5)}))
    assert (tmp_path / "results.csv").read_text() == before


def test_the_recipe_that_comes_with_autoshard() -> None:
    sweep = read_sweep(REPOSITORY / "recipes" / "sweeps" / "llama3_70b_nodes.yaml")
    assert sweep.name == "llama3_70b_nodes"
    assert len(sweep.points) == 16
    assert sweep.points[0] == {
        "model": "llama3-70b",
        "instance": "trn1.32xlarge",
        "precision": "mixed_precision",
        "nodes": 8,
        "seq_len": 4096,
        "global_batch": 512,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "sweep {path} must have a grid: option names with lists of values, such as nodes: [8, 16]"),
        ("model: x", "sweep {path} must have a grid: option names with lists of values, such as nodes: [8, 16]"),
        ("grid: {nodes: [1]}", "sweep {path} names no model"),
        ("model: x\ngrid: {nodes: 8}", "grid.nodes of sweep {path} is 8; it must be a list of some values"),
        ("model: x\ngrid: {nodes: []}", "grid.nodes of sweep {path} is a list of 0; it must be a list of some values"),
        ("model: x\ngrid: {nodes: [8, 8]}", "grid.nodes of sweep {path} holds a value twice"),
        ("model: x\ngrid: {nodes: [0]}", "nodes of sweep {path}: 0 must be a whole number of at least 1"),
        ("model: x\ngrid: {nodes: [[1]]}", "nodes of sweep {path}: [1] must be a whole number of at least 1"),
        ("model: x\nnodes: 1\ngrid: {nodes: [8]}", "sweep {path} has nodes beside the grid and in it; keep one"),
        ("model: x\ngrid: {nodes: [8]\n", "sweep {path}, line 3, column 1: not YAML: expected ',' or '}}', but got '<stream end>'"),  # noqa: E501
        ("model: !!python/object:os.system x\ngrid: {nodes: [8]}", "sweep {path}, line 1, column 8: not YAML: None"),
    ],
)  # fmt: skip
def test_wrong_files(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(content)
    with pytest.raises(AutoshardError) as caught:
        read_sweep(path)
    if "python/object" in content:
        assert "could not determine a constructor" in str(caught.value)
    else:
        assert str(caught.value) == message.format(path=path)


def test_an_unknown_option(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("model: x\ngrid: {nodse: [8]}")
    with pytest.raises(AutoshardError, match=r"has 'nodse', which is not an option; did you mean nodes or "):
        read_sweep(path)
    path.write_text("model: x\nbeaten_path: true\ngrid: {nodes: [8]}")
    with pytest.raises(AutoshardError, match=r"has beaten_path, which is of a single plan; a sweep does not have it$"):
        read_sweep(path)
    path.write_text("name: x\ngrid: {nodes: [8]}")
    with pytest.raises(AutoshardError, match=r"has name, which a sweep does not have: its file's name is its own;"):
        read_sweep(path)
    path.write_text("xyzzy: x\ngrid: {nodes: [8]}")
    with pytest.raises(AutoshardError, match=r"has 'xyzzy', which is not an option; options: model, instance, nodes,"):
        read_sweep(path)


def test_too_many_points(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(f"model: x\ngrid:\n  nodes: {list(range(1, 200))}\n  tp: {list(range(1, 200))}\n")
    with pytest.raises(AutoshardError, match=r"has 39,601 points; at most 10,000 are planned in one sweep$"):
        read_sweep(path)


def outcome(devices: int, tokens_per_s: float) -> Outcome:
    return Outcome(OK, devices=devices, layout="tp=1", step_time_s=1.0, tokens_per_s=tokens_per_s, mfu=0.4)


def test_lines_of_the_plot() -> None:
    assert x_option(SWEEP) == "nodes"
    points = list(SWEEP.points)
    outcomes = [Outcome(DOES_NOT_FIT), outcome(256, 100.0), outcome(512, 150.0), outcome(512, 190.0)]
    found = lines(SWEEP, list(zip(points, outcomes, strict=True)), "nodes")
    assert {label: [x for x, _ in line] for label, line in found.items()} == {
        "global_batch 1,024": [8.0, 16.0],
        "global_batch 512": [16.0],
    }
    words = replace(SWEEP, grid={"expert_imbalance": (1.2, "tokens.json"), "tp": (1, 2)})
    assert x_option(words) == "tp"
    assert x_option(replace(SWEEP, grid={"lnc": (1, "auto", 2)})) is None
    # 100 tokens/s on 256 devices, 190 on 512: 95 % of linear scaling
    assert efficiencies(found["global_batch 1,024"]) == pytest.approx([1.0, 0.95])


def test_plot_is_a_png(tmp_path: Path) -> None:
    outcomes, _ = run(tmp_path, Planner())
    assert write_plot(SWEEP, outcomes, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not write_plot(replace(SWEEP, grid={"recompute": ("full",)}), outcomes, tmp_path / "none.png")


def test_more_lines_than_can_be_named_leave_room_for_the_lines(tmp_path: Path) -> None:
    """matplotlib warns, which is an error here, where a legend takes all the room."""
    sweep = replace(SWEEP, grid={"nodes": (8, 16), "global_batch": tuple(range(1, 120))})
    assert write_plot(sweep, [(point, outcome(512, 190.0)) for point in sweep.points], tmp_path / "plot.png")


def test_what_was_executed_is_drawn_beside_the_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    drawn: list[tuple[str, list[float]]] = []
    plotted = Axes.plot
    monkeypatch.setattr(
        Axes,
        "plot",
        lambda self, xs, ys, **how: (drawn.append((how["label"], list(ys))), plotted(self, xs, ys, **how)),  # type: ignore[func-returns-value]
    )
    sweep = replace(SWEEP, grid={"nodes": (8, 16)})
    ran = replace(outcome(512, 190.0), run=EXECUTED, measured_tokens_per_s=170.0)
    rehearsed = replace(outcome(256, 100.0), run=REHEARSED, measured_tokens_per_s=7.0)
    assert write_plot(sweep, list(zip(sweep.points, (rehearsed, ran), strict=True)), tmp_path / "plot.png")
    assert drawn[:2] == [("llama3-70b", [100.0, 190.0]), ("llama3-70b, measured", [170.0])]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is there without matplotlib, and one line says what to install."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("autoshard.planner.planning.plan_for", Planner())
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    Path("toy.yaml").write_text("model: llama3-70b\ngrid: {nodes: [8, 16], global_batch: [512, 1024]}\n")
    assert main(["sweep", "toy.yaml"]) == 0
    printed, errors = capsys.readouterr()
    assert errors == "autoshard: the plot needs matplotlib: pip install 'autoshard[plot]'\n"
    assert printed.splitlines()[0].split() == [
        "nodes",
        "global",
        "batch",
        "step",
        "tokens/s",
        "MFU",
        "memory",
        "fits",
        "layout",
    ]
    assert f"GB  {percent(plan_70b().estimate.fits_probability)}  tp=32 " in printed
    assert "does not fit: no layout fits: 8 nodes are too few" in " ".join(printed.split())
    assert printed.endswith("\nsweeps/toy/results.csv\n")
    assert main(["sweep", "toy.yaml", "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values[3]["options"] == {"model": "llama3-70b", "nodes": 16, "global_batch": 1024}
    for name in ("step_time_s", "fits_probability"):
        assert values[3][name] == getattr(plan_70b().estimate, name)


def test_a_row_says_what_was_chosen_beside_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the files always; on the page where it was searched, or where it differs and the grid does not say it."""

    def other_backend_of_16_nodes(request: PlanRequest) -> Plan:
        made = plan_70b()
        cluster = replace(made.cluster, nodes=request.nodes)
        return replace(made, cluster=cluster, backend="torch" if request.nodes == 16 else "nxd")

    def header_of(text: str) -> str:
        Path("toy.yaml").write_text(text)
        assert main(["sweep", "toy.yaml"]) == 0
        return " ".join(capsys.readouterr().out.splitlines()[0].split())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("autoshard.planner.planning.plan_for", other_backend_of_16_nodes)
    numbers = "step tokens/s MFU memory fits layout"
    assert header_of("model: llama3-70b\ngrid: {nodes: [8, 4]}\n") == f"nodes {numbers}"
    assert header_of("model: llama3-70b\ngrid: {nodes: [8, 16]}\n") == f"nodes chosen backend {numbers}"
    assert header_of("model: llama3-70b\nlnc: auto\ngrid: {nodes: [8]}\n") == f"nodes chosen lnc {numbers}"
    searched = 'model: llama3-70b\ngrid: {precision: [fp32, "mixed_precision,fp32"]}\n'
    assert header_of(searched) == f"precision chosen precision {numbers}"
    (row,) = [row for row in read_table(Path("sweeps/toy/results.csv")) if row.values.get("nodes") == "16"]
    found = row.outcome
    assert (found.chosen_precision, found.chosen_lnc, found.chosen_backend, found.chosen_stack) == (
        "mixed_precision",
        1,
        "torch",
        None,
    )


def test_a_cluster_that_was_chosen_stands_beside_the_one_that_was_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An objective of money or of fewest nodes may take fewer nodes than it was given, and the plot draws what it
    took."""

    def of_8_nodes(request: PlanRequest) -> Plan:
        plan = plan_70b()
        return replace(plan, cluster=replace(plan.cluster, nodes=min(8, request.nodes), price_per_node_hour_usd=20.0))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("autoshard.planner.planning.plan_for", of_8_nodes)
    Path("toy.yaml").write_text("model: llama3-70b\nobjective: cost\ngrid: {nodes: [8, 16]}\n")
    assert main(["sweep", "toy.yaml"]) == 0
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()[:3]]
    assert " ".join(header) == "nodes chosen nodes USD a billion tokens step tokens/s MFU memory fits layout"
    found = [row.outcome for row in read_table(Path("sweeps/toy/results.csv"))]
    cost = 1e9 / found[0].tokens_per_s / 3600 * 8 * 20.0 if found[0].tokens_per_s else 0.0
    assert [row[:3] for row in rows] == [[nodes, "8", f"~{cost:,.2f}"] for nodes in ("8", "16")]
    assert [one.chosen_nodes for one in found] == [8, 8]
    sweep = read_sweep(Path("toy.yaml"))
    drawn = lines(sweep, list(zip(sweep.points, found, strict=True)), "nodes")
    assert [place for place, _ in drawn["llama3-70b"]] == [8.0, 8.0]


def test_notes_that_all_plans_have_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_notes(request: PlanRequest) -> Plan:
        return replace(plan_70b(), notes=("vision_config left out", f"of {request.nodes} nodes alone"))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("autoshard.planner.planning.plan_for", with_notes)
    Path("toy.yaml").write_text("model: llama3-70b\ngrid: {nodes: [8, 16]}\n")
    assert main(["sweep", "toy.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "\n  vision_config left out\n" in printed and "nodes alone" not in printed
    found = [row.outcome.notes for row in read_table(Path("sweeps/toy/results.csv"))]
    assert found == [f"vision_config left out | of {nodes} nodes alone" for nodes in (8, 16)]


def test_layouts_of_the_printed_table_do_not_break_within_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has the layout in full."""
    sets = ("full",) * 3 + ("attention_norm+attention+core_attention+mlp",) * 5
    by_stage = replace(plan_70b(), strategy=strategy(recompute=sets))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("autoshard.planner.planning.plan_for", lambda request: by_stage)
    Path("toy.yaml").write_text("model: llama3-70b\ngrid: {nodes: [16]}\n")
    assert main(["sweep", "toy.yaml"]) == 0
    assert " recompute=by-stage" in capsys.readouterr().out
    whole = "full*3,attention_norm+attention+core_attention+mlp*5"
    assert whole in Path("sweeps/toy/results.csv").read_text()


def test_wandb_gets_every_point_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoshard.sweeps.logs import write_logs

    monkeypatch.setenv("WANDB_MODE", "offline")
    outcomes, _ = run(tmp_path, Planner())
    places = write_logs(SWEEP, outcomes, tmp_path, "autoshard")
    assert places[-1].startswith(f"wandb sync {tmp_path}/wandb/offline-run-")
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [step["fits"] for step in steps] == [0.0, 1.0, 1.0, 1.0]
    assert steps[3]["tokens_per_s"] == plan_70b().estimate.tokens_per_s
    assert steps[3]["nodes"] == 16
