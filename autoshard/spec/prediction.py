"""A module behind the last block that predicts the token after the next one (multi-token prediction)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Positive

LOSS_SCALING_FACTOR = 0.1
"""Megatron's default, and DeepSeek-V3's for the last third of its pre-training (0.3 before) [arXiv 2412.19437, 4.2]."""


@dataclass(frozen=True)
class MultiTokenPrediction:
    """Multi-token prediction in training, under Megatron's names.

    mtp_num_layers: Prediction modules, each of which predicts one token further ahead; only 1 is built.
    mtp_loss_scaling_factor: Weight of their loss beside that of the next token.

    Raises AutoshardError for another number of modules, or a weight that is not above 0.
    """

    mtp_num_layers: Count = 1
    mtp_loss_scaling_factor: Positive = LOSS_SCALING_FACTOR

    def __post_init__(self) -> None:
        check_annotated("multi_token_prediction", self)
        if self.mtp_num_layers != 1:
            raise AutoshardError(
                f"mtp_num_layers={self.mtp_num_layers} is not supported: published checkpoints have 1 module; 1 works"
            )
