"""Multi-head latent attention: queries, keys and values are made of compressed vectors (DeepSeek-V2, 2405.04434)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count, Whole


@dataclass(frozen=True)
class LatentAttention:
    """Widths of multi-head latent attention, under the names of DeepSeek's config. ModelSpec.head_dim is the width of a
    head's query and key, both parts together.

    q_lora_rank: Width of the vector that a token's queries are made of; null where they are made of the hidden state.
    kv_lora_rank: Width of the vector that all keys and values of a token are made of.
    qk_rope_head_dim: Numbers at the end of each head's query and key that rotary positions turn; all heads share those
        of the key. 0 where no block has positions, and each head has a whole key of its own.
    v_head_dim: Width of a head's value.
    rope_interleave: Whether positions turn neighbours, 0 with 1, in place of numbers that are half the width apart.

    Raises AutoshardError for a width that is no positive whole number, and for a qk_rope_head_dim below 0.
    """

    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_rope_head_dim: Whole
    v_head_dim: Count
    rope_interleave: bool = True

    def __post_init__(self) -> None:
        check_annotated("latent_attention", self)

    def shrunk(self, head_dim: int) -> LatentAttention:
        """The same parts at a width of queries and keys that is a multiple of 4: half of a head turns, if some of it
        does, values are narrower."""
        return LatentAttention(
            q_lora_rank=None if self.q_lora_rank is None else 3 * head_dim,
            kv_lora_rank=2 * head_dim,
            qk_rope_head_dim=head_dim // 2 if self.qk_rope_head_dim else 0,
            v_head_dim=3 * head_dim // 4,
            rope_interleave=self.rope_interleave,
        )
