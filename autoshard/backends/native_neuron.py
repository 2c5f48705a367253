"""The limits of native PyTorch on Neuron (torch-neuronx), by version, with sources.

[src N] is torch-neuronx's own source before Neuron 2.33, [3p N] others' measurements of beta images, [doc P] AWS's
documentation of 2.33. The public release is silent on some of them: those are taken from the betas.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile

from autoshard.errors import AutoshardError
from autoshard.spec.training import Precision

PACKAGE = "torch-neuronx"
POINT_TO_POINT_SINCE = (2, 13, 3)
"""The first version of torch-neuronx with send and receive [3p 71301028270, 71014073001: missing in betas; doc
torch/guides/torch-distributed: pipelines in 2.33]."""
_ALL_TO_ALL_SIZES = (4, 8, 16)
_ALL_TO_ALL_MULTIPLE = 32


def has_all_to_all(group_size: int) -> bool:
    """Whether a group of so many ranks has an all-to-all, of equal pieces [jb docs/phase_e_report.md, of a beta]."""
    return group_size in _ALL_TO_ALL_SIZES or group_size % _ALL_TO_ALL_MULTIPLE == 0


def has_point_to_point(found: tuple[int, ...] | None) -> bool:
    """Whether this version of torch-neuronx sends and receives; one that is not known does."""
    return found is None or found >= POINT_TO_POINT_SINCE


@cache
def installed_version() -> tuple[int, ...] | None:
    """The version of torch-neuronx that is installed, such as (2, 13, 3, 0); None without any."""
    try:
        parts = version(PACKAGE).split(".")
    except PackageNotFoundError:
        return None
    return tuple(int(part) for part in takewhile(str.isdecimal, parts))


def check_native(precision: Precision, pp: int) -> None:
    """Raises AutoshardError where the device, or the version that is installed, cannot compute such a plan."""
    if "float64" in asdict(precision).values():
        raise AutoshardError(
            f"device=neuron: precision={precision.name} has float64, which the device computes as float32; plan with "
            "another precision, or run with --device cpu"
        )
    found = installed_version()
    if pp > 1 and not has_point_to_point(found):
        assert found is not None
        least, have = (".".join(map(str, one)) for one in (POINT_TO_POINT_SINCE, found))
        raise AutoshardError(
            f"device=neuron: pp={pp} sends between pipeline ranks, which {PACKAGE} does from {least} on; installed is "
            f"{have}: install a newer one, or plan with --pp 1"
        )
