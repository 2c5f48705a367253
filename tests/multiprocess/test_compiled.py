"""Compiled stages compute what one process does that compiles nothing, with the collectives of the plan.

Here without inductor, whose compiling takes longer than all of this: `python -m benchmarks.compiled_parity` has it, and
one small run below.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli import main
from autoshard.plans.plan_json import write_plan
from tests.cases import ALL, some
from tests.multiprocess.models import MODELS
from tests.multiprocess.plans import FP32, plan_of, strategy
from tests.multiprocess.started import first_rank, start

TENSOR, SHARDED = "recompute attention and MLP", "ring, ZeRO-3, recompute all"
NO_GPU = "No CUDA runtime is found"
"""What a torch with CUDA says on a machine with its compiler and without a GPU."""


@cache
def found() -> dict[str, Any]:
    tensor = ["fp64", "fp32"] if ALL else ["fp64"]
    arguments = {"layouts": {TENSOR: tensor, SHARDED: ["fp32"]}, "backend": "aot_eager"}
    return first_rank(start("compiled_workers:parity", 2, arguments, 300))


def test_compiled_equals_one_process() -> None:
    exact = found()[TENSOR]["fp64"]
    assert exact["loss"] < 1e-12
    assert max(exact["norm"], exact["gradient"], exact["parameter"]) < 1e-9


@pytest.mark.parametrize("name", some([SHARDED, TENSOR], 1))
def test_in_fp32_too_and_with_the_planned_collectives(name: str) -> None:
    rounded = found()[name]["fp32"]
    assert rounded["loss"] < 1e-6
    assert max(rounded["norm"], rounded["gradient"]) < 1e-5
    assert rounded["collectives"] == [{"executed": "{}", "planned": "{}"}] * 2


def test_equal_blocks_share_what_is_compiled() -> None:
    # two in each block, around the ring; behind the last block its norm, and with another bucket's weights the head
    assert found()[SHARDED]["fp32"]["compiled"] == [[10, 4], [10, 4]]


def test_what_cannot_be_compiled_is_named() -> None:
    message = found()["refused"]
    assert message.startswith("compile: inductor cannot compile model.layers.0.mlp.act_fn: ")
    assert message.endswith("; run without --compile")
    assert "\n" not in message


def test_a_run_with_inductor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")  # without vector instructions it compiles in less
    model = replace(MODELS["llama"], num_hidden_layers=1, vocab_size=256)
    write_plan(plan_of(model, strategy(layers=(1,)), 1, FP32), tmp_path / "plan.json")
    assert (
        main(["run", str(tmp_path / "plan.json"), "--steps", "2", "--output", str(tmp_path / "runs"), "--compile"]) == 0
    )
    (file,) = (tmp_path / "runs").glob("*/run.json")
    told = json.loads(file.read_text())["compile"]
    assert (told["segments"], told["distinct"]) == (2, 2)
    text = capsys.readouterr().out
    assert "compiling 2 segments between collectives, 2 of them distinct: the first step takes longer\n" in text
    assert "first step: " in text and ", of which compiling " in text
    (log,) = (file.parent / "logs").glob("*.log")
    lines = [line for line in log.read_text().splitlines() if NO_GPU not in line]
    assert not lines, "warnings"
