"""A loss that is not a number stops the run before anything is updated; --debug-nan says where it comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from autoshard.errors import AutoshardError
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from tests.multiprocess.models import LLAMA
from tests.multiprocess.plans import FP32, plan_of, strategy


def broken_session(debug_nan: bool) -> Session:
    """A weight of the second block is infinite."""
    plan = plan_of(replace(LLAMA, num_hidden_layers=2), strategy(layers=(2,)), 2, FP32)
    settings = optimizer_settings(FP32, 1e-3, zero=1, seed=0)
    session = Session(plan, 0, torch.device("cpu"), settings, seed=0, debug_nan=debug_nan)
    with torch.no_grad():
        session.modules[0].parameter("model.layers.1.mlp.up_proj.weight")[0, 0] = float("inf")
    return session


@pytest.mark.parametrize(
    ("debug_nan", "message"),
    [
        (False, "the loss is nan; --debug-nan names the operator that it comes from"),
        (True, "model.layers.1.mlp.up_proj is the first operator with inf"),
    ],
)
def test_it_stops(debug_nan: bool, message: str) -> None:
    session = broken_session(debug_nan)
    before = session.optimizer.masters()["lm_head.weight"].clone()
    tokens = np.random.default_rng(0).integers(0, LLAMA.vocab_size, (2, 17))
    with pytest.raises(AutoshardError) as error:
        session.step(tokens[:, :-1].copy(), tokens[:, 1:].copy(), 1e-3)
    assert str(error.value) == message
    assert torch.equal(session.optimizer.masters()["lm_head.weight"], before)
