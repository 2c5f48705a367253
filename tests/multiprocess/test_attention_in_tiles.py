"""Attention in tiles computes the same: of heads for which a GPU has no flash kernel, and where a mask would take too
much memory. A GPU's own answer is a stand-in here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from autoshard.graph import score_tiles
from autoshard.runtime.torch_backend import attention
from benchmarks.on_gpu_parts import _losses, session_of
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP64, plan_of, strategy


def unexpected(*values: torch.Tensor, **named: object) -> torch.Tensor:
    raise AssertionError("of a GPU's kernels")


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma4", "llama4", "deepseek v3"])
def test_training_in_tiles_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole sequences, windows, heads of two widths, chunks, and values narrower than keys."""
    model = MODELS[name]
    plan = plan_of(model, strategy(layers=(model.num_hidden_layers,)), 2, FP64)
    found = [_losses(session_of(plan, torch.device("cpu")), plan)]
    monkeypatch.setattr(attention, "_is_too_wide", lambda q: True)
    monkeypatch.setattr(attention, "_fused_attention", unexpected)
    found.append(_losses(session_of(plan, torch.device("cpu")), plan))
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["mistral", "gemma4", "llama4"])
def test_a_large_mask_is_never_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of windows, beside blocks that see all keys, and of chunks."""
    model = MODELS[name]
    plan = plan_of(model, strategy(layers=(model.num_hidden_layers,)), 2, FP64)
    found = [_losses(session_of(plan, torch.device("cpu")), plan)]
    seq = plan.training.sequence_length
    monkeypatch.setattr(score_tiles, "MOST_OF_A_MASK", seq * seq - 1)
    monkeypatch.setattr(attention, "_attention_mask", unexpected)
    found.append(_losses(session_of(plan, torch.device("cpu")), plan))
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-9, atol=0)


def test_which_are_too_wide() -> None:
    def on(device: str, width: int) -> bool:
        return attention._is_too_wide(SimpleNamespace(device=SimpleNamespace(type=device), shape=(1, 1, 1, 8, width)))  # type: ignore[arg-type]

    assert on("cuda", 512) and not on("cuda", 256) and not on("cpu", 512) and not on("neuron", 512)
