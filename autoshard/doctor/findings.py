"""Report what a machine has, a line each, and what of it stops or hinders a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoshard.backends.native_neuron import device_objection
from autoshard.backends.products import unrunnable
from autoshard.backends.registry import BACKENDS
from autoshard.doctor.finding import OK, STOPS, WARNING, Finding
from autoshard.doctor.machine import Machine
from autoshard.doctor.native import around_it, package
from autoshard.jobs.options import LaunchOptions
from autoshard.jobs.variables import variables
from autoshard.models.stage import learned_count, orthogonal_count, parameter_count
from autoshard.plans.plan import Plan
from autoshard.spec.stack import NATIVE_DEVICES
from autoshard.spec.training import MUON
from autoshard.units import GB, format_bytes

NXD_TORCH, NXD_VERSION = "2.9", "0.18"
"""The last release of NxD for training, and its torch [Neuron SDK 2.28]."""
WITHOUT_CUDA = "+cpu"
"""How versions of torch end that were built without it."""
NXD_TRANSFORMERS = 4
"""The last major version of transformers that NxD imports with; it does without any."""
OPEN_FILES = 65_535
"""[NxDT examples/train_setup.sh]"""
COMPILE_CACHE_BYTES = 20 * GB
"""Guess."""


def findings(machine: Machine, plan: Plan | None) -> tuple[Finding, ...]:
    """The lines of the report. Without a plan they are facts alone, since nothing can be wrong."""
    return (
        _instance(machine, plan),
        *_precision(plan),
        *_neuron(machine, plan),
        _gpus(machine, plan),
        _network(machine, plan),
        *_variables(machine, plan),
        *_software(machine, plan),
        *_host(machine, plan),
    )


def _for_trainium(plan: Plan | None) -> bool:
    return plan is not None and plan.cluster.platform.is_trainium


def _instance(machine: Machine, plan: Plan | None) -> Finding:
    found = machine.instance or "unknown"
    objection = device_objection(plan.cluster) if plan is not None and BACKENDS[plan.backend].runs_stacks else None
    if objection is not None:
        return Finding("instance", found, STOPS, objection)
    if plan is None or not _for_trainium(plan) or found == plan.cluster.instance:
        return Finding("instance", found)
    if plan.cluster.stack is not None and found.startswith(("trn1", "inf")):
        return Finding("instance", found, STOPS, f"{NATIVE_DEVICES} alone")
    advice = f"the plan is for {plan.cluster.nodes} x {plan.cluster.instance}; here autoshard run rehearses it"
    return Finding("instance", found, WARNING, advice)


def _precision(plan: Plan | None) -> Iterator[Finding]:
    if plan is not None and (refused := unrunnable(BACKENDS[plan.backend], plan.training.precision)):
        yield Finding("precision", plan.training.precision.name, STOPS, refused)


def _neuron(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    driver = machine.driver or "none"
    if _for_trainium(plan) and machine.driver is None:
        advice = "install aws-neuronx-dkms: without the driver there are no NeuronCores"
        yield Finding("Neuron driver", driver, STOPS, advice)
    else:
        yield Finding("Neuron driver", driver)
    cores = f", {machine.cores} physical cores" if machine.cores else ""
    chips = f"{machine.chips}{cores}"
    wanted = plan.cluster.chips_per_node if plan is not None and _for_trainium(plan) else 0
    if machine.chips < wanted:
        yield Finding("Neuron devices", chips, STOPS, f"the plan uses {wanted} of each node")
    else:
        yield Finding("Neuron devices", chips)
    lnc = machine.lnc or "not set"
    if plan is not None and plan.cluster.platform.has_lnc_choice and machine.lnc != str(plan.cluster.lnc):
        advice = f"NEURON_LOGICAL_NC_CONFIG={plan.cluster.lnc} is what the plan needs; autoshard launch sets it"
        yield Finding("LNC", lnc, WARNING, advice)
    else:
        yield Finding("LNC", lnc)


def _gpus(machine: Machine, plan: Plan | None) -> Finding:
    wanted = plan.cluster.devices_per_node if plan is not None and plan.cluster.platform.is_cuda else 0
    if machine.gpus < wanted:
        return Finding("GPUs", str(machine.gpus), STOPS, f"the plan uses {wanted} of each node")
    return Finding("GPUs", str(machine.gpus))


def _network(machine: Machine, plan: Plan | None) -> Finding:
    found = str(machine.adapters)
    if plan is None or not _for_trainium(plan) or plan.cluster.nodes == 1:
        return Finding("EFA adapters", found)
    wanted = plan.cluster.adapters_per_node
    if machine.adapters == 0:
        return Finding(
            "EFA adapters", found, STOPS, f"{plan.cluster.nodes} nodes talk over EFA: attach {wanted} a node"
        )
    if machine.adapters < wanted:
        return Finding(
            "EFA adapters", found, WARNING, f"the plan counts on {wanted} a node; collectives will be slower"
        )
    return Finding("EFA adapters", found)


def _variables(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    """Findings about variables that are set otherwise than in the plan's job; those that are not set, the job sets."""
    wanted = () if plan is None else variables(plan, LaunchOptions("plan.json"), "")
    for one in wanted:
        found = machine.variables.get(one.name, one.value)
        if found != one.value:
            yield Finding(one.name, found, WARNING, f"autoshard launch sets {one.value}: {one.reason}")


