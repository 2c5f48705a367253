"""Indexers, which choose the keys that a query sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoshard.errors import AutoshardError
from autoshard.files.fields import show
from autoshard.spec.indexer import Indexer
from autoshard.spec.latent_attention import LatentAttention
from autoshard.spec.model_types import BLOCK_SPARSE, FULL_ATTENTION, OWN_INDEXER

if TYPE_CHECKING:
    from autoshard.spec.model import ModelSpec


def check_indexers(model: ModelSpec) -> None:
    """Raises AutoshardError for an indexer that does not fit the attention of its blocks."""
    if model.indexer is not None and model.latent_attention is not None:
        _check_of_latent_attention(model, model.indexer, model.latent_attention)
    elif model.indexer is not None:
        _check_of_pools(model, model.indexer)
    _check_block_indexer(model)
    _check_shared_indexers(model)
    if model.dropout.attention and (model.indexer is not None or model.block_indexer is not None):
        raise AutoshardError(
            f"dropout.attention={model.dropout.attention:g} of {model.name} must be 0: no kernel drops probabilities "
            "of the keys that an indexer chose"
        )


def _check_of_latent_attention(model: ModelSpec, indexer: Indexer, latent: LatentAttention) -> None:
    """Heads that positions turn, of what its queries are made of."""
    of = model.name
    if latent.q_lora_rank is None and not model.family.indexes_hidden_state:
        raise AutoshardError(f"q_lora_rank=null of {of} is not supported: its indexer reads compressed queries")
    if (indexer.index_kpool is None) != (latent.qk_rope_head_dim > 0):
        raise AutoshardError(
            f"index_kpool={show(indexer.index_kpool)} of {of} must be a number of tokens where qk_rope_head_dim=0, and "
            f"absent where positions turn a part of each head; it is {latent.qk_rope_head_dim}"
        )
    if indexer.index_head_dim < latent.qk_rope_head_dim:
        raise AutoshardError(
            f"index_head_dim={indexer.index_head_dim} of {of} must be at least qk_rope_head_dim="
            f"{latent.qk_rope_head_dim}, the numbers that positions turn"
        )


def _check_of_pools(model: ModelSpec, indexer: Indexer) -> None:
    """Pools in blocks with full attention, whose heads positions turn."""
    of = model.name
    if model.layer_types and FULL_ATTENTION not in model.layer_types:
        raise AutoshardError(f"indexer of {of} must be absent: no block is {FULL_ATTENTION} in layer_types")
    if indexer.index_kpool is None:
        raise AutoshardError(
            f"index_kpool=null of {of} must be a number of tokens: indexers of model_type={model.model_type} choose "
            "pools"
        )
    _check_turned_numbers(model, indexer.index_head_dim)
    for field in ("turns_end", "indexer_rope_interleave"):
        if getattr(indexer, field):
            raise AutoshardError(
                f"{field}=True of {of} is not supported with indexers of model_type={model.model_type}; False is"
            )
    if indexer.key_norm_eps != model.norm_eps:
        raise AutoshardError(
            f"key_norm_eps={indexer.key_norm_eps:g} of {of} must be norm_eps={model.norm_eps:g}, as of other norms"
        )


def _check_block_indexer(model: ModelSpec) -> None:
    """An indexer of blocks of keys exactly where some blocks have such attention, with heads that positions turn."""
    indexer, of = model.block_indexer, model.name
    if (indexer is not None) != (BLOCK_SPARSE in model.layer_types):
        raise AutoshardError(
            f"block_indexer of {of} must be the sizes of the blocks that are {BLOCK_SPARSE} in layer_types, and absent "
            "without such blocks"
        )
    if indexer is None:
        return
    _check_turned_numbers(model, indexer.index_head_dim)
    if model.position_types:
        raise AutoshardError(f"position_types of {of} must be absent: positions turn the heads of each indexer")


def _check_turned_numbers(model: ModelSpec, index_head_dim: int) -> None:
    if index_head_dim < model.rotary_dim:
        raise AutoshardError(
            f"index_head_dim={index_head_dim} of {model.name} must be at least {model.rotary_dim}, the numbers of a "
            "head that positions turn"
        )


def _check_shared_indexers(model: ModelSpec) -> None:
    """Blocks that see the keys that another one chose only behind such a block, and with full attention as it has."""
    types, of = model.indexer_types, model.name
    if not types:
        return
    if types[0] != OWN_INDEXER:
        raise AutoshardError(
            f"indexer_types of {of} begins with {types[0]}, but must with {OWN_INDEXER}: no block before the first one "
            "chooses keys"
        )
    for layer in (place for place, word in enumerate(types) if word != OWN_INDEXER):
        for place in (layer, model.chooser_of(layer)):
            if (word := model.mixer_of(place)) != FULL_ATTENTION:
                raise AutoshardError(
                    f"indexer_types of {of} says {types[layer]} of block {layer}, which sees the keys that block "
                    f"{model.chooser_of(layer)} chose; but layer_types says {word} of block {place}, not "
                    f"{FULL_ATTENTION}"
                )
