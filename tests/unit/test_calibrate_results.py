"""`autoshard calibrate --results`: from one's own runs to a plan; what is wrong with a file is one line."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from autoshard.calibration.calibration import leaf_entry, leaves
from autoshard.calibration.results import instance_fit
from autoshard.calibration.results.fit_file import hardware_content
from autoshard.calibration.results.gpu_files import said_by
from autoshard.calibration.results.gpu_rows import gpu_case
from autoshard.calibration.results.instance_fit import OWN_NOISE, Problem, fit, fit_instance, own_constants
from autoshard.calibration.results.instance_rows import COLUMNS, STACK_NAMES, instance_case
from autoshard.calibration.results.machine import hardware
from autoshard.calibration.results.pages import evidence_line
from autoshard.calibration.results.rows import Unscored, read_rows
from autoshard.calibration.results.stack_fit import estimates
from autoshard.calibration.results.usable import read_results
from autoshard.cli import main
from autoshard.commands.calibrate import DESCRIPTION
from autoshard.cost.estimate import estimate, step_time_s
from autoshard.errors import AutoshardError
from autoshard.spec.cluster import load_cluster
from autoshard.spec.evidence import Evidence
from autoshard.spec.hardware_file import FOLDER
from autoshard.spec.training import PRECISIONS
from benchmarks.fitted import DATA

TRN1 = "trn1.32xlarge"
TRUE = {"matmul_efficiency": 0.65, "pass_launch_s": 0.005, "link_efficiency_by_chips.16": 0.35}
"""Of the machine that the rows below ran on; the packaged file says 0.81, 0.02 and 0.27."""
ROW = {
    "id": "",
    "instance": TRN1,
    "nodes": "1",
    "model": "Llama",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "ffn": "11008",
    "vocab": "32000",
    "seq_len": "4096",
    "global_batch": "64",
    "precision": "mixed_precision",
    "tp": "8",
    "pp": "1",
    "dp": "4",
    "micro_batch": "1",
    "sp": "yes",
    "zero1": "yes",
    "recompute": "core_attention",
    "flash_attn": "yes",
    "step_time_s": "1",
}
RUNS: tuple[dict[str, str], ...] = (
    {},
    {"seq_len": "2048"},
    {"tp": "32", "dp": "1"},
    {"tp": "32", "dp": "1", "hidden": "8192", "heads": "64", "ffn": "28672", "layers": "8"},
    {"tp": "2", "dp": "16", "hidden": "1024", "heads": "8", "ffn": "4096", "layers": "2", "seq_len": "512"},
    {"tp": "2", "dp": "16", "hidden": "1024", "heads": "8", "ffn": "4096", "layers": "4", "seq_len": "1024"},
    {"tp": "1", "pp": "8", "model": "GPT", "hidden": "2048", "heads": "16", "ffn": "8192", "layers": "16"},
)


def rows() -> list[dict[str, str]]:
    """With the step times of a machine whose constants are TRUE."""
    content = hardware_content(FOLDER / f"{TRN1}.json")
    asked = [{**ROW, "id": f"run {number}", **run} for number, run in enumerate(RUNS)]
    cases = [instance_case(row) for row in asked]
    problem = Problem(cases, own_constants(content), content)
    true = {leaf: TRUE.get(".".join(leaf), now) for leaf, now in problem.now.items()}
    logs = np.log(list(true.values()))
    return [
        {**row, "step_time_s": f"{problem.predicted_s(case, logs):.6g}"} for row, case in zip(asked, cases, strict=True)
    ]


@pytest.mark.parametrize(
    ("cells", "zero", "recompute"),
    [
        ({"zero1": "3", "recompute": "residual+attention_norm+mlp"}, 3, "attention_norm+mlp+residual"),
        ({"zero1": "2", "recompute": "mlp"}, 2, "mlp"),
        ({"zero1": "1", "recompute": "core_attention+mlp"}, 1, "core_attention+mlp"),
        ({"zero1": "0", "recompute": "selective[CoreAttention,LlamaMLP]"}, 0, "core_attention+mlp"),
        ({"zero1": "no: FSDP/ZeRO-3", "recompute": "none"}, 3, "none"),
        ({"zero1": "yes", "recompute": "full (test_llama.sh)"}, 1, "full"),
    ],
)
def test_a_row_has_what_a_plan_says(cells: dict[str, str], zero: int, recompute: str) -> None:
    found = instance_case({**ROW, **cells}).strategy
    assert (found.zero, found.recompute) == (zero, (recompute,))


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({"zero1": "ZeRO-1"}, (1, True, "flash", None)),
        ({"zero1": "dp=1: not applicable", "sp": "default"}, (0, False, "flash", None)),
        ({"sp": "on", "flash_attn": "Y", "sdk": "SDK 2.10"}, (1, True, "flash", "2.10")),
        ({"sp": "0", "flash_attn": "", "sdk": "not stated"}, (1, False, "plain", None)),
        ({"sdk": "neuron sdk v2.10.1"}, (1, True, "flash", "2.10")),
    ],
)
def test_a_row_in_words(cells: dict[str, str], found: tuple[int, bool, str, str | None]) -> None:
    case = instance_case({**ROW, **cells})
    strategy = case.strategy
    assert (strategy.zero, strategy.sequence_parallel, strategy.attention_kernel, case.sdk) == found


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (
            {"precision": "fp16"},
            f"precision='fp16' is none of {', '.join(PRECISIONS)}, and not as AWS's tables write it",
        ),
        ({"sp": "maybe"}, "sp='maybe' is neither yes nor no"),
        ({"sp": "(yes)"}, "sp='(yes)' is neither yes nor no"),
        ({"flash_attn": "NKI"}, "flash_attn='NKI' is neither yes nor no"),
        ({"zero1": "stage 1"}, "zero1='stage 1' is neither yes nor no"),
        ({"sdk": "2.99"}, "sdk='2.99' is no release that is known, which are 2.4 to 2.33"),
        ({"stack": "nxd"}, f"stack='nxd' is none of {', '.join(STACK_NAMES)}"),
        ({"seq_per_s": "8"}, "step_time_s=1 contradicts seq_per_s=8, with which a step takes 8 s"),
    ],
)
def test_a_cell_that_is_not_understood(cells: dict[str, str], reason: str) -> None:
    """It is never read as something else."""
    with pytest.raises(Unscored) as error:
        instance_case({**ROW, **cells})
    assert str(error.value) == reason


def test_rows_have_the_lines_of_the_file(tmp_path: Path) -> None:
    runs = write(tmp_path / "runs.csv", [ROW | {"id": "two\nlines"}, ROW | {"sp": "maybe"}])
    found = read_results([Path(runs)], None).instances
    assert found is not None
    assert found.unused == [(4, "sp='maybe' is neither yes nor no")]


def test_two_columns_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.csv"
    file.write_text(f"{','.join(ROW)},sp\n{','.join(ROW.values())},no\n", encoding="utf-8")
    assert main(["calibrate", "--results", str(file), "-o", str(tmp_path / "my.json")]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {file} has the column sp twice; keep one\n"


def test_a_comma_inside_of_a_number_is_not_dropped_with_what_follows(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text("layers,step_time_s\n32,30,5\n")
    with pytest.raises(AutoshardError) as caught:
        read_rows(file)
    assert str(caught.value) == (
        f"{file}, line 2: 3 cells, and the first line names 2 columns; a comma inside of a cell, as of 30,5, must be a "
        "point or in quotes"
    )
    file.write_text('layers,step_time_s\n32,"30,5"\n32,30.5,,\n32\n')
    assert [row["step_time_s"] for row in read_rows(file)] == ["30,5", "30.5", ""]


@pytest.mark.parametrize(("between", "named"), [(";", "semicolons"), ("\t", "tabs")])
def test_a_spreadsheet_without_commas(
    between: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs.csv"
    file.write_text("".join(f"{between.join(cells)}\n" for cells in (ROW, ROW.values())), encoding="utf-8")
    assert main(["calibrate", "--results", str(file), "-o", str(tmp_path / "my.json")]) == 2
    error = capsys.readouterr().err
    assert error == f"autoshard: error: {file} has {named} between its columns; save it with commas\n"


def test_an_instance_and_the_file_of_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, mine = write(tmp_path / "runs.csv", [ROW]), str(FOLDER / f"{TRN1}.json")
    asked = ["calibrate", "--results", runs, "--hardware", mine, "--instance", "trn2.48xlarge"]
    assert main([*asked, "-o", str(tmp_path / "my.json")]) == 2
    message = "instance='trn2.48xlarge' but trn1.32xlarge.json describes trn1.32xlarge; use trn1.32xlarge"
    assert capsys.readouterr().err == f"autoshard: error: {message}\n"


def test_a_row_of_native_pytorch_is_priced_as_a_plan_for_it() -> None:
    native = {**ROW, "instance": "trn2.48xlarge", "tp": "4", "dp": "16", "zero1": "3", "stack": "neuron-compiled"}
    found = instance_case(native)
    usual = load_cluster("trn2.48xlarge", 1)
    assert found.cluster == found.alike == usual.under_stack("neuron-compiled") != usual
    with pytest.raises(Unscored, match=r"^stack=neuron-compiled: native PyTorch on Neuron runs on trn2 and trn3"):
        instance_case({**ROW, "stack": "neuron-compiled"})


def write(path: Path, table: Sequence[Mapping[str, str]]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return str(path)


def test_one_result_is_told_as_one() -> None:
    of = Evidence(("matmul_efficiency",), "runs.csv", "0" * 64, "2026-11-20", 1, 1, 0.01, 0.02, None)
    assert evidence_line(TRN1, of) == ("trn1.32xlarge: 1 result of 1 group in runs.csv: mean error 1.0%, worst 2.0%")


def test_from_own_runs_to_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fit finds the constants that made the runs, writes them with their evidence, and plans take the file."""
    runs, file = write(tmp_path / "runs.csv", rows()), tmp_path / "my.json"
    assert main(["calibrate", "--results", runs, "--instance", TRN1, "-o", str(file)]) == 0
    page = capsys.readouterr().out
    assert page.startswith("trn1.32xlarge: 7 results of 6 groups in runs.csv: mean error 0.")
    assert page.endswith(f"{file} (trn1.32xlarge): autoshard plan --hardware {file}\n")
    calibration = json.loads(file.read_text(encoding="utf-8"))["calibration"]
    assert calibration["matmul_efficiency"]["value"] == pytest.approx(0.65, rel=0.05)
    assert calibration["pass_launch_s"]["value"] == pytest.approx(0.005, rel=0.05)
    assert calibration["link_efficiency_by_chips"]["16"]["value"] == pytest.approx(0.35, rel=0.1)
    (fit,) = calibration["fits"]
    assert (fit["data"], fit["points"], len(fit["sha256"])) == ("runs.csv", 7, 64)
    assert fit["mean_error"] <= fit["worst_error"] < 0.02
    again = tmp_path / "again.json"
    assert main(["calibrate", "--results", runs, "-o", str(again)]) == 0, "all rows name one instance"
    assert again.read_bytes() == file.read_bytes()
    plan = ["plan", "--model", "llama2-7b", "--nodes", "1", "--hardware", str(file), "-o", str(tmp_path / "plan.json")]
    assert main(plan) == 0
    planned = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert planned["inputs"]["cluster"]["device"]["pass_launch_s"] == calibration["pass_launch_s"]["value"]


