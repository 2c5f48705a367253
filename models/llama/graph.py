"""The Llama family as operators over named dims. Knows nothing of parallelism.

Legend: query heads are (kvhead, group): `group` query heads share one key-value head. Parameters carry Hugging Face's
names; their dims unflatten its matrices (q_proj.weight [heads * headdim, embed] = kvhead group headdim embed).
"""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.spec.model import ModelSpec

HIDDEN = "batch seq embed"


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    table = b.parameter("model.embed_tokens.weight", "vocab embed")
    ids = b.index_input("input_ids", "batch seq")
    return b.operator(
        "embedding", "model.embed_tokens", (ids, table), ("batch", "seq", "embed"), ("batch", "seq", "vocab", "embed")
    )


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    x = attention(b, model, x, prefix, kernel)
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    down = gated_mlp(b, h, f"{prefix}.mlp")
    b.module = "residual"
    return b.elementwise("add", f"{prefix}.mlp_residual", x, down)


def attention(b: GraphBuilder, model: ModelSpec, x: str, prefix: str, kernel: str) -> str:
    """Norm, projections, rotary positions, attention, output projection and residual."""
    name = f"{prefix}.self_attn"
    b.module = "attention_norm"
    h = rms_norm(b, model, f"{prefix}.input_layernorm", x)
    b.module = "attention"
    q = _projection(b, model, f"{name}.q_proj", h, "kvhead group headdim")
    k = _projection(b, model, f"{name}.k_proj", h, "kvhead headdim")
    v = _projection(b, model, f"{name}.v_proj", h, "kvhead headdim")
    q = _rope(b, model, f"{name}.q_rope", q)
    k = _rope(b, model, f"{name}.k_rope", k)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    b.module = "attention"
    out = b.einsum(
        f"{name}.o_proj",
        "batch seq kvhead group headdim, embed kvhead group headdim -> batch seq embed",
        context,
        b.parameter(f"{name}.o_proj.weight", "embed kvhead group headdim"),
    )
    b.module = "residual"
    return b.elementwise("add", f"{prefix}.attention_residual", x, out)


def gated_mlp(b: GraphBuilder, h: str, name: str) -> str:
    """down(silu(gate(h)) * up(h))."""
    gate, up = (
        b.einsum(
            f"{name}.{part}",
            f"{HIDDEN}, ffn embed -> batch seq ffn",
            h,
            b.parameter(f"{name}.{part}.weight", "ffn embed"),
        )
        for part in ("gate_proj", "up_proj")
    )
    return b.einsum(
        f"{name}.down_proj",
        "batch seq ffn, embed ffn -> batch seq embed",
        b.elementwise("silu_mul", f"{name}.act_fn", gate, up),
        b.parameter(f"{name}.down_proj.weight", "embed ffn"),
    )


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    """Final norm, vocabulary projection and mean cross-entropy."""
    b.module = "head"
    h = rms_norm(b, model, "model.norm", x)
    table = "model.embed_tokens.weight" if model.tie_word_embeddings else "lm_head.weight"
    logits = b.einsum("lm_head", f"{HIDDEN}, vocab embed -> batch seq vocab", h, b.parameter(table, "vocab embed"))
    return cross_entropy(b, model, logits)


def rms_norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    weight = b.parameter(f"{name}.weight", "embed")
    return b.operator(
        "norm", name, (x, weight), ("batch", "seq", "embed"), ("batch", "seq"), function="rms", eps=model.norm_eps
    )


def core_attention(b: GraphBuilder, model: ModelSpec, name: str, q: str, k: str, v: str, kernel: str) -> str:
    return b.operator(
        "attention",
        name,
        (q, k, v),
        ("batch", "seq", "kvhead", "group", "headdim"),
        ("batch", "seq", "kvhead", "group"),
        kernel=kernel,
        sliding_window=model.sliding_window,
    )


def cross_entropy(b: GraphBuilder, model: ModelSpec, logits: str) -> str:
    """valid_vocab: columns from there on are padding and never counted."""
    labels = b.index_input("labels", "batch seq")
    return b.operator(
        "cross_entropy",
        "loss",
        (logits, labels),
        (),
        ("batch", "seq", "vocab"),
        element_bytes=4,
        valid_vocab=model.vocab_size,
    )


def _projection(b: GraphBuilder, model: ModelSpec, name: str, h: str, heads: str) -> str:
    weight = b.parameter(f"{name}.weight", f"{heads} embed")
    if not model.attention_bias:
        return b.einsum(name, f"{HIDDEN}, {heads} embed -> batch seq {heads}", h, weight)
    product = b.einsum(f"{name}.matmul", f"{HIDDEN}, {heads} embed -> batch seq {heads}", h, weight)
    return b.elementwise("add", name, product, b.parameter(f"{name}.bias", heads))


def _rope(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    dims = b.dims(x)
    loops = tuple(dim for dim in dims if dim != "headdim")
    return b.operator("rope", name, (x,), dims, loops, theta=model.rope_theta, scaling=model.rope_scaling)
