"""The graph of Kimi Linear as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.deepseek.attention import latent_attention
from autoshard.models.deepseek.graph import mlp
from autoshard.models.llama.graph import embedding, head, linear, normed_mixer
from autoshard.models.qwen3_next.graph import KEYS, VALUES, convolved, normed_delta_rule
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["block", "embedding", "head"]

RANK = "linear_rank"
CONVOLVED = {"q": KEYS, "k": KEYS, "v": VALUES}
GATES = {"f": KEYS, "g": VALUES}
"""How fast channels of keys fade, and the gate of the output. Kimi Linear makes both of vectors that the hidden state
is brought down to."""


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        x = normed_mixer(b, model, x, layer, "linear_attn", delta_attention)
    else:
        x = latent_attention(b, model, x, layer, kernel)
    return mlp(b, model, x, layer)


def delta_attention(b: GraphBuilder, model: ModelSpec, h: str, name: str, brings_down: bool = True) -> str:
    """Append projections, causal convolutions of queries, keys and values, the gated delta rule, and a norm of each
    head that is multiplied by the sigmoid of a gate; returns the output projection's output. brings_down: whether GATES
    are made of shorter vectors than h."""
    b.module = "attention"
    q, k, v = (
        convolved(b, f"{name}.{part}_conv1d", _projected(b, f"{name}.{part}_proj", h, "embed", dims))
        for part, dims in CONVOLVED.items()
    )
    beta = _projected(b, f"{name}.b_proj", h, "embed", "linear_key_head linear_group")
    if brings_down:
        low = {part: _projected(b, f"{name}.{part}_a_proj", h, "embed", RANK) for part in GATES}
        fading, gate = (_projected(b, f"{name}.{part}_b_proj", low[part], RANK, dims) for part, dims in GATES.items())
    else:
        fading, gate = (_projected(b, f"{name}.{part}_proj", h, "embed", dims) for part, dims in GATES.items())
    b.module = "core_attention"
    a_log, dt_bias = b.parameter(f"{name}.A_log", "linear_key_head"), b.parameter(f"{name}.dt_bias", KEYS)
    normal = normed_delta_rule(b, model, name, (q, k, v, beta, fading, a_log, dt_bias), "o_norm")
    gated = b.elementwise("sigmoid_mul", f"{name}.gated", normal, gate)
    return linear(b, f"{name}.o_proj", gated, f"batch seq {VALUES}, embed {VALUES} -> batch seq embed", False)


def _projected(b: GraphBuilder, name: str, x: str, source: str, dims: str) -> str:
    """Append the product of x [batch, seq, source] with a matrix; returns its output [batch, seq, dims...]."""
    return linear(b, name, x, f"batch seq {source}, {dims} {source} -> batch seq {dims}", False)
