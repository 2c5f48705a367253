"""The table of a sweep as text."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.explanation.page import paint, table
from autoshard.plans.names import shortened
from autoshard.sweeps.grid import Point, Sweep
from autoshard.sweeps.table import Outcome
from autoshard.units import format_bytes, format_seconds


def sweep_page(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]], width: int, color: bool) -> str:
    """A row for each point, as text that ends with a newline. width: columns of the terminal."""
    header = (*(name.replace("_", " ") for name in sweep.grid), "step", "tokens/s", "MFU", "memory", "layout")
    rows = [(*(str(point[name]) for name in sweep.grid), *_cells(outcome)) for point, outcome in outcomes]
    return paint(table(header, rows, width, right=range(len(header) - 1)), width, color)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    step, tokens, mfu, memory = outcome.step_time_s, outcome.tokens_per_s, outcome.mfu, outcome.memory_bytes
    if step is None or tokens is None or mfu is None or memory is None:
        return ("-", "-", "-", "-", f"{outcome.status}: {outcome.reason}")
    return (
        f"~{format_seconds(step)}",
        f"~{tokens:,.0f}",
        f"~{mfu:.1%}",
        f"~{format_bytes(memory)}",
        shortened(outcome.layout or ""),
    )