def test_own_collectives(tmp_path: Path) -> None:
    """Beside runs: both are evidence of their own constants, and what the runs say of links counts last."""
    file = tmp_path / "my.json"
    runs = write(tmp_path / "runs.csv", rows())
    times = {"op": "all_reduce", "ranks": "32", "nodes": "1", "instance_stated": TRN1}
    sizes = {2.0**power: 2e-4 + 2.0**power / 1e10 for power in range(12, 30, 3)}
    table = [{**times, "size_bytes": f"{size:.0f}", "time_us": f"{1e6 * s:.6g}"} for size, s in sizes.items()]
    collectives = write(tmp_path / "times.csv", table)
    assert main(["calibrate", "--results", runs, "--collectives", collectives, "-o", str(file)]) == 0
    fits = json.loads(file.read_text(encoding="utf-8"))["calibration"]["fits"]
    found = {fit["data"]: fit["constants"] for fit in fits}
    assert "link_efficiency_by_chips.16" in found["runs.csv"] and "collective_launch_s" in found["times.csv"]
    assert not set(found["runs.csv"]) & set(found["times.csv"])
    assert load_cluster(None, 1, hardware_file=file).instance == TRN1


def errors_with(file: Path, table: Sequence[Mapping[str, str]]) -> list[float]:
    """|predicted / measured - 1| of each row, priced as plans for that hardware file are."""
    cases = [instance_case(row, file) for row in table]
    found = (estimate(one.model, one.training, one.cluster, one.strategy, one.software) for one in cases)
    return [abs(one.step_time_s / case.time_s - 1) for one, case in zip(found, cases, strict=True)]


