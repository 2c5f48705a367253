"""`autoshard run --backend nxd` as a user runs it: checkpoints that either backend goes on from, and a rehearsal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.plans.plan_json import write_plan
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import strategy
from tests.nxd.cases import FP32, on_this_machine
from tests.unit.trn2_files import FILES


def autoshard(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoshard", *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )


def plan_file(folder: Path, name: str, **layout: object) -> Path:
    model = replace(MODELS["one kv head"], vocab_size=256)
    path = folder / f"{name}.json"
    write_plan(on_this_machine(model, FP32, strategy(**layout)), path)  # type: ignore[arg-type]
    return path


def losses(folder: Path) -> dict[int, float]:
    """By step, of the newest run in the folder."""
    newest = max(folder.glob("*-run-*/metrics.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    rows = [json.loads(line) for line in newest.read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows}


def test_a_run_goes_on_in_another_layout_and_on_the_other_backend(tmp_path: Path) -> None:
    """tp=2 on NxD, then pp=2 on NxD, then one process of torch: the same losses as torch alone."""
    options = ("--checkpoint-every", "2", "--output", "runs", "--checkpoint-dir", "saved")
    first = autoshard(
        tmp_path, "run", str(plan_file(tmp_path, "tp2", tp=2)), "--backend", "nxd", "--steps", "2", *options
    )
    assert first.returncode == 0, first.stderr
    assert "kv_size_multiplier=2: NxD's gradient norm counts key-value weights that often" in first.stdout
    found = losses(tmp_path / "runs")
    second = autoshard(
        tmp_path, "run", str(plan_file(tmp_path, "pp2", pp=2)), "--backend", "nxd", "--steps", "4", *options
    )
    assert second.returncode == 0, second.stderr
    assert "resumed from" in second.stdout
    found |= losses(tmp_path / "runs")
    third = autoshard(tmp_path, "run", str(plan_file(tmp_path, "dp2", dp=2)), "--steps", "6", *options)
    assert third.returncode == 0, third.stderr
    found |= losses(tmp_path / "runs")
    alone = autoshard(tmp_path, "run", str(plan_file(tmp_path, "one")), "--steps", "6", "--output", "alone")
    assert alone.returncode == 0, alone.stderr
    expected = losses(tmp_path / "alone")
    assert list(found) == list(expected) == [1, 2, 3, 4, 5, 6]
    assert found == pytest.approx(expected, rel=1e-5)


def test_it_starts_from_given_weights(tmp_path: Path) -> None:
    """Those of a checkpoint of the torch backend: the loss is the one that it would have had next."""
    saved = ("--checkpoint-every", "2", "--checkpoint-dir", "saved", "--output", "torch")
    one = str(plan_file(tmp_path, "one"))
    assert autoshard(tmp_path, "run", one, "--steps", "2", *saved).returncode == 0
    weights = ("--weights", "saved/step-00000002", "--steps", "1")
    alone = autoshard(tmp_path, "run", one, *weights, "--output", "alone")
    ran = autoshard(
        tmp_path, "run", str(plan_file(tmp_path, "tp2", tp=2)), *weights, "--backend", "nxd", "--output", "nxd"
    )
    assert (alone.returncode, ran.returncode) == (0, 0), alone.stderr + ran.stderr
    assert losses(tmp_path / "nxd") == pytest.approx(losses(tmp_path / "alone"), rel=1e-6)
    assert losses(tmp_path / "nxd")[1] != pytest.approx(losses(tmp_path / "torch")[1], rel=1e-4)


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    plan = plan_file(tmp_path, "tp2", tp=2)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29731"),
            *("-m", "autoshard", "run", str(plan), "--backend", "nxd", "--steps", "2"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Running as planned: 2 ranks of torchrun" in ran.stdout
    assert list(losses(tmp_path / "runs")) == [1, 2]


def test_a_machine_without_a_chip_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NXD_CPU_MODE")
    ran = autoshard(tmp_path, "run", str(plan_file(tmp_path, "one")), "--backend", "nxd")
    assert ran.returncode == 2
    assert "backend=nxd: torch_xla finds no Neuron device on this machine, but cpu; NXD_CPU_MODE=1 runs " in ran.stderr


@pytest.mark.parametrize("name", FILES)
def test_the_trn2_files_are_rehearsed_on_the_real_library(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    assert autoshard(tmp_path, "import", name).returncode == 0
    ran = autoshard(tmp_path, "run", "plan.json", "--backend", "nxd", "--processes", "4", "--steps", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("OK: the sharded run equals one process")


def test_a_plan_for_trainium_is_rehearsed_on_the_real_library(tmp_path: Path) -> None:
    planned = autoshard(tmp_path, "plan", "--model", "llama3-70b", "--nodes", "16")
    assert planned.returncode == 0, planned.stderr
    ran = autoshard(tmp_path, "run", "plan.json", "--backend", "nxd", "--processes", "4", "--steps", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith("OK: the sharded run equals one process")
