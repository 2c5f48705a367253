"""The mistakes of a machine that a run must not start with, found without looking at anything slow."""

from __future__ import annotations

from pathlib import Path

from autoshard.backends.native_neuron import PACKAGE
from autoshard.backends.registry import check_devices
from autoshard.doctor.machine import has_native_compiler, installed_packages, instance_name
from autoshard.doctor.native import unusable
from autoshard.errors import AutoshardError
from autoshard.plans.plan import Plan
from autoshard.spec.cluster import load_cluster
from autoshard.spec.hardware_file import packaged_instances


def check_here(plan: Plan, root: Path = Path("/")) -> None:
    """Raises AutoshardError, one sentence, where no node runs the plan, where this one is of another generation than
    the plan's, and where it lacks the packages of the stack that the plan is for. A machine whose name is not known is
    of any generation.

    root: stands for /.
    """
    check_devices(plan.cluster, plan.backend)
    here = instance_name(root)
    if here in packaged_instances():
        found, wanted = load_cluster(here, 1).platform.name, plan.cluster.platform.name
        if found != wanted:
            raise AutoshardError(
                f"the plan is for {plan.cluster.instance} ({wanted}), this machine is {here} ({found}): plan for it "
                f"with --instance {here}"
            )
    if plan.cluster.stack is not None:
        advice = unusable(installed_packages(), has_native_compiler(), plan)
        if advice:
            raise AutoshardError(f"{PACKAGE}: {advice}")
