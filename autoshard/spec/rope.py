"""Rotary positions beyond the length of pre-training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Annotated, NamedTuple

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Limit, NotNegative, Positive
from autoshard.files.fields import check_choice, check_integer, check_positive, show

DYNAMIC, LONGROPE = "dynamic", "longrope"
"""rope_types of which the frequencies follow from the length of a row, too."""
ROPE_TYPES = ("linear", "llama3", "yarn", DYNAMIC, LONGROPE)
MOST_FREQUENCIES = 10_000
PROPORTIONAL = "proportional"
"""rope_type of Gemma 4 alone: a part of the frequencies of whole heads turn; the others, the slowest, are 0."""
_ORIGINAL = "original_max_position_embeddings"


class _Fields(NamedTuple):
    """The fields of a rope_type besides its factor: those that it needs, and those that it may have."""

    needs: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()


_FIELDS = {
    "linear": _Fields(),
    "llama3": _Fields(("low_freq_factor", "high_freq_factor", _ORIGINAL)),
    "yarn": _Fields(
        (_ORIGINAL, "beta_fast", "beta_slow"), ("truncate", "attention_factor", "mscale", "mscale_all_dim")
    ),
    DYNAMIC: _Fields((_ORIGINAL,)),
    LONGROPE: _Fields((_ORIGINAL, "short_factor", "long_factor"), ("attention_factor",)),
    PROPORTIONAL: _Fields(("partial_rotary_factor",)),
}
_OF_SOME_TYPES = tuple(dict.fromkeys(field for one in _FIELDS.values() for field in (*one.needs, *one.may_have)))


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
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Count | None = None
    beta_fast: Annotated[Positive | None, Absence.WRITTEN] = None
    beta_slow: Annotated[Positive | None, Absence.WRITTEN] = None
    truncate: Annotated[bool | None, Absence.WRITTEN] = None
    attention_factor: Annotated[NotNegative | None, Absence.WRITTEN] = None
    mscale: Annotated[NotNegative | None, Absence.WRITTEN] = None
    mscale_all_dim: Annotated[NotNegative | None, Absence.WRITTEN] = None
    partial_rotary_factor: Annotated[float | None, Absence.WRITTEN, Limit(above=0, at_most=1)] = None
    short_factor: Annotated[tuple[float, ...], Absence.WRITTEN, Limit(most_items=MOST_FREQUENCIES)] = ()
    long_factor: Annotated[tuple[float, ...], Absence.WRITTEN, Limit(most_items=MOST_FREQUENCIES)] = ()

    def __post_init__(self) -> None:
        of = "rope_scaling"
        check_choice(of, "rope_type", self.rope_type, _FIELDS)
        check_annotated(of, self)
        own = _FIELDS[self.rope_type]
        for field in _OF_SOME_TYPES:
            is_given = getattr(self, field) not in (None, ())
            if not is_given and field in own.needs:
                raise AutoshardError(f"{field} of {of} must be given with rope_type={self.rope_type!r}")
            if is_given and field not in (*own.needs, *own.may_have):
                known = (name for name, one in _FIELDS.items() if field in (*one.needs, *one.may_have))
                raise AutoshardError(f"{field} of {of} goes with rope_type={' or '.join(known)}, not {self.rope_type}")
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and least > most:
                raise AutoshardError(f"{low}={least} of {of} must be at most {high}={most}")
        if self.rope_type == LONGROPE:
            check_integer(of, _ORIGINAL, self.original_max_position_embeddings, at_least=2)
        for field in ("short_factor", "long_factor"):
            factors = getattr(self, field)
            if not isinstance(factors, tuple):
                raise AutoshardError(f"{field}={show(factors)} of {of} must be a list of numbers above 0")
            for number in factors:
                check_positive(of, f"a number of {field}", number)

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
