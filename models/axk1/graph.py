"""The graph of A.X-K1 as operators over named dims: DeepSeek-V3's, with a norm behind the experts."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.deepseek.graph import mlp
from autoshard.models.gemma.graph import sandwiched_mlp
from autoshard.models.llama.graph import embedding, head
from autoshard.models.mixtral.graph import mixture_with_shared
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

BEFORE_MLP, BEHIND_EXPERTS = "post_attention_layernorm", "post_mlp_layernorm"


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    x = latent_attention(b, model, x, layer, kernel)
    if not model.has_experts(layer):
        return mlp(b, model, x, layer)
    return sandwiched_mlp(b, model, x, layer, BEFORE_MLP, BEHIND_EXPERTS, mixture_with_shared)
