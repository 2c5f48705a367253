"""How far training that moves from NxD to torch, and back, is from training that stays: what a test and a page tell."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import Any

from tests.nxd.migrated import EXAMPLES, STEPS
from tests.nxd.test_conformance import run

PROCESSES = 4


@dataclass(frozen=True)
class Proof:
    """Largest relative differences of one example made small, over all ranks.

    losses: of 20 steps under torch from NxD's checkpoint, against NxD going on. losses_back: of 20 steps under NxD from
    torch's checkpoint, against torch going on. master, first_moment, second_moment: what torch saved of a rank's shards
    after its steps, against what NxD holds; norms.
    """

    losses: float
    losses_back: float
    master: float
    first_moment: float
    second_moment: float

    @property
    def worst(self) -> float:
        """The largest of all."""
        return max(asdict(self).values())


def proof(name: str) -> Proof:
    """Moves one of EXAMPLES there and back on 4 processes; takes a minute or two of CPU."""
    with TemporaryDirectory() as folder:
        ranks: Any = run("migrated:migrate", {"name": name, "folder": folder}, PROCESSES)
    losses = [rank["losses"] for rank in ranks]
    assert name in EXAMPLES and all(len(series) == STEPS for one in losses for series in one.values())
    return Proof(
        max(_apart(one["torch"], one["nxd"]) for one in losses),
        max(_apart(one["back"], one["torch, on"]) for one in losses),
        **{what: max(rank["differences"][what] for rank in ranks) for what in ranks[0]["differences"]},
    )


def _apart(found: list[float], expected: list[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))
