"""A fit finds the constants that measurements were made with; its file is a hardware file; mistakes are one line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.calibration.arguments import CalibrationArguments
from autoshard.calibration.fit import fit_collectives, fit_device
from autoshard.calibration.hardware_file import hardware_file
from autoshard.calibration.measure import default_instance
from autoshard.calibration.values import (
    ATTENTION_CURVE,
    FP8,
    LAUNCH,
    PRODUCT_CURVE,
    CollectiveTime,
    Measurements,
    MemoryTime,
    OperatorTime,
    PassTime,
    faster,
)
from autoshard.cli import main
from autoshard.cost.collectives import KINDS, GroupShape, collective_law
from autoshard.cost.compute import OperatorNeeds, memory_s, seconds_of
from autoshard.cost.stacks import COMPILED
from autoshard.errors import AutoshardError
from autoshard.files.codec import from_json, to_json
from autoshard.runtime.launch import RunOutcome
from autoshard.spec.cluster import Device, Link, load_cluster
from autoshard.spec.evidence import Evidence

CPU = load_cluster("cpu", 1)
TRUE = replace(
    CPU.device,
    flops_per_s=(("float32", 1e11),),
    memory_bandwidth_bytes_per_s=5e10,
    matmul_efficiency=0.9,
    matmul_k0=64.0,
    memory_efficiency=0.4,
    operator_overhead_s=1e-5,
    pass_launch_s=2e-4,
)
RATES = {"float32": 8e10, "bfloat16": 2e11, "float64": 4e10}


def needs_of(size: int) -> list[OperatorNeeds]:
    bytes_ = 4.0 * size * 256
    return [
        OperatorNeeds("matmul", 256.0, float(size), float(size), bytes_, 0.0, 0.0, 2.0),
        OperatorNeeds("matmul", 256.0, 2.0 * size, size / 4, bytes_, 0.0, 0.0, 2.0),
        OperatorNeeds("norm", 0.0, 0.0, 0.0, 2 * bytes_, 0.0, 0.0, 2.0),
        OperatorNeeds("vector", 0.0, 0.0, 0.0, 3 * bytes_, 0.0, 0.0, 1.0),
    ]


def measured() -> Measurements:
    """What a device and links with known constants would show."""
    operators, passes = [], []
    for size in (64, 256, 1024, 4096):
        sums = [0.0, 0.0]
        for number, needs in enumerate(needs_of(size)):
            seconds = seconds_of(needs, TRUE, 1e11, COMPILED)
            operators.append(
                OperatorTime(f"op{number} of size {size}", "float32", needs, seconds.forward, seconds.backward)
            )
            sums = [sums[0] + seconds.forward, sums[1] + seconds.backward]
        for phase, total in zip(("forward", "backward"), sums, strict=True):
            passes.append(PassTime(f"{phase} of size {size}", total + TRUE.pass_launch_s, total))
    memory = MemoryTime("copy", 1e8, memory_s(1e8, TRUE))
    links = replace(CPU, collective_launch_s=2e-4, all_to_all_efficiency=0.5, intra_node=((8, Link("l", 2e9, 0.0)),))
    group = GroupShape(2, 2, 1, 1, 2, 2)
    collectives = [
        CollectiveTime(kind, 2, size, collective_law(kind, group, links).time_s(size))
        for kind in KINDS
        for size in (1e3, 1e5, 1e7)
    ]
    return Measurements("cpu", "a machine", 2, 8e9, tuple(operators), (memory,), tuple(passes), tuple(collectives))


def test_the_fit_finds_the_constants() -> None:
    found = fit_device(measured(), TRUE, "float32")
    for name, value in found.values.items():
        assert value == pytest.approx(getattr(TRUE, name), rel=0.05), name
    count, error = found.error()
    assert count == len(found.points) and error < 0.02
    assert found.error("pass")[0] == 8


def test_the_fit_finds_the_links() -> None:
    found = fit_collectives(measured().collectives, CPU)
    assert found.values["collective_launch_s"] == pytest.approx(2e-4, rel=0.05)
    assert found.values["bandwidth_bytes_per_s"] == pytest.approx(2e9, rel=0.05)
    assert found.values["all_to_all_efficiency"] == pytest.approx(0.5, rel=0.05)


def test_the_file_is_a_hardware_file(tmp_path: Path) -> None:
    """Every number with its source, and the cluster that `plan --hardware` reads is the measured one."""
    content, device, _ = hardware_file(measured(), RATES, "float32", "cpu")
    (tmp_path / "my.json").write_text(json.dumps(content), encoding="utf-8")
    cluster = load_cluster(None, 1, hardware_file=tmp_path / "my.json")
    assert (cluster.instance, cluster.devices_per_node, cluster.device.memory_bytes) == ("cpu", 2, 8e9)
    assert cluster.device.matmul_k0 == device.values["matmul_k0"]
    reached = cluster.device.peak_flops_per_s("float32") * cluster.device.matmul_efficiency
    assert reached == pytest.approx(0.9e11, rel=0.1)
    about = content["calibration"]["about"]
    assert about.startswith("measured by autoshard calibrate on a machine, 20")
    links, operators = (from_json(Evidence, one, "a fit") for one in content["calibration"]["fits"])
    assert (links.data, links.points, links.groups) == ("collectives of 2 ranks of a machine", 15, 5)
    assert links.constants == (
        "collective_launch_s",
        "all_to_all_efficiency",
        "chip_bus_bandwidth_bytes_per_s.1",
    )
    assert (operators.points, operators.groups) == (len(device.points), 4)
    assert set(operators.constants) == set(device.values)
    assert operators.left_out_error is not None and operators.mean_error < 0.02 < 0.1 > operators.left_out_error
    assert "points, median error" in content["calibration"]["matmul_efficiency"]["source"]


def test_measurements_are_plain_values() -> None:
    found = measured()
    assert from_json(Measurements, json.loads(json.dumps(to_json(found))), "measurements") == found


def test_the_shorter_of_two_sweeps_counts() -> None:
    one = OperatorTime("a", "float32", needs_of(64)[0], 1.0, 5.0)
    assert faster(one, replace(one, forward_s=2.0, backward_s=3.0)) == replace(one, backward_s=3.0)
    assert faster(PassTime("p", 2.0, 1.0), PassTime("p", 1.0, 3.0)) == PassTime("p", 1.0, 1.0)


def test_instances() -> None:
    assert default_instance("cpu", "a machine") == "cpu"
    assert default_instance("cuda", "NVIDIA H200") == "h200-141gb"
    assert default_instance("cuda", "NVIDIA GB200") == "gb200-186gb"
    assert default_instance("cuda", "NVIDIA B300 SXM6 AC") == "b300-288gb"
    assert default_instance("cuda", "NVIDIA A100-SXM4-40GB") == "a100-40gb"
    with pytest.raises(AutoshardError, match=r"^instance is missing: which packaged hardware file has the datasheet"):
        default_instance("neuron", "neuron")


ACCELERATORS = {
    "cuda": ("NVIDIA H200", "h200-141gb", [], 8),
    "neuron": ("neuron", "trn2u.48xlarge", ["--instance", "trn2u.48xlarge"], 64),
}
"""Name of the processor, packaged file, what the user must say, devices of a node."""


def accelerated(device: str) -> dict[str, dict[str, Any]]:
    """What each of the measuring processes would answer on a node of such devices."""
    name, instance, _, devices = ACCELERATORS[device]
    sheet = load_cluster(instance, 1)
    true = replace(sheet.device, matmul_efficiency=0.8, matmul_k0=200.0, memory_efficiency=0.7, pass_launch_s=1e-4)
    peak, operators, passes = true.peak_flops_per_s("bfloat16"), [], []
    for size in (1024, 4096, 16384):
        sums = [0.0, 0.0]
        for number, needs in enumerate(needs_of(size)):
            seconds = seconds_of(needs._replace(m=4 * needs.m), true, peak, COMPILED)
            one = OperatorTime(f"op{number} of size {size}", "bfloat16", needs, seconds.forward, seconds.backward)
            operators.append(to_json(replace(one, needs=needs._replace(m=4 * needs.m))))
            sums = [sums[0] + seconds.forward, sums[1] + seconds.backward]
        for phase, total in zip(("forward", "backward"), sums, strict=True):
            passes.append(vars(PassTime(f"{phase} of size {size}", total + 1e-4, total)))
    link = Link("l", 1e11, 0.0)
    machine = replace(sheet, collective_launch_s=3e-5, intra_node=((devices, link),), all_to_all_efficiency=0.5)
    group = GroupShape(8, 8, 1, 1, 8, 8)
    copies = (
        MemoryTime("copy 1 MiB", 2e6, 1e-9),
        MemoryTime("copy 256 MiB", 5e8, memory_s(5e8, true)),
        MemoryTime(LAUNCH, 0.0, 4e-6),
    )
    times = [(kind, size, collective_law(kind, group, machine).time_s(size)) for kind in KINDS for size in (1e4, 1e8)]
    return {
        "present": {"devices": devices, "why": "", "name": name},
        "one_device": {
            "operators": operators,
            "passes": passes,
            "memory": [vars(MemoryTime("copy", 1e9, memory_s(1e9, true)))],
            "curves": to_json(curves_of(true, peak)) if device == "cuda" else [],
            "copies": [vars(one) for one in copies] if device == "cuda" else [],
            "notes": ["the device slowed down: a test says so"],
            "rates": {"bfloat16": 0.8 * peak},
            "name": name,
            "memory_bytes": true.memory_bytes,
            "dtype": "bfloat16",
        },
        "collectives": {"collectives": [vars(CollectiveTime(kind, 8, size, s)) for kind, size, s in times]},
    }


def curves_of(true: Device, peak: float) -> list[OperatorTime]:
    """What products by K, one in FP8 at twice the speed, and attention at 45 % of the peak would show."""
    found = []
    for k in (64, 256, 1024, 4096):
        needs = OperatorNeeds("matmul", 4096.0, 4096.0, float(k), 1.0, 0.0, 2.0 * 4096**2 * k, 2.0)
        seconds = seconds_of(needs, true, peak, COMPILED).forward
        found.append(OperatorTime(f"4096 x {k} by {k} x 4096 of {PRODUCT_CURVE}", "bfloat16", needs, seconds, None))
    found.append(replace(found[-1], dtype=FP8, forward_s=found[-1].forward_s / 2))
    flops = 4.0 * 16384 * 1024 * 128
    needs = OperatorNeeds("flash", 16384.0, 1024.0, 128.0, 1.0, 0.0, flops, 2.5)
    seconds = flops / (0.45 * peak)
    return [*found, OperatorTime(f"8 x 2048 tokens of {ATTENTION_CURVE}", "bfloat16", needs, seconds, 2.5 * seconds)]


@pytest.mark.parametrize("device", ACCELERATORS)
def test_an_accelerator_without_one(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything but the timing: which processes are started, the fit, the file, and a plan on its cluster.

    The datasheet's numbers stay; 8 ranks take part in collectives, and no more than there are devices.
    """
    name, instance, more, devices = ACCELERATORS[device]
    answers, started = accelerated(device), []

    def run(what: str, arguments: CalibrationArguments, processes: int, **others: Any) -> list[dict[str, Any]]:
        started.append((what, arguments.device, processes))
        return [answers[what]] * processes

    monkeypatch.setattr("autoshard.calibration.measure._run", run)
    monkeypatch.setattr("autoshard.calibration.measure.find_spec", lambda name: True)
    out = tmp_path / "my.json"
    assert main(["calibrate", "--device", device, *more, "-o", str(out)]) == 0
    assert started == [("present", device, 1), ("one_device", device, 1), ("collectives", device, 8)]
    cluster, sheet = load_cluster(None, 2, hardware_file=out), load_cluster(instance, 2)
    assert (cluster.instance, cluster.device.flops_per_s) == (instance, sheet.device.flops_per_s)
    assert cluster.device.memory_bytes == sheet.device.memory_bytes
    assert cluster.device.matmul_efficiency == pytest.approx(0.8, rel=0.1)
    assert cluster.device.memory_efficiency == pytest.approx(0.7, rel=0.1)
    assert cluster.collective_launch_s == pytest.approx(3e-5, rel=0.1)
    assert cluster.intra_node_link(devices).bandwidth_bytes_per_s == pytest.approx(1e11, rel=0.1)
    between = (cluster.inter_node, cluster.intra_domain)
    assert between == (sheet.inter_node, sheet.intra_domain), "between nodes nothing was measured"
    calibration = json.loads(out.read_text(encoding="utf-8"))["calibration"]
    assert name in calibration["about"]
    page = capsys.readouterr().out
    if device == "cuda":
        _check_curves(calibration["measured"], page, sheet.device.peak_flops_per_s("bfloat16"))
        assert cluster.device.attention_efficiency == pytest.approx(0.45, rel=0.05)
    else:
        assert cluster.device.attention_efficiency is None and calibration["measured"]["products_flops_per_s"] == {}
    assert "\n  note: the device slowed down: a test says so\n" in page
    too_many = ["calibrate", "--device", device, "--processes", str(devices + 1), "-o", str(out)]
    assert main(too_many) == 2


