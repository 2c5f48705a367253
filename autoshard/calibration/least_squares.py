"""Gauss-Newton on the logarithms of constants, which a prior holds: what all fits share.

A fit repeats `stepped` from where it stands. Its residuals are log(predicted / measured).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prior:
    """What is known of n constants before a fit, arrays [n].

    at: their logarithms. spread: of a normal distribution around them. tops: the largest logarithms that are allowed.
    """

    at: np.ndarray
    spread: np.ndarray
    tops: np.ndarray


def stepped(
    at: np.ndarray, residuals: np.ndarray, slope: np.ndarray, weights: np.ndarray, prior: Prior, limit: float
) -> np.ndarray:
    """Logarithms [n] that minimise weights * (residuals + slope (x - at))^2 plus the prior, at most limit from at.

    at [n]: where residuals [m] and slope [m, n] were taken. weights [m]: of the squares.
    """
    weighted, strength = (slope * weights[:, None]).T, 1 / prior.spread**2
    towards = -weighted @ residuals - strength * (at - prior.at)
    change = np.linalg.solve(weighted @ slope + np.diag(strength), towards)
    found: np.ndarray = np.minimum(at + np.clip(change, -limit, limit), prior.tops)
    return found


def slope_of(
    residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray, now: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Differences of residuals for a step of each constant, [m, n]. now: residuals(at). steps [n]: of either sign."""
    columns = [(residuals(at + step) - now) / step.sum() for step in np.diag(steps)]
    return np.stack(columns, axis=1)


def by_size(residuals: np.ndarray, least: float) -> np.ndarray:
    """Weights [m] with which squares count as the size of an error does; errors below least count as their squares."""
    weights: np.ndarray = 1 / np.maximum(np.abs(residuals), least)
    return weights
