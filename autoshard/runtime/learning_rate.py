"""The learning rate of each step: a linear warm-up to its peak, then one of three ways on."""

from __future__ import annotations

from math import cos, pi

SCHEDULES = ("constant", "linear", "cosine")
"""Names of the schedules. linear and cosine fall to zero, which they reach one step after the last."""


def learning_rate(schedule: str, step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """The learning rate of a step, 0 .. steps - 1. It reaches its peak at step `warmup_steps`, the first one after the
    warm-up."""
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    match schedule:
        case "linear":
            return peak * (1 - done)
        case "cosine":
            return peak * (1 + cos(pi * done)) / 2
    assert schedule == "constant", schedule
    return peak
