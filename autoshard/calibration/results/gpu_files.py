"""Writes the fitted constants of a device family into the hardware files of its GPUs."""

from __future__ import annotations

from typing import Any

from autoshard.calibration.calibration import Leaf, evidence, leaf_entry, set_fitted
from autoshard.calibration.results.constants import FAMILY, FIXED
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.held_out import StackFit
from autoshard.calibration.results.machine import hardware, power_share
from autoshard.calibration.results.usable import Usable
from autoshard.spec.evidence import Evidence

FILES = {
    "a100-40gb": "a100",
    "a100-80gb": "a100",
    "h100-80gb": "h100",
    "h200-141gb": "h100",
    "b200-180gb": "blackwell",
    "gb200-186gb": "blackwell",
    "b300-288gb": "blackwell",
    "gb300-288gb": "blackwell",
}
"""Hardware file -> family whose constants it takes. Files that are `like` one of these have its constants anyway."""
NAMES = {
    "matmul_efficiency": "matmul_efficiency",
    "matmul_k0": "matmul_k0",
    "memory_efficiency": "memory_efficiency",
    "pass_launch_s": "pass_launch_s",
    "collective_launch_s": "collective_launch_s",
    "hop_latency_s": "hop_latency_s",
    "link_efficiency_by_chips": "link_efficiency",
    "adapter_efficiency": "network_efficiency",
    "inter_node_hop_latency_s": "network_hop_latency_s",
    "all_to_all_efficiency": "all_to_all_efficiency",
}
"""Key of the hardware file's calibration -> constant."""
GUESS = "guess: FIXED of autoshard/calibration/results/constants.py, which says why it is not fitted"


def set_family(content: dict[str, Any], family: str, fit: StackFit, data: Usable[Case]) -> Evidence:
    """Writes the fitted constants into a hardware file's content, and constants that are not fitted as guesses; returns
    the evidence."""
    calibration = content["calibration"]
    chips = str(content["chips_per_node"]["value"])
    calibration["link_efficiency_by_chips"] = {chips: {}}
    fitted: dict[Leaf, tuple[float, str]] = {}
    for target, name in NAMES.items():
        leaf: Leaf = (target, chips) if target == "link_efficiency_by_chips" else (target,)
        value = FIXED[name] if name in FIXED else fit.values[family, name]
        if name == "matmul_efficiency":
            value *= power_share(content["instance"], family)
        value = float(f"{value:.4g}")
        if name in FIXED:
            leaf_entry(calibration, leaf).update(value=value, source=GUESS)
        else:
            fitted[leaf] = value, FAMILY[name].meaning
    rows = [i for i, case in enumerate(fit.timed) if hardware(case)[1] == family]
    groups = {fit.timed[i].group for i in rows}
    left_out = fit.left_out_errors[rows].tolist() if len(groups) > 1 else None
    found = evidence(fitted, data.path.name, data.sha256, len(groups), (fit.errors[rows].tolist(), left_out))
    set_fitted(content, fitted, found)
    if "domain_hop_latency_s" in calibration:  # a guess: as in a node
        calibration["domain_hop_latency_s"]["value"] = calibration["hop_latency_s"]["value"]
    return found
