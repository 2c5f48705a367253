"""The indexer of attention to blocks of keys, which each key-value head chooses for its queries (MiniMax-M3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Count


@dataclass(frozen=True)
class BlockIndexer:
    """Sizes of the indexer in each block with block_sparse_attention, under the names of MiniMax-M3's config. It has a
    head for each key-value head, whose query heads all see the keys that it chooses; it has no gradient and is not
    learned.

    index_head_dim: Width of a head's query, and of the key that all of them share.
    index_block_size: Keys of a block; it scores as much as the best of them.
    index_topk_blocks: Blocks that a query sees at most.
    index_local_blocks: Of these, the blocks that it sees whatever they score: its own, and those right before it.

    Raises AutoshardError for a size that is no positive whole number, and for more local blocks than blocks.
    """

    index_head_dim: Count
    index_block_size: Count
    index_topk_blocks: Count
    index_local_blocks: Count = 1

    def __post_init__(self) -> None:
        check_annotated("block_indexer", self)
        if self.index_local_blocks > self.index_topk_blocks:
            raise AutoshardError(
                f"index_local_blocks={self.index_local_blocks} of block_indexer must be at most index_topk_blocks="
                f"{self.index_topk_blocks}"
            )

    def shrunk(self, head_dim: int, length: int) -> BlockIndexer:
        """The same choice among eight blocks of a sequence of so many tokens, by heads of this width."""
        chosen, local = min(self.index_topk_blocks, 3), min(self.index_local_blocks, 2)
        size = min(self.index_block_size, max(1, length // 8))
        return replace(
            self,
            index_head_dim=head_dim,
            index_block_size=size,
            index_topk_blocks=chosen,
            index_local_blocks=min(local, chosen),
        )
