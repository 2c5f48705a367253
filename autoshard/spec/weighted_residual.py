"""Weights with which attention and MLP join what they read, in models whose residual stream is normalised first."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Positive


@dataclass(frozen=True)
class WeightedResidual:
    """The weights of MiniMax-Text-01's blocks, under the names of Hugging Face's config. Behind attention, or behind an
    MLP, the stream is alpha times what that read, which is the norm's output, plus beta times what it gave.

    full_attn_alpha_factor: Alpha of attention.
    full_attn_beta_factor: Its beta.
    linear_attn_alpha_factor: Alpha of lightning attention.
    linear_attn_beta_factor: Its beta.
    mlp_alpha_factor: Alpha of the MLP.
    mlp_beta_factor: Its beta.

    Raises AutoshardError for a number that is not above 0.
    """

    full_attn_alpha_factor: Positive
    full_attn_beta_factor: Positive
    linear_attn_alpha_factor: Positive
    linear_attn_beta_factor: Positive
    mlp_alpha_factor: Positive
    mlp_beta_factor: Positive

    def __post_init__(self) -> None:
        check_annotated("weighted_residual", self)

    @property
    def of_attention(self) -> tuple[float, float]:
        """(alpha, beta) of attention."""
        return self.full_attn_alpha_factor, self.full_attn_beta_factor

    @property
    def of_lightning_attention(self) -> tuple[float, float]:
        """(alpha, beta) of lightning attention."""
        return self.linear_attn_alpha_factor, self.linear_attn_beta_factor

    @property
    def of_mlp(self) -> tuple[float, float]:
        """(alpha, beta) of the MLP."""
        return self.mlp_alpha_factor, self.mlp_beta_factor
