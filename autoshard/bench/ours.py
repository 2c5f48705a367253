"""autoshard's own cost model as an entry of PlanBench: its constants are fitted to the train rows of each split."""

from __future__ import annotations

from functools import lru_cache
from math import exp
from pathlib import Path

from autoshard.bench.metrics import Prediction
from autoshard.bench.rows import Fold, Measured
from autoshard.calibration.results.fitted import Fitted, Known, load
from autoshard.calibration.results.gpu_rows import Case, as_assumed
from autoshard.calibration.results.held_out import fit_stacks, unseen_stacks
from autoshard.calibration.results.instance_rows import InstanceCase
from autoshard.calibration.results.intervals import regime_intervals
from autoshard.calibration.results.never_measured import measured, missed, widths
from autoshard.calibration.results.published import left_out_of_published
from autoshard.calibration.results.regimes import MEMORY_SPREAD, Interval, regime
from autoshard.calibration.results.stack_fit import Values, estimates

TRAINIUM_SPREAD = 0.23
"""Half width of the 90 % interval of log time on Trainium: releases of the SDK differ by 6 to 27 % on one layout."""


def autoshard_model(fold: Fold) -> list[Prediction | None]:
    """autoshard's cost model, with constants that were fitted without the row's group, without its source, or to the
    results that were published before it."""
    own = [row.case for row in fold.test if isinstance(row.case, InstanceCase)]
    seconds: dict[str, float] = {}
    if fold.split != "source" and own:
        known = [row.case for row in fold.train if isinstance(row.case, InstanceCase)]
        published = known if fold.split == "time" else [*known, *own]
        seconds = {case.key: one for case, one in zip(own, left_out_of_published(own, published), strict=True)}
    fitted = _fitted(fold.data) if fold.split != "time" else _fitted_to(fold)
    return [
        _on_gpu(row, row.case, fitted, fold.split) if isinstance(row.case, Case) else _on_trainium(seconds.get(row.key))
        for row in fold.test
    ]


def _on_trainium(time_s: float | None) -> Prediction | None:
    if time_s is None:
        return None
    return Prediction(time_s, time_s * exp(-TRAINIUM_SPREAD), time_s * exp(TRAINIUM_SPREAD))


def _on_gpu(row: Measured, case: Case, fitted: Fitted, split: str) -> Prediction | None:
    values: Values
    interval: Interval
    if split == "source":
        if case.source not in fitted.unseen:
            return None
        values, interval = fitted.unseen[case.source], fitted.unseen_interval_for(case)
    else:
        values, interval = fitted.values_for(case), fitted.interval_for(case, regime(case))
    found, *others = estimates(as_assumed(case), values)
    share = found.fullest.total_bytes / found.memory_capacity_bytes
    steps_s = [one.step_time_s for one in (found, *others)]
    ends = min(steps_s) * exp(interval.low), max(steps_s) * exp(interval.high)
    return Prediction(found.step_time_s, *ends, share * row.capacity_bytes)


@lru_cache(maxsize=2)
def _fitted(folder: Path) -> Fitted:
    """The packaged constants, and those without each group and each source."""
    return load(folder)


def _fitted_to(fold: Fold) -> Fitted:
    """Constants and intervals from the train rows alone, by the steps of `autoshard calibrate`."""
    cases = [row.case for row in fold.train if isinstance(row.case, Case)]
    fit = fit_stacks(cases)
    never = widths(missed(fit.line, unseen_stacks(cases, fit.values)), MEMORY_SPREAD)
    by_regime, _ = regime_intervals(cases, fit.held_out, never)
    known = {"": Known(measured(fit.line.cases), never)}
    return Fitted(fit.values, {}, by_regime, {}, {}, known, [])
