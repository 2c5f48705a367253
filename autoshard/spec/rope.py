"""Rotary positions beyond the length of pre-training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.codec import Absence, Count, Limit, Positive
from autoshard.files.fields import check_choice, check_flag, check_integer, check_not_negative, check_positive, show

DYNAMIC, LONGROPE = "dynamic", "longrope"
"""rope_types of which the frequencies follow from the length of a row, too."""
ROPE_TYPES = ("linear", "llama3", "yarn", DYNAMIC, LONGROPE)
MOST_FREQUENCIES = 10_000
PROPORTIONAL = "proportional"
"""rope_type of Gemma 4 alone: a part of the frequencies of whole heads turn; the others, the slowest, are 0."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length of pre-training.

    rope_type: linear, llama3, yarn, dynamic, longrope or proportional.
    factor: By how much.
    low_freq_factor: llama3: wavelengths above original_max_position_embeddings over this are stretched in full.
    high_freq_factor: llama3: wavelengths below original_max_position_embeddings over this are kept.
    original_max_position_embeddings: llama3, yarn, dynamic, longrope: positions, tokens, of the pre-training; dynamic
        stretches rows that are longer alone.
    beta_fast: yarn: frequencies that turn at least so often over the pre-training's positions are kept.
    beta_slow: yarn: frequencies that turn at most so often are divided by the factor.
    truncate: yarn: whether the range of frequencies between the two ends at whole ones; absent is yes.
    attention_factor: yarn, longrope: by which rotated queries and keys are multiplied; absent where it follows from the
        factor, or from both numbers below.
    mscale: yarn: weight of the factor's logarithm in what rotated queries and keys are multiplied by.
    mscale_all_dim: yarn: weight of the factor's logarithm in what they are divided by; latent attention multiplies its
        scores by the square of that.
    partial_rotary_factor: proportional: part of a head's frequencies, from the fastest on, that turn; the others are 0.
    short_factor: longrope: by which each frequency is divided in rows of up to the pre-training's positions.
    long_factor: longrope: by which each is divided in longer rows.
    """

    rope_type: str
    factor: Positive
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: Count | None = None
    beta_fast: Annotated[float | None, Absence.WRITTEN] = None
    beta_slow: Annotated[float | None, Absence.WRITTEN] = None
    truncate: Annotated[bool | None, Absence.WRITTEN] = None
    attention_factor: Annotated[float | None, Absence.WRITTEN] = None
    mscale: Annotated[float | None, Absence.WRITTEN] = None
    mscale_all_dim: Annotated[float | None, Absence.WRITTEN] = None
    partial_rotary_factor: Annotated[float | None, Absence.WRITTEN, Limit(above=0, at_most=1)] = None
    short_factor: Annotated[tuple[float, ...], Absence.WRITTEN, Limit(most_items=MOST_FREQUENCIES)] = ()
    long_factor: Annotated[tuple[float, ...], Absence.WRITTEN, Limit(most_items=MOST_FREQUENCIES)] = ()

    def __post_init__(self) -> None:
        check_choice("rope_scaling", "rope_type", self.rope_type, (*ROPE_TYPES, PROPORTIONAL))
        check_positive("rope_scaling", "factor", self.factor)
        self._check_yarn()
        self._check_proportional()
        self._check_longrope()
        if self.rope_type in ("yarn", LONGROPE):
            return
        low, high, original = self.low_freq_factor, self.high_freq_factor, self.original_max_position_embeddings
        if self.rope_type in ("linear", PROPORTIONAL):
            if (low, high, original) != (None, None, None):
                more = " and a partial_rotary_factor" if self.rope_type == PROPORTIONAL else ""
                raise AutoshardError(
                    f"rope_scaling of rope_type={self.rope_type!r} has a factor{more} and nothing else"
                )
            return
        if self.rope_type == DYNAMIC:
            if (low, high) != (None, None):
                raise AutoshardError("low_freq_factor and high_freq_factor of rope_scaling go with rope_type='llama3'")
            check_integer("rope_scaling", "original_max_position_embeddings", original)
            return
        check_positive("rope_scaling", "low_freq_factor", low)
        check_positive("rope_scaling", "high_freq_factor", high)
        check_integer("rope_scaling", "original_max_position_embeddings", original)
        if low is not None and high is not None and low > high:
            raise AutoshardError(f"low_freq_factor={low} of rope_scaling must be at most high_freq_factor={high}")

    def _check_longrope(self) -> None:
        """The fields that longrope needs, and that others have not."""
        both = {"short_factor": self.short_factor, "long_factor": self.long_factor}
        if self.rope_type != LONGROPE:
            for field, factors in both.items():
                if factors:
                    raise AutoshardError(f"{field} of rope_scaling goes with rope_type={LONGROPE!r}")
            return
        check_integer("rope_scaling", "original_max_position_embeddings", self.original_max_position_embeddings, 2)
        if self.attention_factor is not None:
            check_not_negative("rope_scaling", "attention_factor", self.attention_factor)
        for field, factors in both.items():
            if not isinstance(factors, tuple) or not factors:
                raise AutoshardError(f"{field}={show(factors)} of rope_scaling must be a list of numbers above 0")
            for number in factors:
                check_positive("rope_scaling", f"a number of {field}", number)

    def _check_proportional(self) -> None:
        part = self.partial_rotary_factor
        if self.rope_type != PROPORTIONAL:
            if part is not None:
                known = f"rope_type={PROPORTIONAL!r}, not {self.rope_type!r}"
                raise AutoshardError(f"partial_rotary_factor of rope_scaling goes with {known}")
            return
        check_positive("rope_scaling", "partial_rotary_factor", part)
        if part is not None and part > 1:
            raise AutoshardError(f"partial_rotary_factor={part} of rope_scaling must be at most 1")

    def _check_yarn(self) -> None:
        """The fields that yarn needs, that it may have, and that others have not."""
        more = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
        if self.rope_type != "yarn":
            for field in more:
                if field == "attention_factor" and self.rope_type == LONGROPE:
                    continue
                if getattr(self, field) is not None:
                    raise AutoshardError(f"{field} of rope_scaling goes with rope_type='yarn', not {self.rope_type!r}")
            return
        check_integer("rope_scaling", "original_max_position_embeddings", self.original_max_position_embeddings)
        for field in ("beta_fast", "beta_slow"):
            check_positive("rope_scaling", field, getattr(self, field))
        for field in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(self, field) is not None:
                check_not_negative("rope_scaling", field, getattr(self, field))
        if self.truncate is not None:
            check_flag("rope_scaling", "truncate", self.truncate)
        if (self.low_freq_factor, self.high_freq_factor) != (None, None):
            raise AutoshardError("low_freq_factor and high_freq_factor of rope_scaling go with rope_type='llama3'")
        if self.beta_fast < self.beta_slow:  # type: ignore[operator]  # both are numbers
            raise AutoshardError(
                f"beta_slow={self.beta_slow} of rope_scaling must be at most beta_fast={self.beta_fast}"
            )

    def shrunk(self, frequencies: int) -> RopeScaling:
        """The same for so many frequencies, fewer than before: some of the factors of longrope, in their order."""

        def some(factors: tuple[float, ...]) -> tuple[float, ...]:
            return (
                tuple(factors[place * len(factors) // frequencies] for place in range(frequencies)) if factors else ()
            )

        return replace(self, short_factor=some(self.short_factor), long_factor=some(self.long_factor))

    @property
    def rotation_factor(self) -> float:
        """By which rotated queries and keys are multiplied: 1 without yarn and longrope."""
        if self.rope_type not in ("yarn", LONGROPE):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == LONGROPE:
            assert self.original_max_position_embeddings is not None
            return sqrt(1 + log(max(1.0, self.factor)) / log(self.original_max_position_embeddings))
        if self.mscale and self.mscale_all_dim:
            return self._weighed(self.mscale) / self._weighed(self.mscale_all_dim)
        return self._weighed(1.0)

    @property
    def latent_scores_factor(self) -> float:
        """By which latent attention multiplies its scores besides 1/sqrt(head_dim): 1 without mscale_all_dim."""
        return self._weighed(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _weighed(self, weight: float) -> float:
        return 0.1 * weight * log(self.factor) + 1.0 if self.factor > 1 else 1.0
