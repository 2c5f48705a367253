"""Every backend, by name."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.backends.native_neuron import device_objection
from autoshard.backends.nxd import NXD
from autoshard.backends.torch import TORCH
from autoshard.errors import AutoshardError
from autoshard.spec.cluster import Cluster

BACKENDS: dict[str, Backend] = {one.name: one for one in (NXD, TORCH)}
ANYWHERE = TORCH
"""Runs on every machine: what steps in where another one has no layout, no library or no device."""


def usual_backend(cluster: Cluster) -> Backend:
    """The backend of plans for this cluster, unless another one is asked for."""
    return BACKENDS[cluster.platform.default_backend]


def check_devices(cluster: Cluster, backend: str) -> None:
    """Raises AutoshardError where a backend, a name in BACKENDS, has no way to the devices of a cluster."""
    objection = device_objection(cluster) if BACKENDS[backend].runs_stacks else None
    if objection is not None:
        raise AutoshardError(objection)


def as_run_by(cluster: Cluster, backend: str, stack: str = "auto") -> Cluster:
    """The cluster with the constants of the stack that a backend runs on there.

    backend: a name in BACKENDS. stack: a name in STACKS, or auto: the first of the platform where the backend runs on
    stacks at all. A cluster that has a stack keeps it.
    Raises AutoshardError for a stack that the backend or the devices do not have.
    """
    runs = BACKENDS[backend].runs_stacks
    able = " or ".join(name for name, one in BACKENDS.items() if one.runs_stacks)
    if stack != "auto":
        if not runs:
            raise AutoshardError(f"stack={stack} with backend={backend}, which compiles each pass; use backend={able}")
        return cluster.under_stack(stack)
    if cluster.stack is not None and not runs:
        raise AutoshardError(
            f"backend={backend} on a cluster with the constants of stack={cluster.stack}, which is of backend {able}: "
            f"use backend={able}, or the cluster without a stack, as autoshard.cluster gives it"
        )
    stacks = cluster.platform.stacks
    return cluster.under_stack(stacks[0]) if runs and stacks and cluster.stack is None else cluster
