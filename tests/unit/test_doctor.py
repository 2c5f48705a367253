"""What the doctor finds on machines that a test makes up, and what stops a plan there."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from autoshard.cli import main
from autoshard.commands.doctor import page
from autoshard.doctor.findings import Finding, checkpoint_bytes, findings
from autoshard.doctor.machine import Machine, look
from autoshard.plans.plan_json import write_plan
from autoshard.units import GB
from tests.unit.plan_examples import plan_70b, plan_one_device
from tests.unit.test_nxd_configuration import changed

TRN1 = Machine(
    instance="trn1.32xlarge",
    driver="2.24.7.0",
    chips=16,
    cores=32,
    lnc=None,
    adapters=8,
    gpus=0,
    cpus=128,
    memory_bytes=512_000_000_000,
    packages={
        "torch": "2.9.0",
        "neuronx-distributed": "0.18.27753",
        "torch-neuronx": "2.9.0.2.11",
        "boto3": "1.43.0",
        "tenacity": "9.1.2",
    },
    folder="/fsx",
    file_system="lustre",
    free_disk_bytes=10_000_000_000_000,
    open_files=65_535,
)
"""A node that has all that the 70B plan needs."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def not_installed(name: str) -> str:
    raise PackageNotFoundError(name)


def put(root: Path, name: str, text: str = "") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    found = look(tmp_path / "nowhere", {}, not_installed)
    assert (found.instance, found.driver, found.chips, found.cores, found.adapters, found.gpus) == (
        None,
        None,
        0,
        0,
        0,
        0,
    )
    assert (found.packages, found.file_system, found.memory_bytes, found.lnc) == ({}, None, 0, None)
    assert found.free_disk_bytes > 0
    assert {one.level for one in findings(found, None)} == {"ok"}


def test_a_trn1_node_by_its_files(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, "sys/devices/virtual/dmi/id/product_name", "trn1.32xlarge\n")
    put(root, "sys/module/neuron/version", "2.24.7.0\n")
    put(root, "proc/meminfo", "MemTotal:       527892480 kB\nMemFree: 1 kB\n")
    put(root, "proc/mounts", f"/dev/a / ext4 rw\nx@tcp:/y {tmp_path} lustre rw 0 0\nbroken\n")
    for chip in range(16):
        put(root, f"dev/neuron{chip}")
        put(root, f"sys/devices/virtual/neuron_device/neuron{chip}/core_count", "2\n")
    put(root, "dev/neuron_other")
    (root / "sys/bus/drivers/efa").mkdir(parents=True)
    (root / "sys/bus/drivers/mlx5_core").mkdir()
    for name, driver in (*((f"rdmap{i}", "efa") for i in range(8)), ("mlx5_0", "mlx5_core")):
        (root / f"sys/class/infiniband/{name}/device").mkdir(parents=True)
        (root / f"sys/class/infiniband/{name}/device/driver").symlink_to(root / f"sys/bus/drivers/{driver}")
    found = look(root, {"NEURON_LOGICAL_NC_CONFIG": "1"}, {"torch": "2.9.0"}.__getitem__)
    assert (found.instance, found.driver, found.chips, found.cores) == ("trn1.32xlarge", "2.24.7.0", 16, 32)
    assert (found.adapters, found.lnc, found.packages) == (8, "1", {"torch": "2.9.0"})
    assert (found.file_system, found.memory_bytes) == ("lustre", 527_892_480 * 1024)
    assert found.has_shared_folder


