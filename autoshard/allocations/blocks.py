"""The blocks of memory that a rank allocates in one step, as plain values. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

STATE, WEIGHTS, KEPT, AGAIN = "training state", "gathered weights", "kept activations", "recomputed activations"
WORKING, RECEIVED, TOKENS, TABLES = "working", "received", "token ids and labels", "tables"
KINDS = (STATE, WEIGHTS, KEPT, AGAIN, RECEIVED, WORKING, TOKENS, TABLES)
"""training state: flat buffers of parameters, gradients, master weights and moments. gathered weights: whole while they
are read (ZeRO-3). kept activations: made by a forward, for a backward. recomputed activations: made again before a
backward. received: from another pipeline rank. working: gone before their action ends, and gradients of activations.
tables: rotary positions and masks."""


@dataclass(frozen=True)
class Block:
    """One allocation. It is held after the events birth <= e < death; death None: it outlives the step.

    tensor: name of what it holds; '' for an operator's scratch space. operator: that made it; '' between operators.
    stage, microbatch: of the action that made it; None for what no action made. phase: 'forward', 'recompute',
    'backward', 'sync', or '' for what was there before the step.
    """

    tensor: str
    operator: str
    stage: int | None
    microbatch: int | None
    phase: str
    kind: str
    size_bytes: int
    birth: int
    death: int | None

    @property
    def label(self) -> str:
        """The contents of the block in words."""
        if self.kind == RECEIVED and not self.tensor:
            return "activation or gradient from another stage"
        return self.tensor or (f"scratch of {self.operator}" if self.operator else "buffers between operators")

    def lives(self, event: int) -> bool:
        return self.birth <= event and (self.death is None or self.death > event)


@dataclass(frozen=True)
class ActionStart:
    """The first event of an action. text: such as 'F0.1'; 'sync' after the last one."""

    text: str
    event: int


@dataclass(frozen=True)
class RankMemory:
    """All blocks of a rank in one step, and the events 0 (before the step) to `events` at which they come and go.

    microbatches: that ran, of `all_microbatches` of the plan's step; the others repeat them. Of token ids and labels
    those of all microbatches are counted.
    """

    model: str
    rank: int
    pipeline_rank: int
    microbatches: int
    all_microbatches: int
    actions: tuple[ActionStart, ...]
    events: int
    blocks: tuple[Block, ...]

    def levels(self) -> list[int]:
        """Bytes held after each event."""
        return held_levels(self.blocks, self.events)

    def peak(self) -> tuple[int, int]:
        """(event, bytes) of the fullest moment, the first one where there are several."""
        levels = self.levels()
        event = max(range(len(levels)), key=levels.__getitem__)
        return event, levels[event]

    def at(self, event: int) -> list[Block]:
        """Blocks held after an event, largest first."""
        return sorted((one for one in self.blocks if one.lives(event)), key=lambda one: -one.size_bytes)

    def action_at(self, event: int) -> str:
        """The action under way; 'before the step' ahead of the first."""
        begun = [action.text for action in self.actions if action.event <= event]
        return begun[-1] if begun else "before the step"


class Timed(Protocol):
    """Bytes that are held after the events birth <= e < death."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def birth(self) -> int: ...
    @property
    def death(self) -> int | None: ...


def held_levels(blocks: Iterable[Timed], events: int) -> list[int]:
    """Bytes that blocks hold after each event 0 to events."""
    changes: Counter[int] = Counter()
    for one in blocks:
        changes[one.birth] += one.size_bytes
        if one.death is not None:
            changes[one.death] -= one.size_bytes
    levels, held = [], 0
    for event in range(events + 1):
        held += changes[event]
        levels.append(held)
    return levels
