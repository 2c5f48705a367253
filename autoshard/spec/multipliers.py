"""Constants by which a model scales what other models leave as it is."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Positive


@dataclass(frozen=True)
class Multipliers:
    """Constants of Granite's models, under the names of their Hugging Face config; 1 where nothing is scaled.

    embedding_multiplier: Times the embeddings.
    attention_multiplier: Times the scores of attention, in place of 1/sqrt(head_dim).
    residual_multiplier: Times what attention and MLP add to the residual stream.
    logits_scaling: The logits are divided by it.

    Raises AutoshardError for a number that is not above 0.
    """

    embedding_multiplier: Positive
    attention_multiplier: Positive
    residual_multiplier: Positive
    logits_scaling: Positive

    def __post_init__(self) -> None:
        check_annotated("multipliers", self)