def _software(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    packages = machine.packages
    torch = packages.get("torch")
    if torch is None:
        level = OK if plan is None else STOPS
        yield Finding("torch", "none", level, "pip install 'autoshard[torch]'" if plan is not None else "")
    elif _uses_nxd(plan) and not _is(torch, NXD_TORCH):
        yield Finding("torch", torch, STOPS, f"NxD {NXD_VERSION} needs torch {NXD_TORCH}")
    elif plan is not None and plan.cluster.platform.is_cuda and torch.endswith(WITHOUT_CUDA):
        yield Finding("torch", torch, STOPS, "it was built without CUDA: install the build for your driver's CUDA")
    else:
        yield Finding("torch", torch)
    nxd = packages.get("neuronx-distributed")
    if _uses_nxd(plan) and nxd is None:
        advice = "install neuronx-distributed from the Neuron SDK's package index, or plan with --backend torch"
        yield Finding("NxD", "none", STOPS, advice)
    elif _uses_nxd(plan) and nxd is not None and not _is(nxd, NXD_VERSION):
        yield Finding("NxD", nxd, WARNING, f"the rules of the plan are those of {NXD_VERSION}")
    else:
        yield Finding("NxD", nxd or "none")
    yield package(machine, plan)
    for name in ("torch-xla", "neuronx-cc"):
        yield Finding(name, packages.get(name, "none"))
    yield from around_it(machine, plan)
    yield from _imported_by_nxd(packages, _uses_nxd(plan) and nxd is not None)


def _imported_by_nxd(packages: Mapping[str, str], matters: bool) -> Iterator[Finding]:
    """Findings about packages that NxD imports without asking pip for them.

    [NxD 0.18: trainer/checkpoint_storage.py, pipeline/trace.py]
    """
    for name in ("boto3", "tenacity"):
        found = packages.get(name, "none")
        if matters and found == "none":
            yield Finding(name, found, STOPS, f"NxD imports it but does not install it: pip install {name}")
        else:
            yield Finding(name, found)
    transformers = packages.get("transformers", "none")
    major = transformers.split(".")[0]
    if matters and major.isdigit() and int(major) > NXD_TRANSFORMERS:
        advice = f"NxD imports transformers.utils.fx, which {major} has not: pip install 'transformers<{major}'"
        yield Finding("transformers", transformers, STOPS, advice)
    else:
        yield Finding("transformers", transformers)


def _uses_nxd(plan: Plan | None) -> bool:
    return plan is not None and "neuronx-distributed" in BACKENDS[plan.backend].packages


def _is(version: str, wanted: str) -> bool:
    return version == wanted or version.startswith(f"{wanted}.")


def _host(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    memory = format_bytes(machine.memory_bytes) if machine.memory_bytes else "unknown"
    yield Finding("processors", f"{machine.cpus}, {memory} memory")
    free = format_bytes(machine.free_disk_bytes)
    cache_bytes = COMPILE_CACHE_BYTES if _for_trainium(plan) else 0
    needed = checkpoint_bytes(plan) + cache_bytes
    if plan is not None and machine.free_disk_bytes < needed:
        checkpoint = f"a checkpoint of {format_bytes(checkpoint_bytes(plan))}"
        both = f"{checkpoint} and the compiler's cache need {format_bytes(needed)}"
        yield Finding(
            "free disk", f"{free} in {machine.folder}", WARNING, both if cache_bytes else f"{checkpoint} needs it"
        )
    else:
        yield Finding("free disk", f"{free} in {machine.folder}")
    kind = machine.file_system or "unknown"
    if plan is not None and plan.cluster.nodes > 1 and not machine.has_shared_folder:
        advice = f"all {plan.cluster.nodes} nodes must see plan, data and checkpoints: use FSx for Lustre, EFS or NFS"
        yield Finding("shared folder", f"no ({kind})", WARNING, advice)
    else:
        yield Finding("shared folder", f"{'yes' if machine.has_shared_folder else 'no'} ({kind})")
    if _for_trainium(plan) and machine.open_files < OPEN_FILES:
        yield Finding("open files", f"{machine.open_files:,}", WARNING, f"raise ulimit -n to {OPEN_FILES:,}")
    else:
        yield Finding("open files", f"{machine.open_files:,}")


def checkpoint_bytes(plan: Plan | None) -> int:
    """Bytes of one checkpoint of `autoshard run`: the training state of the whole model, of adapters alone where there
    are some and the run begins with weights; 0 without a plan."""
    if plan is None:
        return 0
    learned, state_bytes = learned_count(plan.model), plan.training.precision.state_bytes
    others = 0 if plan.model.lora is not None else parameter_count(plan.model) - learned
    by_muon = orthogonal_count(plan.model) if plan.training.optimizer == MUON else 0
    return round((learned - by_muon) * state_bytes(2) + by_muon * state_bytes(1) + others * state_bytes(0))
