"""`autoshard run --device neuron` on the twin, with every option of a run, beside the same on CPUs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.backends.native_neuron import COMPILE_ONLY
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.spec.training import Precision, load_precision
from tests.multiprocess.command import in_a_process
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, FP64, plan_of, strategy
from tests.neuron.conftest import Installed
from tests.neuron.installed import BETA, RELEASE

SAVING = ("--checkpoint-every", "2", "--checkpoint-dir", "saved", "--document-mask", "--lr-schedule", "linear")
EVALUATING = ("--eval-fraction", "0.1", "--eval-every", "2", "--eval-batches", "2", "--timeout", "1000")


def plan(precision: Precision = FP32, **layout: int) -> Plan:
    return plan_of(replace(MODELS["llama"], vocab_size=256), strategy(**layout), 4, precision)  # type: ignore[arg-type]


def run(folder: Path, device: str, *options: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return in_a_process(folder, "run", str(folder.parent / "plan.json"), "--device", device, *options, seconds=900)


def measured(folder: Path, name: str) -> list[float]:
    """The values of that name of every step of the folder's newest run."""
    *_, newest = sorted((folder / "runs").glob("*/metrics.jsonl"))
    rows = [json.loads(line) for line in newest.read_text().splitlines()]
    return [row[name] for row in rows if name in row]


def test_every_option_does_what_it_does_on_cpus(installed: Installed, tmp_path: Path) -> None:
    write_plan(plan(tp=2, pp=2), tmp_path / "plan.json")
    on_neuron, on_cpu = tmp_path / "neuron", tmp_path / "cpu"
    with installed():
        ran = run(on_neuron, "neuron", "--steps", "4", "--profile", *SAVING, *EVALUATING)
    assert ran.returncode == 0, ran.stderr
    ran = run(on_cpu, "cpu", "--steps", "4", *SAVING, *EVALUATING)
    assert ran.returncode == 0, ran.stderr
    for name in ("loss", "gradient_norm", "held_out_loss"):
        assert measured(on_neuron, name) == pytest.approx(measured(on_cpu, name), rel=1e-5)
    (trace,) = (on_neuron / "runs").glob("*/trace.json")
    assert '"F0.0"' in trace.read_text()
    (told,) = (on_neuron / "runs").glob("*/run.json")
    peaks = [rank["peak_memory_bytes"] for rank in json.loads(told.read_text())["ranks"]]
    assert all(0 < peak < 20e6 for peak in peaks), "of the device, not of the process"


def test_checkpoints_go_from_device_to_device(installed: Installed, tmp_path: Path) -> None:
    write_plan(plan(dp=2, zero=3), tmp_path / "plan.json")
    with installed():
        ran = run(tmp_path / "neuron", "neuron", "--steps", "2", *SAVING)
        assert ran.returncode == 0, ran.stderr
        write_plan(plan(dp=2, zero=0), tmp_path / "plan.json")
        on = ("--resume", str(tmp_path / "neuron" / "saved"), "--steps", "4", *SAVING)
        again = run(tmp_path / "again", "neuron", *on)
        assert again.returncode == 0, again.stderr
    assert "resumed from " in again.stdout
    ran = run(tmp_path / "cpu", "cpu", *on)
    assert ran.returncode == 0, ran.stderr
    assert measured(tmp_path / "again", "loss") == pytest.approx(measured(tmp_path / "cpu", "loss"), rel=1e-5)


def test_graphs_ahead(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `launch --precompile` runs on each node."""
    monkeypatch.setenv(COMPILE_ONLY, "1")
    write_plan(plan(dp=2, zero=3), tmp_path / "plan.json")
    with installed():
        ran = run(tmp_path / "neuron", "neuron", "--steps", "2")
        saves = run(tmp_path / "saves", "neuron", "--steps", "2", *SAVING)
    assert ran.returncode == 0, ran.stderr
    assert f"{COMPILE_ONLY}=1: graphs are compiled and nothing is computed; losses and " in ran.stdout
    assert saves.returncode == 2
    assert saves.stderr.endswith(
        f"--checkpoint-every: with {COMPILE_ONLY}=1 graphs are compiled and nothing is computed; unset one\n"
    )


def test_torchrun(installed: Installed, tmp_path: Path) -> None:
    write_plan(plan(load_precision("bf16_sr"), dp=2, zero=3), tmp_path / "plan.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with installed():
        ran = subprocess.run(
            [*command, "-m", "autoshard", "run", "plan.json", "--device", "neuron", "--steps", "2", "--debug-nan"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert "Running as planned: 2 ranks of torchrun" in ran.stdout


@pytest.mark.parametrize(
    ("version", "precision", "layout", "said"),
    [
        (RELEASE, FP64, {"dp": 2}, "device=neuron: precision=fp64 has float64, which the device "),
        (
            BETA,
            FP32,
            {"pp": 2},
            "device=neuron: pp=2 sends between pipeline ranks, which torch-",
        ),
    ],
)
def test_what_the_device_cannot_compute_is_refused_at_once(
    installed: Installed, tmp_path: Path, version: str, precision: Precision, layout: dict[str, int], said: str
) -> None:
    write_plan(plan(precision, **layout), tmp_path / "plan.json")
    with installed(version):
        ran = run(tmp_path / "neuron", "neuron")
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"autoshard: error: {said}") and ran.stderr.count("\n") == 1
    assert not list((tmp_path / "neuron").iterdir())
