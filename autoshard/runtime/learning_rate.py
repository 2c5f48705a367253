"""The learning rate of each step: a linear warm-up to its peak, then one of three ways on."""

from __future__ import annotations

from math import cos, pi

SCHEDULES = ("constant", "linear", "cosine")
"""linear and cosine fall to zero, which they reach one step after the last."""


def learning_rate(schedule: str, step: int, steps: int, peak: float, warmup_steps: int) -> float:
    """Of step 0 .. steps - 1. The peak is reached at step `warmup_steps`, the first one behind the warm-up."""
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
