"""Plots measured against fitted values. matplotlib is imported only here, and only when a plot is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoshard.calibration.fit import Point
from autoshard.errors import AutoshardError

COLORS, MARKERS = 10, "o^s"
"""How many colors matplotlib has before they repeat; families beyond that get the next marker."""


def plot(points: Sequence[Point], title: str, file: Path) -> None:
    """Writes a plot of every point by family to `file`. Both axes are logarithmic, with the line of equality and lines
    at half and twice it.

    Raises AutoshardError without matplotlib, and where the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise AutoshardError(f"plot={file} needs matplotlib: pip install 'autoshard[plot]'") from None
    figure = Figure(figsize=(7, 6))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, family in enumerate(dict.fromkeys(point.family for point in points)):
        own = [point for point in points if point.family == family]
        marker = MARKERS[number // COLORS % len(MARKERS)]
        axes.scatter([p.measured_s for p in own], [p.fitted_s for p in own], s=12, marker=marker, label=family)
    ends = [min(point.measured_s for point in points), max(point.measured_s for point in points)]
    axes.plot(ends, ends, color="black", linewidth=1)
    for factor in (0.5, 2.0):
        axes.plot(ends, [factor * end for end in ends], color="black", linewidth=0.5, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="measured, seconds", ylabel="fitted, seconds", title=title)
    axes.legend(fontsize=8)
    figure.tight_layout()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise AutoshardError(f"plot={file} cannot be written: {error}") from None
