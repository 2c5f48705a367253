"""How attention makes and weighs its scores, in models where that is not softmax(q k^T / sqrt(head_dim))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Positive


@dataclass(frozen=True)
class AttentionScores:
    """Differences of a model's attention from softmax(q k^T / sqrt(head_dim)), under Hugging Face's names.

    query_pre_attn_scalar: Scores are divided by its root; absent: by that of head_dim.
    attn_logit_softcapping: A score s becomes c * tanh(s / c), where c is this; absent: it stays.
    sinks: Whether each query head has a learned score that joins each softmax and weighs no value.
    window_sinks: Whether those of blocks with a sliding window have one, and others none.
    clip_qkv: Queries, keys and values are cut off at plus and minus this; absent: at nothing.
    llama_4_scaling_beta: The query at place p, from 0, is multiplied by 1 + this * log(1 + floor(p / positions)), where
        positions are rope_scaling's original_max_position_embeddings; absent: by nothing.
    attention_value_scale: Values are multiplied by this; absent: by nothing.
    qk_scale_factor: Queries are multiplied by this, and so are scores; absent: by nothing.

    Raises AutoshardError for a number that is not above 0.
    """

    query_pre_attn_scalar: Annotated[Positive | None, Absence.WRITTEN] = None
    attn_logit_softcapping: Annotated[Positive | None, Absence.WRITTEN] = None
    sinks: Annotated[bool, Absence.WRITTEN] = False
    clip_qkv: Annotated[Positive | None, Absence.WRITTEN] = None
    llama_4_scaling_beta: Annotated[Positive | None, Absence.WRITTEN] = None
    window_sinks: Annotated[bool, Absence.WRITTEN] = False
    attention_value_scale: Annotated[Positive | None, Absence.WRITTEN] = None
    qk_scale_factor: Annotated[Positive | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        check_annotated("attention_scores", self)

    def has_sinks(self, window: int | None) -> bool:
        """Whether the heads of a block with this window have sinks; None: it sees all before."""
        return self.sinks or (self.window_sinks and window is not None)

    def __bool__(self) -> bool:
        """Whether anything is otherwise."""
        return self != USUAL_SCORES


USUAL_SCORES = AttentionScores()
