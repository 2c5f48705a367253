"""Plots measured against fitted values. matplotlib is imported only here, and only when a plot is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoshard.calibration.fit import Point
from autoshard.errors import AutoshardError

COLORS, MARKERS = 10, "o^s"
"""How many colors matplotlib has before they repeat; families beyond that get the next marker."""


PICTURES = (".png", ".svg", ".pdf")
"""The ends of names of pictures."""


def check_picture(file: Path) -> None:
    """Checks that a plot can be drawn into `file`, before minutes are spent on measuring. Raises AutoshardError without
    matplotlib, and for another end of its name."""
    if file.suffix not in PICTURES:
        raise AutoshardError(f"plot={file} must end in one of: {', '.join(PICTURES)}")
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401  it is asked for, not used
    except ImportError:
        raise AutoshardError(f"plot={file} needs matplotlib: pip install 'autoshard[plot]'") from None


def plot(points: Sequence[Point], title: str, file: Path) -> None:
    """Writes a plot of every point by family to `file`. Both axes are logarithmic, with the line of equality and lines
    at half and twice it.

    file: one that check_picture lets pass. Raises AutoshardError where it cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

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
