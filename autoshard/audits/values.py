"""Subjects and findings of an audit, as plain values that JSON can hold. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from autoshard.graph.count import Collective
from autoshard.plans.stage_sections import RankGraphs

PEAK_MEMORY = "peak memory"
STATE_KINDS = ("parameters", "gradients", "optimizer state")
MEMORY_KINDS = (*STATE_KINDS, "kept activations", "working", "token ids and labels", "tables")
"""STATE_KINDS: the optimizer's flat buffers. kept activations: of the microbatches in flight. working: everything else
that the action at the peak has. tables: rotary positions and masks, kept for the whole run."""


class Flops(NamedTuple):
    """The work that a number of FLOPs is counted for.

    phase: 'forward', 'recompute', 'backward' or 'sync', of what Muon orthogonalises. kind: of the operator. operator:
    template of its name.
    """

    phase: str
    kind: str
    operator: str


ORTHOGONAL = Flops("sync", "einsum", "orthogonal updates")
"""Products of Muon, which no operator of the graph is named for."""


class Transfer(NamedTuple):
    """A tensor that goes from a stage to its neighbour. direction: 'send' or 'receive'."""

    direction: str
    bytes: int


@dataclass(frozen=True)
class Role:
    """Ranks that run the same program; one of them is audited.

    stands_for: how many ranks. reason: why they are one role.
    """

    pipeline_rank: int
    rank: int
    stands_for: int
    reason: str


@dataclass(frozen=True)
class Measurement:
    """One rank's work in a step of `microbatches`, and the memory that it held, as measured.

    collectives, transfers, flops: of the whole step. order: the actions as they ran. irregular: sentences on why more
    microbatches would not be more of the same. graphs: those that would be compiled; None of a plan that compiles none.
    held: bytes by kind at the peak. peak_at: the action and operator of the peak. state: bytes of STATE_KINDS, held at
    the peak or not.
    """

    microbatches: int
    parameter_elements: int
    state: Mapping[str, int]
    collectives: Mapping[Collective, int]
    transfers: Mapping[Transfer, int]
    flops: Mapping[Flops, float]
    order: tuple[str, ...]
    irregular: tuple[str, ...]
    graphs: RankGraphs | None
    held: Mapping[str, int]
    peak_at: str

    @property
    def peak_bytes(self) -> int:
        return sum(self.held.values())


@dataclass(frozen=True)
class Difference:
    """One thing in which the program is not as planned. what: memory, flops, collectives, ...; name: which."""

    what: str
    name: str
    planned: float
    measured: float

    @property
    def relative(self) -> float:
        return abs(self.measured - self.planned) / max(abs(self.planned), abs(self.measured), 1e-300)


@dataclass(frozen=True)
class Row:
    """One compared number of a role, agreeing or not. tolerance: relative; None where it is only shown."""

    what: str
    name: str
    planned: float
    measured: float
    tolerance: float | None


@dataclass(frozen=True)
class RoleAudit:
    """One role: every number beside its plan, and what differs, largest first. unmatched: planned bytes that have no
    counterpart in this runtime."""

    role: Role
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    unmatched: Mapping[str, float]
    peak_at: str
    microbatches: int
    seconds: float

    @property
    def agrees(self) -> bool:
        return not self.differences

    @property
    def peak(self) -> Row:
        """The fullest moment of the step, all kinds of memory together."""
        return next(row for row in self.rows if row.what == PEAK_MEMORY)
