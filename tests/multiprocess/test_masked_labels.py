"""Loss on some tokens only: the mean over the step's learned tokens, wherever ranks and microbatches have them."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from autoshard.runtime.launch import run_processes
from autoshard.runtime.torch_backend.kernels import _CrossEntropy
from tests.multiprocess.masked_workers import LAYOUTS


@cache
def results() -> dict[str, Any]:
    outcome = run_processes(
        "tests.multiprocess.masked_workers:masked",
        {},
        2,
        on_message=lambda message: None,
        log_directory=Path(mkdtemp()),
        hang_timeout_s=100,
        trusted_prefix="tests.",
    )
    assert outcome.exit_code == 0, outcome.message
    found = outcome.results[0]
    assert found is not None
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharded_equals_one_process(layout: str) -> None:
    found = results()[layout]
    for sharded, alone in zip(found["sharded"], found["alone"], strict=True):
        assert sharded == pytest.approx(alone, rel=1e-9)


def test_the_kernel_is_torchs_mean_over_learned_labels() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 6, 10, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(10, (2, 6))
    labels[0, :4] = labels[1, 2] = -100
    weight = labels.numel() / int((labels >= 0).sum())
    mine = weight * _CrossEntropy.apply(logits, labels, labels.numel(), 10, 0, None)
    (gradient,) = torch.autograd.grad(mine, logits)
    reference = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    (expected,) = torch.autograd.grad(reference, logits)
    assert mine.item() == pytest.approx(reference.item(), rel=1e-14)
    torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=1e-16)
