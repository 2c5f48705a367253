"""The bias of a router's choice has no gradient: training, checkpoints and other layouts keep every bit of it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from autoshard.layout.strategy import Strategy
from autoshard.plans.plan_json import write_plan
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.unit.weight_folders import huggingface_folder

MODEL = replace(MODELS["deepseek v3"], vocab_size=256)
BIAS, GATE = (f"model.layers.1.mlp.gate.{name}" for name in ("e_score_correction_bias", "weight"))


def autoshard(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "autoshard", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr


def trained(folder: Path, chosen: Strategy, microbatches: int, steps: int, *options: str) -> None:
    write_plan(plan_of(MODEL, chosen, microbatches, FP32), folder / "plan.json")
    saving = ("--checkpoint-every", "2", "--checkpoint-dir", "saved")
    autoshard(folder, "run", "plan.json", "--steps", str(steps), *saving, *options)


def test_training_and_checkpoints_keep_the_bias(tmp_path: Path) -> None:
    hf = huggingface_folder(tmp_path / "hf", MODEL)
    before = {name: value * 0.02 for name, value in load_file(hf / "model.safetensors").items()}
    before[BIAS] = np.linspace(-1, 1, 8, dtype=np.float32)
    save_file(before, hf / "model.safetensors")
    trained(tmp_path, strategy(tp=2, dp=2, ep=2), 2, 2, "--weights", "hf")
    trained(tmp_path, strategy(pp=2, layers=(3, 1), zero=1), 4, 4)  # another layout goes on
    autoshard(tmp_path, "convert", "saved", "after")
    after = load_file(tmp_path / "after" / "model.safetensors")
    assert after.keys() == before.keys()
    for name, value in after.items():
        same = np.array_equal(value, before[name])
        assert same == name.endswith("e_score_correction_bias"), name
