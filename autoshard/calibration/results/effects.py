"""The part of step times that the constants of a device do not explain: the SDK's release, the stack, the layout.

Each is a factor on the whole step, so an unknown of the logarithm of time with a prior of 0. Releases are a random
walk: rows of one layout under several releases tell its steps, and a release without rows lies between its neighbours.
What is left of a group is the layout's error; a group that is left out has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from autoshard.calibration.results.instance_rows import NXD, InstanceCase
from autoshard.spec.sdk import NEWEST, RELEASES

RELEASE_SPREAD = 0.03
"""Standard deviation of the logarithm from one release to the next. A guess: 2.4 to 2.13 gained 31 % in nine of them,
2.13 to 2.24 10 % in eleven."""
STACK_SPREAD = 0.15
"""Of a stack against neuronx-distributed. A guess."""
LAYOUT_SPREAD = 0.1
"""Of a group of rows, a model and tp under one stack. About what groups that are left out are missed by."""
ROW_SPREAD = 0.04
"""Of rows beside all that. Repeats of one layout under one release differ by 9 % (gpt2 96 x 12288) and 17 % (llama
80 x 8192); most neighbouring releases by less than 4 %."""


@dataclass(frozen=True)
class Effects:
    """Unknowns beside the constants. columns [m, q]: what each adds to the logarithm of a case's time. spread [q]: its
    prior. The first are the steps of the walk, from each release to the next one; then come the stacks, then the
    groups. newest: the newest release with cases, of which all factors are 1."""

    columns: np.ndarray
    spread: np.ndarray
    newest: str
    stacks: tuple[str, ...]

    def shared(self) -> np.ndarray:
        """The columns [m, q] without the groups' own errors."""
        count = len(RELEASES) - 1 + len(self.stacks)
        return np.where(np.arange(self.columns.shape[1]) < count, self.columns, 0.0)

    def content(self, found: np.ndarray, covariance: np.ndarray) -> dict[str, Any]:
        """JSON values for sdk.json. found [q]: the unknowns. covariance [q, q]: theirs.

        The spread of a release is that against the average release of the cases: what they tell together of a device
        is not in doubt.
        """
        measured = self.shared().mean(axis=0) * (np.arange(len(found)) < len(RELEASES) - 1)
        releases: dict[str, dict[str, float]] = {}
        for name in RELEASES:
            walk = np.append(steps_of(name, self.newest), np.zeros(len(found) - len(RELEASES) + 1))
            spread = float((walk - measured) @ covariance @ (walk - measured)) ** 0.5
            releases[name] = {"slowdown": round(exp(float(walk @ found)), 4), "spread": round(spread, 4)}
        factors = np.exp(found[len(RELEASES) - 1 :])
        stacks = {name: round(float(factor), 4) for name, factor in zip(self.stacks, factors, strict=False)}
        return {"newest_measured": self.newest, "releases": releases, "stacks": stacks}


def steps_of(release: str, newest: str) -> np.ndarray:
    """The steps of the walk [r - 1] whose sum is the logarithm of a release's step time over that of `newest`."""
    at, end = RELEASES.index(release), RELEASES.index(newest)
    places = np.arange(len(RELEASES) - 1)
    return ((at <= places) & (places < end)).astype(float) - ((end <= places) & (places < at))


def effects_of(cases: Sequence[InstanceCase]) -> Effects:
    """The unknowns of cases with releases."""
    stacks = tuple(sorted({case.stack for case in cases} - {NXD}))
    groups = sorted({(case.group, case.stack) for case in cases})
    newest = max((case.sdk for case in cases if case.sdk is not None), key=RELEASES.index, default=NEWEST)
    rows = [
        [
            *steps_of(case.sdk or newest, newest),
            *(case.stack == stack for stack in stacks),
            *((case.group, case.stack) == group for group in groups),
        ]
        for case in cases
    ]
    spread = [RELEASE_SPREAD] * (len(RELEASES) - 1) + [STACK_SPREAD] * len(stacks) + [LAYOUT_SPREAD] * len(groups)
    return Effects(np.array(rows, dtype=float), np.array(spread), newest, stacks)
