"""Muon in the files of other frameworks: what each calls it, and what is said where it works otherwise than here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoshard import import_plan
from autoshard.errors import AutoshardError
from autoshard.interop.read_layout import read_written_layout
from autoshard.planner.written import Written, read_written
from tests.unit.megatron_flags import DROPS_NOTHING

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

GIVEN: dict[str, Any] = {"model": "llama3-8b", "instance": "h100-80gb", "nodes": 1}
TP = "--tensor-model-parallel-size 4 --bf16"
ALONE = "--tensor-model-parallel-size 1 --bf16"
ON_ONE = "priced with each matrix whole on one rank"
NO_MODE = "no --muon-tp-mode (duplicated today, blockwise before)"
NO_MASTERS = (
    "muon is priced as AdamW, with two moments: its own price has master weights, which precision bf16_sr lacks and "
    "--precision mixed_precision has"
)


def of_megatron(flags: str, **given: Any) -> Written:
    Path("train.sh").write_text(f"{flags} --micro-batch-size 1 --global-batch-size 8 {DROPS_NOTHING}")
    return read_written("train.sh", {**GIVEN, **given})


@pytest.mark.parametrize(
    ("flags", "warnings"),
    [
        (f"{ALONE} --optimizer muon", []),
        (f"{ALONE} --optimizer muon --muon-tp-mode blockwise", []),
        (f"{TP} --optimizer muon --muon-tp-mode distributed --muon-momentum 0.95 --muon-num-ns-steps 5", []),
        (f"{TP} --optimizer muon", [f"{NO_MODE}: each rank of tp=4 orthogonalises all matrices there; {ON_ONE}"]),
        (
            f"{TP} --optimizer muon --muon-tp-mode duplicated",
            [f"--muon-tp-mode duplicated: each rank of tp=4 orthogonalises all matrices there; {ON_ONE}"],
        ),
        (
            f"{TP} --optimizer muon --muon-tp-mode blockwise",
            [f"--muon-tp-mode blockwise: each rank of tp=4 orthogonalises its own parts of matrices there; {ON_ONE}"],
        ),
        (f"{TP} --optimizer muon --muon-tp-mode auto", [f"--muon-tp-mode auto: {ON_ONE}"]),
        (
            f"{ALONE} --optimizer muon --muon-num-ns-steps 7",
            ["--muon-num-ns-steps 7: Muon is priced with 5 Newton-Schulz steps"],
        ),
        (
            f"{ALONE} --optimizer muon --muon-scalar-optimizer lion",
            ["--muon-scalar-optimizer lion, of all but matrices of blocks, is priced as AdamW, with two moments"],
        ),
    ],
)
def test_megatrons_muon(flags: str, warnings: list[str]) -> None:
    found = of_megatron(flags)
    assert (found.problem.training.optimizer, found.problem.backend) == ("muon", "torch")
    assert list(found.warnings) == warnings
    assert found.not_priced == ()


def test_megatrons_flags_of_muon_say_nothing_of_another_optimizer() -> None:
    found = of_megatron(f"{TP} --optimizer adam --muon-tp-mode blockwise --muon-num-ns-steps 7")
    assert (found.problem.training.optimizer, found.warnings) == ("adamw", ())
    found = of_megatron(f"{TP} --optimizer adaptive_muon")  # which has a second moment
    assert found.problem.training.optimizer == "adamw"
    assert found.warnings == ("--optimizer adaptive_muon is priced as AdamW, with two moments",)


@pytest.mark.parametrize(
    ("optimizer", "zero"), [("muon", 0), ("muon --use-distributed-optimizer", 1), ("dist_muon", 1)]
)
def test_ranks_that_share_state_of_megatrons_muon(optimizer: str, zero: int) -> None:
    found = of_megatron(f"{ALONE} --optimizer {optimizer}")
    assert (found.problem.training.optimizer, found.strategy.zero) == ("muon", zero)


def test_a_file_says_muon_as_an_option_does() -> None:
    of_megatron(f"{TP} --optimizer muon --muon-tp-mode distributed")
    assert read_written_layout("train.sh").options["optimizer"] == "muon"
    plan = import_plan("train.sh", **GIVEN).plan
    assert (plan.training.optimizer, plan.backend) == ("muon", "torch")


def test_an_option_overrules_the_optimizer_of_a_file() -> None:
    assert of_megatron(f"{ALONE} --optimizer muon", optimizer="adamw").problem.training.optimizer == "adamw"
    assert of_megatron(f"{ALONE} --optimizer adam", optimizer="muon").problem.training.optimizer == "muon"


def test_muon_without_master_weights() -> None:
    """A file's is priced as AdamW; an option that asks for both is refused."""
    found = of_megatron(f"{ALONE} --optimizer muon", precision="bf16_sr")
    assert (found.problem.training.optimizer, found.warnings) == ("adamw", (NO_MASTERS,))
    with pytest.raises(AutoshardError, match="its updates need master weights, which precision bf16_sr lacks"):
        of_megatron(ALONE, precision="bf16_sr", optimizer="muon")
