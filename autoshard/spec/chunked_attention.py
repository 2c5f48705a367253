"""Attention of Llama 4: most blocks see their own chunk of the sequence, the others all of it and no positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Positive


@dataclass(frozen=True)
class ChunkedAttention:
    """Facts of a model of which some blocks have chunked_attention as layer_types, under Hugging Face's names.

    Chunks and places count from the start of a row, whatever documents it holds.

    attention_chunk_size: Tokens of a chunk; a query sees the keys of its chunk up to itself. These blocks have rotary
        positions, by pairs of neighbours; the others have none.
    use_qk_norm: Whether queries and keys of blocks with chunks are normalised behind the rotation, without weights.
    floor_scale: In the other blocks the query at place p, from 0, is multiplied by
        1 + attn_scale * log(1 + floor((p + 1) / floor_scale)); absent where it is not.
    attn_scale: See floor_scale; absent without it.

    Raises AutoshardError for a number that is not above 0, or one of the last two without the other.
    """

    attention_chunk_size: Count
    use_qk_norm: bool
    floor_scale: Annotated[Count | None, Absence.WRITTEN] = None
    attn_scale: Annotated[Positive | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        of = "chunked_attention"
        check_annotated(of, self)
        if (self.floor_scale is None) != (self.attn_scale is None):
            raise AutoshardError(
                f"floor_scale={self.floor_scale} and attn_scale={self.attn_scale} of {of} go together: both or neither"
            )
