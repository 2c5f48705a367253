"""The six layouts that AWS publishes for trn1: each is legal, fits, and the search finds nothing slower than it."""

import csv
from pathlib import Path

import pytest

from autoshard.backends.rules import check_strategy
from autoshard.cost.estimate import estimate
from autoshard.graph.recompute import COMMON_SETS
from autoshard.layout.strategy import Strategy, even_stage_layers
from autoshard.models.registry import load_model
from autoshard.planner.search import search
from autoshard.plans.search_result import Pins
from autoshard.spec.cluster import Cluster, load_cluster
from autoshard.spec.model import ModelSpec
from autoshard.spec.training import TrainingSpec, load_precision

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "published_layouts.csv"
Row = dict[str, str]
RECOMPUTE = {
    "selective[CoreAttention]": "core_attention",
    "selective[CoreAttention;LlamaMLP]": "core_attention+mlp",
    "full": "full",
}


def published() -> list[Row]:
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def problem(row: Row) -> tuple[ModelSpec, TrainingSpec, Cluster]:
    training = TrainingSpec(int(row["seq_len"]), int(row["global_batch"]), load_precision(row["precision"]))
    return load_model(row["model"]), training, load_cluster(row["instance"], int(row["nodes"]), int(row["lnc"]))


def strategy(row: Row) -> Strategy:
    model, _, cluster = problem(row)
    tp, pp, cp, vpp = (int(row[name]) for name in ("tp", "pp", "cp", "vpp"))
    return Strategy(
        tp=tp,
        pp=pp,
        dp=cluster.world_size // (tp * pp * cp),
        cp=cp,
        ep=int(row["ep"]),
        num_virtual_stages=vpp,
        microbatch_size=int(row["micro_batch"]),
        schedule="1f1b",
        recompute=(RECOMPUTE[row["recompute"]],),
        sequence_parallel=row["sequence_parallel"] == "true",
        zero=int(row["zero1"] == "true"),
        attention_kernel="plain" if "no flash attention" in row["source"] else "flash",
        stage_layers=even_stage_layers(model.num_hidden_layers, pp * vpp),
        context_parallel="ring" if cp > 1 else "all_gather",
    )


ROWS = pytest.mark.parametrize("row", published(), ids=lambda row: row["name"])


def test_there_are_six() -> None:
    assert len(published()) == 6
    assert {RECOMPUTE[row["recompute"]] for row in published()} <= set(COMMON_SETS)


@ROWS
def test_it_is_legal(row: Row) -> None:
    check_strategy(*problem(row), "nxd", strategy(row))


@ROWS
def test_it_fits(row: Row) -> None:
    result = estimate(*problem(row), strategy(row))
    assert result.fits, f"{result.fullest.total_bytes:.3g} of {result.memory_capacity_bytes:.3g} bytes"


@ROWS
def test_the_search_finds_one_at_least_as_fast(row: Row) -> None:
    best = search(*problem(row)).best
    assert best.estimate.step_time_s <= estimate(*problem(row), strategy(row)).step_time_s


@ROWS
def test_it_is_what_its_own_pins_give(row: Row) -> None:
    """With these choices pinned the search has nothing left but sequence parallelism and where to cut the stages."""
    s = strategy(row)
    fields = ("tp", "pp", "dp", "cp", "ep", "num_virtual_stages", "microbatch_size", "schedule", "attention_kernel")
    pins = Pins(**{field: getattr(s, field) for field in (*fields, "context_parallel")}, recompute=s.recompute_name)
    result = search(*problem(row), pins)
    assert (result.considered, result.runners_up) == (2, ())
    assert result.best.strategy.sequence_parallel
    assert result.best.estimate.step_time_s <= estimate(*problem(row), s).step_time_s
