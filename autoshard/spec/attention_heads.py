"""The heads of attention, of which blocks of one model may have others than its other blocks."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.files.codec import Count
from autoshard.files.fields import check_flag, check_integer

GLOBAL = "global_"
"""AttentionHeads.kind of the heads that GlobalAttention says."""


@dataclass(frozen=True)
class GlobalAttention:
    """The attention of the blocks that are full_attention in layer_types, where blocks with a window have other heads.
    Names are Hugging Face's.

    num_global_key_value_heads: Key-value heads of these blocks.
    global_head_dim: Width of one of their heads.
    attention_k_eq_v: Whether their values are made of the keys' projection, and have none of their own.

    Raises AutoshardError for a size that is no positive whole number.
    """

    num_global_key_value_heads: Count
    global_head_dim: Count
    attention_k_eq_v: bool = False

    def __post_init__(self) -> None:
        of = "global_attention"
        check_integer(of, "num_global_key_value_heads", self.num_global_key_value_heads)
        check_integer(of, "global_head_dim", self.global_head_dim)
        check_flag(of, "attention_k_eq_v", self.attention_k_eq_v)

    def shrunk(self, key_value_heads: int, head_dim: int) -> GlobalAttention:
        """The same form with so many key-value heads of this width."""
        return GlobalAttention(key_value_heads, head_dim, self.attention_k_eq_v)


@dataclass(frozen=True)
class AttentionHeads:
    """The heads of attention of some of a model's blocks.

    num_query_groups: query heads that share a key-value head.
    rotary_dim: numbers of each head that rotary positions turn.
    kind: what the names of their dims begin with: "" or GLOBAL.
    keys_are_values: whether one projection makes keys and values.
    """

    num_key_value_heads: int
    num_query_groups: int
    head_dim: int
    rotary_dim: int
    kind: str = ""
    keys_are_values: bool = False

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
