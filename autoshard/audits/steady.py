"""Why a few microbatches tell of all: each does what the others do, and the steady state leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from autoshard.audits.recorder import SYNC, ActionLog, Recorder
from autoshard.schedules.action import Action

GROWTH_TOLERANCE = 1e-3
"""Share of the memory at the peak that all periods of the step together may leave behind (a few losses)."""
LOSS_BYTES = 8
"""At most, of one microbatch."""


def irregular(recorder: Recorder, num_microbatches: int) -> Iterator[str]:
    """Sentences on why more microbatches would not be more of the same; none where they would.

    num_microbatches: of the plan's step, which may have more than `recorder` saw.
    """
    actions = [action for action in recorder.actions if action.text != SYNC]
    yield from _unlike_others(actions)
    yield from _growth(recorder, actions, num_microbatches)


def microbatch_bytes(recorder: Recorder) -> tuple[int, str]:
    """(bytes that a rank holds for each further microbatch, why that is not so or "").

    recorder: of a rank that runs three forwards before its first backward, and three backwards after its last forward.
    Its second forward keeps as much as its second-last backward gives back, but for a loss, which stays until the end
    of the step: neither makes tables or leaves gradients.
    """
    levels = dict(recorder.memory.levels(0, recorder.memory.events + 1))
    actions = [action for action in recorder.actions if action.text != SYNC]
    before = [_level(levels, action.first_event) for action in actions]
    kept, given_back = before[2] - before[1], before[-2] - before[-1]
    names = actions[1].text, actions[-2].text
    alike = 0 <= kept - given_back <= LOSS_BYTES
    return kept, "" if alike else f"{names[0]} keeps {kept:,} bytes, {names[1]} gives {given_back:,} back"


def _unlike_others(actions: list[ActionLog]) -> Iterator[str]:
    """Actions whose collectives or FLOPs are not those of the first one of their kind and chunk."""
    first: dict[tuple[str, int], ActionLog] = {}
    for action in actions:
        parsed = Action.parse(action.text)
        other = first.setdefault((parsed.kind, parsed.chunk), action)
        if action.collectives != other.collectives:
            changed = (action.collectives - other.collectives) + (other.collectives - action.collectives)
            collective = min(changed)
            named = f"{collective.kind} over {' x '.join(collective.axes)}"
            yield f"{action.text} has other collectives than {other.text}: {named}"
        elif action.flops != other.flops:
            name = min(key.operator for key in action.flops.keys() | other.flops.keys())
            yield f"{action.text} computes other operators than {other.text}: {name}"


def _growth(recorder: Recorder, actions: list[ActionLog], num_microbatches: int) -> Iterator[str]:
    """Bytes held at the start of an action against those one period earlier, in the steady state."""
    parsed = [Action.parse(action.text) for action in actions]
    period = steady_period(parsed)
    if period is None:
        return
    first, last, length = period
    levels = dict(recorder.memory.levels(0, recorder.memory.events + 1))
    held = [_level(levels, action.first_event) for action in actions]
    growth, start = min((held[i + length] - held[i], i) for i in range(first, last + 1))
    periods = num_microbatches // (parsed[start + length].microbatch - parsed[start].microbatch)
    if growth * periods > GROWTH_TOLERANCE * max(levels.values()):
        early, late = actions[start].text, actions[start + length].text
        yield f"memory grows: {growth:,} bytes from {early} to {late}, {periods} times in a step"


def steady_period(parsed: list[Action]) -> tuple[int, int, int] | None:
    """(first, last) action that comes again one period later, and the period: that which repeats for longest of those
    with as many actions of each kind, chunk by chunk. None where a step is too short for one."""
    best: tuple[int, int, int] | None = None
    kinds = ("F", "I", "W") if any(one.kind == "W" for one in parsed) else ("F", "B")
    for length in range(2, len(parsed)):
        run = 0
        for i in range(len(parsed) - length):
            run = run + 1 if _comes_again(parsed[i], parsed[i + length]) else 0
            if run <= (0 if best is None else best[1] - best[0] + 1):
                continue
            period = parsed[i + 1 : i + 1 + length]
            begun, *others = (Counter(one.chunk for one in period if one.kind == kind) for kind in kinds)
            if begun and all(begun == other for other in others):
                best = (i - run + 1, i, length)
    return best


def _comes_again(one: Action, other: Action) -> bool:
    return (one.kind, one.chunk) == (other.kind, other.chunk) and one.microbatch < other.microbatch


def _level(levels: dict[int, int], event: int) -> int:
    """Bytes held right before an event."""
    return levels[max(known for known in levels if known < event)]
