"""How far a prediction is off for a feature that nothing was fitted to: `python -m benchmarks.path_surprise`.

For each feature, all GPU results that have it are left out of the fit and predicted by the rest; beside that stands how
far the same results are missed where only their own group is left out. Sources whose every result has the feature, or
none, tell nothing of it. Then, what keeping to features that the fit has seen would have changed in the picks of
groups, by how much may be given away for it. --json prints the numbers alone.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autoshard.calibration.results.differences import LARGEST
from autoshard.calibration.results.gpu_rows import Case
from autoshard.calibration.results.picks import FEATURES as LEFT_OUT
from autoshard.calibration.results.picks import Guesses, guesses
from autoshard.calibration.results.regimes import COVERAGE, interval, regime, weighted_quantile
from autoshard.calibration.results.stack_fit import Linearised, Values, fitted_cases, predictions, row_weights
from autoshard.calibration.results.usable import read_results
from autoshard.cost.interval import picks
from autoshard.errors import AutoshardError
from autoshard.graph.recompute import FULL_RECOMPUTE, NO_RECOMPUTE
from autoshard.layout.strategy import Strategy
from autoshard.planner.beaten_path import GIVEN_AWAY
from autoshard.plans.plan_json import compact_json
from benchmarks.fitted import DATA, Fitted, load
from benchmarks.one_error import one_error

FEATURES: Mapping[str, Callable[[Strategy], bool]] = {
    "tp=2": lambda s: s.tp == 2,
    "tp=4": lambda s: s.tp == 4,
    "tp=8": lambda s: s.tp == 8,
    "cp of 2 or more": lambda s: s.cp > 1,
    "ep of 2 or more": lambda s: s.ep > 1,
    "a pipeline": lambda s: s.pp > 1,
    "virtual stages": lambda s: s.num_virtual_stages > 1,
    "microbatch of 4 or more": lambda s: s.microbatch_size >= 4,
    "full recompute": lambda s: s.recompute[0] == FULL_RECOMPUTE,
    "no recompute": lambda s: s.recompute[0] == NO_RECOMPUTE,
}
KEPT = Path(__file__).parent / "results" / "path_surprise.json"
FEWEST = 8
"""Results of a feature that tell something."""
GIVEN = (0.0, 0.05, GIVEN_AWAY, 0.15, 0.26)
"""Shares of a step that picks may give away to keep to seen features; 0.26 is the widest toss-up of replayed plans."""
MOST_LOST = 0.5
"""The most that a pick can lose, so that a group that nothing predicts does not decide."""


@dataclass(frozen=True)
class Surprise:
    """Errors of results with a feature. rows, groups: how many. with_it, without_it: half width of the middle 90 % of
    log(measured / predicted), where only the own group was left out of the fit, and where the whole feature was.
    covering: times that the results' intervals, those of their stacks, must be as wide to hold nine in ten of the
    latter; of `all`, with each feature counting the same."""

    rows: int
    groups: int
    with_it: float
    without_it: float
    covering: float

    @property
    def wider(self) -> float:
        """Times that the interval is as wide where the feature was never seen."""
        return self.without_it / self.with_it


class Missed(NamedTuple):
    """log(measured / predicted) of a result where only its group was left out of the fit, and where a feature was.
    times: of its interval that the latter is. weight: of its feature."""

    group: str
    with_it: float
    without_it: float
    times: float
    weight: float


def surprises(cases: Sequence[Case], fitted: Fitted) -> dict[str, Surprise]:
    """By feature; `all` is every pair of a feature and a result that has it."""
    timed = fitted_cases(cases, memory=False)
    line = Linearised(timed, dict(fitted.values), False)
    weights, seen = row_weights(timed), _residuals(timed, [fitted.values_for(case) for case in timed])
    found: dict[str, Surprise] = {}
    pairs: list[Missed] = []
    for name, has in FEATURES.items():
        mask = np.array([has(case.strategy) for case in timed])
        both = {case.source for case, own in zip(timed, mask, strict=True) if own}
        both &= {case.source for case, own in zip(timed, mask, strict=True) if not own}
        rows = [i for i, case in enumerate(timed) if mask[i] and case.source in both]
        if len(rows) < FEWEST:
            continue
        values = line.solve(~mask, weights)
        unseen = _residuals([timed[i] for i in rows], [values] * len(rows))
        counts = Counter(timed[i].group for i in rows)
        total = sum(sqrt(count) for count in counts.values())
        own_pairs = [
            Missed(case.group, seen[i], one, _times(fitted, case, one), 1 / sqrt(counts[case.group]) / total)
            for i, case, one in zip(rows, (timed[i] for i in rows), unseen, strict=True)
        ]
        found[name] = surprise_of(own_pairs)
        pairs += own_pairs
    found["all"] = surprise_of(pairs)
    return found


@dataclass(frozen=True)
class Keeping:
    """Picks of groups with one or two features left out of the fit, where they keep to features that it has seen if
    that gives away no more than so much of the expected step. picks: how many; moved: how many of these that changed.
    slower: log of the measured step time of picks so taken over that of the fastest by prediction, their mean. regret,
    regret_of_fastest: mean share that both lose against the best of the group; half at most of each counts.
    """

    picks: int
    moved: int
    slower: float
    regret: float
    regret_of_fastest: float


def keeping(every: Sequence[Guesses], given_away: float, each: float) -> Keeping:
    """Picks that keep to seen features. each: log of how much longer one feature makes a pick than predicted."""
    slower, regret, of_fastest, moved = [], [], [], 0
    for guess in every:
        if not any(name in LEFT_OUT for name in guess.left_out):
            continue
        first = int(np.argmin(guess.predicted))
        kept = np.where(guess.new == 0, guess.predicted, np.inf)
        best, expected = int(np.argmin(kept)), guess.predicted[first] + each * guess.new[first]
        taken = best if kept[best] <= expected + log(1 + given_away) else first
        moved += taken != first
        lost = guess.measured - guess.measured.min()
        slower.append(float(np.clip(guess.measured[taken] - guess.measured[first], -LARGEST, LARGEST)))
        regret.append(min(MOST_LOST, float(np.expm1(lost[taken]))))
        of_fastest.append(min(MOST_LOST, float(np.expm1(lost[first]))))
    return Keeping(len(slower), moved, *(float(np.mean(one)) for one in (slower, regret, of_fastest)))


def _times(fitted: Fitted, case: Case, residual: float) -> float:
    """How many times its interval must be as wide to hold a residual of a case."""
    own = fitted.interval_for(case, regime(case))
    return residual / (own.high if residual > 0 else own.low)


def surprise_of(pairs: Sequence[Missed]) -> Surprise:
    """The surprise of all results of a feature, or of several."""
    groups = [one.group for one in pairs]
    with_it = _half_width(groups, [one.with_it for one in pairs])
    without_it = _half_width(groups, [one.without_it for one in pairs])
    times, weights = np.array([one.times for one in pairs]), np.array([one.weight for one in pairs])
    covering = weighted_quantile(times, weights, COVERAGE)
    return Surprise(len(pairs), len(set(groups)), with_it, without_it, covering)


def _half_width(groups: Sequence[str], residuals: Sequence[float]) -> float:
    found = interval(groups, residuals, [None] * len(groups))
    return (found.high - found.low) / 2


def _residuals(cases: Sequence[Case], values: Sequence[Values]) -> list[float]:
    """log(measured / predicted) of each case with constants of its own."""
    found = [0.0] * len(cases)
    groups: dict[str, list[int]] = {}
    for place, case in enumerate(cases):  # what a group is predicted with is the same
        groups.setdefault(case.group, []).append(place)
    for places in groups.values():
        predicted = predictions([cases[place] for place in places], values[places[0]])
        for place, seconds in zip(places, predicted, strict=True):
            found[place] = float(np.log((cases[place].time_s or 0.0) / seconds))
    return found


def lines(found: Mapping[str, Surprise]) -> list[str]:
    """A table in Markdown."""
    table = [
        "| feature left out of the fit | results | groups | half width with it | without it | times | to cover |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        table.append(
            f"| {name} | {one.rows} | {one.groups} | {one.with_it:.3f} | {one.without_it:.3f} | {one.wider:.2f} "
            f"| {one.covering:.2f} |"
        )
    return table


def keeping_lines(found: Mapping[str, Keeping]) -> list[str]:
    """A table in Markdown."""
    table = [
        "| given away at most | picks that move | measured time of all | regret | that of the fastest by prediction |",
        "|---|---|---|---|---|",
    ]
    for share, one in found.items():
        cells = (f"{one.moved} of {one.picks}", f"{100 * one.slower:+.1f} %")
        regrets = (f"{100 * one.regret:.1f} %", f"{100 * one.regret_of_fastest:.1f} %")
        table.append(f"| {float(share):.0%} | {' | '.join((*cells, *regrets))} |")
    return table


@one_error
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=Path, default=DATA / "measured_gpu.csv")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    parser.add_argument("--write", action="store_true", help="keep the numbers in results/path_surprise.json")
    options = parser.parse_args(arguments)
    results = read_results([options.gpu], None).gpus
    if results is None:
        told = "it has results on instance types; those on GPUs are asked for, as in measured_gpu.csv"
        raise AutoshardError(f"gpu={options.gpu}: {told}")
    fitted = load()
    found = surprises(results.cases, fitted)
    timed = fitted_cases(results.cases, memory=False)
    every, each = [*guesses(Linearised(timed, dict(fitted.values), False))], picks()["new_features"]
    kept = {f"{share:g}": keeping(every, share, each) for share in GIVEN}
    if not options.json:
        print("\n".join([*lines(found), "", *keeping_lines(kept)]))
    numbers = {
        kind: {
            name: {key: float(f"{value:.4g}") for key, value in asdict(one).items()} for name, one in each_of.items()
        }
        for kind, each_of in (("surprise", found), ("keeping", kept))
    }
    if options.write:
        KEPT.write_text(compact_json(numbers) + "\n", encoding="utf-8")
    print(json.dumps(numbers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