def test_the_error_beside_own_collectives_is_that_of_the_file(tmp_path: Path) -> None:
    """The constants of the results are fitted with the links that the file has after its collectives."""
    file, table = tmp_path / "my.json", rows()[:4]
    slow = {"op": "all_reduce", "nodes": "1", "instance_stated": TRN1, "size_bytes": "4096", "time_us": "2000"}
    collectives = write(tmp_path / "times.csv", [{**slow, "ranks": str(ranks)} for ranks in (2, 8, 32)])
    runs = write(tmp_path / "runs.csv", table)
    assert main(["calibrate", "--results", runs, "--collectives", collectives, "-o", str(file)]) == 0
    calibration = json.loads(file.read_text(encoding="utf-8"))["calibration"]
    (fit,) = (one for one in calibration["fits"] if one["data"] == "runs.csv")
    assert calibration["collective_launch_s"]["value"] > 2 * load_cluster(TRN1, 1).collective_launch_s
    errors = errors_with(file, table)
    assert (fit["mean_error"], fit["worst_error"]) == pytest.approx((mean(errors), max(errors)), abs=1e-3)


def test_a_fast_release_is_fitted_where_a_share_reaches_the_peak(tmp_path: Path) -> None:
    """2.20 is faster than the newest release with results, so that a share of the peak is at most 1 under it."""
    file, table = tmp_path / "my.json", [{**row, "sdk": "2.20"} for row in rows()[:4]]
    quick = [{**row, "step_time_s": f"{0.5 * float(row['step_time_s']):.6g}"} for row in table]
    assert main(["calibrate", "--results", write(tmp_path / "runs.csv", quick), "-o", str(file)]) == 0
    calibration = json.loads(file.read_text(encoding="utf-8"))["calibration"]
    assert calibration["matmul_efficiency"]["value"] == 1
    assert calibration["fits"][0]["mean_error"] == pytest.approx(mean(errors_with(file, quick)), abs=1e-3)


