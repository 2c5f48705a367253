"""What the doctor finds on machines that a test makes up, and what stops a plan there."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from autoshard.backends.products import unrunnable
from autoshard.backends.registry import BACKENDS, check_devices
from autoshard.cli import main
from autoshard.doctor.finding import Finding
from autoshard.doctor.findings import checkpoint_bytes, findings
from autoshard.doctor.here import check_here
from autoshard.doctor.machine import Machine, look, visible_gpus
from autoshard.doctor.native import numbers
from autoshard.errors import AutoshardError
from autoshard.explanation.describe import describe
from autoshard.explanation.summary import summary
from autoshard.interface.checking import MachineCheck
from autoshard.planner.planning import plan_for
from autoshard.planner.request import PlanRequest
from autoshard.plans.plan import Plan
from autoshard.plans.plan_json import write_plan
from autoshard.spec.cluster import load_cluster
from autoshard.spec.lora import Lora
from autoshard.spec.training import load_precision
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


@pytest.mark.parametrize(
    ("named", "count"), [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("0,3", 2), ("0, -1, 2", 1), ("0,1,2,3,4,5", 4)]
)
def test_gpus_are_counted_without_torch(tmp_path: Path, named: str | None, count: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        put(tmp_path, f"dev/{name}")
    assert look(tmp_path, {}, not_installed).gpus == 4
    assert visible_gpus(tmp_path, {} if named is None else {"CUDA_VISIBLE_DEVICES": named}) == count


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
        "free disk": ("warning", "a checkpoint of 847 GB and the compiler's cache need 867 GB"),
        "shared folder": (
            "warning",
            "all 16 nodes must see plan, data and checkpoints: use FSx for Lustre, EFS or NFS",
        ),
        "open files": ("warning", "raise ulimit -n to 65,535"),
    }


def test_bytes_of_a_checkpoint() -> None:
    plan = plan_70b()  # FP32 masters and moments
    assert checkpoint_bytes(plan) == 70_553_706_496 * (4 + 2 * 4)
    for name, each in (("bf16_sr", 2 + 2 * 2), ("fp32", 4 + 2 * 4)):
        other = replace(plan, training=replace(plan.training, precision=load_precision(name)))
        assert checkpoint_bytes(other) == 70_553_706_496 * each
    matrices = 70_553_706_496 - 2 * 128_256 * 8192 - 161 * 8192  # but for tables and norms
    by_muon = replace(plan, training=replace(plan.training, optimizer="muon"))
    assert checkpoint_bytes(by_muon) == 70_553_706_496 * (4 + 2 * 4) - 4 * matrices
    adapted = replace(plan, model=replace(plan.model, lora=Lora(16, 16.0, ("q_proj",))))  # alone
    assert checkpoint_bytes(adapted) == 80 * 16 * (8192 + 8192) * (4 + 2 * 4)


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


def test_variables_that_are_not_those_of_the_job() -> None:
    """`run` starts with them all the same: rounding, or the network, are then not what the plan says."""
    plan, rounding = plan_70b(), "NEURON_RT_STOCHASTIC_ROUNDING_EN"
    assert wrong(replace(TRN1, variables={rounding: "0", "FI_PROVIDER": "efa", "XLA_USE_BF16": "0"}), plan) == {}
    assert wrong(replace(TRN1, variables={rounding: "1", "FI_PROVIDER": "tcp"}), plan) == {
        rounding: ("warning", "autoshard launch sets 0: precision mixed_precision: rounding to bf16 is random iff 1"),
        "FI_PROVIDER": ("warning", "autoshard launch sets efa: libfabric must take the 8 EFA adapters, not TCP"),
    }
    other = replace(plan, training=replace(plan.training, precision=load_precision("bf16_sr")))
    assert wrong(replace(TRN1, variables={rounding: "1"}), other) == {}
    assert look(Path("nowhere"), {rounding: "1", "FI_PROVIDER": "", "PATH": "/bin"}).variables == {rounding: "1"}


def test_lnc_of_trn2() -> None:
    plan = changed(plan_70b(), "trn2.48xlarge", 8, 2, tp=16, pp=8, dp=4)
    node = replace(TRN1, instance="trn2.48xlarge", adapters=16)
    advice = "NEURON_LOGICAL_NC_CONFIG=2 is what the plan needs; autoshard launch sets it"
    assert wrong(node, plan) == {"LNC": ("warning", advice)}
    assert wrong(replace(node, lnc="2"), plan) == {}


def native_plan(**pins: object) -> Plan:
    asked = {"tp": 4, "cp": 1, **pins}
    return plan_for(PlanRequest("llama3-8b", "trn2.48xlarge", backend="torch", top=0, pins=asked))


TRN2 = replace(
    TRN1,
    instance="trn2.48xlarge",
    driver="2.31.7.0",
    adapters=16,
    lnc="2",
    packages={"torch": "2.14.0", "torch-neuronx": "2.14.3.0.55"},
    python="3.12.4",
    system={"runtime library": "2.35.30.0", "collectives": "2.35.43.0"},
)
"""A node that has all that a plan for native PyTorch needs."""
INSTALL = "pip install torch==2.14.* torch-neuronx==2.14.3.* from Neuron's package index"


def test_nothing_stops_a_native_plan_on_its_own_node() -> None:
    assert wrong(TRN2, native_plan(pp=2)) == {}


def test_two_packages_of_one_name() -> None:
    plan = native_plan(pp=2)

    def said(machine: Machine = TRN2, plan: Plan = plan, **packages: str | None) -> dict[str, tuple[str, str]]:
        named = {name.replace("_", "-"): version for name, version in packages.items()}
        every = {**machine.packages, **named}
        return wrong(replace(machine, packages={name: one for name, one in every.items() if one is not None}), plan)

    assert said(torch_neuronx=None) == {"torch-neuronx": ("stops", INSTALL)}
    assert said(torch_neuronx="2.9.0.2.13") == {
        "torch-neuronx": ("stops", f"2.9.0.2.13 is the XLA package of the same name; in a new environment: {INSTALL}")
    }
    assert said(torch_xla="2.9.0", neuronx_distributed="0.18.1") == {
        "torch-neuronx": (
            "stops",
            f"torch-xla and neuronx-distributed of the XLA stack share its environment; in a new one: {INSTALL}",
        )
    }
    assert said(torch="2.13.0") == {"torch-neuronx": ("stops", "2.14.3.0.55 needs torch 2.14, and torch is 2.13.0")}
    assert said(torch="2.11.0", torch_neuronx="2.11.3.1") == {
        "torch-neuronx": ("stops", "2.11.3.1 cannot send from rank to rank, which pp=2 needs; 2.13.3 can")
    }
    old = plan_for(
        PlanRequest("llama3-8b", "trn2.48xlarge", backend="torch", sdk="2.32", top=0, pins={"tp": 4, "pp": 2})
    )
    assert said(plan=old, torch="2.11.0", torch_neuronx="2.11.3.1") == {}, "planned with its fallback"
    assert said(TRN1, plan_70b(), torch_neuronx="2.14.3.0.55") == {
        "torch-neuronx": (
            "stops",
            (
                "2.14.3.0.55 is native PyTorch's; backend nxd needs the XLA package of the same name, 2.9, in another "
                "environment"
            ),
        )
    }
    found = {one.what: one.found for one in findings(TRN2, None)}
    assert found["torch-neuronx"] == "2.14.3.0.55 (native PyTorch)"
    assert {one.what: one.found for one in findings(TRN1, None)}["torch-neuronx"] == "2.9.0.2.11 (XLA)"


def test_what_else_stops_or_hinders_a_native_plan() -> None:
    plan = native_plan()
    pairs = "SDK 2.33 pairs driver 2.31.7, runtime library 2.35.30, collectives 2.35.43"
    assert wrong(replace(TRN2, driver="2.28.0.0"), plan) == {"Neuron driver's release": ("warning", pairs)}
    assert wrong(replace(TRN2, system={"runtime library": "2.31.1"}), plan) == {
        "Neuron runtime library": ("warning", pairs)
    }
    assert wrong(replace(TRN2, python="3.10.12"), plan) == {
        "Python": ("stops", "torch-neuronx for native PyTorch is there for 3.12 to 3.14")
    }
    assert wrong(replace(TRN2, held=(("neuron0", 71), ("neuron3", 72))), plan) == {
        "devices in use": ("stops", "a core belongs to one process until that exits: end it or wait")
    }
    assert wrong(replace(TRN2, instance="trn1.32xlarge"), plan) == {
        "instance": ("stops", "native PyTorch on Neuron runs on trn2 and trn3 alone")
    }


def test_a_machine_says_who_holds_its_devices_and_which_runtime_it_has(tmp_path: Path) -> None:
    put(tmp_path, "dev/neuron0")
    for process, target in (("71", "/dev/neuron2"), ("8", "/dev/neuron2"), ("9", "/dev/neuron0"), ("10", "/dev/null")):
        (tmp_path / f"proc/{process}/fd").mkdir(parents=True)
        (tmp_path / f"proc/{process}/fd/3").symlink_to(target)
    put(
        tmp_path,
        "var/lib/dpkg/status",
        "Package: other\nVersion: 1.0\n\nPackage: aws-neuronx-runtime-lib\nStatus: install ok installed\n"
        "Version: 2.35.30.0-1a2b\n\nPackage: aws-neuronx-collectives\nStatus: x\n\nPackage: z\nVersion: 9\n",
    )
    found = look(tmp_path, {}, not_installed)
    assert found.held == (("neuron0", 9), ("neuron2", 8))
    assert found.system == {"runtime library": "2.35.30.0"}


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("2.13.3.0.1", (2, 13, 3, 0, 1)), ("2.14.0+cpu", (2, 14, 0)), ("2.9.0a1", (2, 9)), ("none", ()), ("", ())],
)
def test_numbers_of_versions(version: str, wanted: tuple[int, ...]) -> None:
    assert numbers(version) == wanted


def test_a_plan_for_cpu_needs_torch_alone() -> None:
    bare = look(Path("/nowhere"), {}, {"torch": "2.13.0"}.__getitem__)
    assert wrong(replace(bare, free_disk_bytes=10**15), plan_one_device()) == {}


def gpu_plan(**asked: Any) -> Plan:
    return plan_for(PlanRequest("llama3-8b", "h100-80gb", 2, top=0, pins={"tp": 8, "pp": 1, "cp": 1}, **asked))


def test_what_stops_a_plan_for_gpus() -> None:
    node = replace(TRN1, instance="p5.48xlarge", driver=None, chips=0, gpus=8, packages={"torch": "2.13.0"})
    assert wrong(node, gpu_plan()) == {}
    little = replace(node, gpus=4, packages={"torch": "2.13.0+cpu"}, free_disk_bytes=int(90 * GB))
    assert wrong(little, gpu_plan()) == {
        "GPUs": ("stops", "the plan uses 8 of each node"),
        "torch": ("stops", "it was built without CUDA: install the build for your driver's CUDA"),
        "free disk": ("warning", "a checkpoint of 96.4 GB needs it"),
    }


def test_a_precision_that_nothing_runs_stops_a_plan() -> None:
    plan = gpu_plan(precision="fp8")
    told = unrunnable(BACKENDS["torch"], plan.training.precision)
    node = replace(TRN1, gpus=8, packages={"torch": "2.13.0"})
    assert told is not None and wrong(node, plan) == {"precision": ("stops", told)}


def test_the_page() -> None:
    found = MachineCheck((Finding("driver", "none", "stops", "install it"), Finding("LNC", "2")))
    assert found.page().splitlines() == [
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


def put_instance(root: Path, name: str) -> Path:
    put(root, "sys/devices/virtual/dmi/id/product_name", f"{name}\n")
    return root


def test_a_plan_of_native_pytorch_for_trn1_is_read_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objection = (
        "native PyTorch on Neuron runs on trn2 and trn3, not on trn1.32xlarge: this plan can be compared and "
        "rehearsed, no more; plan for one of them, or with --backend nxd where it has the model"
    )
    pins = {"tp": 8, "pp": 1, "microbatch_size": 1}
    plan = plan_for(PlanRequest("llama3-8b", "trn1.32xlarge", 2, backend="torch", top=0, pins=pins))
    assert plan.notes.count(objection) == 1
    page = " ".join(summary(describe(plan), 80, color=False).split())
    assert "; native PyTorch on Neuron runs on trn2 and trn3, not on trn1.32xlarge (" in page
    given = " ".join(summary(describe(replace(plan, search=None, runners_up=())), 80, color=False).split())
    assert given.endswith(", not searched; native PyTorch on Neuron runs on trn2 and trn3, not on trn1.32xlarge")
    assert wrong(TRN1, plan)["instance"] == ("stops", objection)
    with pytest.raises(AutoshardError) as error:
        check_here(plan, put_instance(tmp_path, "trn1.32xlarge"))
    assert str(error.value) == objection
    write_plan(plan, "torch_trn1.json")
    assert main(["launch", "torch_trn1.json", "--slurm"]) == 2
    assert capsys.readouterr().err == f"autoshard: error: {objection}\n"
    assert main(["launch", "torch_trn1.json", "--slurm", "--program", "train.py"]) == 0
    check_devices(load_cluster("cpu", 1), "torch")
    check_devices(plan.cluster, "nxd")


def test_a_run_does_not_start_on_another_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = native_plan()
    with pytest.raises(AutoshardError) as error:
        check_here(plan, put_instance(tmp_path, "trn1.32xlarge"))
    assert str(error.value) == (
        "the plan is for trn2.48xlarge (trn2), this machine is trn1.32xlarge (trn1): plan for it with --instance "
        "trn1.32xlarge"
    )
    monkeypatch.setattr("autoshard.doctor.here.installed_packages", lambda: dict(TRN2.packages))
    check_here(plan, put_instance(tmp_path, "trn2u.48xlarge"))
    check_here(plan, put_instance(tmp_path, "a machine of one's own"))
    check_here(plan_70b(), put_instance(tmp_path, "trn1n.32xlarge"))


@pytest.mark.parametrize(
    ("packages", "text"),
    [
        ({}, f"torch-neuronx: {INSTALL}"),
        (
            {"torch": "2.9.0", "torch-neuronx": "2.9.0.2.13"},
            f"torch-neuronx: 2.9.0.2.13 is the XLA package of the same name; in a new environment: {INSTALL}",
        ),
        (
            {"torch": "2.11.0", "torch-neuronx": "2.11.3.1"},
            "torch-neuronx: 2.11.3.1 cannot send from rank to rank, which pp=2 needs; 2.13.3 can",
        ),
    ],
)
def test_a_run_does_not_start_with_other_packages(
    packages: dict[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoshard.doctor.here.installed_packages", lambda: packages)
    with pytest.raises(AutoshardError) as error:
        check_here(native_plan(pp=2), tmp_path)
    assert str(error.value) == text
