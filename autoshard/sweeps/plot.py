"""Plots a sweep: throughput and efficiency against one option, a line for each setting of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.sweeps.grid import Point, Sweep, word
from autoshard.sweeps.outcome import EXECUTED, OK, Outcome

WIDE = 32
"""If the last tick is more than this many times the first, the axis is logarithmic. On a linear axis, linear scaling is
a straight line."""
MOST_NAMED = 24
"""With more lines the legend would leave no room for them."""
INSTALL = "the plot needs matplotlib: pip install 'autoshard[plot]'"


def x_option(sweep: Sweep) -> str | None:
    """The option on the x axis: 'nodes' if it is in the grid, else the first option of several values that are all
    numbers; None without one."""
    numeric = [
        name
        for name, values in sweep.grid.items()
        if len(values) > 1 and all(isinstance(value, (int, float)) for value in values)
    ]
    return "nodes" if "nodes" in numeric else next(iter(numeric), None)


def lines(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]], x: str) -> dict[str, list[tuple[float, Outcome]]]:
    """Label of each line -> its points, sorted by x; points that do not fit are left out."""
    found: dict[str, list[tuple[float, Outcome]]] = {}
    for point, outcome in outcomes:
        others = [
            f"{name} {_readable(point[name])}" for name, values in sweep.grid.items() if name != x and len(values) > 1
        ]
        if outcome.status == OK:
            place = (outcome.chosen_nodes if x == "nodes" else None) or point[x]  # a plan may take fewer than allowed
            found.setdefault(", ".join(others) or str(point["model"]), []).append((float(place), outcome))
    return {label: sorted(points, key=lambda one: one[0]) for label, points in found.items()}


def _readable(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else word(value)


def has_runs(found: Mapping[str, Sequence[tuple[float, Outcome]]]) -> bool:
    """Whether any point of the lines was executed as planned; rehearsals are of other models and are not drawn."""
    return any(outcome.run == EXECUTED for points in found.values() for _, outcome in points)


def efficiencies(points: Sequence[tuple[float, Outcome]]) -> list[float]:
    """Tokens/s of each device over that of the line's first point."""
    per_device = [(outcome.tokens_per_s or 0.0) / (outcome.devices or 1) for _, outcome in points]
    return [value / per_device[0] for value in per_device]


def write_plot(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]], path: Path) -> bool:
    """Writes the plot as a PNG; False where there is nothing to plot. Raises AutoshardError without matplotlib and
    where the file cannot be written."""
    x = x_option(sweep)
    found = lines(sweep, outcomes, x) if x else {}
    if not x or not found:
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise AutoshardError(INSTALL) from None
    figure = Figure(figsize=(11, 4.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    throughput, efficiency = figure.subplots(1, 2)
    scaling = x == "nodes"
    for label, points in found.items():
        xs = [place for place, _ in points]
        throughput.plot(xs, [outcome.tokens_per_s for _, outcome in points], marker="o", label=label)
        measured = [(place, outcome) for place, outcome in points if outcome.run == EXECUTED]
        if measured:
            xs_run, ys_run = zip(*[(place, outcome.measured_tokens_per_s) for place, outcome in measured], strict=True)
            throughput.plot(xs_run, ys_run, marker="x", linestyle="--", label=f"{label}, measured")
        ys = efficiencies(points) if scaling else [outcome.mfu or 0.0 for _, outcome in points]
        efficiency.plot(xs, [100 * y for y in ys], marker="o", label=label)
    throughput.set_ylim(bottom=0)
    efficiency.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    efficiency.margins(y=0.2)
    _decorate(
        throughput,
        sweep,
        x,
        "tokens/s (predicted; measured where it says so)" if has_runs(found) else "tokens/s (predicted)",
    )
    _decorate(efficiency, sweep, x, "tokens/s per device, % of the first point" if scaling else "MFU, % (predicted)")
    if len(throughput.lines) <= MOST_NAMED:
        throughput.legend(fontsize="small", frameon=False)
    else:
        throughput.set_title(f"{len(throughput.lines)} lines, too many to name; results.csv has them", fontsize="small")
    figure.suptitle(_title(sweep))
    try:
        figure.savefig(path, metadata={"Software": None})
    except OSError as error:
        raise AutoshardError(f"plot {path} cannot be written: {error.strerror}") from None
    return True


def _decorate(axes: Any, sweep: Sweep, x: str, label: str) -> None:
    ticks = sorted(float(value) for value in sweep.grid[x])
    if ticks[-1] > WIDE * ticks[0] > 0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(x.replace("_", " "))
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


def _title(sweep: Sweep) -> str:
    parts = [str(sweep.fixed.get("model", "")), str(sweep.fixed.get("instance", ""))]
    return ", ".join(part for part in parts if part) or sweep.name
