"""Sizes of blocks that mix their tokens by a recurrence or a convolution, in place of attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from autoshard.errors import AutoshardError
from autoshard.files.annotated import check_annotated
from autoshard.files.codec import Absence, Count, Limit, Positive
from autoshard.files.fields import check_choice

SILU, SIGMOID = "silu", "sigmoid"
OUTPUT_GATES = (SILU, SIGMOID)
SMALL = 8
"""Numbers of a head, a state and a chunk where a model is made small."""


@dataclass(frozen=True)
class LinearAttention:
    """Sizes of linear attention by the gated delta rule, under the names of Qwen3-Next's Hugging Face config.

    linear_num_key_heads: Heads of queries and keys.
    linear_num_value_heads: Heads of values; each key head serves linear_num_value_heads / linear_num_key_heads of them.
    linear_key_head_dim: Width of a query and of a key.
    linear_value_head_dim: Width of a value.
    linear_conv_kernel_dim: Tokens that the convolution before it sees, the own one included.
    linear_allow_neg_eigval: Whether a token moves the state by up to twice what is missing, not up to once: matrices by
        which states are multiplied may then have negative eigenvalues (OLMo Hybrid).
    kda_lower_bound: Logarithm of the least part that a token leaves of a channel, where each channel of a key fades by
        itself (Ling 3.0); below 0; absent: a token may leave as little as it likes.
    output_gate_type: Function of the gate by which its output is multiplied behind a norm, silu or sigmoid, in families
        that leave it to the config (Qwen4-Exp); absent in others.

    Raises AutoshardError for sizes that are no counts or do not divide.
    """

    linear_num_key_heads: Count
    linear_num_value_heads: Count
    linear_key_head_dim: Count
    linear_value_head_dim: Count
    linear_conv_kernel_dim: Count
    linear_allow_neg_eigval: Annotated[bool, Absence.WRITTEN] = False
    kda_lower_bound: Annotated[float | None, Absence.WRITTEN, Limit(below=0)] = None
    output_gate_type: Annotated[str | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        check_annotated("linear_attention", self)
        if self.output_gate_type is not None:
            check_choice("linear_attention", "output_gate_type", self.output_gate_type, OUTPUT_GATES)
        if self.linear_num_value_heads % self.linear_num_key_heads:
            raise AutoshardError(
                f"linear_num_key_heads={self.linear_num_key_heads} of linear_attention must divide "
                f"linear_num_value_heads={self.linear_num_value_heads}"
            )

    def shrunk(self, tp: int) -> LinearAttention:
        """The same with few and narrow heads, of which each of tp ranks has some."""
        heads, values = tp * (1 if tp > 1 else 2), min(self.values_per_key, 2)
        return replace(
            self,
            linear_num_key_heads=heads,
            linear_num_value_heads=heads * values,
            linear_key_head_dim=SMALL,
            linear_value_head_dim=SMALL,
        )

    @property
    def values_per_key(self) -> int:
        """Value heads that share a key head."""
        return self.linear_num_value_heads // self.linear_num_key_heads


@dataclass(frozen=True)
class LightningAttention:
    """Sizes of lightning attention, under the names of MiniMax-Text-01's Hugging Face config. It has as many heads as
    attention has query heads, and as wide ones.

    block_size: Tokens of a chunk, within which the recurrence is a matrix product.

    Raises AutoshardError for a size that is no count.
    """

    block_size: Count

    def __post_init__(self) -> None:
        check_annotated("lightning_attention", self)

    def shrunk(self) -> LightningAttention:
        """The same with short chunks."""
        return LightningAttention(SMALL)


@dataclass(frozen=True)
class Mamba:
    """Sizes of Mamba-2's state space, under the names of Granite's Hugging Face config.

    mamba_n_heads: Heads.
    mamba_d_head: Width of a head.
    mamba_d_state: Numbers of state for each number of a head.
    mamba_d_conv: Tokens that the convolution before it sees, the own one included.
    mamba_chunk_size: Tokens of a chunk, within which the recurrence is a matrix product.
    mamba_conv_bias: Whether the convolution has a bias.
    mamba_n_groups: Groups of heads that follow one another; the heads of a group share one B and C.
    mamba_rms_norm: Whether an RMSNorm over the heads of each group follows the gate, as it does but in some models of
        falcon_h1.

    Raises AutoshardError for sizes that are no counts or do not divide.
    """

    mamba_n_heads: Count
    mamba_d_head: Count
    mamba_d_state: Count
    mamba_d_conv: Count
    mamba_chunk_size: Count
    mamba_conv_bias: bool
    mamba_n_groups: Annotated[Count, Absence.WRITTEN] = 1
    mamba_rms_norm: Annotated[bool, Absence.WRITTEN] = True

    def __post_init__(self) -> None:
        check_annotated("mamba", self)
        if self.mamba_n_heads % self.mamba_n_groups:
            raise AutoshardError(
                f"mamba_n_groups={self.mamba_n_groups} of mamba must divide mamba_n_heads={self.mamba_n_heads}"
            )

    def shrunk(self, tp: int) -> Mamba:
        """The same with few and narrow heads, and groups of them if there are any, of which each of tp ranks has
        some."""
        groups = 1 if self.mamba_n_groups == 1 else tp if tp > 1 else 2
        return replace(
            self,
            mamba_n_heads=2 * max(tp, groups),
            mamba_d_head=SMALL,
            mamba_d_state=SMALL,
            mamba_chunk_size=SMALL,
            mamba_n_groups=groups,
        )


@dataclass(frozen=True)
class Mamba1:
    """Sizes of Mamba-1's state space, under the names of Jamba's Hugging Face config.

    mamba_d_inner: Channels, each with a state of its own.
    mamba_dt_rank: Width of the vector that the time steps of all channels are made of.
    mamba_d_state: Numbers of state of a channel.
    mamba_d_conv: Tokens that the convolution before it sees, the own one included.
    mamba_conv_bias: Whether the convolution has a bias.
    mixer_rms_eps: Added to the mean square in the norms of time steps, B and C where these have no weight
        (falcon_mamba); absent where they are as the other norms, or there are none.

    Raises AutoshardError for a size that is no count.
    """

    mamba_d_inner: Count
    mamba_dt_rank: Count
    mamba_d_state: Count
    mamba_d_conv: Count
    mamba_conv_bias: bool
    mixer_rms_eps: Annotated[Positive | None, Absence.WRITTEN] = None

    def __post_init__(self) -> None:
        check_annotated("mamba1", self)

    def shrunk(self, tp: int) -> Mamba1:
        """The same with few channels, of which each of tp ranks has some."""
        return replace(self, mamba_d_inner=2 * SMALL * tp, mamba_dt_rank=SMALL, mamba_d_state=SMALL)


@dataclass(frozen=True)
class ShortConv:
    """Sizes of a short convolution between two gates, under the names of LFM2's Hugging Face config.

    conv_L_cache: Tokens that it sees, the own one included.
    conv_bias: Whether it and the projections around it have a bias.

    Raises AutoshardError for a size that is no count.
    """

    conv_L_cache: Count  # noqa: N815
    conv_bias: bool

    def __post_init__(self) -> None:
        check_annotated("conv", self)
