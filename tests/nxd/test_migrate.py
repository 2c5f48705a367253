"""Training that began under NxD goes on under torch, and back: every published example of NxD Training."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.nxd.migrated import EXAMPLES, STEPS
from tests.nxd.test_conformance import run
from tests.unit.written_files import PUBLIC, UNNAMED

NEAR = 1e-5


def test_every_published_example_is_here() -> None:
    """Dropless experts have no layer here: a plan has a capacity factor."""
    assert set(EXAMPLES) == {*PUBLIC, *UNNAMED} - {"megatron_mixtral_dropless"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_twenty_steps_there_and_twenty_here(name: str) -> None:
    with TemporaryDirectory() as folder:
        ranks: Any = run("migrated:migrate", {"name": name, "folder": folder}, 4)
    for rank in ranks:
        losses, differences = rank["losses"], rank["differences"]
        assert len(losses["nxd"]) == len(losses["back"]) == STEPS
        assert losses["torch"] == pytest.approx(losses["nxd"], rel=NEAR)
        assert losses["back"] == pytest.approx(losses["torch, on"], rel=NEAR)
        assert max(differences.values()) < NEAR, differences
