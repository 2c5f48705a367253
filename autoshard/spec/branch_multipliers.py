"""Constants by which a model scales the two mixers of its blocks, and what lies around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Limit, Positive
from autoshard.files.fields import check_positive, show

PROJECTIONS = ("z", "x", "b", "c", "dt")
"""Projections of a state space in the order of ssm_multipliers: its gate, what it mixes, B, C and the time steps."""
LENGTHS = {"ssm_multipliers": len(PROJECTIONS), "mlp_multipliers": 2}
"""List -> the numbers that it has."""


@dataclass(frozen=True)
class BranchMultipliers:
    """Constants of Falcon-H1's models, under the names of their Hugging Face config; 1 where nothing is scaled.

    embedding_multiplier: Times the embeddings.
    attention_in_multiplier: Times what attention reads.
    key_multiplier: Times attention's keys.
    attention_out_multiplier: Times what attention adds to the residual stream.
    ssm_in_multiplier: Times what the state space reads.
    ssm_multipliers: Times each of the state space's projections: gate, what it mixes, B, C and time steps.
    ssm_out_multiplier: Times what the state space adds to the residual stream.
    mlp_multipliers: Times the MLP's gate before its activation, and times what the MLP adds to the residual stream.

    Raises AutoshardError for a number that is not above 0, and for lists of other lengths.
    """

    embedding_multiplier: Positive
    attention_in_multiplier: Positive
    key_multiplier: Positive
    attention_out_multiplier: Positive
    ssm_in_multiplier: Positive
    ssm_multipliers: Annotated[
        tuple[Positive, ...], Limit(items=LENGTHS["ssm_multipliers"], most_items=LENGTHS["ssm_multipliers"])
    ]
    ssm_out_multiplier: Positive
    mlp_multipliers: Annotated[
        tuple[Positive, ...], Limit(items=LENGTHS["mlp_multipliers"], most_items=LENGTHS["mlp_multipliers"])
    ]

    def __post_init__(self) -> None:
        check_annotated("branch_multipliers", self)
        for field, count in LENGTHS.items():
            numbers = getattr(self, field)
            if not isinstance(numbers, tuple) or len(numbers) != count:
                raise AutoshardError(f"{field}={show(numbers)} of branch_multipliers must be a list of {count} numbers")
            for number in numbers:
                check_positive("branch_multipliers", field, number)

    @property
    def scores(self) -> float:
        """By which attention multiplies its scores besides 1/sqrt(head_dim): queries and keys are scaled alike, and
        keys again."""
        return self.attention_in_multiplier**2 * self.key_multiplier

    @property
    def attention(self) -> float:
        """By which attention's output is multiplied: its values are scaled as what it reads is."""
        return self.attention_in_multiplier * self.attention_out_multiplier

    @property
    def projections(self) -> dict[str, float]:
        """By which each of PROJECTIONS is multiplied."""
        scaled = (self.ssm_in_multiplier * one for one in self.ssm_multipliers)
        return dict(zip(PROJECTIONS, scaled, strict=True))

    @property
    def activation(self) -> str:
        """The MLP's activation, an expression (graph/pointwise.py) of its gate and of what that multiplies. The MLP's
        output is scaled here, before the last product."""
        gate, down = self.mlp_multipliers
        return f"(mul (mul {down!r} (silu (mul {gate!r} x0))) x1)"
