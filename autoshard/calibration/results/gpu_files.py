"""Writes the fitted constants of a device family into the hardware files of its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoshard.calibration.calibration import Leaf, evidence, leaf_entry, leaves, set_fitted
from autoshard.calibration.results.constants import FAMILY, FIXED
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.held_out import StackFit
from autoshard.calibration.results.machine import hardware, power_share
from autoshard.calibration.results.stack_fit import Values
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
ATTENTION = {"a100": "flash_attention_2", "h100": "cudnn", "blackwell": "cudnn"}
"""Family -> the flash kernel that torch's scaled_dot_product_attention takes there: cuDNN's, where cuDNN is new enough,
on devices of compute capability 9 and 10 [pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp,
check_prefer_cudnn_attention; some releases say 9.0 and 10.0 alone, so that of B300 and GB300, 10.3, it is a guess]."""
QUANTIZED = {"float8": "fp8_efficiency", "mxfp8": "mxfp8_efficiency", "nvfp4": "nvfp4_efficiency"}
"""Format of products in a hardware file -> constant."""
POWERED = ("matmul_efficiency", "attention_efficiency")
"""Keys whose constant is a share of the peak, of which a device reaches what its power allows: see power_share."""
GUESS = "guess: FIXED of autoshard/calibration/results/constants.py, which says why it is not fitted"


def set_family(content: dict[str, Any], family: str, fit: StackFit, data: Usable[Case]) -> Evidence:
    """Writes the fitted constants into a hardware file's content; returns the evidence."""
    calibration = content["calibration"]
    fitted: dict[Leaf, tuple[float, str]] = {}
    for leaf, name in _constants(content, family).items():
        if name in FAMILY and (family, name) in fit.values:
            _add(calibration, leaf)
            value = fit.values[family, name] * _share(content, family, leaf)
            fitted[leaf] = float(f"{value:.4g}"), FAMILY[name].meaning
    rows = [i for i, case in enumerate(fit.timed) if hardware(case)[1] == family]
    groups = {fit.timed[i].group for i in rows}
    left_out = fit.left_out_errors[rows].tolist() if len(groups) > 1 else None
    found = evidence(fitted, data.path.name, data.sha256, len(groups), (fit.errors[rows].tolist(), left_out))
    set_fitted(content, fitted, found)
    if "domain_hop_latency_s" in calibration:  # a guess: as in a node
        calibration["domain_hop_latency_s"]["value"] = calibration["hop_latency_s"]["value"]
    return found


def set_guesses(content: dict[str, Any], family: str) -> None:
    """Writes the constants that are not fitted into a hardware file's content, as guesses."""
    for leaf, name in _constants(content, family).items():
        if name in FIXED:
            _add(content["calibration"], leaf)
            leaf_entry(content["calibration"], leaf).update(value=float(f"{FIXED[name]:.4g}"), source=GUESS)


def said_by(content: Mapping[str, Any], family: str) -> Values:
    """The constants of a family as a hardware file's content has them, but for those that it lacks or has as 0."""
    calibration = content["calibration"]
    known = {leaf: leaf_entry(calibration, leaf)["value"] for leaf in leaves(calibration)}
    return {
        (family, name): known[leaf] / _share(content, family, leaf)
        for leaf, name in _constants(content, family).items()
        if known.get(leaf, 0) > 0
    }


def _share(content: Mapping[str, Any], family: str, leaf: Leaf) -> float:
    """What a device reaches of its family's constant."""
    return power_share(content["instance"], family) if leaf[0] in POWERED else 1.0


def _constants(content: Mapping[str, Any], family: str) -> dict[Leaf, str]:
    """The constant of each leaf of a hardware file's calibration that a fit writes."""
    of_a_node = {"link_efficiency_by_chips": str(content["chips_per_node"]["value"])}
    peaks = content["lnc"]["1"]["flops_per_s"]
    return {
        **{(key, of_a_node[key]) if key in of_a_node else (key,): name for key, name in NAMES.items()},
        ("attention_efficiency",): ATTENTION[family],
        **{("quantized_efficiency", dtype): name for dtype, name in QUANTIZED.items() if dtype in peaks},
    }


def _add(calibration: dict[str, Any], leaf: Leaf) -> None:
    for name in leaf:
        calibration = calibration.setdefault(name, {})
