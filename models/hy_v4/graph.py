"""The graph of Hy4 as operators over named dims: DeepSeek-V3.2's attention, DeepSeek-V3's experts, and streams that
nothing mixes."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import attended
from autoshard.models.deepseek_v4.graph import embedding, head
from autoshard.models.hyper_connections import mixed
from autoshard.models.mixtral.graph import experts_or_mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"

    def attention(h: str) -> tuple[str, str]:
        return attended(b, model, h, layer, kernel), f"{prefix}.self_attn.dropout"

    x = mixed(b, model, prefix, "attention", x, attention)
    return mixed(b, model, prefix, "mlp", x, partial(experts_or_mlp, b, model, layer=layer))
