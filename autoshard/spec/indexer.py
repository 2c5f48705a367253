"""The indexer of sparse attention, which chooses the keys that a query attends to (DeepSeek-V3.2, 2512.02556)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Positive


@dataclass(frozen=True)
class Indexer:
    """Sizes of the indexer in each block, under the names of DeepSeek's config. It needs latent attention, with
    compressed queries unless the family makes its queries of the hidden state, has no gradient and is not learned.

    index_n_heads: Heads that score a query's keys.
    index_head_dim: Width of a head's query, and of the key that all of them share.
    index_topk: Keys that a query attends to at most.
    indexer_rope_interleave: Whether positions turn neighbours, 0 with 1, in place of numbers that are half the width
        apart.
    index_kpool: Tokens of a pool (GLM-5.3): an indexer without positions scores pools of the sequence, each by one key
        that is made of its tokens', and a query sees all tokens of the pools that it chooses, and those of its own pool
        up to itself besides; absent where it scores every token's key.
    turns_end: Whether positions turn the last numbers of a head's query and of the key, in place of the first (Hy4).
    key_norm_eps: Added to the variance in the norm of keys, and of the hidden state that queries may be made of.

    Raises AutoshardError for a size that is no positive whole number, for pools that do not divide index_topk, and for
    a key_norm_eps that is not above 0.
    """

    index_n_heads: Count
    index_head_dim: Count
    index_topk: Count
    indexer_rope_interleave: bool = False
    index_kpool: Annotated[Count | None, Absence.WRITTEN] = None
    turns_end: Annotated[bool, Absence.WRITTEN] = False
    key_norm_eps: Annotated[Positive, Absence.WRITTEN] = 1e-6

    def __post_init__(self) -> None:
        check_annotated("indexer", self)
        if self.index_kpool is not None and self.index_topk % self.index_kpool:
            raise AutoshardError(
                f"index_kpool={self.index_kpool} of indexer must divide index_topk={self.index_topk}, the keys of all "
                "pools that a query chooses"
            )

    @property
    def most_keys(self) -> int:
        """Keys that a query sees at most: those that it chooses, and the rest of its own pool."""
        return self.index_topk + (self.index_kpool or 1) - 1

    def shrunk(self, head_dim: int, keys: int) -> Indexer:
        """The same choice of so many keys, or of one pool where that is more, by few heads of this width."""
        pool = self.index_kpool or 1
        top_k = min(self.index_topk, max(keys // pool, 1) * pool)
        return replace(self, index_n_heads=min(self.index_n_heads, 4), index_head_dim=head_dim, index_topk=top_k)
