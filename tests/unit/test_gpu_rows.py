"""What a row of published results says of the software that ran."""

import pytest

from autoshard.calibration.results.gpu_rows import gpu_case
from tests.unit.test_scoreboard import ROW


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
