"""Documents that share a row, each by itself: as if every one were trained on alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from autoshard.graph import score_tiles
from autoshard.plans.plan import Plan
from autoshard.runtime.data.stream import NOT_LEARNED
from autoshard.runtime.torch_backend.document_mask import DocumentMasks, document_mask
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP64, plan_of, strategy

LENGTHS = ((6, 7, 3), (16,))
"""Of the documents of two rows."""
RECURRENT = [name for name, model in MODELS.items() if model.is_recurrent and model.indexer is None]


def session(plan: Plan, documents: bool) -> Session:
    settings = optimizer_settings(FP64, 1e-2, 1, seed=0)
    return Session(plan, 0, torch.device("cpu"), settings, seed=0, documents=documents)


def gradients(one: Session, *step: Any) -> tuple[float, dict[str, torch.Tensor]]:
    inputs, labels, *starts = step
    loss = one.step(inputs, labels, 0.0, keep_gradients=True, **({"starts": starts[0]} if starts else {})).loss
    return loss, one.optimizer.gradients()


def test_a_query_sees_its_own_document_up_to_itself() -> None:
    starts = torch.tensor([[0, 0, 2, 2, 2]])
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert document_mask(starts, torch.arange(5), None)[0, 0].int().tolist() == expected
    assert document_mask(starts, torch.tensor([4, 1]), 2)[0, 0].int().tolist() == [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("model", "kernel", "recompute"),
    [
        ("llama", "flash", "none"),
        ("llama", "plain", "full"),
        ("gpt2", "flash", "core_attention"),  # learned positions start anew
        ("mistral", "flash", "full"),
        ("llama", "tiles", "none"),  # as where the mask of all rows would be too large
        ("mistral", "tiles", "full"),
        ("deepseek v3.2", "flash", "none"),  # an indexer chooses among the keys of a document
        ("glm 5.2", "plain", "full"),
        ("hy4", "flash", "core_attention"),
        ("mistral large 4", "flash", "none"),  # places by which queries grow count from the start of a document
        ("mistral large 4, shared keys", "plain", "full"),
        *((name, "flash", "none") for name in RECURRENT),
    ],
)
def test_packed_rows_equal_documents_trained_separately(
    model: str, kernel: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernel == "tiles":
        kernel = "flash"
        monkeypatch.setattr(score_tiles, "MOST_OF_A_MASK", 2 * 16 * 16 - 1)
        monkeypatch.setattr(DocumentMasks, "added", None)  # nobody calls it
    chosen = strategy(mbs=2, kernel=kernel, recompute=recompute)
    plan = plan_of(MODELS[model], chosen, 1)
    if experts := plan.model.num_local_experts:  # slots for all tokens, however rows are cut
        enough = experts / plan.model.num_experts_per_tok
        plan = replace(plan, training=replace(plan.training, expert_capacity_factor=enough))
    tokens = np.random.default_rng(0).integers(0, plan.model.vocab_size, (2, 17))
    inputs, labels = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    starts = np.zeros_like(inputs)
    alone = []
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for length in lengths:
            end = begin + length
            starts[row, begin:end] = begin
            if end < 16:
                labels[row, end - 1] = NOT_LEARNED
            training = replace(plan.training, sequence_length=length, global_batch_size=1)
            short = replace(plan, training=training, strategy=replace(chosen, microbatch_size=1))
            own = inputs[row : row + 1, begin:end].copy(), labels[row : row + 1, begin:end].copy()
            alone.append((int((own[1] >= 0).sum()), *gradients(session(short, False), *own)))
            begin = end
    loss, packed = gradients(session(plan, True), inputs, labels, starts)
    count = sum(learned for learned, _, _ in alone)
    assert loss == pytest.approx(sum(n * one for n, one, _ in alone) / count, rel=1e-12)
    for name, gradient in packed.items():
        expected = torch.stack([n * found[name] for n, _, found in alone]).sum(0) / count
        assert torch.allclose(gradient, expected, rtol=1e-9, atol=1e-14), name
