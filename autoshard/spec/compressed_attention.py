"""Attention to a window and to compressed pieces of the sequence, of heads that share keys (DeepSeek-V4)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count


@dataclass(frozen=True)
class CompressedAttention:
    """Sizes of attention with one vector a token as key and value of all heads, under the names of DeepSeek's config.
    ModelSpec.sliding_window is what a query sees of the tokens; in some blocks it also sees entries, each of which
    stands for a piece of the sequence.

    q_lora_rank: Width of the vector that a token's queries are made of.
    o_groups: Groups of heads, each of which has a projection of its own.
    o_lora_rank: Width of a group's projection.
    sparse_rate: Tokens of an entry in blocks that are compressed_sparse_attention in layer_types, of which a query sees
        those that an indexer chose.
    heavy_rate: Tokens of an entry in blocks that are heavily_compressed_attention, of which a query sees all.
    index_n_heads: Heads of the indexer, which has no gradient and is not learned.
    index_head_dim: Width of one of them.
    index_topk: Entries that a query sees at most, where an indexer chooses.

    Raises AutoshardError for a size that is no positive whole number.
    """

    q_lora_rank: Count
    o_groups: Count
    o_lora_rank: Count
    sparse_rate: Count
    heavy_rate: Count
    index_n_heads: Count
    index_head_dim: Count
    index_topk: Count

    def __post_init__(self) -> None:
        check_annotated("compressed_attention", self)

    def shrunk(self, groups: int, head_dim: int, entries: int) -> CompressedAttention:
        """The same form with so many groups of heads of this width, short pieces, and an indexer that chooses so many
        entries at most."""
        return CompressedAttention(
            q_lora_rank=3 * head_dim,
            o_groups=groups,
            o_lora_rank=2 * head_dim,
            sparse_rate=min(self.sparse_rate, 4),
            heavy_rate=min(self.heavy_rate, 8),
            index_n_heads=min(self.index_n_heads, 4),
            index_head_dim=head_dim,
            index_topk=min(self.index_topk, entries),
        )
