"""Loss on some tokens only: the mean over the step's learned tokens, wherever ranks and microbatches have them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from autoshard.errors import AutoshardError
from autoshard.runtime.data import TokenStream
from autoshard.runtime.torch_backend.kernels import _CrossEntropy
from autoshard.runtime.torch_backend.optimizer_settings import OptimizerSettings
from autoshard.runtime.torch_backend.session import Session
from autoshard.runtime.trainer.evaluation import evaluate
from tests.multiprocess.masked_workers import LAYOUTS, batch
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy
from tests.multiprocess.started import results


def test_an_evaluation_learns_nothing_and_sees_what_a_step_sees() -> None:
    plan = plan_of(MODELS["llama"], strategy(), 4)
    settings = OptimizerSettings(1e-2, master_dtype=torch.float64, gradient_dtype=torch.float64)
    session = Session(plan, 0, torch.device("cpu"), settings, seed=0)
    inputs, labels = batch(plan, 0)
    before = session.evaluate(inputs, labels)
    assert session.evaluate(inputs, labels) == before
    assert session.step(inputs, labels, 1e-2).loss == pytest.approx(before, rel=1e-14)
    assert session.evaluate(inputs, labels) < before


def test_an_evaluation_passes_over_a_batch_without_a_label() -> None:
    plan = plan_of(MODELS["llama"], strategy(), 1)
    session = Session(plan, 0, torch.device("cpu"), OptimizerSettings(1e-2), seed=0)
    learned = np.zeros((2, plan.training.sequence_length + 1), dtype=np.uint8)
    learned[1] = 1
    size = plan.training.global_batch_size
    marks = np.repeat(learned, size, axis=0).ravel()
    stream = TokenStream(np.arange(len(marks), dtype=np.int32) % 90, size, plan.training.sequence_length, learned=marks)
    assert evaluate(session, stream, 2) == session.evaluate(*stream.in_order(1))
    with pytest.raises(AutoshardError) as error:
        evaluate(session, stream, 1)
    assert str(error.value) == ("eval_batches=1: so many have no label: evaluate more, or on other data")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_and_evaluations_equal_one_process(layout: str) -> None:
    found = results("masked_workers:masked", 2, hang_timeout_s=100)[layout]
    assert len(found["sharded"]) == 3
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
