"""The graph of LFM2 as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.graph import mlp as experts
from autoshard.models.llama.graph import HIDDEN, attention, embedding, head, linear, mlp, normed_mixer, with_bias
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CONV

__all__ = ["block", "embedding", "head", "short_conv"]

CHANNEL = "conv_channel"
PROJECTED = ("b", "c", "x")
"""The projections of a block with a convolution, of which the checkpoint has one matrix."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) == CONV:
        x = normed_mixer(b, model, x, layer, "conv", short_conv)
    else:
        x = attention(b, model, x, layer, kernel)
    return (experts if model.is_moe else mlp)(b, model, x, layer)


def short_conv(b: GraphBuilder, model: ModelSpec, h: str, name: str) -> str:
    """Append projections to B, C and x, the causal convolution of B x, its product with C, and the output projection;
    returns its output. h: [batch, seq, embed]."""
    assert model.conv is not None, model.name
    bias = model.conv.conv_bias
    b.module = "attention"
    products = {
        part: linear(b, f"{name}.{part}_proj", h, f"{HIDDEN}, {CHANNEL} embed -> batch seq {CHANNEL}", bias)
        for part in PROJECTED
    }
    made = {part: with_bias(b, f"{name}.{part}_proj", one, CHANNEL, bias) for part, one in products.items()}
    gated = b.pointwise(f"{name}.b_gate", "(mul x0 x1)", made["b"], made["x"])
    weights = [b.parameter(f"{name}.conv1d.weight", f"{CHANNEL} conv_tap")]
    weights += [b.parameter(f"{name}.conv1d.bias", CHANNEL)] if bias else []
    dims = b.dims(gated)
    mixed = b.operator("causal_conv", f"{name}.conv1d", (gated, *weights), dims, ("batch", CHANNEL), activates=False)
    gated = b.pointwise(f"{name}.c_gate", "(mul x0 x1)", made["c"], mixed)
    out = linear(b, f"{name}.out_proj", gated, f"batch seq {CHANNEL}, embed {CHANNEL} -> batch seq embed", bias)
    return with_bias(b, f"{name}.out_proj", out, "embed", bias)
