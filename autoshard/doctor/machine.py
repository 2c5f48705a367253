"""Read facts about the machine that a plan would run on; each fact is None or 0 if there is no such thing."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

PACKAGES = (
    *("torch", "torch-neuronx", "torch-xla", "neuronx-distributed", "neuronx-cc", "numpy", "safetensors"),
    *("boto3", "tenacity", "transformers"),
)
SYSTEM = {"runtime library": "aws-neuronx-runtime-lib", "collectives": "aws-neuronx-collectives"}
"""Debian packages of the Neuron runtime."""
NATIVE_MODULE = ("neuron_dynamo_backend", "neuron_dynamo_backend.py")
"""Only native PyTorch's torch-neuronx has it; the XLA package has the same name."""
SHARED_TYPES = (
    "nfs",
    "nfs4",
    "lustre",
    "efs",
    "beegfs",
    "gpfs",
    "ceph",
    "glusterfs",
    "fuse.weka",
    "wekafs",
    "fuse.s3fs",
)
"""File systems that several nodes can mount."""
VARIABLES = (
    *("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "XLA_USE_BF16", "XLA_DOWNCAST_BF16"),
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
)
"""Those of a job's variables that decide what is computed or which network is used, and are not told elsewhere."""


def num_cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Machine:
    """Facts about a machine. instance: EC2's name of it, from its firmware.

    driver: version of the Neuron kernel module. chips: Neuron devices. cores: physical NeuronCores, 0 where the driver
    does not say. lnc: what NEURON_LOGICAL_NC_CONFIG asks for. adapters: EFA. gpus: with NVIDIA's driver.
    packages: version by name, of those that are installed. folder: the present one; file_system: its type.
    python: version. system: versions of the Neuron runtime's parts, by 'runtime library' and 'collectives', of those
    that are installed. held: (Neuron device, process that has it open). has_native_compiler: whether torch-neuronx has
    the module that only native PyTorch's has. variables: of the environment, those that a plan may want otherwise.
    """

    instance: str | None
    driver: str | None
    chips: int
    cores: int
    lnc: str | None
    adapters: int
    gpus: int
    cpus: int
    memory_bytes: int
    packages: Mapping[str, str]
    folder: str
    file_system: str | None
    free_disk_bytes: int
    open_files: int
    python: str = ""
    system: Mapping[str, str] = field(default_factory=dict)
    held: tuple[tuple[str, int], ...] = ()
    has_native_compiler: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_shared_folder(self) -> bool:
        return self.file_system in SHARED_TYPES


def look(
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    version: Callable[[str], str] = metadata.version,
) -> Machine:
    """The facts about this machine. A test gives another root for /, other variables and other package versions."""
    found = os.environ if environment is None else environment
    folder = str(Path.cwd())
    return Machine(
        instance=instance_name(root),
        driver=_driver(root),
        chips=len(_names(root / "dev", r"neuron\d+")),
        cores=_cores(root),
        lnc=found.get("NEURON_LOGICAL_NC_CONFIG"),
        adapters=_adapters(root),
        gpus=num_gpus(root),
        cpus=os.cpu_count() or 1,
        memory_bytes=_memory_bytes(root),
        packages=installed_packages(version),
        folder=folder,
        file_system=_file_system(root, folder),
        free_disk_bytes=_free_bytes(folder),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        python=platform.python_version(),
        system=_system(root),
        held=_held(root),
        has_native_compiler=has_native_compiler(),
        variables={name: found[name] for name in VARIABLES if found.get(name)},
    )


def num_gpus(root: Path = Path("/")) -> int:
    """How many GPUs NVIDIA's driver gives this machine or container. root: stands for /."""
    return len(_names(root / "dev", r"nvidia\d+"))


def visible_gpus(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> int:
    """How many of this machine's GPUs CUDA_VISIBLE_DEVICES leaves to processes, without asking torch. root: stands for
    /. environment: variables; None takes this process's."""
    named = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return num_gpus(root)
    # CUDA stops at the first that is not there; -1 is a usual way to hide all
    left = list(takewhile(lambda one: one.strip() not in ("", "-1"), named.split(",")))
    return min(len(left), num_gpus(root))


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _names(folder: Path, pattern: str) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if re.fullmatch(pattern, entry.name))
    except OSError:
        return []


def _driver(root: Path) -> str | None:
    module = root / "sys/module/neuron"
    return (_text(module / "version") or "unknown version") if module.is_dir() else None


def _cores(root: Path) -> int:
    devices = root / "sys/devices/virtual/neuron_device"
    counts = [_text(devices / name / "core_count") or "" for name in _names(devices, r"neuron\d+")]
    return sum(int(count) for count in counts if count.isascii() and count.isdigit() and len(count) < 6)


def _adapters(root: Path) -> int:
    """Number of RDMA devices whose kernel driver is efa."""
    folder = root / "sys/class/infiniband"
    links = [folder / name / "device" / "driver" for name in _names(folder, r".+")]
    return sum(os.path.basename(os.path.realpath(link)) == "efa" for link in links)  # noqa: PTH119


def _memory_bytes(root: Path) -> int:
    total = re.search(r"MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo") or "")
    return int(total[1]) * 1024 if total else 0


def instance_name(root: Path = Path("/")) -> str | None:
    """EC2's name of this machine, from its firmware; None where it has none. root: stands for /."""
    return _text(root / "sys/devices/virtual/dmi/id/product_name")


def installed_packages(version: Callable[[str], str] = metadata.version) -> dict[str, str]:
    """Versions of PACKAGES by name, of those that are installed. version: a package's, which raises without it."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except Exception:  # noqa: PERF203, S112 - a broken installation is one that is not there
            continue
    return found


def _file_system(root: Path, folder: str) -> str | None:
    """Type of the file system that holds the folder: that of the innermost mount; None if unknown. root:
    stands for /.
    """
    best, kind = "", None
    for line in (_text(root / "proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        at = fields[1].replace("\\040", " ")
        holds = folder == at or folder.startswith(at.rstrip("/") + "/")
        if holds and len(at) >= len(best):
            best, kind = at, fields[2]
    return kind


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _system(root: Path) -> dict[str, str]:
    """Versions of installed Debian packages of SYSTEM, without a Debian revision."""
    status = _text(root / "var/lib/dpkg/status") or ""
    found = {}
    for name, package in SYSTEM.items():
        entry = re.search(rf"^Package: {package}\n(?:.+\n)*?Version: ([^\n]+)", status, re.MULTILINE)
        if entry:
            found[name] = entry[1].partition("-")[0][:40]
    return found


def _held(root: Path) -> tuple[tuple[str, int], ...]:
    """(Neuron device, the first process that has it open), as far as this user may see."""
    found: dict[str, int] = {}
    for process in sorted(_names(root / "proc", r"\d{1,8}"), key=int):
        try:
            files = list((root / "proc" / process / "fd").iterdir())
        except OSError:
            continue
        for file in files:
            try:
                device = os.path.basename(os.readlink(file))  # noqa: PTH115, PTH119
            except OSError:
                continue
            if re.fullmatch(r"neuron\d+", device):
                found.setdefault(device, int(process))
    return tuple(sorted(found.items(), key=lambda one: int(one[0].removeprefix("neuron"))))


def has_native_compiler() -> bool:
    """Whether native PyTorch's torch-neuronx is installed, without importing it."""
    try:
        spec = find_spec("torch_neuronx")
    except (ImportError, ValueError):
        return False
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any((Path(folder) / name).exists() for folder in folders for name in NATIVE_MODULE)
