"""Measures the winner's curse: how much more than other layouts the one with the least predicted time was missed by.

A group is one model, batch, machine and stack with many layouts. Its pick is the fastest by prediction. Errors of a
group's layouts are alike, so the pick is missed by little more than all are where the constants behind its choices were
fitted; what nothing was fitted to surprises more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.calibration.results.differences import LARGEST
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.stack_fit import Linearised, Values, predictions, row_weights
from autoshard.layout.strategy import Strategy

LAYOUTS = 8
"""Groups of fewer layouts are left out: there is little to pick from."""
NOTHING, EVERYTHING = "nothing", "everything"
FEATURES: dict[str, Callable[[Strategy], bool]] = {
    "tp > 1": lambda one: one.tp > 1,
    "pp > 1": lambda one: one.pp > 1,
    "dp > 1": lambda one: one.dp > 1,
    "cp > 1": lambda one: one.cp > 1,
    "ep > 1": lambda one: one.ep > 1,
    "vpp > 1": lambda one: one.num_virtual_stages > 1,
    "microbatches > 1": lambda one: one.microbatch_size > 1,
    "recompute": lambda one: any(name != "none" for name in one.recompute),
    "flash attention": lambda one: one.attention_kernel == "flash",
    "ZeRO": lambda one: one.zero > 0,
}
"""Choices of a layout that a fit can be ignorant of."""


@dataclass(frozen=True)
class Pick:
    """The pick of one group. left_out: what its constants had not seen beside the group. has_it: whether the pick has
    that feature. pick, all: log(measured / predicted) of the pick, and the mean over the group."""

    left_out: str
    source: str
    has_it: bool
    pick: float
    all: float

    @property
    def surprise(self) -> float:
        """How much more the pick was missed by than all."""
        return self.pick - self.all


def groups_of(cases: Sequence[Case]) -> list[list[int]]:
    """Places of the cases of each group that has at least LAYOUTS of them."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, case in enumerate(cases):
        found[case.group, case.stack, case.model, case.training, case.nodes, case.gpu].append(place)
    return [places for places in found.values() if len(places) >= LAYOUTS]


def picks(line: Linearised) -> list[Pick]:
    """The picks of all groups with nothing but the group left out; with each feature left out of the fit as well, where
    a group has layouts with and without it; and with no constant fitted to anything."""
    has = {name: np.array([of(case.strategy) for case in line.cases]) for name, of in FEATURES.items()}
    return [one for rows in groups_of(line.cases) for one in _of_group(line, np.array(rows), has)]


def _of_group(line: Linearised, rows: np.ndarray, has: Mapping[str, np.ndarray]) -> Iterator[Pick]:
    others = np.array([case.group != line.cases[rows[0]].group for case in line.cases])
    weights = row_weights(line.cases)
    none = np.zeros(len(line.cases), dtype=bool)
    yield _pick(line, rows, NOTHING, none, line.solve(others, weights))
    for name, with_it in has.items():
        if with_it[rows].any() and not with_it[rows].all():
            yield _pick(line, rows, name, with_it, line.solve(others & ~with_it, weights))
    yield _pick(line, rows, EVERYTHING, ~none, {})


def _pick(line: Linearised, rows: np.ndarray, left_out: str, has: np.ndarray, values: Values) -> Pick:
    cases = [line.cases[row] for row in rows]
    predicted = np.log(predictions(cases, values))
    measured = np.log([case.time_s or 0.0 for case in cases])
    place = int(np.argmin(predicted))
    residuals = np.clip(measured - predicted, -LARGEST, LARGEST)
    return Pick(left_out, cases[0].source, bool(has[rows[place]]), float(residuals[place]), float(residuals.mean()))


def surprise(found: Sequence[Pick]) -> float:
    """The mean surprise of these picks, never below zero: a choice is not faster for being chosen."""
    return max(0.0, float(np.mean([one.surprise for one in found]))) if found else 0.0


def of_measured_features(found: Sequence[Pick]) -> float:
    """The surprise of picks whose features were all fitted."""
    return surprise([one for one in found if one.left_out == NOTHING])


def of_new_features(found: Sequence[Pick]) -> float:
    """The surprise of picks with a feature that nothing was fitted to, each feature weighted by the square root of its
    picks; no less than that of picks without one."""
    own = [[one.surprise for one in found if one.left_out == name and one.has_it] for name in FEATURES]
    told = [surprises for surprises in own if surprises]
    if not told:
        return of_measured_features(found)
    mean = np.average([np.mean(one) for one in told], weights=[np.sqrt(len(one)) for one in told])
    return max(of_measured_features(found), float(mean))