def test_runs_of_one_layout_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group that is left out prices its own rows alone: no price is asked for twice."""
    content = hardware_content(FOLDER / f"{TRN1}.json")
    found, counts = {}, []
    for each in (1, 20):
        cases = [instance_case(row) for row in rows() for _ in range(each)]
        asked: list[float] = []

        def counted(*problem: object, asked: list[float] = asked, **more: object) -> float:
            asked.append(step_time_s(*problem, **more))  # type: ignore[arg-type]
            return asked[-1]

        monkeypatch.setattr(instance_fit, "step_time_s", counted)
        fitted = fit_instance(cases, own_constants(content), content, OWN_NOISE)
        monkeypatch.undo()
        counts.append(len(asked))
        assert fitted.left_out_s is not None
        found[each] = fitted.predicted_s[::each], fitted.left_out_s[::each]
    assert counts[0] == counts[1]
    assert np.allclose(found[1], found[20], rtol=1e-9)


def test_a_run_that_something_slowed_down_does_not_pull(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of a model's three runs took three times as long: the constants stay, and the page shows it."""
    file, table = tmp_path / "my.json", rows()
    slow = {**table[0], "id": "slow", "step_time_s": f"{3 * float(table[0]['step_time_s']):.6g}"}
    runs = write(tmp_path / "runs.csv", [*table, slow])
    assert main(["calibrate", "--results", runs, "-o", str(file)]) == 0
    assert re.search(r"^  slow .* -66\.\d% ", capsys.readouterr().out, re.MULTILINE)
    assert max(errors_with(file, table)) < 0.02