@pytest.mark.parametrize("gpus", [1, 2, 4, 16])
def test_a_machine_of_other_gpus_than_a_usual_node(gpus: int, tmp_path: Path) -> None:
    answers, ranks = accelerated("cuda"), min(gpus, 8)
    times = [one | {"ranks": ranks} for one in answers["collectives"]["collectives"]] if ranks > 1 else []
    found = answers["one_device"] | {"device": "cuda", "devices": gpus, "collectives": times}
    rates, dtype = found.pop("rates"), found.pop("dtype")
    content, _, _ = hardware_file(from_json(Measurements, found, "measurements"), rates, dtype, "h200-141gb")
    assert content["chips_per_node"]["value"] == gpus
    assert "GPUs that torch saw" in content["chips_per_node"]["source"]
    (out := tmp_path / "my.json").write_text(json.dumps(content), encoding="utf-8")
    cluster = load_cluster(None, 1, hardware_file=out)
    assert (cluster.world_size, cluster.adapters_per_node) == (gpus, ranks)
    assert cluster.intra_node[-1][0] == gpus


def _check_curves(measured: dict[str, Any], page: str, peak: float) -> None:
    products, reached = measured["products_flops_per_s"], 0.8 * 4096 / 4296 * peak
    assert products["4096 x 4096 by 4096 x 4096 bfloat16"] == pytest.approx(reached, rel=1e-3)
    assert products[f"4096 x 4096 by 4096 x 4096 {FP8}"] == pytest.approx(2 * reached, rel=1e-3)
    assert measured["attention_share_of_peak"] == {"forward, 8 x 2048 tokens": 0.45, "backward, 8 x 2048 tokens": 0.45}
    assert measured["copies_bytes_per_s"]["copy 1 MiB"] == 2e15, "in a cache: shown, and not fitted to"
    assert measured["launch_s"] == 4e-6
    assert "  attention  forward, 8 x 2048 tokens " in page and " 45 % of the peak" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "--device: tpu must be one of: cpu, cuda, neuron"),
        (["-o", "nowhere/my.json"], "out=nowhere/my.json: nowhere does not exist"),
        (["-o", "."], "out=. is a folder: name a file"),
        (["--plot", "nowhere/fit.png"], "plot=nowhere/fit.png: nowhere does not exist"),
        (["--plot", "fit.txt"], "plot=fit.txt must end in one of: .png, .svg, .pdf"),
        (["--plot", "fit"], "plot=fit must end in one of: .png, .svg, .pdf"),
    ],
)
def test_mistakes_before_anything_is_measured(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *arguments]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {message}\n"


