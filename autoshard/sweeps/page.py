"""The table of a sweep as text."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.explanation.page import paint, table
from autoshard.plans.names import shortened
from autoshard.sweeps.grid import Point, Sweep
from autoshard.sweeps.outcome import Outcome
from autoshard.units import format_bytes, format_number, format_seconds


def sweep_page(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]], width: int, color: bool) -> str:
    """A row for each point, as text that ends with a newline. width: columns of the terminal. Where plans were
    executed, what that took stands beside what was predicted for what ran, which a rehearsal has shrunk."""
    ran = any(outcome.run for _, outcome in outcomes)
    header = (
        *(name.replace("_", " ") for name in sweep.grid),
        *("step", "tokens/s", "MFU", "memory"),
        *(("took", "predicted", "run") if ran else ()),
        "layout",
    )
    rows = [(*(str(point[name]) for name in sweep.grid), *_cells(outcome, ran)) for point, outcome in outcomes]
    return paint(table(header, rows, width, right=range(len(header) - (2 if ran else 1))), width, color)


def _cells(outcome: Outcome, ran: bool) -> tuple[str, ...]:
    step, tokens, mfu, memory = outcome.step_time_s, outcome.tokens_per_s, outcome.mfu, outcome.memory_bytes
    if step is None or tokens is None or mfu is None or memory is None:
        return ("-",) * (7 if ran else 4) + (f"{outcome.status}: {outcome.reason}",)
    return (
        f"~{format_seconds(step)}",
        f"~{format_number(tokens)}",
        f"~{mfu:.1%}",
        f"~{format_bytes(memory)}",
        *(_measured(outcome) if ran else ()),
        shortened(outcome.layout or ""),
    )


def _measured(outcome: Outcome) -> tuple[str, str, str]:
    took, predicted = outcome.measured_step_time_s, outcome.run_predicted_step_time_s
    words = ": ".join(word for word in (outcome.run or "-", outcome.run_reason) if word)
    return (
        "-" if took is None else format_seconds(took),
        "-" if predicted is None else f"~{format_seconds(predicted)}",
        words,
    )