def test_a_fit_ends_where_it_no_longer_moves(tmp_path: Path) -> None:
    """Of runs 40 times slower than the file says, as far as constants go in one round; another fit finds no more."""
    slow = [{**row, "step_time_s": f"{40 * float(row['step_time_s']):.6g}"} for row in rows()[:4]]
    content = hardware_content(FOLDER / f"{TRN1}.json")
    problem = Problem([instance_case(row) for row in slow], own_constants(content), content)
    at = fit(problem)
    now = problem.residuals(at)
    everything = np.ones(len(slow))
    assert problem.solve(at, now, problem.slope(at, now), everything) == pytest.approx(at, abs=1e-4)


GPU_ROW = {
    "source_id": "mine",
    "gpu": "A100-80GB",
    "n_gpus": "8",
    "model": "Llama",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "ffn": "11008",
    "act": "swiglu",
    "vocab": "32000",
    "seq_len": "4096",
    "gbs": "128",
    "tp": "4",
    "dp": "2",
    "mbs": "4",
    "sp": "1",
    "precision": "bf16",
    "attn_kernel": "flash",
    "framework": "NeMo",
    "iter_time_s": "1",
}
GPU_RUNS: tuple[dict[str, str], ...] = (
    {},
    {"seq_len": "8192"},
    {"layers": "16"},
    {"tp": "8", "dp": "1", "hidden": "8192", "heads": "64", "ffn": "28672", "layers": "16"},
    {"tp": "1", "dp": "8", "hidden": "2048", "heads": "16", "ffn": "8192", "layers": "16"},
)


def gpu_times(file: Path, gpu: str) -> list[float]:
    """Seconds of the runs with the constants that a hardware file has."""
    cases = [gpu_case({**GPU_ROW, "gpu": gpu, **run}) for run in GPU_RUNS]
    said = said_by(hardware_content(file), hardware(cases[0])[1])
    return [one.step_time_s for one in estimates(cases, said)]


@pytest.mark.parametrize(
    ("gpu", "instance", "slower"),
    [
        ("A100-80GB", "a100-80gb", 1.0),
        ("A100-80GB", "a100-80gb", 2.0),
        ("H800-80GB", "h800-80gb", 1.3),
        ("B200", "b200-180gb", 1.3),
    ],
)
def test_own_results_on_gpus(gpu: str, instance: str, slower: float, tmp_path: Path) -> None:
    """Constants start from the packaged file's and take all that the runs are slower by: the error is the file's."""
    file, packaged = tmp_path / "my.json", FOLDER / f"{instance}.json"
    measured = [slower * time_s for time_s in gpu_times(packaged, gpu)]
    asked = [{**GPU_ROW, "gpu": gpu, **run} for run in GPU_RUNS]
    table = [{**row, "iter_time_s": f"{time_s:.6g}"} for row, time_s in zip(asked, measured, strict=True)]
    assert main(["calibrate", "--results", write(tmp_path / "runs.csv", table), "-o", str(file)]) == 0
    content = json.loads(file.read_text(encoding="utf-8"))
    if slower == 1.0:
        before = hardware_content(packaged)["calibration"]
        for leaf in leaves(before):
            value = leaf_entry(content["calibration"], leaf)["value"]
            assert value == pytest.approx(leaf_entry(before, leaf)["value"], rel=1e-3), leaf
    (fit,) = (one for one in content["calibration"]["fits"] if one["data"] == "runs.csv")
    errors = [abs(one / time_s - 1) for one, time_s in zip(gpu_times(file, gpu), measured, strict=True)]
    assert (fit["mean_error"], fit["worst_error"]) == pytest.approx((mean(errors), max(errors)), abs=1e-3)
    assert mean(errors) < 0.05


