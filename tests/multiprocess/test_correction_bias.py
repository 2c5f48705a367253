"""The bias of a router's choice has no gradient: training, checkpoints and other layouts keep every bit of it, at any
precision of the weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from autoshard.layout.strategy import Strategy
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.initial_weights import load_weights
from autoshard.spec.training import Precision
from tests.cases import some
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import BF16, FP32, FP64, plan_of, strategy
from tests.unit.weight_folders import huggingface_folder

MODEL = replace(MODELS["deepseek v3"], vocab_size=256)
BIAS, GATE = (f"model.layers.1.mlp.gate.{name}" for name in ("e_score_correction_bias", "weight"))


def start(folder: Path) -> dict[str, torch.Tensor]:
    """Writes a checkpoint as it is published: FP32 for the bias, whose values lie closer than those of bf16, which
    holds the weights. Returns its tensors."""
    hf = huggingface_folder(folder, MODEL)
    found = {name: (value * 0.02).bfloat16() for name, value in load_file(hf / "model.safetensors").items()}
    for name in found:
        if name.endswith("e_score_correction_bias"):
            found[name] = torch.linspace(7, 7.01, 8)
    save_file(found, hf / "model.safetensors")
    return found


def trained(folder: Path, chosen: Strategy, microbatches: int, steps: int, precision: Precision, *options: str) -> None:
    write_plan(plan_of(MODEL, chosen, microbatches, precision), folder / "plan.json")
    saving = ("--checkpoint-every", "2", "--checkpoint-dir", "saved")
    done = autoshard(folder, "run", "plan.json", "--steps", str(steps), *saving, *options)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("precision", some([BF16[0], FP32, BF16[1]], step=2), ids=lambda one: str(one.name))
def test_training_and_checkpoints_keep_the_bias(precision: Precision, tmp_path: Path) -> None:
    before = start(tmp_path / "hf")
    trained(tmp_path, strategy(tp=2, dp=2, ep=2, zero=3), 2, 2, precision, "--weights", "hf")
    trained(tmp_path, strategy(pp=2, layers=(3, 1), zero=1), 4, 4, precision)  # another layout goes on
    assert autoshard(tmp_path, "convert", "saved", "after").returncode == 0
    after = load_file(tmp_path / "after" / "model.safetensors")
    assert after.keys() == before.keys()
    for name, value in after.items():
        same = torch.equal(value, before[name].to(value.dtype))
        assert same == name.endswith("e_score_correction_bias"), name
        assert value.dtype == torch.float32 or not same, name


@pytest.mark.parametrize("precision", [*BF16, FP64], ids=lambda one: str(one.name))
def test_the_choice_reads_every_bit_of_the_bias(precision: Precision, tmp_path: Path) -> None:
    given = start(tmp_path / "hf")[BIAS]
    plan = plan_of(MODEL, strategy(layers=(4,)), 1, precision)
    session = Session(plan, 0, torch.device("cpu"), optimizer_settings(precision, 1e-3, 1, seed=0), seed=0)
    load_weights(session, tmp_path / "hf")
    (stage,) = session.modules.values()
    ids = np.random.default_rng(0).integers(0, MODEL.vocab_size, (1, plan.training.sequence_length + 1))
    for _ in range(2):
        bias = stage.parameter(BIAS)
        assert bias.dtype in (torch.float32, torch.float64) and torch.equal(bias.float(), given)
        session.step(ids[:, :-1].copy(), ids[:, 1:].copy(), 1e-2)
