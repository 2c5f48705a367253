"""The graph of Hy4 as operators over named dims: DeepSeek-V3.2's attention, DeepSeek-V3's experts, and streams that
nothing mixes."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import attended
from autoshard.models.deepseek_v4.graph import embedding, head
from autoshard.models.hyper_connections import mixed
from autoshard.models.llama.graph import gated_mlp
from autoshard.models.mixtral.graph import mixture_with_shared
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import ROUTED

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"

    def attention(h: str) -> tuple[str, str]:
        return attended(b, model, h, layer, kernel), f"{prefix}.self_attn.dropout"

    def mlp(h: str) -> tuple[str, str]:
        b.module, name = "mlp", f"{prefix}.mlp"
        if not model.has_experts(layer):
            return gated_mlp(b, model, h, name, "dense_ffn"), f"{name}.dropout"
        activation = model.activation_of(layer, ROUTED)
        return mixture_with_shared(b, model, h, name, activation=activation), f"{name}.dropout"

    return mixed(b, model, prefix, "mlp", mixed(b, model, prefix, "attention", x, attention), mlp)
