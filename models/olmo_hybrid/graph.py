"""The graph of OLMo Hybrid as operators over named dims: blocks of Qwen3-Next's linear attention, or of OLMo 3."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.llama.graph import embedding, head, mlp, normed_mixer
from autoshard.models.olmo2.graph import block as attention_block
from autoshard.models.qwen3_next.graph import linear_attention
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["block", "embedding", "head"]

NORM_EPS = 1e-5
"""Of the norm behind the delta rule, whatever the config says of the others."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) != LINEAR_ATTENTION:
        return attention_block(b, model, x, layer, kernel)
    mixer = partial(linear_attention, norm_eps=NORM_EPS)
    return mlp(b, model, normed_mixer(b, model, x, layer, "linear_attn", mixer), layer)
