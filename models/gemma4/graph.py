"""The graph of Gemma 4 as operators over named dims: Gemma's blocks, perhaps with experts beside the MLP.

In E2B and E4B the last blocks have no keys and values of their own, and each block has an input of its own (Gemma 3n's
per-layer embeddings), made of the token and of its embedding x0:

    p = (norm(P x0 / sqrt(width of x0)) + sqrt(width of p) T[token]) / sqrt(2)      x + norm(U(gelu(G x) p))

Checkpoints hold the tables T of all blocks in one tensor, and their P in another; here each block has its own part, so
that only x0 must reach it, which is narrower than the p of all blocks together. All blocks share one norm of P x0.
"""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.gemma.graph import normed_attention
from autoshard.models.llama.graph import (
    HIDDEN,
    attended,
    core_attention,
    embedding,
    gated_mlp,
    head,
    linear,
    norm,
    output_projection,
    projected,
    projections,
    rms_norm,
    rope,
)
from autoshard.models.mixtral.graph import chosen, routed
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
BEHIND_MLP = "post_feedforward_layernorm_1"
BEFORE_EXPERTS, BEHIND_EXPERTS = "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"
"""Norms of blocks with experts beside NORMS; their last one is behind the sum of MLP and experts."""
EMBEDDED = "model.embed_scale"
"""The scaled embedding, before anything of it is dropped."""
TABLE_OF_BLOCK, PROJECTION_OF_BLOCK = "embed_tokens_per_layer", "per_layer_model_projection"
"""A block's parts of what checkpoints hold for all blocks together, under these names."""
SHARED_NORM = "model.per_layer_projection_norm.weight"
BEHIND_INPUT = "post_per_layer_input_norm"


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append x + norm(attention(norm(x))), the same with the MLP, and a number of the block times that; returns it.
    x: [batch, seq, embed]."""
    prefix = f"model.layers.{layer}"
    _, behind_attention, before, behind = NORMS
    inner = _attended_with_keys_of_another if model.shares_keys(layer) else attended
    x = normed_attention(b, model, x, layer, kernel, behind_attention, inner)
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.{before}", x)
    b.module = "mlp"
    name, dim = mlp_of(model, layer)
    down = gated_mlp(b, model, h, f"{prefix}.{name}", dim)
    if model.is_moe:
        b.module = "mlp_norm"
        down = norm(b, model, f"{prefix}.{BEHIND_MLP}", down)
        answers = _experts(b, model, x, prefix)
        b.module = "mlp"
        down = b.elementwise("add", f"{prefix}.mlp_sum", down, answers)
    b.module = "mlp_norm"
    down = norm(b, model, f"{prefix}.{behind}", down)
    x = residual(b, model, f"{prefix}.mlp_residual", x, (down, f"{prefix}.mlp.dropout"))
    if model.hidden_size_per_layer_input is not None:
        x = _own_input(b, model, x, prefix, model.hidden_size_per_layer_input)
    return b.elementwise("scaled_by", f"{prefix}.scaled", x, b.parameter(f"{prefix}.layer_scalar", "", learned=False))


def mlp_of(model: ModelSpec, layer: int) -> tuple[str, str]:
    """(our name of a block's MLP, beside experts if there are some; the dim of its width)."""
    if model.is_moe:
        return "mlp", "shared_ffn"
    return ("wide_mlp", "dense_ffn") if model.dense_intermediate_size and model.shares_keys(layer) else ("mlp", "ffn")


def _attended_with_keys_of_another(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append what Llama's `attended` does, with the keys and values of an earlier block, as these are behind norm and
    rotary positions."""
    own, prefix = model.heads_of(layer), f"model.layers.{layer}"
    name, other = f"{prefix}.{own.attention_name}", f"model.layers.{model.keys_of(layer)}.{own.attention_name}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    b.module = "attention"
    (q,) = projections(b, model, name, h, {"q_proj": projected(own)["q_proj"]})
    q = rope(b, model, f"{name}.q_rope", rms_norm(b, model, f"{name}.q_norm", q), layer)
    k = b.earlier(f"{other}.k_rope", f"batch seq {' '.join(own.key_dims)}")
    v = b.earlier(f"{other}.v_norm", f"batch seq {' '.join(own.value_dims)}")
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel, model.window_of(layer))
    return output_projection(b, model, name, context)


def _own_input(b: GraphBuilder, model: ModelSpec, x: str, prefix: str, width: int) -> str:
    """Append the sum of x and what a block makes of its own input of so many numbers, and return it. x: [batch, seq,
    embed]. prefix: of the block's names."""
    b.module = "mlp"
    gate = linear(
        b, f"{prefix}.per_layer_input_gate", x, f"{HIDDEN}, layer_input embed -> batch seq layer_input", False
    )
    rows = b.parameter(f"{prefix}.{TABLE_OF_BLOCK}.weight", "vocab layer_input")
    of_token = b.operator(
        "embedding",
        f"{prefix}.{TABLE_OF_BLOCK}",
        (b.index_input("input_ids", "batch seq"), rows),
        ("batch", "seq", "layer_input"),
        ("batch", "seq", "vocab", "layer_input"),
    )
    x0 = b.earlier(EMBEDDED, HIDDEN)
    product = linear(
        b, f"{prefix}.{PROJECTION_OF_BLOCK}", x0, f"{HIDDEN}, layer_input embed -> batch seq layer_input", False
    )
    dims, weight = b.dims(product), b.parameter(SHARED_NORM, "layer_input")
    eps = model.norm_eps * model.hidden_size  # in place of a factor 1 / sqrt(hidden_size) before the norm
    name = f"{prefix}.per_layer_projection_norm"
    normed = b.operator("norm", name, (product, weight), dims, dims[:-1], function="rms", eps=eps)
    own = f"(mul {0.5**0.5!r} (add x1 (mul {width**0.5!r} x2)))"
    gated = b.pointwise(f"{prefix}.per_layer_input", f"(mul (gelu x0) {own})", gate, normed, of_token)
    wide = linear(
        b, f"{prefix}.per_layer_projection", gated, "batch seq layer_input, embed layer_input -> batch seq embed", False
    )
    b.module = "mlp_norm"
    wide = norm(b, model, f"{prefix}.{BEHIND_INPUT}", wide)
    b.module = "residual"
    return b.elementwise("add", f"{prefix}.per_layer_input_residual", x, wide)


def _experts(b: GraphBuilder, model: ModelSpec, x: str, prefix: str) -> str:
    """Append norm(experts(norm(x))), and return it. x: [batch, seq, embed]. prefix: of the block's names.

    The router has a norm of its own, whose weight the checkpoint calls its scale, and logits over the root of the
    width. Each expert has a factor of its answers, which the choice does not see.
    """
    router = f"{prefix}.router"
    b.module = "mlp_norm"
    seen = norm(b, model, f"{router}.norm", x)
    h = norm(b, model, f"{prefix}.{BEFORE_EXPERTS}", x)
    b.module = "mlp"
    gates = chosen(b, model, seen, prefix, "router.proj", logit_scale=model.hidden_size**-0.5)
    factors = b.parameter(f"{router}.per_expert_scale", "expert")
    weights = b.pointwise(f"{router}.weights", "(mul x0 x1)", gates, factors)
    answers = routed(b, model, h, gates, weights, prefix)
    b.module = "mlp_norm"
    return norm(b, model, f"{prefix}.{BEHIND_EXPERTS}", answers)
