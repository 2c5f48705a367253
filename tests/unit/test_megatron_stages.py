"""How Megatron-LM's arguments cut a model into pipeline stages: read as Megatron cuts it, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.errors import AutoshardError
from autoshard.planner.written import Written, read_written
from tests.unit.megatron_flags import DROPS_NOTHING

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

GIVEN: dict[str, Any] = {"model": "llama3-70b", "instance": "h100-80gb", "nodes": 4}
DEGREES = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --global-batch-size 64 --bf16"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
BOTH = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
EACH, VIRTUAL = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"


def megatron(flags: str) -> Written:
    Path("train.sh").write_text(f"{DEGREES} {DROPS_NOTHING} {flags}")
    return read_written("train.sh", GIVEN)


@pytest.mark.parametrize(
    ("flags", "stages"),
    [
        (f"--num-layers 80 {FIRST} 17 {LAST} 21", (17, 21, 21, 21)),
        (f"--num-layers 80 {LAST} 17", (21, 21, 21, 17)),
        (f"--num-layers 80 {FIRST} 14 {VIRTUAL} 2", (7, 11, 11, 11) * 2),
        (f"--num-layers 78 {BOTH}", (19, 20, 20, 19)),
        (f"--num-layers 79 {BOTH.split()[0]}", (19, 20, 20, 20)),
        (f"--num-layers 79 {BOTH.split()[1]}", (20, 20, 20, 19)),
        (f"--num-layers 78 {BOTH} {EACH} 5", (4, *(5,) * 14, 4)),
        (f"--num-layers 78 {BOTH} {VIRTUAL} 2", (9, *(10,) * 6, 9)),
    ],
)
def test_uneven_cuts(flags: str, stages: tuple[int, ...]) -> None:
    found = megatron(flags)
    assert found.strategy.stage_layers == stages
    assert found.strategy.num_virtual_stages == len(stages) // 4
    assert (found.left_out, found.warnings) == ((), ())


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            f"{FIRST} 17",
            f"{FIRST} needs --num-layers, which is not there; --pipeline-model-parallel-layout says as much without it",
        ),
        (
            f"--num-layers 80 {FIRST} 18 {LAST} 21",
            f"{FIRST}=18 and {LAST}=21 leave 41 of --num-layers=80, which 2 ranks cannot share evenly",
        ),
        (
            f"--num-layers 80 {LAST} 81",
            f"{LAST}=81 leaves -1 of --num-layers=80, which 3 ranks cannot share evenly",
        ),
        (f"--num-layers 80 {LAST} 17 {EACH} 5", f"{EACH}=5 does not go with {LAST}; {VIRTUAL} does"),
        (
            f"--num-layers 80 {LAST} 17 {VIRTUAL} 3",
            f"3 stages of each rank must divide its blocks, which {LAST} makes 17",
        ),
        (
            f"--num-layers 80 {LAST} 17 {BOTH}",
            f"{BOTH.split()[0]} does not go with {LAST}; Megatron takes one of them",
        ),
        (f"--num-layers 80 {BOTH}", "pp=4 must divide --num-layers=80 + 2 for the embedding and the loss"),
        (
            f"--num-layers 80 {BOTH} {EACH} 5",
            f"{EACH}=5 x pp=4 must divide --num-layers=80 + 2 for the embedding and the loss",
        ),
        (f"--num-layers 80 {EACH} 3", f"{EACH}=3 x pp=4 must divide --num-layers=80"),
    ],
)
def test_cuts_that_megatron_has_not(flags: str, text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        megatron(flags)
    assert str(error.value) == f"train.sh: {text}"


def test_a_plan_says_what_may_matter_to_its_price() -> None:
    flags = "--optimizer adam --optimizer-cpu-offload --grad-reduce-in-bf16 --rampup-batch-size 8 8 100 --lr 1"
    Path("train.sh").write_text(f"{DEGREES} --num-layers 80 {flags}")
    plan = autoshard.import_plan("train.sh", **GIVEN).plan
    assert "not in the price: --optimizer-cpu-offload, --rampup-batch-size" in plan.notes


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ("E|t*40|t*40|L", (0, 40, 40, 0)),
        ("Et*27|t*27|t*26|mL", (27, 27, 26, 0)),
    ],
)
def test_ends_without_blocks(layout: str, stages: tuple[int, ...]) -> None:
    found = megatron(f"--num-layers 80 --pipeline-model-parallel-layout '{layout}'")
    assert (found.strategy.stage_layers, found.warnings) == (stages, ())


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("Et*40|t*40|m|L", ": stage 2 holds m and no block; here only the first and the last may have no block"),
        ("Et*40||t*20|t*20L", ": stage 1 holds nothing; here only the first and the last may have no block"),
        ("Et*20|t*20|t*20|t*20", " is 'Et*20|t*20|t*20|t*20'; it must begin with E, the embedding, and end with L"),
    ],
)
def test_layouts_that_are_refused(layout: str, text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        megatron(f"--num-layers 80 --pipeline-model-parallel-layout '{layout}'")
    assert str(error.value) == f"train.sh: --pipeline-model-parallel-layout{text}"


def test_a_prediction_module_before_the_last_stage_is_told() -> None:
    found = megatron("--num-layers 80 --pipeline-model-parallel-layout 'Et*27|t*27|t*26m|L'")
    told = "--pipeline-model-parallel-layout has the module for multi-token prediction on stage 2"
    assert found.warnings == (f"{told}; priced on the last stage, with the head and the loss",)
