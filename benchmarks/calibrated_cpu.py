"""Describes the machine of data/measured_cpu.csv, as `autoshard calibrate --device cpu` measured it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoshard.calibration.results.gpu_rows import Case
from autoshard.cost.estimate import Estimate, estimate
from autoshard.spec.cluster import Cluster, load_cluster

CALIBRATED = Path(__file__).parent / "data" / "cpu_calibrated.json"


def calibrated_cluster(hardware_file: Path, processes: int) -> Cluster:
    """A cluster of `processes` CPU processes of the machine that the hardware file describes."""
    machine = load_cluster(None, 1, hardware_file=hardware_file)
    _, link = machine.intra_node[-1]
    return replace(machine, devices_per_node=processes, devices_per_chip=processes, intra_node=((processes, link),))


def calibrated_cpu(case: Case) -> Cluster:
    """The cluster of as many CPU processes as the case runs on."""
    return calibrated_cluster(CALIBRATED, case.strategy.world_size)


def on_calibrated_cpu(case: Case) -> Estimate:
    """The estimate that `autoshard plan --hardware` would give: nothing was fitted to these runs."""
    return estimate(case.model, case.training, calibrated_cpu(case), case.strategy)
