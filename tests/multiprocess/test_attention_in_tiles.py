"""Attention in tiles computes the same: of heads for which a GPU has no flash kernel, and where a mask would take too
much memory. A GPU's own answer is a stand-in here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from autoshard.graph import score_tiles
from autoshard.runtime.torch_backend import attention
from autoshard.runtime.torch_backend.ring_attention import Ring, ring_attention
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


@pytest.mark.parametrize("at_once", [2**24, 100])
@pytest.mark.parametrize("position", [0, 1])
def test_chosen_keys_beside_sinks_are_those_of_a_plain_function(
    position: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first or the second half of the queries; some of them chose none of their own tile's keys, and one no key."""
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 2)
    random = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 2, 8, 6), (2, 4, 16, 6), (2, 4, 16, 5), (4, 2)]
    q, k, v, sinks = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes)
    chosen = (torch.rand(2, 16, 16, generator=random) < 0.3).tril()[:, 8 * position : 8 * position + 8]
    chosen[0, 5, 8 * position :] = False
    chosen[1, 3] = False
    inputs = [value.requires_grad_() for value in (q, k, v, sinks)]
    scores = torch.einsum("bkgqd,bkcd->bkgqc", q, k) / 6**0.5
    scores = scores.masked_fill(~chosen[:, None, None], float("-inf"))
    weights = torch.cat((scores, sinks[..., None, None].expand(2, -1, -1, 8, 1)), -1).softmax(-1)
    expected = torch.einsum("bkgqc,bkcd->bkgqd", weights[..., :-1], v)
    ring = Ring(None, (0, 1), 8, 16, position=position)
    found = ring_attention(q, k, v, ring, sinks=sinks, chosen=chosen)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(found.shape, generator=random, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(out, inputs, grad) for out in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("at_once", [2**24, 100])
@pytest.mark.parametrize("position", [0, 1])
def test_chosen_blocks_of_keys_are_those_of_a_plain_function(
    position: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first or the second half of the queries; blocks of three keys, of which each head sees its queries' own."""
    monkeypatch.setattr(score_tiles, "SCORES_AT_ONCE", at_once)
    monkeypatch.setattr(score_tiles, "FEWEST_ROWS", 2)
    random = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 2, 8, 6), (2, 4, 16, 6), (2, 4, 16, 5)]
    q, k, v = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes)
    places = torch.arange(8 * position, 8 * position + 8)
    chosen = (torch.rand(2, 4, 8, 6, generator=random) < 0.3) | (torch.arange(6) == places.unsqueeze(1) // 3)
    seen = chosen.repeat_interleave(3, -1)[..., :16] & (torch.arange(16) <= places.unsqueeze(1))
    inputs = [value.requires_grad_() for value in (q, k, v)]
    scores = torch.einsum("bkgqd,bkcd->bkgqc", q, k) / 6**0.5
    weights = scores.masked_fill(~seen.unsqueeze(2), float("-inf")).softmax(-1)
    expected = torch.einsum("bkgqc,bkcd->bkgqd", weights, v)
    found = ring_attention(q, k, v, Ring(None, (0, 1), 8, 16, position=position, chosen_block=3), chosen=chosen)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn(found.shape, generator=random, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(out, inputs, grad) for out in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_projection_behind_reads_the_output_without_a_copy(dtype: torch.dtype) -> None:
    """Also where the sums of tiles have the dtype of the output."""
    q, k, v = (torch.randn(shape, dtype=dtype) for shape in [(2, 4, 2, 8, 6), (2, 4, 8, 6), (2, 4, 8, 5)])
    out = ring_attention(q, k, v, Ring(None, (0,), 8, 8))
    assert out.permute(0, 3, 1, 2, 4).is_contiguous()


def test_which_are_too_wide() -> None:
    def on(device: str, width: int) -> bool:
        return attention._is_too_wide(SimpleNamespace(device=SimpleNamespace(type=device), shape=(1, 1, 1, 8, width)))  # type: ignore[arg-type]

    assert on("cuda", 512) and not on("cuda", 256) and not on("cpu", 512) and not on("neuron", 512)