@pytest.mark.parametrize(
    ("device", "instance", "message"),
    [
        ("cpu", "h100-80gb", "instance=h100-80gb has GPUs, which device=cpu does not measure; device=cuda does"),
        ("cuda", "trn1n.32xlarge", "instance=trn1n.32xlarge has NeuronCores, which device=cuda does not measure; dev"),
        ("neuron", "cpu", "instance=cpu has cores, which device=neuron does not measure; device=cpu does"),
        ("cuda", "h1000", "instance='h1000' is not known; did you mean "),
    ],
)
def test_an_instance_of_another_device_is_refused_before_anything_is_measured(
    device: str,
    instance: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("autoshard.calibration.measure._run", None)
    out = tmp_path / "my.json"
    assert main(["calibrate", "--device", device, "--instance", instance, "-o", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"autoshard: error: {message}") and not out.exists()


def test_an_instance_by_its_other_name() -> None:
    found = accelerated("cuda")["one_device"] | {"device": "cuda", "devices": 8, "collectives": []}
    rates, dtype = found.pop("rates"), found.pop("dtype")
    content, _, _ = hardware_file(from_json(Measurements, found, "measurements"), rates, dtype, "p5.48xlarge")
    assert content["instance"] == "h100-80gb"


def test_ctrl_c_while_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Says what was stopped, ends as Ctrl-C does, and leaves no file; any other end is an error in one line. A job
    manager's SIGTERM is not told as a mistake of the user's."""
    monkeypatch.setattr("autoshard.calibration.measure.find_spec", lambda name: True)
    out = tmp_path / "my.json"
    terminated = RunOutcome(143, "interrupted by SIGTERM; all 2 ranks were stopped", (None,), ())
    monkeypatch.setattr("autoshard.calibration.measure.run_processes", lambda *args, **more: terminated)
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "-o", str(out)])
    assert ended.value.code == 143
    assert capsys.readouterr().err == "interrupted by SIGTERM; all 2 ranks were stopped\n"
    for code, expected, text in (
        (130, 130, "interrupted by Ctrl-C\n"),
        (1, 2, "autoshard: error: the measurement ended: interrupted by Ctrl-C\n"),
    ):
        outcome = RunOutcome(code, "interrupted by Ctrl-C\nlogs: none", (None,), ())
        monkeypatch.setattr("autoshard.calibration.measure.run_processes", lambda *args, one=outcome, **more: one)
        assert main(["calibrate", "-o", str(out)]) == expected
        assert capsys.readouterr().err == text
    assert not out.exists()


def test_a_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoshard.calibration.measure._run", None)  # before anything is measured
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(AutoshardError, match=r"needs matplotlib: pip install 'autoshard\[plot\]'$"):
        autoshard.calibrate(plot=tmp_path / "fit.png")