def test_constants_of_gpus_that_are_not_fitted_stay(tmp_path: Path) -> None:
    """They are those of the user's file, which prices the runs as well; a file may lack some."""
    mine, file = tmp_path / "mine.json", tmp_path / "my.json"
    content = hardware_content(FOLDER / "a100-80gb.json")
    content["calibration"]["collective_launch_s"] = {"value": 3e-5, "source": "mine"}
    del content["calibration"]["attention_efficiency"]
    content["calibration"]["fits"] = []
    mine.write_text(json.dumps(content), encoding="utf-8")
    runs = write(tmp_path / "runs.csv", [GPU_ROW | {"iter_time_s": f"{gpu_times(mine, 'A100-80GB')[0]:.6g}"}])
    assert main(["calibrate", "--results", runs, "--hardware", str(mine), "-o", str(file)]) == 0
    calibration = json.loads(file.read_text(encoding="utf-8"))["calibration"]
    assert calibration["collective_launch_s"] == {"value": 3e-5, "source": "mine"}
    assert "attention_efficiency" not in calibration
    assert calibration["fits"][-1]["mean_error"] < 1e-3


def without(*columns: str) -> list[dict[str, str]]:
    return [{name: value for name, value in ROW.items() if name not in columns}]


WRONG: tuple[tuple[list[dict[str, str]], list[str], str], ...] = (
    (without("heads"), [], "{csv} lacks the column heads"),
    (without("heads", "ffn"), [], "{csv} lacks the columns heads, ffn"),
    (without("step_time_s"), [], "{csv} lacks the column step_time_s or seq_per_s"),
    (
        without("instance"),
        [],
        "{csv} lacks the column instance, of results on an instance type, or gpu, of results on GPUs",
    ),
    (
        [{**ROW, "step_time_s": ""}, ROW | {"step_time_s": "fast"}],
        [],
        "{csv}: none of its 2 rows can be used; the first, line 2: neither step_time_s nor seq_per_s was measured",
    ),
    (
        [{**ROW, "step_time_s": "10,725"}],
        [],
        "{csv}: none of its 1 rows can be used; the first, line 2: step_time_s='10,725' is no number above 0",
    ),
    (
        [{**ROW, "step_time_s": "-1", "seq_per_s": "n/a"}],
        [],
        (
            "{csv}: none of its 1 rows can be used; the first, line 2: step_time_s='-1' is no number above 0 and "
            "seq_per_s='n/a' is no number above 0"
        ),
    ),
    (
        [{**ROW, "recompute": "some"}],
        [],
        (
            "{csv}: none of its 1 rows can be used; the first, line 2: recompute='some' is none of none, full, and "
            "modules joined by + (attention_norm, attention, core_attention, mlp_norm, mlp, residual)"
        ),
    ),
    (
        [{**ROW, "dp": "3"}],
        [],
        "{csv}: none of its 1 rows can be used; the first, line 2: tp x pp x dp x cp = 24 is not the cluster's 32",
    ),
    (
        [{**ROW, "global_batch": "63"}],
        [],
        "{csv}: none of its 1 rows can be used; the first, line 2: dp x micro_batch = 4 must divide global_batch=63",
    ),
    (
        [{**ROW, "step_time_s": "9000"}],
        [],
        (
            "{csv}: none of its 1 rows can be used; the first, line 2: a step of 9,000 s is more than 100 times as "
            "long as the 9.63 s that such a step takes: times are in seconds"
        ),
    ),
    (
        [ROW],
        ["--instance", "trn2.48xlarge"],
        "{csv}: none of its 1 rows can be used; the first, line 2: instance='trn1.32xlarge' is not trn2.48xlarge",
    ),
    (
        [ROW, {**ROW, "instance": "trn2.48xlarge", "nodes": "1", "dp": "8"}],
        [],
        "instance is missing: the rows are of trn1.32xlarge and trn2.48xlarge; one file is of one",
    ),
    ([ROW], ["--device", "cpu"], "--device is of measuring this machine, which --results and --collectives do not"),
    ([ROW], ["--details", "d"], "--details needs a folder as -o"),
    (
        [ROW] * 3001,
        [],
        (
            "{csv} has 3,001 rows, and 3,000 is the most; one row for each layout, with the median of its times, says "
            "as much as a row for each run"
        ),
    ),
)


