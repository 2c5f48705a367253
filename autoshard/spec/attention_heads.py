"""The heads of attention, of which blocks of one model may have others than its other blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Limit

GLOBAL = "global_"
"""AttentionHeads.kind of the heads that GlobalAttention says."""


@dataclass(frozen=True)
class GlobalAttention:
    """The attention of the blocks that are full_attention in layer_types, where blocks with a window have other heads.
    Names are Hugging Face's.

    num_global_key_value_heads: Key-value heads of these blocks.
    global_head_dim: Width of one of their heads.
    attention_k_eq_v: Whether their values are made of the keys' projection, and have none of their own.
    num_global_attention_heads: Query heads of these blocks; absent where they have as many as the others.
    global_partial_rotary_factor: Part of each of their heads, from its start, that rotary positions turn; absent where
        that is the same in all blocks.

    Raises AutoshardError for a size that is no positive whole number, and for a part that is none.
    """

    num_global_key_value_heads: Count
    global_head_dim: Count
    attention_k_eq_v: bool = False
    num_global_attention_heads: Annotated[Count | None, Absence.WRITTEN] = None
    global_partial_rotary_factor: Annotated[float | None, Absence.WRITTEN, Limit(above=0, at_most=1)] = None

    def __post_init__(self) -> None:
        check_annotated("global_attention", self)

    def shrunk(self, key_value_heads: int, head_dim: int, others: int) -> GlobalAttention:
        """The same form with so many key-value heads of this width. others: query heads of blocks with a window. Where
        these blocks have other query heads they get twice as many, and where positions turn another part of them, a
        half."""
        return replace(
            self,
            num_global_key_value_heads=key_value_heads,
            global_head_dim=head_dim,
            num_global_attention_heads=None if self.num_global_attention_heads is None else 2 * others,
            global_partial_rotary_factor=None if self.global_partial_rotary_factor is None else 0.5,
        )


@dataclass(frozen=True)
class AttentionHeads:
    """The heads of attention of some of a model's blocks.

    num_query_groups: query heads that share a key-value head.
    head_dim: width of a query and of a key.
    rotary_dim: numbers of each head that rotary positions turn.
    kind: what the names of their dims begin with: "" or GLOBAL.
    keys_are_values: whether one projection makes keys and values.
    value_dim: width of a value; None for that of a key.
    """

    num_key_value_heads: int
    num_query_groups: int
    head_dim: int
    rotary_dim: int
    kind: str = ""
    keys_are_values: bool = False
    value_dim: int | None = None

    @property
    def num_attention_heads(self) -> int:
        """Query heads."""
        return self.num_key_value_heads * self.num_query_groups

    @property
    def attention_name(self) -> str:
        """The name in a block of an attention with these heads: of others it has another one, since a plan has one
        choice for all operators of a name."""
        return f"{self.kind}self_attn"

    @property
    def query_dims(self) -> tuple[str, str, str]:
        """Names of the dims that queries have besides batch and seq: key-value heads, query heads that share one, width
        of a head."""
        return f"{self.kind}kvhead", f"{self.kind}group", f"{self.kind}headdim"

    @property
    def key_dims(self) -> tuple[str, str]:
        """Names of the dims that keys have besides batch and seq."""
        key_value, _, width = self.query_dims
        return key_value, width

    @property
    def value_dims(self) -> tuple[str, str]:
        """Names of the dims that values have besides batch and seq."""
        key_value, width = self.key_dims
        return key_value, width if self.value_dim is None else f"{self.kind}valuedim"

    @property
    def output_dims(self) -> tuple[str, str, str]:
        """Names of the dims that attention's output has besides batch and seq: a head of it is as wide as a value."""
        key_value, group, _ = self.query_dims
        return key_value, group, self.value_dims[1]

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of these dims, but for those of the heads' numbers, which tensor parallelism may pad."""
        widths = {self.query_dims[2]: self.head_dim}
        return widths if self.value_dim is None else {**widths, self.value_dims[1]: self.value_dim}
