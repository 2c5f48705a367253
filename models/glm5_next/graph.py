"""The graph of GLM-5.3's text model as operators over named dims."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import attended
from autoshard.models.hyper_connections import mean, mixed, repeated
from autoshard.models.kimi_linear.graph import delta_attention
from autoshard.models.llama.graph import embedding as tokens
from autoshard.models.llama.graph import head as normed_head
from autoshard.models.mixtral.graph import experts_or_mlp
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    return repeated(b, tokens(b, model))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    return normed_head(b, model, mean(b, "model.hc_head", x))


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"

    def mixer(h: str) -> tuple[str, str]:
        if model.mixer_of(layer) == LINEAR_ATTENTION:
            name = f"{prefix}.linear_attn"
            return delta_attention(b, model, h, name), f"{name}.dropout"
        return attended(b, model, h, layer, kernel, model.norm_eps), f"{prefix}.self_attn.dropout"

    x = mixed(b, model, prefix, "attention", x, mixer)
    return mixed(b, model, prefix, "mlp", x, partial(experts_or_mlp, b, model, layer=layer))