@pytest.mark.parametrize(("table", "more", "message"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_fitted(
    table: list[dict[str, str]],
    more: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(tmp_path / "runs.csv", table)
    assert main(["calibrate", "--results", file, *more, "-o", str(tmp_path / "my.json")]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {message.format(csv=file)}\n"
    assert not (tmp_path / "my.json").exists()


def test_help_names_the_columns() -> None:
    assert set(COLUMNS) <= set(re.findall(r"\w+", DESCRIPTION))


def test_an_unknown_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named by the user or by a row; the known ones are listed."""
    file = write(tmp_path / "runs.csv", [{**ROW, "instance": "trn9"}])
    for more in ([], ["--instance", "trn9"]):
        assert main(["calibrate", "--results", file, *more, "-o", str(tmp_path / "my.json")]) == 2
        assert "instance='trn9' is not known; known: a100-40gb, a100-80gb," in capsys.readouterr().err


def test_files_that_are_no_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "runs.csv"
    for content, reason in (
        (None, " does not exist"),
        (b"", " has no rows below its first line, which names the columns"),
        (b"instance,nodes\n", " has no rows below its first line, which names the columns"),
        (b"instance\n\xff\n", ", line 2: byte 0xff is not UTF-8; save it as UTF-8"),
    ):
        if content is not None:
            file.write_bytes(content)
        assert main(["calibrate", "--results", str(file), "-o", str(tmp_path / "my.json")]) == 2
        assert capsys.readouterr().err == f"autoshard: error: {file}{reason}\n"


def test_the_packaged_files_are_what_the_fit_gives(tmp_path: Path) -> None:
    """Of trn1 and trn2 (GPUs take a minute): byte for byte but for the date, so that no fit starts from another."""
    published = [str(DATA / "measured_trainium.csv"), "--collectives", str(DATA / "trainium_collectives.csv")]
    assert main(["calibrate", "--results", *published, "-o", str(tmp_path)]) == 0
    for name in (TRN1, "trn1n.32xlarge", "trn2.48xlarge"):
        packaged = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        found = json.loads((tmp_path / "hardware" / f"{name}.json").read_text(encoding="utf-8"))
        for content in (packaged, found):
            for one in content["calibration"]["fits"]:
                one["date"] = ""
        assert json.dumps(found) == json.dumps(packaged), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": 0}, "points=0 of {path} must be a whole number from 1 to 1,000,000,000"),
        ({"sha256": "abc"}, "sha256='abc' of {path} must be 64 hexadecimal digits"),
        ({"date": "yesterday"}, "date='yesterday' of {path} must be a date such as 2026-11-20"),
        ({"mean_error": None}, "mean_error=None of {path} must be a finite number of at least 0"),
        ({"mean_error": -0.1}, "mean_error=-0.1 of {path} must be a finite number of at least 0"),
        ({"constants": []}, "constants=a list of 0 of {path} must be a list of names"),
        (
            {"constants": ["warp_factor"]},
            "{path} names 'warp_factor', which is no constant of my.json.calibration",
        ),
        (
            {"weather": "fine"},
            "{path} has a field that is not known: 'weather'; known: constants, data, sha256, date, ",
        ),
    ],
)
def test_broken_evidence(change: dict[str, object], message: str, tmp_path: Path) -> None:
    content = json.loads((FOLDER / f"{TRN1}.json").read_text(encoding="utf-8"))
    content["calibration"]["fits"][0].update(change)
    file = tmp_path / "my.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(AutoshardError) as error:
        load_cluster(None, 1, hardware_file=file)
    assert str(error.value).startswith(message.format(path="my.json.calibration.fits[0]"))
    del content["calibration"]["fits"][0]["date"]
    content["calibration"]["fits"][0].pop("weather", None)
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(AutoshardError, match=r"^my\.json\.calibration\.fits\[0\] lacks date$"):
        load_cluster(None, 1, hardware_file=file)
    content["calibration"]["fits"] = {}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(AutoshardError, match=r"^my\.json\.calibration\.fits is an object of 0; it must be a list of"):
        load_cluster(None, 1, hardware_file=file)
