"""Heads of attention, and the positions that turn them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.spec.model_types import NOPE

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_attention(model: ModelSpec) -> None:
    """Raises AutoshardError for heads that make no whole groups, and for positions that the model_type or its heads
    cannot have."""
    if (beta := model.attention_scores.llama_4_scaling_beta) is not None and model.original_positions is None:
        raise AutoshardError(
            f"llama_4_scaling_beta={beta} of {model.name} needs a rope_scaling with original_max_position_embeddings"
        )
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    if heads % kv_heads:
        raise AutoshardError(
            f"num_key_value_heads={kv_heads} must divide num_attention_heads={heads} of {model.name}; "
            f"what fits: {', '.join(str(count) for count in range(1, heads + 1) if heads % count == 0)}"
        )
    _check_compressed_attention(model)
    _check_latent_attention(model)
    if model.family.learns_positions:
        if model.rope_theta is not None or model.rope_scaling is not None:
            raise AutoshardError(
                f"model_type={model.model_type} of {model.name} learns its positions: rope_theta must be null"
            )
    elif model.graph is None and model.rope_theta is None:
        raise AutoshardError(f"model_type={model.model_type} of {model.name} needs a rope_theta, such as 10000.0")
    elif model.graph is None and model.latent_attention is None:
        _check_global_attention(model)
        _check_turned_numbers(model)


def _check_turned_numbers(model: ModelSpec) -> None:
    """An even number of each head, at least 2, that positions turn."""
    for own in model.heads:
        if own.rotary_dim % 2 or own.rotary_dim == 0:
            factor = model.partial_rotary_factor
            if own.kind and (wide := model.global_attention) is not None:
                factor = wide.global_partial_rotary_factor or factor
            part = "" if factor == 1 else f" times partial_rotary_factor={factor}"
            raise AutoshardError(
                f"{own.kind}head_dim={own.head_dim}{part} of {model.name} must be even: rotary positions turn pairs of "
                "numbers"
            )


def _check_global_attention(model: ModelSpec) -> None:
    """No more heads in blocks without a window than the others have."""
    wide, of = model.global_attention, model.name
    if wide is None:
        return
    count, heads = wide.num_global_key_value_heads, wide.num_global_attention_heads or model.num_attention_heads
    fitting = [number for number in range(1, model.num_key_value_heads + 1) if heads % number == 0]
    if count not in fitting:
        field = "num_attention_heads" if wide.num_global_attention_heads is None else "num_global_attention_heads"
        raise AutoshardError(
            f"num_global_key_value_heads={count} of {of} must divide {field}={heads} and be at most "
            f"num_key_value_heads={model.num_key_value_heads}; what fits: {', '.join(map(str, fitting))}"
        )


def _check_latent_attention(model: ModelSpec) -> None:
    """Heads of their own for all keys, of which positions turn a part, or no head's in any block."""
    latent, of = model.latent_attention, model.name
    if latent is None:
        return
    if model.num_query_groups > 1:
        raise AutoshardError(
            f"num_key_value_heads={model.num_key_value_heads} of {of} must be num_attention_heads="
            f"{model.num_attention_heads}: latent attention makes keys of every head"
        )
    if latent.qk_rope_head_dim % 2 or latent.qk_rope_head_dim >= model.head_dim:
        raise AutoshardError(
            f"qk_rope_head_dim={latent.qk_rope_head_dim} of {of} must be even and below head_dim={model.head_dim}, "
            "the width of queries and keys"
        )
    for field, right in (("sliding_window", None), ("attention_bias", False), ("partial_rotary_factor", 1.0)):
        if (value := getattr(model, field)) != right:
            raise AutoshardError(f"{field}={show(value)} of {of} is not supported with latent attention; {right} is")
    if not latent.qk_rope_head_dim and any(map(model.has_rope, range(model.num_hidden_layers))):
        raise AutoshardError(
            f"qk_rope_head_dim=0 of {of} leaves positions nothing to turn: position_types must say {NOPE} of all blocks"
        )


def _check_compressed_attention(model: ModelSpec) -> None:
    """One key for all heads, whose groups are whole, a window in each block, and nothing dropped."""
    compressed, of = model.compressed_attention, model.name
    if compressed is None:
        return
    if model.num_key_value_heads != 1:
        raise AutoshardError(
            f"num_key_value_heads={model.num_key_value_heads} of {of} must be 1: with compressed attention all heads "
            "share one key"
        )
    if model.num_attention_heads % compressed.o_groups:
        raise AutoshardError(
            f"o_groups={compressed.o_groups} must divide num_attention_heads={model.num_attention_heads} of {of}"
        )
    if compressed.index_head_dim < model.rotary_dim:
        raise AutoshardError(
            f"index_head_dim={compressed.index_head_dim} of {of} must be at least the {model.rotary_dim} numbers of a "
            "head that positions turn"
        )
    if model.sliding_window is None or not model.layer_types:
        missing = "layer_types" if model.sliding_window is not None else "sliding_window"
        raise AutoshardError(f"{missing} of {of} must be given with compressed attention")
    if model.attention_bias:
        raise AutoshardError(f"attention_bias=True of {of} is not supported with compressed attention; False is")
    if model.dropout.attention:
        raise AutoshardError(
            f"dropout.attention={model.dropout.attention:g} of {of} must be 0: no kernel drops probabilities of "
            "compressed attention"
        )
