"""How torchtitan cuts a model into pipeline stages by itself: its embedding and head count as blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoshard.errors import AutoshardError
from autoshard.planner.imported import plan_of
from autoshard.planner.written import Written, read_written

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

EACH, FIRST, LAST = (
    f"pipeline_parallel_{name}" for name in ("layers_per_stage", "first_stage_less_layers", "last_stage_less_layers")
)
SPLITS = "pipeline_parallel_split_points"
INTERLEAVED = 'pipeline_parallel_schedule = "Interleaved1F1B"'


def titan(degree: int, lines: str = "", model: str = "llama3-8b", **given: Any) -> Written:
    keeps_all = '[activation_checkpoint]\nmode = "none"'
    Path("train.toml").write_text(f"{keeps_all}\n[parallelism]\npipeline_parallel_degree = {degree}\n{lines}\n")
    return read_written("train.toml", {"model": model, "instance": "h100-80gb", "nodes": 1, **given})


@pytest.mark.parametrize(
    ("pp", "lines", "model", "stages"),
    [
        (8, "", "llama3-8b", (4, 5, 4, 4, 4, 4, 4, 3)),
        (4, "", "llama3-8b", (8, 9, 8, 7)),
        (8, "", "llama3-70b", (10, 11, 10, 10, 10, 10, 10, 9)),
        (4, f"{FIRST} = 0\n{LAST} = 0", "llama3-8b", (8, 8, 8, 8)),
        (4, f"{LAST} = 3", "llama3-8b", (8, 9, 9, 6)),
        (2, INTERLEAVED, "llama3-8b", (8, 9, 8, 7)),
        (2, f"{INTERLEAVED}\n{EACH} = 9", "llama3-8b", (8, 9, 8, 7)),
        (2, f"{INTERLEAVED}\n{EACH} = 6", "llama3-8b", (5, 6, 6, 6, 5, 4)),
        (1, f"{EACH} = 6", "llama3-8b", (32,)),
        (1, f'{SPLITS} = ["layers.4"]', "llama3-8b", (32,)),
        (4, f'{SPLITS} = ["layers.4", "layers.8", "layers.12"]', "llama3-8b", (4, 4, 4, 20)),
        (2, f'{INTERLEAVED}\n{SPLITS} = ["layers.4", "layers.8", "layers.12"]', "llama3-8b", (4, 4, 4, 20)),
        (4, f"{SPLITS} = []", "llama3-8b", (8, 9, 8, 7)),
    ],
)
def test_the_cut(pp: int, lines: str, model: str, stages: tuple[int, ...]) -> None:
    found = titan(pp, lines, model)
    assert found.strategy.stage_layers == stages
    assert found.strategy.num_virtual_stages == len(stages) // pp
    assert (found.left_out, found.warnings) == ((), ())


def test_options_overrule_the_files_stages() -> None:
    assert titan(8, pp=4).strategy.stage_layers == (8, 9, 8, 7)
    assert titan(8, pp=1).strategy.stage_layers == (32,)
    assert titan(2, f"{INTERLEAVED}\n{EACH} = 6", vpp=2).strategy.stage_layers == (8, 9, 8, 7)


def test_options_that_the_files_splits_contradict() -> None:
    with pytest.raises(AutoshardError) as error:
        titan(2, f'{INTERLEAVED}\n{SPLITS} = ["layers.8", "layers.16", "layers.24"]', vpp=4)
    assert str(error.value) == f"train.toml: parallelism.{SPLITS} makes 4 stages, not pp=2 x vpp=4"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (f"{EACH} = 12", f"parallelism.{EACH}=12 makes 3 stages of 32 blocks, which pp=2 must divide"),
        (f"{FIRST} = 40", f"32 blocks are too few for 2 stages with parallelism.{FIRST}=40 and {LAST}=1"),
        (f"{LAST} = -1", f"parallelism.{LAST} is '-1'; it must be a whole number of at least 0"),
        (f'{SPLITS} = ["layers.8", "layers.16"]', f"parallelism.{SPLITS} makes 3 stages, which pp=2 must divide"),
        (f'{SPLITS} = ["layers.32"]', f"parallelism.{SPLITS} has layers.32, but the model has 32 blocks"),
        *(
            (
                f"{SPLITS} = {names}",
                f"parallelism.{SPLITS} is {said}; it must be a list such as ['layers.8', 'layers.16']",
            )
            for names, said in {
                '"layers.8"': "'layers.8'",
                '["norm"]': "a list of 1",
                '["layers.8", "layers.8"]': "a list of 2",
                '["layers.0"]': "a list of 1",
            }.items()
        ),
        (f"{EACH} = 0", f"parallelism.{EACH} is '0'; it must be a whole number of at least 1"),
    ],
)
def test_cuts_that_torchtitan_has_not(lines: str, text: str) -> None:
    with pytest.raises(AutoshardError) as error:
        titan(2, lines)
    assert str(error.value) == f"train.toml: {text}"


def test_an_own_cut_that_no_plan_has_is_said_to_be_torchtitans() -> None:
    """The file names no stages; with embedding and head counted as no block they are alike."""
    with pytest.raises(AutoshardError) as error:
        plan_of("train.toml", titan(2, INTERLEAVED))
    assert str(error.value) == (
        "stage_layers=[8, 9, 8, 7] must be alike with vpp=2; so torchtitan cuts the 32 blocks by the file; autoshard "
        "score prices that"
    )
    even = titan(2, f"{INTERLEAVED}\n{FIRST} = 0\n{LAST} = 0")
    assert plan_of("train.toml", even).strategy.stage_layers == (8, 8, 8, 8)
