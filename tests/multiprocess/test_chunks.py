"""Several stages on one rank without a pipeline: what one makes is handed on to the other without a transfer."""

from __future__ import annotations

import pytest
import torch

from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from tests.multiprocess.masked_workers import batch
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP64, plan_of, strategy


def test_two_chunks_of_one_rank_are_one_stage() -> None:
    found = []
    for vpp in (1, 2):
        plan = plan_of(MODELS["llama"], strategy(vpp=vpp), 3, FP64)
        settings = optimizer_settings(FP64, 1e-3, zero=1, seed=0)
        session = Session(plan, 0, torch.device("cpu"), settings, seed=0)
        assert len(session.stages) == vpp
        outcomes = [session.step(*batch(plan, step), 1e-3) for step in range(2)]
        found.append([(one.loss, one.gradient_norm) for one in outcomes])
    assert found[1] == [pytest.approx(one, rel=1e-12) for one in found[0]]
