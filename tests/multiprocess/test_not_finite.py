"""A loss that is not a number stops the run before anything is updated; --debug-nan says where it comes from."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autoshard.errors import AutoshardError
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from tests.multiprocess.models import LLAMA, MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.unit.weight_folders import huggingface_folder, plan, weights, write_safetensors


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


def test_products_that_are_fused_with_a_gather_have_names_of_their_own(tmp_path: Path) -> None:
    """Under sequence parallelism gate_proj and up_proj read what one all-gather brings."""
    model = replace(MODELS["few kv heads"], vocab_size=256)
    tensors = weights(model, "F32")
    tensors["model.layers.2.mlp.up_proj.weight"][3, 4] = np.inf
    write_safetensors(huggingface_folder(tmp_path / "hf", model) / "model.safetensors", tensors, "F32")
    write_plan(plan(model, tp=2), tmp_path / "plan.json")
    command = [sys.executable, "-m", "autoshard", "run", "plan.json", "--weights", "hf", "--steps", "2", "--debug-nan"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 2
    assert done.stderr.endswith("autoshard: error: model.layers.2.mlp.up_proj is the first operator with inf\n")
