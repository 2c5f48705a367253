"""The graph of LongCat-Flash as operators over named dims: in each block latent attention and a dense MLP, twice.

    x = x + attention(norm(x));  h = norm(x);  x = x + mlp(h)
    x = x + attention(norm(x));  x = x + mlp(norm(x)) + experts(h)

The experts' answer is added so late that a runtime may exchange tokens while the second attention computes.
"""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import attended
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import embedding, gated_mlp, head, norm
from autoshard.models.mixtral.graph import mixture
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

HALVES = ("first", "second")
"""Our names of both pairs of attention and MLP."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    experts = f"model.layers.{layer}.mlp"
    late = list[tuple[str, str]]()
    for half in HALVES:
        name = f"model.layers.{layer}.{half}"
        b.module = "attention_norm"
        h = norm(b, model, f"{name}.input_layernorm", x)
        out = attended(b, model, h, layer, kernel, prefix=name, is_scaled=True)
        x = residual(b, model, f"{name}.attention_residual", x, (out, f"{name}.self_attn.dropout"))
        b.module = "mlp_norm"
        h = norm(b, model, f"{name}.post_attention_layernorm", x)
        b.module = "mlp"
        branches = [(gated_mlp(b, model, h, f"{name}.mlp", "dense_ffn"), f"{name}.mlp.dropout"), *late]
        if half == HALVES[0]:
            late = [(mixture(b, model, h, experts, "gate_proj", "up_proj", "down_proj"), f"{experts}.dropout")]
        x = residual(b, model, f"{name}.mlp_residual", x, *branches)
    return x
