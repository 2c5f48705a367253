"""Settings of how a run updates its weights: numbers of AdamW, dtypes, the stage of ZeRO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from autoshard.spec.training import Precision

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def unrounded(dtype: torch.dtype) -> torch.dtype:
    """The dtype of parameters that are not rounded (`Graph.rounded`), where others have this one: FP32 at least."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class OptimizerSettings:
    """How weights are updated.

    gradient_dtype: of the sum over microbatches. reduce_dtype: of the sums over ranks; None: the same. moments_dtype:
    None: that of the masters. zero: the stage of ZeRO. stochastic_rounding: weights and moments are bf16 and rounded at
    random, as a function of the seed. orthogonal_dtype: in which Muon orthogonalises matrices.
    """

    learning_rate: float
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    max_gradient_norm: float = 1.0
    master_dtype: torch.dtype = torch.float32
    gradient_dtype: torch.dtype = torch.float32
    zero: int = 1
    reduce_dtype: torch.dtype | None = None
    stochastic_rounding: bool = False
    seed: int = 0
    orthogonal_dtype: torch.dtype = torch.bfloat16
    moments_dtype: torch.dtype | None = None


def optimizer_settings(precision: Precision, learning_rate: float, zero: int, seed: int) -> OptimizerSettings:
    """The settings for a plan's precision. bf16 weights without a master copy are rounded at random."""
    return OptimizerSettings(
        learning_rate,
        master_dtype=DTYPES[precision.kept_dtype],
        gradient_dtype=DTYPES[precision.gradient_accumulation_dtype],
        zero=zero,
        reduce_dtype=DTYPES[precision.gradient_reduce_dtype],
        stochastic_rounding=precision.rounds_at_random,
        seed=seed,
        orthogonal_dtype=DTYPES[precision.parameter_dtype],
        moments_dtype=DTYPES[precision.optimizer_dtype],
    )
