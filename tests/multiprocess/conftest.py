"""Every test of torch begins with the same random state, whatever ran before it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _the_same_random_state() -> None:
    """A model that a test initializes is the same in every run: a few random ones are within rounding of a clamp."""
    torch.manual_seed(0)
