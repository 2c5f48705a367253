"""Three steps on neuronx-distributed equal the torch backend's, loss and gradient norm, for every kind of layout."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from autoshard.checkpoint.layout import parameter_shapes
from autoshard.runtime.launch import run_processes
from tests.nxd.cases import CASES, plan_of

EXACT, ROUNDED = 1e-5, 2e-3
"""Relative. bf16 rounds the same values at other places."""


def run(worker: str, arguments: dict[str, Any], processes: int) -> tuple[Any, ...]:
    """Results of a function of tests.nxd.workers, or of another module with its name before a colon, by rank."""
    module, _, name = worker.rpartition(":")
    with TemporaryDirectory() as logs:
        outcome = run_processes(
            f"tests.nxd.{module or 'workers'}:{name}",
            arguments,
            processes,
            on_message=lambda message: None,
            log_directory=Path(logs),
            hang_timeout_s=120,
            trusted_prefix="tests.",
        )
        assert outcome.exit_code == 0, outcome.message
    return outcome.results


@lru_cache
def found(processes: int) -> Any:
    """All cases of one number of processes, in one start of them."""
    return run("conformance", {"names": list(CASES[processes])}, processes)


@pytest.mark.parametrize(("processes", "name"), [(world, name) for world, cases in CASES.items() for name in cases])
def test_three_steps_equal_the_torch_backend(processes: int, name: str) -> None:
    allowed = ROUNDED if "bf16" in name else EXACT
    first = found(processes)[0][name]
    assert len(first["nxd"]) == len(first["torch"]) == 3
    for ours, expected in zip(first["nxd"], first["torch"], strict=True):
        assert ours == pytest.approx(expected, rel=allowed)
    for result in found(processes):
        assert result[name]["nxd"] == first["nxd"], "every rank knows the loss and the norm"
    assert first["nxd_evaluated"] == pytest.approx(first["torch_evaluated"], rel=allowed)


@pytest.mark.parametrize(("processes", "name"), [(world, name) for world, cases in CASES.items() for name in cases])
def test_every_weight_is_where_the_torch_backend_has_it(processes: int, name: str) -> None:
    """Its gradient in the first step; itself after three of AdamW, which makes more of a small difference."""
    rounded = "bf16" in name
    for what, allowed in (("gradient", 2e-2 if rounded else 2e-6), ("weight", 2e-2 if rounded else 1e-3)):
        difference, tensor = max(result[name]["differences"][what] for result in found(processes))
        assert 0 < difference < allowed, (what, tensor)


@pytest.mark.parametrize(("processes", "name"), [(world, name) for world, cases in CASES.items() for name in cases])
def test_a_checkpoint_has_each_element_once(processes: int, name: str) -> None:
    """Whichever rank's optimizer holds it; padding of a vocabulary, and of NxD's shards, is nobody's."""
    written: Counter[str] = Counter()
    for result in found(processes):
        written.update(result[name]["written"])
    shapes = parameter_shapes(plan_of(**CASES[processes][name]).model)
    assert written == {parameter: prod(shape) for parameter, shape in shapes.items()}


def test_nxd_runs_again_what_the_plan_says() -> None:
    """Sections on each rank: one a block for core attention, or for all of it; two where the MLP is another."""
    of = {name: [result[name]["recomputed"] for result in found(2)] for name in CASES[2]}
    assert of["tp2"] == [0, 0]
    assert of["tp2, recompute core attention"] == of["tp2, full recompute"] == [4, 4]
    assert of["tp2, recompute core attention and mlp"] == [8, 8]
    assert of["pp2, one stage recomputes"] == [3, 0]
    assert of["pp2, interleaved, sets by virtual stage"] == [3, 1]
