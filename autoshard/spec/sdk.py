"""Releases of the Neuron SDK, and how long they take for the same layout.

`sdk.json`, written by `autoshard calibrate --results` alone, holds by platform the step time under a release over that
under the newest one with results. The factors are a random walk over releases, found on results of the same layouts: a
release without results has those of its neighbours, and is less sure the further away they are.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.files.fields import show

FILE = Path(__file__).parent / "sdk.json"
RELEASES = tuple(f"2.{minor}" for minor in range(4, 34))
"""Known releases, oldest first: from the first with a published result, to the newest one when this was written, 2.33
of October 2026."""
NEWEST = RELEASES[-1]
NEWEST_WITH_NXD = "2.28"
"""The release that users of NxD are to stay on [SDK announce-eos-nxdt-nxd-core-training: 2.28 is the last to include
NxDT; announce-maintenance-nxdt-nxd-core-training repeats it with 2.30]."""


def release(text: object) -> str:
    """The known release that a text such as "2.20" or "2.20.1" names. Raises AutoshardError for any other."""
    if isinstance(text, float):
        raise AutoshardError(f"sdk={text} is a number, in which 2.2 and 2.20 are one; write the release in quotes")
    found = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", str(text))
    if found is None or found[1] not in RELEASES:
        raise AutoshardError(
            f"sdk={show(text)} is no release of the Neuron SDK that is known; known: {', '.join(RELEASES)}"
        )
    return found[1]


def is_before(sdk: str, other: str) -> bool:
    """Whether a known release is older than another one."""
    return RELEASES.index(sdk) < RELEASES.index(other)


@lru_cache(maxsize=1)
def known() -> dict[str, Any]:
    """The content of sdk.json by platform: `releases` and `stacks`."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))["platforms"]
    return found


def newest_measured(platform: str) -> str | None:
    """The newest release with results on a platform, which the others are compared with; None where there is none."""
    found: str | None = known().get(platform, {}).get("newest_measured")
    return found


def release_slowdown(platform: str, sdk: str | None) -> float:
    """The step time under a release over that under the newest with results; 1 where none was compared."""
    return 1.0 if sdk is None else float(_of(platform, sdk).get("slowdown", 1.0))


def release_spread(platform: str, sdk: str | None) -> float:
    """The standard deviation of the logarithm of `release_slowdown`, against the releases that results are of; where
    none was compared that of the platform that is least sure: the SDK is one."""
    if sdk is None:
        return 0.0
    own = _of(platform, sdk).get("spread")
    return float(max(_of(other, sdk).get("spread", 0.0) for other in known()) if own is None else own)


def stack_slowdown(platform: str, stack: str) -> float:
    """The step time of a training stack over that of neuronx-distributed; 1 for a stack that was not compared."""
    return float(known().get(platform, {}).get("stacks", {}).get(stack, 1.0))


def _of(platform: str, sdk: str) -> dict[str, float]:
    found: dict[str, float] = known().get(platform, {}).get("releases", {}).get(sdk, {})
    return found
