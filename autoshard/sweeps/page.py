"""The table of a sweep as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.explanation.page import paint, table, wrapped
from autoshard.planner.request import SEARCHED
from autoshard.plans.names import shortened
from autoshard.sweeps.grid import Point, Sweep, word
from autoshard.sweeps.outcome import CHOSEN, NOTE_END, OK, Outcome
from autoshard.units import format_bytes, format_number, format_seconds, percent

COST = "usd_per_billion_tokens"


def sweep_page(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]], width: int, color: bool) -> str:
    """A row for each point, as text that ends with a newline. width: columns of the terminal. Where plans were
    executed, what that took stands beside what was predicted for what ran, which a rehearsal has shrunk. What was
    chosen beside the layout is a column where the sweep asked for a choice, or where it differs and is not in the grid;
    so is the cost where it asked about that. Below are the notes that all plans have.
    """
    ran, chosen = any(outcome.run for _, outcome in outcomes), tuple(_chosen(sweep, outcomes))
    names = {COST: "USD a billion tokens"}
    header = (
        *(names.get(name, name.replace("_", " ")) for name in (*sweep.grid, *chosen)),
        *("step", "tokens/s", "MFU", "memory", "fits"),
        *(("took", "predicted", "run") if ran else ()),
        "layout",
    )
    rows = [(*(word(point[name]) for name in sweep.grid), *_cells(outcome, ran, chosen)) for point, outcome in outcomes]
    lines = table(header, rows, width, right=range(len(header) - (2 if ran else 1)))
    for note in _of_all(outcomes):
        lines += wrapped(note, width, "  ")
    return paint(lines, width, color)


def _of_all(outcomes: Sequence[tuple[Point, Outcome]]) -> list[str]:
    """The notes that all plans have."""
    first, *others = [one.notes.split(NOTE_END) for _, one in outcomes if one.status == OK] or [[]]
    return [note for note in first if note and all(note in other for other in others)]


def _chosen(sweep: Sweep, outcomes: Sequence[tuple[Point, Outcome]]) -> Iterator[str]:
    """The fields of what was chosen that the page shows."""
    for option, field in CHOSEN.items():
        asked = [str(value) for value in sweep.grid.get(option, (sweep.fixed.get(option, ""),))]
        found = {getattr(outcome, field) for _, outcome in outcomes if outcome.status == OK}
        if any(one == SEARCHED or "," in one for one in asked) or (option not in sweep.grid and len(found) > 1):
            yield field
        elif option == "nodes" and any(one.chosen_nodes not in (None, point.get(option, 1)) for point, one in outcomes):
            yield field  # fewer than were allowed
    if any(name in (*sweep.grid, *sweep.fixed) for name in ("price_per_node_hour", "objective")):
        yield COST


def _cells(outcome: Outcome, ran: bool, chosen: tuple[str, ...]) -> tuple[str, ...]:
    step, tokens, mfu, memory = outcome.step_time_s, outcome.tokens_per_s, outcome.mfu, outcome.memory_bytes
    if step is None or tokens is None or mfu is None or memory is None:
        return ("-",) * (len(chosen) + (8 if ran else 5)) + (f"{outcome.status}: {outcome.reason}",)
    return (
        *(_choice(getattr(outcome, name)) for name in chosen),
        f"~{format_seconds(step)}",
        f"~{format_number(tokens)}",
        f"~{mfu:.1%}",
        f"~{format_bytes(memory)}",
        "-" if outcome.fits_probability is None else percent(outcome.fits_probability),
        *(_measured(outcome) if ran else ()),
        shortened(outcome.layout or ""),
    )


def _choice(value: object) -> str:
    if value is None:
        return "-"
    return f"~{value:,.2f}" if isinstance(value, float) else str(value)


def _measured(outcome: Outcome) -> tuple[str, str, str]:
    took, predicted = outcome.measured_step_time_s, outcome.run_predicted_step_time_s
    words = ": ".join(word for word in (outcome.run or "-", outcome.run_reason) if word)
    return (
        "-" if took is None else format_seconds(took),
        "-" if predicted is None else f"~{format_seconds(predicted)}",
        words,
    )
