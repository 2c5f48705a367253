"""Every backend, by name."""

from __future__ import annotations

from autoshard.backends.backend import Backend
from autoshard.backends.nxd import NXD
from autoshard.backends.torch import TORCH
from autoshard.spec.cluster import Cluster

BACKENDS: dict[str, Backend] = {one.name: one for one in (NXD, TORCH)}
ANYWHERE = TORCH
"""Runs on every machine: what steps in where another one has no layout, no library or no device."""


def usual_backend(cluster: Cluster) -> Backend:
    """The backend of plans for this cluster, unless another one is asked for."""
    return BACKENDS[cluster.platform.default_backend]
