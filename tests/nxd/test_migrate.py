"""Training that began under NxD goes on under torch, and back: every published example of NxD Training."""

from __future__ import annotations

import pytest

from tests.nxd.migrated import EXAMPLES
from tests.nxd.migrations import proof
from tests.unit.written_files import PUBLIC, UNNAMED

NEAR = 1e-5
ROUNDINGS = 3
"""Times what rounding alone makes that a move may: examples of one kv head turn a rounding into 1e-5 in 20 steps."""


def test_every_published_example_is_here() -> None:
    """Dropless experts have no layer here: a plan has a capacity factor."""
    assert set(EXAMPLES) == {*PUBLIC, *UNNAMED} - {"megatron_mixtral_dropless"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_twenty_steps_there_and_twenty_here(name: str) -> None:
    found = proof(name)
    assert found.worst < max(NEAR, ROUNDINGS * found.rounding), found
