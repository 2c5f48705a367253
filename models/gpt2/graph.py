"""The graph of GPT-2 and GPT-3 as operators over named dims. The fused c_attn is written as its three projections."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual
from autoshard.models.llama.graph import HIDDEN, core_attention, cross_entropy, linear, with_bias
from autoshard.spec.model import ModelSpec


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    ids = b.index_input("input_ids", "batch seq")
    tokens = b.operator(
        "embedding",
        "transformer.wte",
        (ids, b.parameter("transformer.wte.weight", "vocab embed")),
        ("batch", "seq", "embed"),
        ("batch", "seq", "vocab", "embed"),
    )
    positions = b.parameter("transformer.wpe.weight", "position embed")
    dims = b.dims(tokens)
    x = b.operator("position_embedding", "transformer.wpe", (tokens, positions), dims, dims)
    return dropped_embedding(b, model, "transformer.drop", x)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"transformer.h.{layer}"
    x = _attention(b, model, x, prefix, kernel)
    b.module = "mlp_norm"
    h = layer_norm(b, model, f"{prefix}.ln_2", x)
    b.module = "mlp"
    down = plain_mlp(b, model, h, f"{prefix}.mlp", "c_fc", "c_proj")
    return residual(b, model, f"{prefix}.mlp_residual", x, (down, f"{prefix}.mlp.dropout"))


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    b.module = "head"
    h = layer_norm(b, model, "transformer.ln_f", x)
    table = "transformer.wte.weight" if model.tie_word_embeddings else "lm_head.weight"
    logits = b.einsum("lm_head", f"{HIDDEN}, vocab embed -> batch seq vocab", h, b.parameter(table, "vocab embed"))
    return cross_entropy(b, model, logits)


def _attention(b: GraphBuilder, model: ModelSpec, x: str, prefix: str, kernel: str) -> str:
    name = f"{prefix}.attn"
    b.module = "attention_norm"
    h = layer_norm(b, model, f"{prefix}.ln_1", x)
    b.module = "attention"
    q, k, v = biased_heads(b, name, h)
    b.module = "core_attention"
    context = core_attention(b, model, f"{name}.core_attention", q, k, v, kernel)
    b.module = "attention"
    expression = "batch seq kvhead group headdim, embed kvhead group headdim -> batch seq embed"
    out = with_bias(b, f"{name}.c_proj", linear(b, f"{name}.c_proj", context, expression, True), "embed", True)
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{name}.resid_dropout"))


def biased_heads(b: GraphBuilder, name: str, h: str) -> tuple[str, str, str]:
    """Append the projections to query, key and value with their biases, and return the names of the three outputs.

    The products come first: behind one another, they share one gathered input.
    """
    heads = {"q_proj": "kvhead group headdim", "k_proj": "kvhead headdim", "v_proj": "kvhead headdim"}
    products = {
        part: linear(b, f"{name}.{part}", h, f"{HIDDEN}, {dims} embed -> batch seq {dims}", True)
        for part, dims in heads.items()
    }
    q, k, v = (with_bias(b, f"{name}.{part}", products[part], dims, True) for part, dims in heads.items())
    return q, k, v


def plain_mlp(b: GraphBuilder, model: ModelSpec, h: str, name: str, up_name: str, down_name: str) -> str:
    """Append down(gelu(up(h))), with biases, and return the name of its output. h: [batch, seq, embed]."""
    up = linear(b, f"{name}.{up_name}", h, f"{HIDDEN}, ffn embed -> batch seq ffn", True)
    function = "gelu_erf" if model.hidden_act == "gelu" else "gelu"
    act = b.elementwise(function, f"{name}.act", with_bias(b, f"{name}.{up_name}", up, "ffn", True))
    down = linear(b, f"{name}.{down_name}", act, "batch seq ffn, embed ffn -> batch seq embed", True)
    return with_bias(b, f"{name}.{down_name}", down, "embed", True)


def layer_norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    weight, bias = (b.parameter(f"{name}.{part}", "embed") for part in ("weight", "bias"))
    dims = b.dims(x)
    return b.operator("norm", name, (x, weight, bias), dims, dims[:2], function="layer", eps=model.norm_eps)
