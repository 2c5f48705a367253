"""Norms and gates behind attention and MLP, where their output joins the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Positive

LEAST_KEPT = 1e-3
"""The least square of a gated residual's factor of the residual stream, in transformers."""


@dataclass(frozen=True)
class BranchNorms:
    """The norms behind attention and MLP of Muse's blocks, and the gates behind these, under the names of Hugging
    Face's config.

    post_norm_eps: Added to the variance in the norms behind attention and MLP, and behind experts.
    residual_gate_temperature: A learned gate of each number of the stream is divided by this; absent: the normed output
        is added as it is, and its norm is as those before attention and MLP.

    Raises AutoshardError for a number that is not above 0.
    """

    post_norm_eps: Positive
    residual_gate_temperature: Annotated[Positive | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        check_annotated("branch_norms", self)

    @property
    def joined(self) -> str:
        """The residual stream behind a gated branch, an expression (graph/pointwise.py) of the stream x0 before it, the
        normed output x1, and the gate x2: with w the gate over its temperature and b = sigmoid(w),

            sqrt(max(sigmoid(-w) (1 + b), LEAST_KEPT)) x0 + b x1

        where both factors' squares sum to 1, but for the least one.
        """
        gate = f"(div x2 {self.residual_gate_temperature!r})"
        added = f"(sigmoid {gate})"
        kept = f"(sqrt (maximum (mul (sigmoid (neg {gate})) (add 1.0 {added})) {LEAST_KEPT!r}))"
        return f"(add (mul {kept} x0) (mul {added} x1))"
