"""Gauss-Newton steps on the logarithms of constants under a prior: the numerics that all fits share.

A fit repeats `stepped` from where it stands. Its residuals are log(predicted / measured).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prior:
    """The knowledge of n constants before a fit, as arrays [n].

    at: logarithms of the expected values. spread: standard deviations of the logarithms. tops: the largest logarithms
    that are allowed.
    """

    at: np.ndarray
    spread: np.ndarray
    tops: np.ndarray


def stepped(
    at: np.ndarray, residuals: np.ndarray, slope: np.ndarray, weights: np.ndarray, prior: Prior, limit: float
) -> np.ndarray:
    """The logarithms [n] that minimise weights * (residuals + slope (x - at))^2 plus the prior, at most `limit` away
    from `at`.

    at [n]: the logarithms at which residuals [m] and slope [m, n] were taken. weights [m]: of the squared residuals.
    """
    weighted, strength = (slope * weights[:, None]).T, 1 / prior.spread**2
    towards = -weighted @ residuals - strength * (at - prior.at)
    change = np.linalg.solve(weighted @ slope + np.diag(strength), towards)
    found: np.ndarray = np.minimum(at + np.clip(change, -limit, limit), prior.tops)
    return found


def slope_of(
    residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray, now: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """The derivatives [m, n] of residuals, by finite differences. now: residuals(at), [m]. steps [n]: of either
    sign."""
    columns = [(residuals(at + step) - now) / step.sum() for step in np.diag(steps)]
    return np.stack(columns, axis=1)


def by_size(residuals: np.ndarray, least: float) -> np.ndarray:
    """Weights [m] that make squares count like absolute errors; errors below `least` still count as squares."""
    weights: np.ndarray = 1 / np.maximum(np.abs(residuals), least)
    return weights
