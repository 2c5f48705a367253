"""The process groups that a session makes: none that nothing needs, as each has threads of gloo that wake up."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import autoshard
from autoshard.audits.measure import fake_world
from autoshard.runtime.rehearse import rehearse
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session


@pytest.mark.parametrize("pp", [1, 4])
def test_no_group_has_one_rank_and_none_is_that_of_all_ranks_again(pp: int) -> None:
    plan = rehearse(autoshard.plan("llama3-8b", nodes=1, tp=8, pp=pp), 8, vocab_size=256).plan
    settings = optimizer_settings(plan.training.precision, 1e-4, plan.strategy.zero, seed=0)
    with fake_world(0, plan.mesh.world_size):
        session = Session(plan, 0, torch.device("cpu"), settings, seed=0)
        assert session._groups is not None
        sizes = {axes: group.size for axes, group in session._groups._groups.items()}
        assert session._world is not None and session._world.handle is dist.group.WORLD
    assert min(sizes.values()) > 1
    assert ("pp", *(axis.name for axis in plan.mesh.axes)) not in sizes
    assert (("pp",) in sizes) == (plan.strategy.pp > 1)
