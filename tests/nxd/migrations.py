"""How far training that moves from NxD to torch, and back, is from training that stays: what a test and a page tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.neuron.installed import build, present
from tests.nxd.migrated import STEPS
from tests.nxd.test_conformance import run

PROCESSES = 4


@dataclass(frozen=True)
class Proof:
    """Largest relative differences of one example made small, over all ranks.

    losses: of 20 steps under torch from NxD's checkpoint, against NxD going on. losses_back: of 20 steps under NxD from
    torch's checkpoint, against torch going on. master, first_moment, second_moment: what torch saved of a rank's shards
    after its steps, against what NxD holds; norms. rounding: the largest of the same three, between NxD's own steps and
    those that it takes from weights up to half a unit in the last place away.
    """

    losses: float
    losses_back: float
    master: float
    first_moment: float
    second_moment: float
    rounding: float

    @property
    def worst(self) -> float:
        """The largest of all that moving makes."""
        return max(value for name, value in asdict(self).items() if name != "rounding")


def proof(name: str) -> Proof:
    """Moves one of EXAMPLES there and back on 4 processes, under torch on the twin of a Neuron device
    (tests/neuron/README.md); takes a minute or two of CPU."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as twin:
        build(Path(twin))
        arguments = {"name": name, "folder": folder}
        ranks = [*run("migrated:leave", arguments, PROCESSES)]
        with present(Path(twin)):
            ranks = _with(ranks, run("migrated:go_on", arguments, PROCESSES))
        ranks = _with(ranks, run("migrated:come_back", arguments, PROCESSES))
    assert all(len(one[series]) == STEPS for one in ranks for series in ("nxd", "torch", "torch, on", "back"))
    return Proof(
        max(_apart(one["torch"], one["nxd"]) for one in ranks),
        max(_apart(one["back"], one["torch, on"]) for one in ranks),
        **{what: max(rank["differences"][what] for rank in ranks) for what in ranks[0]["differences"]},
        rounding=max(max(rank["rounding"].values()) for rank in ranks),
    )


def _with(known: list[Any], more: Iterable[Any]) -> list[Any]:
    """By rank, what is known and more of it."""
    return [one | other for one, other in zip(known, more, strict=True)]


def _apart(found: list[float], expected: list[float]) -> float:
    return max(abs(one - other) / abs(other) for one, other in zip(found, expected, strict=True))
