"""The limits of native PyTorch on Neuron (torch-neuronx), by version, with sources.

[src N] is torch-neuronx's own source before Neuron 2.33, [3p N] others' measurements of beta images, [doc P] AWS's
documentation of 2.33. The public release is silent on some of them: those are taken from the betas.
"""

from __future__ import annotations

PACKAGE = "torch-neuronx"
POINT_TO_POINT_SINCE = (2, 13, 3)
"""The first version of torch-neuronx with send and receive [3p 71301028270, 71014073001: missing in betas; doc
torch/guides/torch-distributed: pipelines in 2.33]."""
_ALL_TO_ALL_SIZES = (4, 8, 16)
_ALL_TO_ALL_MULTIPLE = 32


def has_all_to_all(group_size: int) -> bool:
    """Whether a group of so many ranks has an all-to-all, of equal pieces [jb docs/phase_e_report.md, of a beta]."""
    return group_size in _ALL_TO_ALL_SIZES or group_size % _ALL_TO_ALL_MULTIPLE == 0


def has_point_to_point(version: tuple[int, ...] | None) -> bool:
    """Whether this version of torch-neuronx sends and receives; one that is not known does."""
    return version is None or version >= POINT_TO_POINT_SINCE
