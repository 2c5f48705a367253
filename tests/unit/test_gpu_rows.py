"""What a row of published results says of the software that ran."""

import csv
from pathlib import Path

import pytest

from autoshard.calibration.results.gpu_rows import as_assumed, gpu_case
from autoshard.calibration.results.rows import Unscored
from autoshard.calibration.results.stack_fit import estimates
from autoshard.calibration.results.usable import read_results
from benchmarks import fitted
from benchmarks.predicted_vs_measured import gpu_scores
from benchmarks.scores import Scored
from tests.unit.test_scoreboard import ROW

FLOAT8 = ("fp8 linear", "fp8 rowwise")


@pytest.mark.parametrize(
    ("framework", "precision", "zero", "gradients"),
    [
        # FSDP sends gradients in the parameters' dtype, whatever products read
        ("nobody's", "bf16", "3", "bfloat16"),
        ("nobody's", "fp8", "3", "bfloat16"),
        ("nobody's", "mxfp8", "2", "bfloat16"),
        ("nobody's", "fp8", "1", "float32"),
        ("nobody's", "bf16", "", "float32"),
        # stacks that are known to do otherwise
        ("MaxText, JAX 24.11", "fp8", "0", "bfloat16"),
        ("Paxml, JAX 24.11", "bf16", "", "bfloat16"),
        ("NeMo 24.07 Megatron-Core", "fp8", "1", "bfloat16"),
        ("torchtitan FSDP2 +compile+float8", "fp8 linear", "3", "float32"),
        ("llm-foundry PyTorch FSDP, MP mode DEFAULT", "amp_fp8", "3", "float32"),
        ("llm-foundry PyTorch FSDP, MP mode PURE", "bf16", "3", "bfloat16"),
        ("NeMo AutoModel FSDP2+EP", "mxfp8", "3", "float32"),
        ("NeMo AutoModel PyTorch FSDP2", "bf16", "3", "bfloat16"),
        ("InternEvo", "bf16", "1", "bfloat16"),
        ("DeepSpeed 0.5", "bf16", "1", "bfloat16"),
        ("DeepSpeed + Megatron", "bf16", "1", "float32"),
        ("Megatron-LM", "bf16", "2", "float32"),
        ("Megatron-LM", "fp16", "1", "float16"),
        # what the row itself says
        ("NeMo 24.12 Megatron-Core", "fp8, fp32 gradients", "1", "float32"),
    ],
)
def test_the_dtype_in_which_gradients_travel(framework: str, precision: str, zero: str, gradients: str) -> None:
    case = gpu_case({**ROW, "framework": framework, "precision": precision, "zero": zero})
    assert case.training.precision.gradient_reduce_dtype == gradients


@pytest.mark.parametrize(
    ("notes", "graphs"),
    [
        ("dropless; CUDA graphs", True),
        ("no CUDA graphs", False),
        ("measured without CUDA graphs", False),
        ("no recompute flag; CUDA graphs", True),
        ("", False),
    ],
)
def test_graphs_that_a_note_denies(notes: str, graphs: bool) -> None:
    assert gpu_case({**ROW, "notes": notes}).cuda_graphs == graphs


@pytest.mark.parametrize(
    ("changes", "assumed"),
    [
        ({"framework": "veScale"}, "float32, as Megatron-LM sends them"),
        ({"framework": "veScale", "zero": "3"}, "bfloat16, as torch's FSDP and DeepSpeed send sharded ones"),
        ({"framework": "veScale", "precision": "fp16"}, ""),
        ({"framework": "veScale", "precision": "bf16, fp32 gradients"}, ""),
        ({"framework": "veScale", "tp": "4", "dp": "1"}, ""),  # nobody to send them to
        ({"framework": "Megatron-LM"}, ""),
    ],
)
def test_what_is_assumed_of_gradients(changes: dict[str, str], assumed: str) -> None:
    of = f"framework={changes['framework']!r} is not known: gradients are taken to travel in {assumed}"
    assert gpu_case({**ROW, **changes}).assumed == (of if assumed else "")


def test_rows_read_with_an_assumption_are_listed(tmp_path: Path) -> None:
    rows = [{**ROW, "framework": name} for name in ("veScale", "Megatron-LM", "veScale")]
    path = tmp_path / "results.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    found = read_results([path], None)
    assumed = "framework='veScale' is not known: gradients are taken to travel in float32, as Megatron-LM sends them"
    assert found.notes() == [
        "2 of 3 rows of results.csv are read with an assumption:",
        f"  line 2, 4: {assumed}",
    ]


def test_an_assumed_dtype_widens_the_interval_to_the_other_one() -> None:
    row = {**ROW, "framework": "veScale", "n_gpus": "64", "dp": "16"}
    known = fitted.load()
    case = gpu_case(row)
    single, half = as_assumed(case)
    dtypes = [one.training.precision.gradient_reduce_dtype for one in (single, half)]
    assert dtypes == ["float32", "bfloat16"]
    single_s, half_s = (one.step_time_s for one in estimates([single, half], known.values_for(case)))
    assert half_s < single_s
    assumed, said = gpu_scores([row, {**row, "precision": "bf16, fp32 gradients"}], known)
    assert isinstance(assumed, Scored) and isinstance(said, Scored)
    assert assumed.predicted_s == said.predicted_s == single_s
    assert assumed.high_s == said.high_s
    assert assumed.low_s / half_s == pytest.approx(said.low_s / single_s)


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("none", "none"),
        ("selective", "core_attention"),
        ("full", "full"),
        ("full+something", "full"),
        ("mlp+core_attention", "core_attention+mlp"),
        ("attention_norm+mlp_norm+self_attn.o_proj", "attention_norm+mlp_norm+self_attn.o_proj"),
    ],
)
def test_a_row_may_name_modules_that_run_again(recompute: str, expected: str) -> None:
    assert gpu_case({**ROW, "recompute": recompute}).strategy.recompute == (expected,) * 2


def test_a_row_with_a_recompute_set_that_is_none_is_not_scored() -> None:
    with pytest.raises(Unscored, match="recompute='mlp\\+none' must be none, selective, full, or modules"):
        gpu_case({**ROW, "recompute": "mlp+none"})


def test_rowwise_scaled_products_are_gathered_whole() -> None:
    """The rows differ in nothing else, so only the tensor-parallel all-gathers take longer; without them, nothing."""
    wide = {**ROW, "framework": "torchtitan", "hidden": "8192", "heads": "64", "ffn": "28672"}
    tensorwise, rowwise = (gpu_case({**wide, "precision": one, "sp": "1"}) for one in FLOAT8)
    tensorwise_s, rowwise_s = (one.step_time_s for one in estimates([tensorwise, rowwise], fitted.load().values))
    assert rowwise_s > tensorwise_s
    alone = [gpu_case({**wide, "precision": one, "tp": "1", "dp": "4"}) for one in FLOAT8]
    first, second = estimates(alone, fitted.load().values)
    assert first.step_time_s == second.step_time_s
