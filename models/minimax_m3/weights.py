"""The names and the form of our parameters in Hugging Face checkpoints of MiniMax-M3's text model, as published."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends, gated_mlp
from autoshard.models.mixtral.weights import MATRICES, OURS, mixture
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import BLOCK_SPARSE

__all__ = ["LEFT_OUT", "block", "ends"]

LEFT_OUT = tuple(f"{outer}mtp." for outer in ("", "model.", "language_model.", "language_model.model."))
"""Prediction modules, which transformers leaves out too."""
INDEXER = {
    "q_proj": "(kvhead index_dim) embed",
    "k_proj": "index_dim embed",
    "q_norm": "index_dim",
    "k_norm": "index_dim",
}


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    if model.mixer_of(layer) == BLOCK_SPARSE:
        for part, layout in INDEXER.items():
            hub, own = f"{prefix}.self_attn.index_{part}.weight", f"{prefix}.self_attn.indexer.{part}.weight"
            yield Part(hub, layout, own)
    own, hub = f"{prefix}.mlp", f"{prefix}.block_sparse_moe"
    if not model.has_experts(layer):
        yield from gated_mlp(model, own, "dense_ffn")
        return
    yield from mixture(model, own, MATRICES, correction="e_score_correction_bias", hub=hub, ours=OURS)
    yield from gated_mlp(model, f"{own}.shared_experts", "shared_ffn", f"{hub}.shared_experts")
