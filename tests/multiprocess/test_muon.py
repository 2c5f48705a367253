"""Muon: the updates of torch.optim.Muon in one process, and a training that goes on in another layout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoshard.graph.orthogonal import matrix_dims
from autoshard.layout import orthogonal
from autoshard.plans.plan_json import write_plan
from autoshard.runtime.torch_backend import muon
from autoshard.runtime.torch_backend.muon import orthogonalised
from autoshard.runtime.torch_backend.optimizer_settings import optimizer_settings
from autoshard.runtime.torch_backend.session import Session
from autoshard.spec.training import MUON, load_precision
from tests.multiprocess.command import autoshard
from tests.multiprocess.held import Held
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import plan_of, strategy

RATE = 0.02
MODEL = replace(MODELS["few kv heads"], vocab_size=256)


def matrices(session: Session, values: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the matrices [rows, columns] of all parameters that Muon updates."""
    (module,) = session.modules.values()
    graph, found = module.program.graph, list[torch.Tensor]()
    for tensor in graph.learned():
        if tensor.orthogonal:
            sizes = matrix_dims(graph, tensor.name).sizes(graph.sizes)
            found += [one.clone() for one in values[tensor.name].view(sizes)]
    return found


@pytest.mark.parametrize(("model", "elements"), [("llama", 2**26), ("llama", 9000), ("mixtral", 2**26)])
def test_one_process_updates_as_torch_does(model: str, elements: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """FP32 master weights, matrices in bf16: three steps, from the same summed and clipped gradients, however many
    matrices are updated in a round."""
    monkeypatch.setattr(orthogonal, "ROUND_ELEMENTS", elements)
    plan = plan_of(MODELS[model], strategy(), 2, load_precision("mixed_precision"), optimizer=MUON)
    settings = optimizer_settings(plan.training.precision, RATE, plan.strategy.zero, seed=0)
    session = Session(plan, 0, torch.device("cpu"), settings, seed=0)
    begun = matrices(session, session.optimizer.masters())
    theirs = [torch.nn.Parameter(one.clone()) for one in begun]
    reference = torch.optim.Muon(theirs, RATE, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    numbers = np.random.default_rng(0)
    for _ in range(3):
        tokens = numbers.integers(0, plan.model.vocab_size, (plan.training.global_batch_size, 17))
        norm = session.step(tokens[:, :-1].copy(), tokens[:, 1:].copy(), RATE, keep_gradients=True).gradient_norm
        clipped = min(1.0, settings.max_gradient_norm / (norm + 1e-6))
        for parameter, gradient in zip(theirs, matrices(session, session.optimizer.gradients()), strict=True):
            parameter.grad = gradient.float() * clipped
        reference.step()
    ended = matrices(session, session.optimizer.masters())
    assert all(torch.equal(own, other.detach()) for own, other in zip(ended, theirs, strict=True))
    assert not any(torch.equal(own, before) for own, before in zip(ended, begun, strict=True))


def test_what_an_update_was_made_of_is_gone_when_its_parts_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the whole matrices that a rank owns are tall, their parts are copies: beside these there are the updates
    alone, not also the matrix from which the last one was made."""
    monkeypatch.setattr(muon, "TOGETHER", 1)
    plan = plan_of(MODEL, strategy(), 2, load_precision("fp32"), optimizer=MUON)
    settings = optimizer_settings(plan.training.precision, RATE, plan.strategy.zero, seed=0)
    session = Session(plan, 0, torch.device("cpu"), settings, seed=0)
    update, parts, held_bytes = muon._Exchange.update, muon._Exchange._parts, list[int]()

    def measured(self: Any, updates: Any, weights: Any, rate: float) -> None:
        with Held([*updates.values(), *weights.values()]) as held:
            self.held, self.before = held, held.now
            update(self, updates, weights, rate)

    def first(self: Any, place: int, whole: torch.Tensor) -> Any:
        if place == 0:
            held_bytes.append(self.held.now - self.before)
        return parts(self, place, whole)

    monkeypatch.setattr(muon._Exchange, "update", measured)
    monkeypatch.setattr(muon._Exchange, "_parts", first)
    tokens = np.zeros((plan.training.global_batch_size, 17), dtype=np.int64)
    session.step(tokens[:, :-1].copy(), tokens[:, 1:].copy(), RATE)
    elements = [one.numel() for one in matrices(session, session.optimizer.masters())]
    assert len(elements) > 6
    assert sum(held_bytes) == 4 * sum(elements)


def test_orthogonal_matrices_are_near_orthogonal() -> None:
    """All singular values come out near 1, of wide and of tall matrices; a matrix of zeros stays."""
    torch.manual_seed(0)
    for shape in ((3, 8, 20), (2, 20, 8), (1, 16, 16)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, dtype=torch.float64)))
        assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    assert not orthogonalised(torch.zeros(1, 4, 6)).any()


def test_a_training_goes_on_in_another_layout(tmp_path: Path) -> None:
    """Four processes save, two of another layout go on; a plan with AdamW says what would do."""
    plans = {
        "whole": plan_of(MODEL, strategy(), 4, optimizer=MUON),
        "four": plan_of(MODEL, strategy(tp=2, dp=2, zero=3), 2, optimizer=MUON),
        "two": plan_of(MODEL, strategy(pp=2), 4, optimizer=MUON),
        "adamw": plan_of(MODEL, strategy(), 4),
    }
    for name, plan in plans.items():
        write_plan(plan, tmp_path / f"{name}.json")
    saving = ("--checkpoint-every", "2", "--checkpoint-dir", "saved")
    for name, steps, options in (("whole", 4, ()), ("four", 2, saving), ("two", 4, saving)):
        asked = ("run", f"{name}.json", "--processes", "4", "--learning-rate", "0.02", "--steps", str(steps))
        done = autoshard(tmp_path, *asked, *options, "--output", name)
        assert done.returncode == 0, done.stderr
    expected, before, after = (losses(tmp_path / name) for name in ("whole", "four", "two"))
    assert before + after == pytest.approx(expected, rel=1e-12)
    refused = autoshard(tmp_path, "run", "adamw.json", "--steps", "6", *saving, "--output", "adamw")
    assert refused.returncode == 2
    assert "was trained with optimizer=muon, the plan has optimizer=adamw: --weights " in refused.stderr


def losses(folder: Path) -> list[float]:
    """Of the run in a folder."""
    (file,) = folder.glob("*/metrics.jsonl")
    return [json.loads(line)["loss"] for line in file.read_text().splitlines()]
