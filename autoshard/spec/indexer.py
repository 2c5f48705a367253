"""The indexer of sparse attention, which chooses the keys that a query attends to (DeepSeek-V3.2, 2512.02556)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.codec import Count
from autoshard.files.fields import check_flag, check_integer


@dataclass(frozen=True)
class Indexer:
    """Sizes of the indexer in each block, under the names of DeepSeek's config. It needs latent attention with
    compressed queries, has no gradient and is not learned.

    index_n_heads: Heads that score a query's keys.
    index_head_dim: Width of a head's query, and of the key that all of them share.
    index_topk: Keys that a query attends to at most.
    indexer_rope_interleave: Whether positions turn neighbours, 0 with 1, in place of numbers that are half the width
        apart.

    Raises AutoshardError for a size that is no positive whole number.
    """

    index_n_heads: Count
    index_head_dim: Count
    index_topk: Count
    indexer_rope_interleave: bool = False

    def __post_init__(self) -> None:
        of = "indexer"
        for field in ("index_n_heads", "index_head_dim", "index_topk"):
            check_integer(of, field, getattr(self, field))
        check_flag(of, "indexer_rope_interleave", self.indexer_rope_interleave)

    def shrunk(self, head_dim: int, keys: int) -> Indexer:
        """The same choice of so many keys, by few heads of this width."""
        return Indexer(min(self.index_n_heads, 4), head_dim, min(self.index_topk, keys), self.indexer_rope_interleave)
