"""A loss that is not a number stops the run before anything is updated; --debug-nan says where it comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autoshard.errors import AutoshardError
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.not_finite import NotFinite, check_finite, naming_step
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.worker_arguments import TrainArguments
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import LLAMA, MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.unit.weight_folders import huggingface_folder, plan, weights, write_safetensors


def session_of_two_blocks(debug_nan: bool) -> Session:
    plan = plan_of(replace(LLAMA, num_hidden_layers=2), strategy(layers=(2,)), 2, FP32)
    settings = optimizer_settings(FP32, 1e-3, zero=1, seed=0)
    return Session(plan, 0, torch.device("cpu"), settings, seed=0, debug_nan=debug_nan)


def broken_session(debug_nan: bool) -> Session:
    """A weight of the second block is infinite."""
    session = session_of_two_blocks(debug_nan)
    with torch.no_grad():
        session.modules[0].parameter("model.layers.1.mlp.up_proj.weight")[0, 0] = float("inf")
    return session


def step(session: Session) -> None:
    tokens = np.random.default_rng(0).integers(0, LLAMA.vocab_size, (2, 17))
    session.step(tokens[:, :-1].copy(), tokens[:, 1:].copy(), 1e-3)


@pytest.mark.parametrize(
    ("debug_nan", "message"),
    [(False, "the loss is nan"), (True, "model.layers.1.mlp.up_proj is the first operator with inf")],
)
def test_it_stops(debug_nan: bool, message: str) -> None:
    session = broken_session(debug_nan)
    before = session.optimizer.masters()["lm_head.weight"].clone()
    with pytest.raises(NotFinite) as error:
        step(session)
    assert str(error.value) == message
    assert torch.equal(session.optimizer.masters()["lm_head.weight"], before)


def test_a_gradient_that_is_not_finite_stops_it() -> None:
    session = session_of_two_blocks(debug_nan=True)
    session.modules[0].parameter("model.norm.weight").register_hook(lambda gradient: gradient + float("inf"))
    with pytest.raises(NotFinite) as error:
        step(session)
    assert str(error.value) == "the gradient norm is inf"


@pytest.mark.parametrize(
    ("backend", "debug_nan", "message"),
    [
        ("torch", False, "; --debug-nan names the first operator of a forward pass with nan or inf"),
        ("torch", True, "; all operators of the forward pass gave finite numbers, so it is of backward"),
        ("nxd", False, "; --backend torch --debug-nan names the first operator of a forward pass with nan or inf"),
    ],
)
def test_the_step_and_the_option_that_says_more(backend: str, debug_nan: bool, message: str) -> None:
    session = session_of_two_blocks(debug_nan)
    session.label = "step 7"
    arguments = TrainArguments("", "", 1, 1e-3, 0, "constant", 0, "cpu", backend, debug_nan=debug_nan)
    with pytest.raises(AutoshardError) as error, naming_step(session, arguments):
        check_finite("the gradient norm", float("nan"))
    assert str(error.value) == f"step 7: the gradient norm is nan{message}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights `hf`, of which one of the third block is infinite, and plan.json for two ranks."""
    folder = tmp_path_factory.mktemp("not_finite")
    model = replace(MODELS["few kv heads"], vocab_size=256)
    tensors = weights(model, "F32")
    tensors["model.layers.2.mlp.up_proj.weight"][3, 4] = np.inf
    write_safetensors(huggingface_folder(folder / "hf", model) / "model.safetensors", tensors, "F32")
    write_plan(plan(model, tp=2), folder / "plan.json")
    return folder


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ((), "step 1: the loss is nan; --debug-nan names the first operator of a forward pass with nan or inf"),
        # under sequence parallelism gate_proj and up_proj read what one all-gather brings
        (("--debug-nan",), "step 1: model.layers.2.mlp.up_proj is the first operator with inf"),
    ],
)
def test_a_run_says_at_which_step(folder: Path, option: tuple[str, ...], message: str) -> None:
    done = autoshard(folder, "run", "plan.json", "--weights", "hf", "--steps", "2", *option)
    assert done.returncode == 2
    assert done.stderr.endswith(f"autoshard: error: {message}\n")
