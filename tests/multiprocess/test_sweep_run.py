"""A sweep that runs: plans are executed or rehearsed, what they take stands beside what was predicted."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import yaml

import autoshard
from autoshard.cli import main
from autoshard.sweeps.outcome import EXECUTED, FAILED, OK, REHEARSED
from tests.multiprocess.started import by_default
from tests.unit.test_sweep_dask import cluster as cluster  # a fixture

PATIENCE_S = 300.0
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


CPU = Path(autoshard.__file__).parent / "hardware/cpu.json"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """Options of a sweep, in YAML: this machine as two processes, and little work for them."""
    values = json.loads(CPU.read_text())
    values["lnc"]["1"]["devices_per_chip"]["value"] = 2
    (tmp_path / "cpu.json").write_text(json.dumps(values))
    return f"hardware: {tmp_path / 'cpu.json'}\nseq_len: 128\ntp: 1\npp: 1\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A model of two blocks that runs here as planned."""
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def test_plans_are_executed_and_measured(
    config: Path, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --wandb the runs and the sweep are one group, offline; TensorBoard shows the sweep and its runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    Path("sweep.yaml").write_text(
        f"model: {config}\n{machine}run: {{steps: 3, learning_rate: 1e-3}}\ngrid: {{global_batch: [2, 4]}}\n"
    )
    assert main(["sweep", "sweep.yaml", "--run", "--wandb"]) == 0
    page = capsys.readouterr().out
    assert page.split()[6:10] == ["fits", "took", "predicted", "run"] and page.count("executed") == 2
    with Path("sweeps/sweep/results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        folder = Path(row["run_folder"])
        measured = json.loads((folder / "run.json").read_text())
        assert row["run"] == EXECUTED and float(row["measured_step_time_s"]) == measured["step_time_s"]["median"]
        assert float(row["run_predicted_step_time_s"]) == float(row["step_time_s"])
        assert float(row["measured_memory_bytes"]) == max(one["peak_memory_bytes"] for one in measured["ranks"])
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == measured["steps"] == 3
        assert list((folder / "tensorboard").iterdir())
        assert _group(folder) == "sweep sweep"
    assert _group(Path("sweeps/sweep")) == "sweep sweep"
    assert "tensorboard --logdir sweeps/sweep\n" in page
    (sync,) = (line.split()[2:] for line in page.splitlines() if line.startswith("wandb sync "))
    assert sync[0].startswith("sweeps/sweep/wandb/offline-run-") and len(list(Path().glob(sync[1]))) == 2
    (table,) = Path("sweeps/sweep").glob("wandb/offline-run-*/files/media/table/points_*.table.json")
    shown = json.loads(table.read_text())
    assert shown["columns"][:2] == ["global_batch", "status"] and [row[:2] for row in shown["data"]] == [
        [2, OK],
        [4, OK],
    ]
    assert list(Path("sweeps/sweep").glob("wandb/offline-run-*/files/media/images/plot_*.png"))
    assert main(["sweep", "sweep.yaml", "--run", "--wandb"]) == 0
    assert "2 of 2 points were in the table already" in capsys.readouterr().out


def _group(folder: Path) -> str:
    """The W&B group of the run that was logged offline into a folder: its name and length stand in the records."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    (group,) = set(re.findall(rb"\x0b(sweep sweep)", file.read_bytes()))
    return str(group.decode())


def test_a_run_that_fails_is_a_row_and_is_done_again(config: Path, machine: str, tmp_path: Path) -> None:
    grid = {"model": str(config), **yaml.safe_load(machine), "global_batch": [2]}
    wrong = {"steps": 1, "tokenizer": str(config)}
    failed = autoshard.sweep(grid, tmp_path / "out", run=wrong)
    ((_, outcome),) = failed.outcomes
    assert (outcome.status, outcome.run) == (OK, FAILED) and "tokenizer" in outcome.run_reason
    assert autoshard.sweep(grid, tmp_path / "out", run={"steps": 1}).outcomes[0][1].run == EXECUTED
    assert autoshard.sweep(grid, tmp_path / "out", run={"steps": 1}).planned == 0
    assert autoshard.sweep(grid, tmp_path / "out", run={"steps": 2}).planned == 1
    assert autoshard.sweep(grid, tmp_path / "out").planned == 0
    (folder,) = (tmp_path / "out/points").iterdir()
    (folder / "done.json").write_text('{"exit_code": 0}')
    (tmp_path / "out/results.csv").unlink()
    ((_, outcome),) = autoshard.sweep(grid, tmp_path / "out", run={"steps": 1}).outcomes
    assert outcome.run == EXECUTED, "a file that no run wrote is not believed"


def test_a_run_that_had_ended_is_found_where_its_sweep_was_moved_and_done_again_where_it_is_gone(
    config: Path, machine: str, tmp_path: Path
) -> None:
    grid = {"model": str(config), **yaml.safe_load(machine), "global_batch": [2]}

    def swept(folder: Path) -> tuple[str, Path]:
        (folder / "results.csv").unlink(missing_ok=True)  # as a sweep leaves it that was killed before
        ((_, outcome),) = autoshard.sweep(grid, folder, run={"steps": 1}).outcomes
        return outcome.run, Path(outcome.run_folder)

    first, moved = swept(tmp_path / "first"), tmp_path / "moved"
    (tmp_path / "first").rename(moved)
    assert swept(moved) == (EXECUTED, moved / first[1].relative_to(tmp_path / "first"))
    shutil.rmtree(swept(moved)[1])
    again = swept(moved)
    assert again[0] == EXECUTED and again[1].name != first[1].name


def test_a_sweep_of_runs_goes_on_after_kill_9(tmp_path: Path) -> None:
    """Killed in the middle of a rehearsal: nothing of it stays alive, and what was done is not done again."""
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "model: llama3-8b\nseq_len: 2048\ntp: 8\npp: 1\nrun: {steps: 2, processes: 2}\n"
        "grid: {global_batch: [64, 128, 256]}\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "autoshard", "sweep", str(sweep), "-o", str(out), "--run", "--workers", "2"]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + PATIENCE_S
    while not _runs(out):  # one point is in the table, others are under way
        assert time.monotonic() < until and parent.poll() is None
        time.sleep(0.02)
    started = psutil.Process(parent.pid).children(recursive=True)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    before = _runs(out)
    _, alive = psutil.wait_procs(started, timeout=60)
    assert before and len(before) < 3 and not alive
    ended = {path.parent.name for path in out.glob("points/*/done.json")}  # a kill may come just before one is written
    found = autoshard.sweep(sweep, out, run=True)
    assert [outcome.run for _, outcome in found.outcomes] == [REHEARSED] * 3
    assert found.planned == 3 - len(before)
    whole = Counter(path.parent.parent.name for path in out.glob("points/*/*/result.json"))
    assert len(whole) == 3 and len(ended) >= len(before)
    assert {whole[name] for name in ended} == {1}, "a rehearsal that had ended was done again"


def test_ctrl_c_leaves_no_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "sweep.yaml").write_text(
        "model: llama3-8b\nseq_len: 2048\ntp: 8\npp: 1\nrun: {steps: 1000, processes: 2}\ngrid: {global_batch: [64]}\n"
    )
    command = [sys.executable, "-m", "autoshard", "sweep", "sweep.yaml", "--run", "--workers", "2"]
    with by_default(signal.SIGINT):
        parent = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    until = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("sweeps/sweep/points/*/*/logs/rank-01.log")):
        assert time.monotonic() < until and parent.poll() is None
        time.sleep(0.02)
    assert any(path.name.startswith("autoshard-tensors-") for path in (tmp_path / "temporary").iterdir())
    parent.send_signal(signal.SIGINT)
    assert parent.communicate(timeout=PATIENCE_S)[1] == b"" and parent.returncode == 130
    assert not list((tmp_path / "temporary").iterdir())


def test_a_dask_cluster_runs_the_plans(cluster: str, tmp_path: Path) -> None:
    grid = {"model": "llama3-8b", "seq_len": 2048, "tp": 8, "pp": 1, "global_batch": [64]}
    found = autoshard.sweep(grid, tmp_path / "out", run={"steps": 2, "processes": 2}, scheduler=cluster)
    ((_, outcome),) = found.outcomes
    assert outcome.run == REHEARSED and Path(outcome.run_folder).is_relative_to(tmp_path / "out/points")


def _runs(out: Path) -> list[str]:
    table = out / "results.csv"
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return [row["run_folder"] for row in csv.DictReader(file)]
