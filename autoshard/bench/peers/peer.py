"""The peers, which version of each is installed, and a row's links in the words that peers use: adapters share this."""

from __future__ import annotations

import subprocess
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from autoshard.bench.rows import Measured
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, members

Answer = tuple[float, float]
"""Seconds of a step and bytes of a device, as a peer has them."""


class Peer(NamedTuple):
    """A peer. name: of its entry. module: what it is imported as. distribution: its name in the package index. entered:
    the module of it that its adapter imports, which may need packages that are not there; None: `module`."""

    label: str
    name: str
    module: str
    distribution: str
    entered: str | None = None

    @property
    def is_installed(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def broken(self) -> str | None:
        """Why it cannot be imported though it is installed; None where it can."""
        try:
            import_module(self.entered or self.module)
        except Exception as error:  # other people's code, which may raise anything
            return f"{type(error).__name__}: {error}"
        return None

    @property
    def version(self) -> str | None:
        """The version that is installed, or the commit of a checkout; None where nothing is."""
        spec = find_spec(self.module)
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        try:
            command = ("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
            shown = subprocess.run(command, capture_output=True, text=True, timeout=10)
            tracked = subprocess.run(
                ("git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py"),
                capture_output=True,
                timeout=10,
            )
            if not shown.returncode and not tracked.returncode:
                return f"commit {shown.stdout.strip()}"
        except (OSError, subprocess.TimeoutExpired):
            pass
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return "version unknown"


PEERS = (
    Peer("llm-analysis", "llm_analysis", "llm_analysis", "llm-analysis", "llm_analysis.analysis"),
    Peer("Calculon", "calculon", "calculon", "calculon", "calculon.llm"),
    Peer("SimuMax", "simumax", "simumax", "simumax", "simumax.core.perf_llm"),
    Peer("Galvatron", "galvatron", "galvatron", "hetu-galvatron"),
)
ROOMY_BYTES = 1e15
"""Memory of a device, so that a peer says what a layout needs in place of refusing it."""


def crosses_nodes(row: Measured, axis: str) -> bool:
    """Whether the ranks of an axis are on several nodes. axis: 'tp', 'dp', 'cp' or 'pp'."""
    order = row.strategy.axis_order
    reach = 1
    for name in order[order.index(axis) :]:
        reach *= getattr(row.strategy, name)
    return bool(reach > row.cluster.devices_per_node)


def bandwidth_bytes_per_s(row: Measured, between_nodes: bool) -> float:
    """Bytes/s that one device sends to others in its node, or to other nodes while all devices of its node do."""
    cluster = row.cluster
    if not between_nodes:
        return float(cluster.intra_node[-1][1].bandwidth_bytes_per_s)
    return float(cluster.inter_node.bandwidth_bytes_per_s * cluster.adapters_per_node / cluster.devices_per_node)


def recompute_words(row: Measured, none: str, attention: str | None, full: str) -> str | None:
    """A peer's word for what is run again in backward; None where it has none. attention: its word for the scores
    alone."""
    names = set(row.strategy.recompute)
    if names == {NO_RECOMPUTE}:
        return none
    if names == {FULL_RECOMPUTE}:
        return full
    return attention if all(members(name) == {"core_attention"} for name in names) else None
