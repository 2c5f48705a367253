"""A residual of several streams whose every number is weighed before a part of a block reads it (Qwen4-Exp)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Several


@dataclass(frozen=True)
class GatedResidual:
    """The streams of a model's residual, under the names of Qwen4-Exp's Hugging Face config.

    hc_count: Streams, each as wide as hidden_size: what passes from block to block is so many times as wide.
    hc_lowrank: Width of the vector that all streams are brought down to, and from which the weight of each of their
        numbers is made.

    Raises AutoshardError for fewer than two streams, and for a width that is no positive whole number.
    """

    hc_count: Several
    hc_lowrank: Count

    def __post_init__(self) -> None:
        check_annotated("gated_residual", self)

    def shrunk(self, width: int) -> GatedResidual:
        """The same streams, with weights that are made from a vector of this width at most."""
        return GatedResidual(self.hc_count, min(self.hc_lowrank, width))
