"""benchmarks.on_gpu with the CPU in place of a GPU: all of it, what fails, what takes too long, and going on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autoshard.spec.cluster import load_cluster
from benchmarks import on_gpu, on_gpu_page, on_gpu_parts
from tests.cases import ALL
from tests.unit.test_calibrate import RATES, measured

HERE = {
    "name": "a GPU",
    "devices": 1,
    "memory_bytes": 2.0**37,
    "free_bytes": 2.0**37,
    "torch": "2.11.0",
    "autoshard": "0.1.0",
    "cuda": "13.0",
}


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """Every part has a result; a hardware file to plan with; the second start measures nothing again. Steps alone have
    processes of their own, as they ask for a process's memory: the others would import torch again. test_calibrate.py
    measures this machine."""
    in_a_process = on_gpu.in_a_process
    known = replace(measured(), notes=("of no machine",))
    monkeypatch.setattr(on_gpu_parts, "measure", lambda *_: (known, {"rates": RATES, "dtype": "float32"}))

    def here(command: Sequence[str], limit_s: float) -> dict[str, Any]:
        asked = json.loads(command[-1])
        if asked["part"] == "step":
            return in_a_process(command, limit_s)
        part = on_gpu_parts.PARTS[asked["part"]]
        found: dict[str, Any] = json.loads(
            json.dumps({"result": part(on_gpu_parts.Options(**asked["options"]), *asked["arguments"])})
        )
        return found

    monkeypatch.setattr(on_gpu, "in_a_process", here)
    arguments = ["--device", "cpu", "--quick", "--folder", str(tmp_path)]
    assert on_gpu.main(arguments) == 0, capsys.readouterr().out
    found = json.loads((tmp_path / "on_gpu.json").read_text())["parts"]
    assert all("result" in part for part in found.values())
    assert set(found) == {
        "environment",
        "parity",
        "parity, families",
        "calibration",
        "step, tiny, planned",
        "step, tiny, plain",
        "step, tiny, planner's pick",
        "step, smollm2-135m, planned",
        "sharded, tp=2",
    }
    assert found["parity"]["result"]["right"] and found["parity, families"]["result"]["right"]
    assert found["sharded, tp=2"]["result"]["right"]
    planned = found["step, tiny, planned"]["result"]
    assert planned["predicted"].keys() == {"packaged", "calibrated"} and planned["step_time_s"] > 0
    assert load_cluster(None, 1, hardware_file=tmp_path / "on_gpu_hardware.json").instance == "cpu"
    page = (tmp_path / "on_gpu.md").read_text()
    assert "**The CPU stood in for a GPU" in page and "| tiny, planned | mbs=2 recompute=none attention=flash |" in page
    assert "## Without a result" not in page
    assert on_gpu.main(arguments) == 0
    again = json.loads((tmp_path / "on_gpu.json").read_text())["parts"]
    assert all(again[name] == part for name, part in found.items() if name != "environment")


def test_no_gpu_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("on_gpu.json", "on_gpu.md"):
        (tmp_path / name).write_text("{}")
    assert on_gpu.main(["--folder", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("on_gpu: error: device=cuda is not on this machine: torch")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"on_gpu.json": "{}", "on_gpu.md": "{}"}


def test_what_a_process_says_and_how_it_ends() -> None:
    def ran(code: str, limit_s: float = 60) -> dict[str, Any]:
        return on_gpu.in_a_process([sys.executable, "-c", code], limit_s)

    assert ran("print('noise'); print('{\"result\": {\"a\": 1}}')") == {"result": {"a": 1}}
    assert ran("raise SystemExit(7)") == {"error": "ended with 7: it said nothing"}
    died = ran("import sys; print('CUDA error: an illegal memory access', file=sys.stderr); sys.exit(1)")
    assert died["error"] == "ended with 1: CUDA error: an illegal memory access"
    assert ran("import os; os.abort()")["error"].startswith("ended with -6")
    assert ran("print('3')")["error"].startswith("ended with 0")
    slow = ran("import sys, time; print('here', file=sys.stderr, flush=True); time.sleep(60)", limit_s=3)
    assert slow == {"error": "took more than 3 s and was ended", "log": ["here"]}


def test_a_process_that_a_part_leaves_behind_holds_nobody_up() -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print('{\"result\": 1}')"
    )
    start = time.monotonic()
    assert on_gpu.in_a_process([sys.executable, "-c", code], 120) == {"result": 1}
    assert time.monotonic() - start < 100


class Answers:
    """Stands in for the processes. answers: by the part's function, or function and first argument."""

    def __init__(self, answers: dict[str, dict[str, Any]]):
        self.answers, self.asked = answers, list[str]()

    def __call__(self, command: Any, limit_s: float) -> dict[str, Any]:
        asked = json.loads(command[-1])
        name = " ".join((asked["part"], *asked["arguments"]))
        self.asked.append(name)
        return dict(self.answers.get(name, {"error": "device is lost"}))


