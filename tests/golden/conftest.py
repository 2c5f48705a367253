"""What texts are made with that are not to change with the fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoshard.cost import interval


@pytest.fixture
def fixed_intervals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The intervals of intervals.json here, not those of the last fit."""
    monkeypatch.setattr(interval, "FILE", Path(__file__).parent / "intervals.json")
    _forget()
    yield
    _forget()


def _forget() -> None:
    for cached in (interval.regimes, interval.differences, interval.measured, interval.unknown_widths, interval.picks):
        cached.cache_clear()
