"""Findings about native PyTorch on Neuron: packages of the same name, pairs of versions, cores that are not free.

Sources: Neuron release notes 2.33 (components/torchneuron, components/index) of 19 Oct 2026.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoshard.backends.native_neuron import PACKAGE, POINT_TO_POINT_SINCE
from autoshard.doctor.finding import STOPS, WARNING, Finding
from autoshard.doctor.machine import Machine
from autoshard.layout.context_parallel import RINGS
from autoshard.plans.plan import Plan

NATIVE_SINCE = (2, 10)
"""Minor version of torch-neuronx from which the name is native PyTorch's; before it is the XLA package's."""
TRIO = {"driver": "2.31.7", "runtime library": "2.35.30", "collectives": "2.35.43"}
"""Versions that release 2.33 of the SDK pairs."""
INSTALL = "pip install torch==2.14.* torch-neuronx==2.14.3.* from Neuron's package index"
PYTHONS = ((3, 12), (3, 13), (3, 14))
XLA_ONLY = ("torch-xla", "neuronx-distributed")
"""Packages of the XLA stack, which cannot share an environment with native PyTorch's."""


def is_native(machine: Machine) -> bool | None:
    """Whether torch-neuronx is native PyTorch's; None where it is not installed."""
    return _is_native(machine.packages, machine.has_native_compiler)


def _is_native(packages: Mapping[str, str], has_compiler: bool) -> bool | None:
    version = packages.get(PACKAGE)
    if version is None:  # on the path, but installed by nobody: there is nothing to compare
        return True if has_compiler else None
    return has_compiler or numbers(version) >= NATIVE_SINCE


def package(machine: Machine, plan: Plan | None) -> Finding:
    """The line of torch-neuronx: which of the two packages of that name it is, and whether the plan can use it."""
    version, native = machine.packages.get(PACKAGE, "none"), is_native(machine)
    kind = {True: f"{version} (native PyTorch)", False: f"{version} (XLA)", None: "none"}[native]
    if plan is None or not plan.cluster.platform.is_trainium:
        return Finding(PACKAGE, kind)
    if plan.cluster.stack is None:
        advice = f"{version} is native PyTorch's; backend {plan.backend} needs the XLA package of the same name, 2.9"
        return Finding(PACKAGE, kind, STOPS, f"{advice}, in another environment") if native else Finding(PACKAGE, kind)
    advice = unusable(machine.packages, machine.has_native_compiler, plan)
    return Finding(PACKAGE, kind, STOPS, advice) if advice else Finding(PACKAGE, kind)


def unusable(packages: Mapping[str, str], has_compiler: bool, plan: Plan) -> str:
    """The reason why a plan for native PyTorch cannot use the installed packages, or what to install; empty where it
    can.

    packages: version by name. has_compiler: whether torch-neuronx has the module that only native PyTorch's has.
    """
    version, native = packages.get(PACKAGE, "none"), _is_native(packages, has_compiler)
    if native is None:
        return INSTALL
    if not native:
        return f"{version} is the XLA package of the same name; in a new environment: {INSTALL}"
    if mixed := [name for name in XLA_ONLY if name in packages]:
        return f"{' and '.join(mixed)} of the XLA stack share its environment; in a new one: {INSTALL}"
    if version == "none":
        return ""
    torch = packages.get("torch", "none")
    if numbers(torch)[:2] != numbers(version)[:2]:
        return f"{version} needs torch {'.'.join(map(str, numbers(version)[:2]))}, and torch is {torch}"
    if plan.cluster.has_p2p and (use := _sends(plan)) and numbers(version) < POINT_TO_POINT_SINCE:
        oldest = ".".join(map(str, POINT_TO_POINT_SINCE))
        return f"{version} cannot send from rank to rank, which {use} needs; {oldest} can"
    return ""


def _sends(plan: Plan) -> str:
    """The choice of a plan that sends from rank to rank; empty where none does."""
    if plan.strategy.pp > 1:
        return f"pp={plan.strategy.pp}"
    return f"context_parallel={plan.strategy.context_parallel}" if plan.strategy.context_parallel in RINGS else ""


def around_it(machine: Machine, plan: Plan | None) -> Iterator[Finding]:
    """Lines on Python, on the driver's partners, on devices that other processes hold."""
    needs_native = plan is not None and plan.cluster.stack is not None
    if needs_native and numbers(machine.python)[:2] not in PYTHONS:
        yield Finding("Python", machine.python, STOPS, "torch-neuronx for native PyTorch is there for 3.12 to 3.14")
    else:
        yield Finding("Python", machine.python)
    found = {"driver": machine.driver or "none", **machine.system}
    for name, wanted in TRIO.items():
        version = found.get(name, "none")
        is_off = (
            needs_native and version not in ("none", "unknown version") and numbers(version)[:2] != numbers(wanted)[:2]
        )
        if name == "driver" and not is_off:
            continue  # it has a line of its own
        what = "Neuron driver's release" if name == "driver" else f"Neuron {name}"
        pairs = ", ".join(f"{part} {one}" for part, one in TRIO.items())
        yield Finding(what, version, WARNING, f"SDK 2.33 pairs {pairs}") if is_off else Finding(what, version)
    on_neuron = plan is not None and plan.cluster.platform.is_trainium
    held = ", ".join(f"{device} by process {process}" for device, process in machine.held)
    if held and on_neuron:
        yield Finding("devices in use", held, STOPS, "a core belongs to one process until that exits: end it or wait")
    else:
        yield Finding("devices in use", held or "none")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, '2.13.3.0.1+cpu' -> (2, 13, 3, 0, 1); those before anything else."""
    parts: list[int] = []
    for part in version.partition("+")[0].split("."):
        if not (part.isascii() and part.isdigit() and len(part) < 9):
            break
        parts.append(int(part))
    return tuple(parts)