def test_files_that_say_nonsense(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sys/module/neuron").mkdir(parents=True)
    put(root, "dev", "a file")
    put(root, "sys/devices/virtual/neuron_device/neuron0/core_count", "many")
    (root / "proc/mounts").mkdir(parents=True)
    found = look(root, {}, not_installed)
    assert (found.driver, found.chips, found.cores, found.file_system) == ("unknown version", 0, 0, None)


def wrong(machine: Machine, plan: object = None) -> dict[str, tuple[str, str]]:
    found = findings(machine, plan_70b() if plan is None else plan)  # type: ignore[arg-type]
    return {one.what: (one.level, one.advice) for one in found if one.level != "ok"}


def test_nothing_stops_a_plan_on_its_own_node() -> None:
    assert wrong(TRN1) == {}


def test_what_stops_the_70b_plan() -> None:
    bare = replace(TRN1, driver=None, chips=0, cores=0, adapters=0, packages={}, instance=None)
    assert wrong(bare) == {
        "instance": ("warning", "the plan is for 16 x trn1.32xlarge; here autoshard run rehearses it"),
        "Neuron driver": ("stops", "install aws-neuronx-dkms: without the driver there are no NeuronCores"),
        "Neuron devices": ("stops", "the plan uses 16 of each node"),
        "EFA adapters": ("stops", "16 nodes talk over EFA: attach 8 a node"),
        "torch": ("stops", "pip install 'autoshard[torch]'"),
        "NxD": (
            "stops",
            "install neuronx-distributed from the Neuron SDK's package index, or plan with --backend torch",
        ),
    }


def test_what_hinders_it() -> None:
    weak = replace(TRN1, adapters=4, file_system="ext4", free_disk_bytes=int(30 * GB), open_files=1024)
    assert wrong(weak) == {
        "EFA adapters": ("warning", "the plan counts on 8 a node; collectives will be slower"),
        "free disk": ("warning", "a checkpoint of 988 GB and the compiler's cache need 1.01 TB"),
        "shared folder": (
            "warning",
            "all 16 nodes must see plan, data and checkpoints: use FSx for Lustre, EFS or NFS",
        ),
        "open files": ("warning", "raise ulimit -n to 65,535"),
    }
    assert checkpoint_bytes(plan_70b()) == 70_553_706_496 * 14


def test_versions() -> None:
    def having(**packages: str) -> Machine:
        named = {name.replace("_", "-"): version for name, version in packages.items()}
        return replace(TRN1, packages={**TRN1.packages, **named})

    assert wrong(having(torch="2.13.0")) == {"torch": ("stops", "NxD 0.18 needs torch 2.9")}
    assert wrong(having(torch="2.9.1+cpu", neuronx_distributed="0.17.0")) == {
        "NxD": ("warning", "the rules of the plan are those of 0.18")
    }
    assert wrong(having(transformers="4.51.3")) == {}
    assert wrong(having(transformers="5.23.0")) == {
        "transformers": (
            "stops",
            "NxD imports transformers.utils.fx, which 5 has not: pip install 'transformers<5'",
        )
    }


def test_what_nxd_imports_and_does_not_install() -> None:
    bare = {name: version for name, version in TRN1.packages.items() if name not in ("boto3", "tenacity")}
    assert wrong(replace(TRN1, packages=bare)) == {
        "boto3": ("stops", "NxD imports it but does not install it: pip install boto3"),
        "tenacity": ("stops", "NxD imports it but does not install it: pip install tenacity"),
    }


def test_lnc_of_trn2() -> None:
    plan = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    node = replace(TRN1, instance="trn2.48xlarge", adapters=16)
    advice = "NEURON_LOGICAL_NC_CONFIG=2 is what the plan needs; autoshard launch sets it"
    assert wrong(node, plan) == {"LNC": ("warning", advice)}
    assert wrong(replace(node, lnc="2"), plan) == {}


def test_a_plan_for_cpu_needs_torch_alone() -> None:
    bare = look(Path("/nowhere"), {}, {"torch": "2.13.0"}.__getitem__)
    assert wrong(replace(bare, free_disk_bytes=10**15), plan_one_device()) == {}


def test_the_page() -> None:
    assert page([Finding("driver", "none", "stops", "install it"), Finding("LNC", "2")]) == [
        "stops    driver  none",
        "                 install it",
        "         LNC     2",
    ]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "Neuron driver" in capsys.readouterr().out
    write_plan(plan_70b(), "plan.json")
    assert main(["doctor", "plan.json"]) == 1
    assert capsys.readouterr().out.endswith(" stop llama3-70b on 16 x trn1.32xlarge on this machine\n")
    assert main(["doctor", "plan.json", "--format", "json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert {"what": "instance", "level": "warning"}.items() <= values[0].items()
