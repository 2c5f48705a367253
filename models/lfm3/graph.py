"""The graph of LFM3 as operators over named dims: LFM2's mixers in Gemma's blocks, with a gate of each head."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.gemma.graph import normed_attention, sandwiched_mlp
from autoshard.models.lfm2.graph import short_conv
from autoshard.models.llama.graph import embedding, head, norm, normed_mixer
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CONV

__all__ = ["block", "embedding", "head"]

BEHIND_MIXER, BEFORE_MLP, BEHIND_MLP = "post_operator_norm", "ffn_norm", "post_ffn_norm"


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    def normed_conv(b: GraphBuilder, model: ModelSpec, h: str, name: str) -> str:
        out = short_conv(b, model, h, name)
        b.module = "attention_norm"
        return norm(b, model, f"model.layers.{layer}.{BEHIND_MIXER}", out)

    if model.mixer_of(layer) == CONV:
        x = normed_mixer(b, model, x, layer, "conv", normed_conv)
    else:
        x = normed_attention(b, model, x, layer, kernel, BEHIND_MIXER)
    return sandwiched_mlp(b, model, x, layer, BEFORE_MLP, BEHIND_MLP)
