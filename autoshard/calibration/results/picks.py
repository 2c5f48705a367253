"""Measures the winner's curse: how much more than other layouts the one with the least predicted time was missed by.

A group is one model, batch, machine and stack with many layouts. Its pick is the fastest by prediction. Errors of a
group's layouts are alike, so the pick is missed by little more than all are where the constants behind its choices were
fitted; what nothing was fitted to surprises more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from autoshard.calibration.results.differences import LARGEST
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.stack_fit import Linearised, predictions, row_weights
from autoshard.layout.strategy import Strategy

LAYOUTS = 8
"""Groups of fewer layouts are left out: there is little to pick from."""
NOTHING, EVERYTHING, AND = "nothing", "everything", " and "
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
    """The pick of one group. left_out: what its constants had not seen beside the group. new: how many of the features
    left out the pick has. pick, all: log(measured / predicted) of the pick, and the mean over the group."""

    left_out: str
    source: str
    new: int
    pick: float
    all: float

    @property
    def surprise(self) -> float:
        """How much more the pick was missed by than all."""
        return self.pick - self.all


class Guesses(NamedTuple):
    """The layouts of one group with predictions by constants that had not seen it. left_out: what else they had not
    seen. new: how many of the features left out each layout has. predicted, measured: logs of step times."""

    left_out: tuple[str, ...]
    source: str
    new: np.ndarray
    predicted: np.ndarray
    measured: np.ndarray


def groups_of(cases: Sequence[Case]) -> list[list[int]]:
    """Places of the cases of each group that has at least LAYOUTS of them."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, case in enumerate(cases):
        found[case.group, case.stack, case.model, case.training, case.nodes, case.gpu].append(place)
    return [places for places in found.values() if len(places) >= LAYOUTS]


def guesses(line: Linearised) -> Iterator[Guesses]:
    """Predictions of all groups with nothing but the group left out; with each feature, and each two of them, left out
    of the fit as well, where a group has layouts with and without; and with no constant fitted to anything."""
    has = {name: np.array([of(case.strategy) for case in line.cases]) for name, of in FEATURES.items()}
    weights = row_weights(line.cases)
    for rows in map(np.array, groups_of(line.cases)):
        cases = [line.cases[row] for row in rows]
        measured = np.log([case.time_s or 0.0 for case in cases])
        others = np.array([case.group != cases[0].group for case in line.cases])
        telling = [name for name, with_it in has.items() if with_it[rows].any() and not with_it[rows].all()]
        for left_out in (*((name,) for name in (NOTHING, *telling, EVERYTHING)), *combinations(telling, 2)):
            count = sum((has[name].astype(int) for name in left_out if name in has), np.zeros(len(line.cases), int))
            values = {} if left_out == (EVERYTHING,) else line.solve(others & (count == 0), weights)
            predicted = np.log(predictions(cases, values))
            yield Guesses(left_out, cases[0].source, count[rows], predicted, measured)


def picks(line: Linearised) -> list[Pick]:
    """The fastest by prediction of each of `guesses`."""
    return [_pick(guess) for guess in guesses(line)]


def _pick(guess: Guesses) -> Pick:
    place = int(np.argmin(guess.predicted))
    residuals = np.clip(guess.measured - guess.predicted, -LARGEST, LARGEST)
    left_out = AND.join(guess.left_out)
    return Pick(left_out, guess.source, int(guess.new[place]), float(residuals[place]), float(residuals.mean()))


def surprise(found: Sequence[Pick]) -> float:
    """The mean surprise of these picks, never below zero: a choice is not faster for being chosen."""
    return max(0.0, float(np.mean([one.surprise for one in found]))) if found else 0.0


def of_measured_features(found: Sequence[Pick]) -> float:
    """The surprise of picks whose features were all fitted."""
    return surprise([one for one in found if one.left_out == NOTHING])


def of_new_features(found: Sequence[Pick]) -> float:
    """The surprise of picks with one feature that nothing was fitted to, each feature weighted by the square root of
    its picks; no less than that of picks without one."""
    own = [[one.surprise for one in found if one.left_out == name and one.new] for name in FEATURES]
    told = [surprises for surprises in own if surprises]
    if not told:
        return of_measured_features(found)
    mean = np.average([np.mean(one) for one in told], weights=[np.sqrt(len(one)) for one in told])
    return max(of_measured_features(found), float(mean))
