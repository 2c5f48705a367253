"""Draws a rank's memory over one step, stacked by kind, with the device's capacity."""

from __future__ import annotations

from io import BytesIO

from autoshard.allocations.blocks import KINDS, RankMemory, held_levels
from autoshard.errors import AutoshardError
from autoshard.units import GB, format_bytes

INSTALL = "the picture needs matplotlib: pip install 'autoshard[plot]'"
MOST_LABELS = 24
"""Actions that are named below the picture; of more, every second, third, ... is."""


def draw(memory: RankMemory, capacity_bytes: float, form: str) -> bytes:
    """The picture's file. form: 'png' or 'svg'. Raises AutoshardError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise AutoshardError(INSTALL) from None
    figure = Figure(figsize=(12, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    shown = [kind for kind in KINDS if any(one.kind == kind for one in memory.blocks)]
    levels = [
        [size / GB for size in held_levels((one for one in memory.blocks if one.kind == kind), memory.events)]
        for kind in shown
    ]
    axes.stackplot(range(memory.events + 1), *levels, labels=shown, step="post")
    peak, size = memory.peak()
    axes.axhline(capacity_bytes / GB, color="black", linestyle="--", label=f"capacity, {format_bytes(capacity_bytes)}")
    where = f"peak {format_bytes(size)} in {memory.action_at(peak)}"
    axes.annotate(where, (peak, size / GB), xytext=(0, 6), textcoords="offset points", ha="center")
    every = -(-len(memory.actions) // MOST_LABELS)
    named = memory.actions[::every]
    axes.set_xticks([one.event for one in named], [one.text for one in named], rotation=60)
    axes.set(
        title=f"{memory.model}: memory of rank {memory.rank} (pipeline rank {memory.pipeline_rank}) over one step",
        xlabel=f"allocations and releases, by action; {memory.microbatches} of {memory.all_microbatches} microbatches",
        ylabel="GB",
        xlim=(0, memory.events),
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, frameon=False)
    file = BytesIO()
    figure.savefig(file, format=form)
    return file.getvalue()