def test_a_failed_part_is_a_line_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parity = {"variants": {"plain": {"off": 1e-7}, "experts": {"error": "out | of"}}, "close": 1e-4, "right": False}
    answers = Answers({"environment": {"result": HERE}, "parity eager": {"result": parity}})
    monkeypatch.setattr(on_gpu, "in_a_process", answers)
    arguments = ["--folder", str(tmp_path), "--quick"]
    assert on_gpu.main(arguments) == 1
    page = (tmp_path / "on_gpu.md").read_text()
    assert "1 x a GPU, 128.0 GiB each (128.0 free); torch 2.11.0, CUDA 13.0." in page
    assert "* step, 1b, planned: device is lost" in page and "| experts | out / of |" in page
    assert "all within 0.0001: NO." in page and "sharded" not in page
    assert "step 1b plain compiled" in answers.asked and "parity compiled" in answers.asked
    answers.asked.clear()
    assert on_gpu.main(arguments) == 1
    assert "parity eager" not in answers.asked and "step 1b planned" in answers.asked
    answers.answers["environment"] = {"result": {**HERE, "name": "another GPU"}}
    answers.asked.clear()
    on_gpu.main(arguments)
    assert "parity eager" in answers.asked, "what another device did says nothing of this one"


def test_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers({"environment": {"result": HERE}})
    monkeypatch.setattr(on_gpu, "in_a_process", answers)
    monkeypatch.setattr(on_gpu, "monotonic", lambda: 2 * on_gpu.QUICK_S * len(answers.asked))
    assert on_gpu.main(["--folder", str(tmp_path), "--quick"]) == 1
    page = (tmp_path / "on_gpu.md").read_text()
    assert "* parity: left out: the time was over" in page and answers.asked == ["environment"]


def test_no_time_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(on_gpu, "in_a_process", Answers({"environment": {"result": HERE}}))
    monkeypatch.setattr(on_gpu, "QUICK_S", 5.0)
    assert on_gpu.main(["--folder", str(tmp_path), "--quick"]) == 2
    assert capsys.readouterr().err == "on_gpu: error: left out: the time was over\n" and not any(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"options": {}}', '{"options": 3, "parts": {}}'])
def test_a_file_of_another_run_is_not_gone_on_with(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "on_gpu.json").write_text(text)
    monkeypatch.setattr(on_gpu, "in_a_process", Answers({"environment": {"result": HERE}}))
    assert on_gpu.main(["--folder", str(tmp_path)]) == 1


def test_several_gpus_are_used(tmp_path: Path) -> None:
    names = [part.name for part in on_gpu.parts("cuda", False, 8)]
    assert {"sharded, tp=2", "sharded, tp=2 pp=2", "sharded, dp=8 zero=3"} <= set(names)
    assert not any(name.startswith("sharded") for name in (one.name for one in on_gpu.parts("cuda", False, 1)))
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("words", [[], ["{}"], ["[]"], ['{"options": {}, "part": "x", "arguments": []}'], ["{}", "{}"]])
def test_a_part_by_itself_says_what_it_takes(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["on_gpu_parts", *words])
    assert on_gpu_parts.main() == 2
    assert capsys.readouterr().err == (
        "on_gpu_parts: error: one part is run, given as JSON with options, part and arguments; "
        "python -m benchmarks.on_gpu runs all. "
        "Parts: environment, calibration, parity, families, attention, step, sharded\n"
    )


def test_a_page_of_nothing() -> None:
    options = {"device": "cuda", "quick": True}
    assert "--quick" in on_gpu_page.page({"options": options, "parts": {}})


def test_steps_on_a_device_that_is_not_the_host() -> None:
    """Nothing of the runtime, nor of the steps that are timed on a GPU, takes a host's tensor for the device's."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.multiprocess.other_device"],
        cwd=on_gpu.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = dict(line.split(": ", 1) for line in ran.stdout.strip().splitlines())
    assert lines.pop("mixed").startswith("FakeTensorDeviceMismatchError"), ran.stderr
    assert len(lines) == (12 if ALL else 10) and set(lines.values()) == {"done"}, ran.stdout + ran.stderr


def test_every_layout_and_size_of_a_gpu_has_a_plan() -> None:
    """Mistakes in these tables would be seen only with GPUs."""
    for world, layouts in on_gpu_parts.SHARDED.items():
        for changed in layouts.values():
            assert on_gpu_parts._sharded_plan(world, changed, world).mesh.world_size == world
    cluster = on_gpu_parts.cluster_of(load_cluster("h200-141gb", 1), 1)
    for name, size in on_gpu_parts.SIZES["cuda"].items():
        plan = on_gpu_parts.plan_of(size, size.model(name), cluster, "mixed_precision")
        assert plan.estimate.fits and plan.estimate.fullest.reserved_bytes > 0
        assert on_gpu_parts.picked(size, size.model(name), cluster, "mixed_precision").estimate.fits
    smaller = on_gpu_parts.cluster_of(load_cluster("h100-80gb", 1), 1)
    for name, cut in on_gpu_parts.CUTS["cuda"].items():
        assert on_gpu_parts.plan_of(cut, cut.model(name), smaller, "mixed_precision").estimate.fits, name
