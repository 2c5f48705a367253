"""The data of the benchmarks, and the constants of measured stacks among them."""

from __future__ import annotations

from pathlib import Path

from autoshard.calibration.results import fitted
from autoshard.calibration.results.fitted import Fitted

__all__ = ["DATA", "Fitted", "load"]

DATA = Path(__file__).parent / "data"


def load() -> Fitted:
    """The constants in DATA."""
    return fitted.load(DATA)
