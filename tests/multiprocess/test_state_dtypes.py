"""Gradients and moments in other dtypes than the weights': what an update computes, and a training that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoshard.checkpoint.tensor_file import read_header
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.torch_backend import parts
from autoshard.runtime.torch_backend.fused_adamw import FusedAdamW
from autoshard.spec.state_dtypes import with_state_dtypes
from autoshard.spec.training import ADAMW, MUON, load_precision
from tests.multiprocess.command import autoshard
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import NARROW, plan_of, strategy
from tests.multiprocess.test_muon import losses

BETAS, EPS, DECAY, RATE = (0.9, 0.95), 1e-8, 0.1, 1e-3


@pytest.mark.parametrize("at_once", [2**22, 512, 64])
def test_an_update_is_computed_in_fp32(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is torch's AdamW on FP32 copies of gradients and moments, whose moments are rounded, part by part."""
    monkeypatch.setattr(parts, "AT_ONCE", at_once)
    torch.manual_seed(0)
    begun = torch.randn(1003)
    own = FusedAdamW(begun.clone(), moments_dtype=torch.bfloat16)
    weights, first, second = begun.clone(), torch.zeros(1003).bfloat16(), torch.zeros(1003).bfloat16()
    for step in range(4):
        gradient = torch.randn(1003).bfloat16()
        own.step(gradient, RATE, BETAS, EPS, DECAY)
        parameter = torch.nn.Parameter(weights.clone())
        theirs = torch.optim.AdamW([parameter], RATE, BETAS, EPS, DECAY, fused=True)
        parameter.grad = gradient.float()
        theirs.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": first.float(),
            "exp_avg_sq": second.float(),
        }
        theirs.step()
        state = theirs.state[parameter]
        weights, first, second = parameter.detach(), state["exp_avg"].bfloat16(), state["exp_avg_sq"].bfloat16()
        assert torch.equal(own.weights, weights)
        assert torch.equal(own.first_moment, first) and torch.equal(own.second_moment, second)
    assert own.first_moment.dtype == torch.bfloat16


@pytest.mark.parametrize("optimizer", [ADAMW, MUON])
def test_a_training_goes_on_in_another_layout(optimizer: str, tmp_path: Path) -> None:
    """Files hold moments in their own dtype; two processes go on with the training of four, and one whose moments have
    another dtype, too."""
    narrow, wide = (with_state_dtypes(load_precision("mixed_precision"), one) for one in (NARROW, None))
    model = replace(MODELS["few kv heads"], vocab_size=256)
    plans = {
        "whole": plan_of(model, strategy(tp=2, dp=2, zero=3), 2, narrow, optimizer=optimizer),
        "two": plan_of(model, strategy(dp=2, tp=1), 2, narrow, optimizer=optimizer),
        "wide": plan_of(model, strategy(pp=2), 4, wide, optimizer=optimizer),
    }
    for name, plan in plans.items():
        write_plan(plan, tmp_path / f"{name}.json")
    saving = ("--checkpoint-every", "2", "--checkpoint-dir", "saved")
    for name, file, steps, options in (
        ("long", "whole", 4, ()),
        ("four", "whole", 2, saving),
        ("two", "two", 4, (*saving, "--resume", "saved/step-00000002")),
        ("wide", "wide", 5, saving),
    ):
        asked = ("run", f"{file}.json", "--processes", "4", "--learning-rate", "0.02", "--steps", str(steps))
        done = autoshard(tmp_path, *asked, *options, "--output", name)
        assert done.returncode == 0, done.stderr
        if name == "four":
            (rank, *_) = (tmp_path / "saved" / "step-00000002").glob("*.safetensors")
            stored = {key.split("/")[0]: one.dtype for key, one in read_header(rank).items()}
            assert {stored.pop("master"), *stored.values()} == {"F32", "BF16"} and set(stored.values()) == {"BF16"}
    expected, before, after = (losses(tmp_path / name) for name in ("long", "four", "two"))
    assert before + after == pytest.approx(expected, rel=2e-3)
    assert before == expected[:2]
    assert losses(tmp_path / "wide")[0] < expected[0]
