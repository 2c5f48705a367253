"""Every test of torch begins with the same random state, whatever ran before it; torch is imported once for the ranks
of all."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from autoshard.calibration import measure
from autoshard.runtime import starting
from tests.multiprocess.started import forked, still_forks


@pytest.fixture(autouse=True)
def _the_same_random_state() -> None:
    """A model that a test initializes is the same in every run: a few random ones are within rounding of a clamp."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="package")
def _one_fork_server() -> Iterator[None]:
    """Ranks of commands that run in this process are forks of one process, which outlives each: without it every rank
    would import torch again."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (starting, measure):
            patch.setattr(module, "fork_server", lambda modules: nullcontext(forked()))
        yield
    assert still_forks(), "a test ended the process that others fork ranks from"
