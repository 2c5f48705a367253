"""What the ranks of a cluster must have been started with alike."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoshard.runtime.data import TokenStream, held_out
from autoshard.runtime.trainer.alike import started_with, unlike
from autoshard.runtime.trainer.batches import Data
from autoshard.runtime.worker_arguments import CheckpointOptions, TrainArguments

LEARNED = Data(TokenStream(np.arange(100, dtype=np.int32), 2, 4, digest="1234567890abcdef"), None)
OTHER = replace(LEARNED.learned, digest="fedcba0987654321")


@pytest.fixture
def arguments(tmp_path: Path) -> TrainArguments:
    (tmp_path / "plan.json").write_text("{}")
    return TrainArguments(str(tmp_path / "plan.json"), "a.json", 3, 1e-3, 0, "constant", 0, "cpu", "torch")


def test_paths_of_its_own_make_no_rank_unlike(arguments: TrainArguments, tmp_path: Path) -> None:
    (tmp_path / "copy.json").write_text("{}")
    elsewhere = replace(arguments, plan=str(tmp_path / "copy.json"), data="b.json")
    assert unlike([started_with(arguments, LEARNED), started_with(elsewhere, LEARNED)]) == ""


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"seed": 1}, "seed: rank 0 has 0, rank 2 has 1"),
        ({"steps": 4}, "steps: rank 0 has 3, rank 2 has 4"),
        ({"learning_rate": 0.5}, "learning_rate: rank 0 has 0.001, rank 2 has 0.5"),
        ({"eval_every": 2}, "eval_every: rank 0 has None, rank 2 has 2"),
        ({"profile": True}, "profile: rank 0 has False, rank 2 has True"),
        ({"weights": "llama"}, "weights: rank 0 has none, rank 2 has some"),
        ({"adapter": "adapter"}, "adapter: rank 0 has none, rank 2 has some"),
    ],
)
def test_an_option_of_one_rank(arguments: TrainArguments, values: dict[str, Any], told: str) -> None:
    first, last = started_with(arguments, LEARNED), started_with(replace(arguments, **values), LEARNED)
    assert unlike([first, first, last]) == f"ranks differ in {told}"


SAVED = CheckpointOptions("checkpoints", 10, 3, None, "auto", False)


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (SAVED, None, "checkpoint_every: rank 0 has 10, rank 1 has None"),
        (SAVED, replace(SAVED, every=5), "checkpoint_every: rank 0 has 10, rank 1 has 5"),
        (SAVED, replace(SAVED, keep=1), "keep: rank 0 has 3, rank 1 has 1"),
        (SAVED, replace(SAVED, keep_every=20), "keep_every: rank 0 has None, rank 1 has 20"),
        (SAVED, replace(SAVED, resume="never"), "resume: rank 0 has auto, rank 1 has never"),
        (SAVED, replace(SAVED, synchronous=True), "checkpoint_sync: rank 0 has False, rank 1 has True"),
    ],
)
def test_checkpoints_of_one_rank(
    arguments: TrainArguments, first: CheckpointOptions, last: CheckpointOptions | None, told: str
) -> None:
    # one that saves waits for the other, which does not, for ever
    ranks = [started_with(replace(arguments, checkpoints=one), LEARNED) for one in (first, last)]
    assert unlike(ranks) == f"ranks differ in {told}"


def test_the_place_of_checkpoints_may_have_another_path(arguments: TrainArguments) -> None:
    there = [replace(arguments, checkpoints=replace(SAVED, location=one)) for one in ("/fsx/a", "/mnt/a")]
    assert unlike([started_with(one, LEARNED) for one in there]) == ""


def test_data_of_one_rank(arguments: TrainArguments) -> None:
    first = started_with(arguments, LEARNED)
    assert unlike([first, started_with(arguments, Data(OTHER, None))]) == (
        "ranks differ in data: rank 0 has 100 tokens of SHA-256 1234567890ab, "
        "rank 1 has 100 tokens of SHA-256 fedcba098765"
    )
    evaluated = started_with(arguments, Data(LEARNED.learned, OTHER))
    assert unlike([first, evaluated]) == (
        "ranks differ in data held out: rank 0 has none, rank 1 has 100 tokens of SHA-256 fedcba098765"
    )
    parts = Data(*held_out(LEARNED.learned, 0.2))
    assert unlike([first, started_with(arguments, parts)]).startswith("ranks differ in data: rank 0 has 100 tokens ")


def test_a_plan_of_one_rank(arguments: TrainArguments, tmp_path: Path) -> None:
    first = started_with(arguments, LEARNED)
    (tmp_path / "plan.json").write_text('{"steps": 1}')
    assert unlike([first, started_with(arguments, LEARNED)]).startswith("ranks differ in plan: rank 0 has SHA-256 ")
