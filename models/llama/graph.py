"""The graph of the Llama family as operators over named dims. It knows nothing of parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_embedding, residual, sequence_keys
from autoshard.spec.attention_heads import AttentionHeads
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import EACH_NUMBER, FINAL_NORM, LAYER_NORM, SOFTPLUS

HIDDEN = "batch seq embed"
TABLE, HEAD = "model.embed_tokens.weight", "lm_head"
HEADS = {"q_proj": "kvhead group headdim", "k_proj": "kvhead headdim", "v_proj": "kvhead headdim"}


def projected(heads: AttentionHeads, gates: str | None = None) -> dict[str, str]:
    """The dims that the output of each projection to these heads has besides batch and seq, by its name. gates: the
    family's gates_attention."""
    queries = " ".join(heads.query_dims)
    gate = {"gate_proj": queries if gates == EACH_NUMBER else " ".join(heads.query_dims[:2])} if gates else {}
    values = {} if heads.keys_are_values else {"v_proj": " ".join(heads.value_dims)}
    return {"q_proj": queries, **gate, "k_proj": " ".join(heads.key_dims), **values}


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    b.module = "embedding"
    tokens = token_embedding(b, "model.embed_tokens", b.index_input("input_ids", "batch seq"))
    if model.family.scales_embedding:
        tokens = b.pointwise("model.embed_scale", f"(mul {model.hidden_size**0.5!r} x0)", tokens)
    return dropped_embedding(b, model, "model.embed_dropout", tokens)


def token_embedding(b: GraphBuilder, name: str, ids: str, table: str = TABLE) -> str:
    """Append the look-up of tokens in a table, the parameter of this name, and return its output. ids: [batch, seq]."""
    rows = b.parameter(table, "vocab embed")
    return b.operator("embedding", name, (ids, rows), ("batch", "seq", "embed"), ("batch", "seq", "vocab", "embed"))


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    return mlp(b, model, attention(b, model, x, layer, kernel), layer)


def mlp(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append norm, MLP and residual, and return the sum's name. x: [batch, seq, embed]. layer: place of the block."""
    return normed_mlp(b, model, x, layer, "mlp", gated_mlp)


def normed_mlp(
    b: GraphBuilder,
    model: ModelSpec,
    x: str,
    layer: int,
    name: str,
    inner: Callable[..., str],
    before: str = "post_attention_layernorm",
) -> str:
    """Append what `mlp` does, with another MLP.

    name: the family's name of it. inner: appends it to the norm's output, and is called as `gated_mlp` is. before: the
    family's name of the norm.
    """
    prefix = f"model.layers.{layer}"
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.{before}", x)
    b.module = "mlp"
    out = inner(b, model, h, f"{prefix}.{name}")
    return residual(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.{name}.dropout"))


def attention(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append norm, projections, rotary positions, attention, output projection and residual; returns the sum's name.

    x: [batch, seq, embed]. layer: place of the block. kernel: of attention, 'flash' or 'plain'.
    """
    prefix = f"model.layers.{layer}"
    out = attended(b, model, x, layer, kernel)
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))


def normed_mixer(b: GraphBuilder, model: ModelSpec, x: str, layer: int, name: str, inner: Callable[..., str]) -> str:
    """Append what `attention` does, with something else that mixes the tokens.

    name: the family's name of it. inner: appends it to the norm's output; called with (b, model, that output, the whole
    name).
    """
    prefix = f"model.layers.{layer}"
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.input_layernorm", x)
    out = inner(b, model, h, f"{prefix}.{name}")
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.{name}.dropout"))


def attended(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    """Append what `attention` does but for the residual, and return the output projection's output."""
    b.module = "attention_norm"
    h = norm(b, model, f"model.layers.{layer}.input_layernorm", x)
    return self_attention(b, model, h, layer, kernel)


def self_attention(
    b: GraphBuilder,
    model: ModelSpec,
    h: str,
    layer: int,
    kernel: str,
    named: str = "",
    chosen: str | None = None,
) -> str:
    """Append what `attended` does behind its norm, if there is one: h [batch, seq, embed] is its output. named: the
    family's name of the attention. chosen: [batch, seq, kvhead, key_block], the blocks of keys that queries see."""
    own, gates = model.heads_of(layer), model.family.gates_attention
    name = named or f"model.layers.{layer}.{own.attention_name}"
    b.module = "attention"
    made = projections(b, model, name, h, projected(own, gates))
    q, *gate, k, v = (*made, made[-1]) if own.keys_are_values else made
    if model.normalizes_values:
        v = rms_norm(b, model, f"{name}.v_norm", v, weighs=False)
    if (clip := model.attention_scores.clip_qkv) is not None:
        q, k, v = clipped(b, name, (q, k, v), clip)
    if (scale := model.attention_scores.attention_value_scale) is not None:
        v = b.scaled(f"{name}.v_scale", v, scale)
    if not model.normalizes_turned_heads:
        q, k = normalized_heads(b, model, name, q, k)
    if model.has_rope(layer):
        q = rope(b, model, f"{name}.q_rope", q, layer)
        k = rope(b, model, f"{name}.k_rope", k, layer)
    if model.normalizes_turned_heads:
        q, k = normalized_heads(b, model, name, q, k)
    if (beta := model.attention_scores.llama_4_scaling_beta) is not None:
        q = tempered(b, f"{name}.q_temperature", q, model.original_positions, beta, first=0)
    b.module = "core_attention"
    sinks = b.parameter(f"{name}.sinks", " ".join(own.query_dims[:2])) if model.has_sinks(layer) else None
    window, block = model.window_of(layer), model.chosen_block_of(layer)
    context = core_attention(
        b, model, f"{name}.core_attention", q, k, v, kernel, window, sinks, chosen=chosen, chosen_block=block
    )
    if model.family.normalizes_outputs:
        context = rms_norm(b, model, f"{name}.o_norm", context, weighs=False)
    if gates:
        b.module = "attention"
        context = gated_output(b, model, f"{name}.gated", context, *gate)
    return output_projection(b, model, name, context)


def clipped(b: GraphBuilder, name: str, made: tuple[str, ...], clip: float) -> tuple[str, ...]:
    """Append what cuts off queries, keys and values at plus and minus clip, and return them. name: of the attention."""
    cut = f"(maximum (minimum x0 {clip!r}) {-clip!r})"
    return tuple(b.pointwise(f"{name}.{part}_clip", cut, x) for part, x in zip(HEADS, made, strict=True))


def gated_output(b: GraphBuilder, model: ModelSpec, name: str, context: str, gate: str) -> str:
    """Append the product of attention's output with the family's function of a gate, and return it."""
    if model.family.gate_function == SOFTPLUS:
        return b.pointwise(name, "(mul x0 (softplus x1))", context, gate)
    return b.elementwise("sigmoid_mul", name, context, gate)


def normalized_heads(b: GraphBuilder, model: ModelSpec, name: str, q: str, k: str) -> tuple[str, str]:
    """Append the norms of queries and keys that the family has, if any, and return both. name: of the attention."""
    if model.normalizes_heads:
        normalized = norm_of_weighed_heads if model.weighs_each_head else rms_norm
        weighs: dict[str, Any] = {} if model.family.has_qk_norm_weight else {"weighs": False}
        q, k = (normalized(b, model, f"{name}.{part}_norm", x, **weighs) for part, x in (("q", q), ("k", k)))
        return q, k
    if model.normalizes_all_heads:
        return (
            norm_over_heads(b, model, f"{name}.q_norm", q, model.num_attention_heads),
            norm_over_heads(b, model, f"{name}.k_norm", k, model.num_key_value_heads),
        )
    return q, k


def projections(b: GraphBuilder, model: ModelSpec, name: str, h: str, heads: Mapping[str, str]) -> tuple[str, ...]:
    """Append the projections of h [batch, seq, embed] to heads, with their biases, and return their outputs.

    name: of the attention. heads: name of each projection -> dims that its output has besides batch and seq.
    """
    # the products first: behind one another, they share one gathered input
    products = {
        part: linear(b, f"{name}.{part}", h, f"{HIDDEN}, {dims} embed -> batch seq {dims}", model.attention_bias)
        for part, dims in heads.items()
    }
    return tuple(
        with_bias(b, f"{name}.{part}", products[part], dims, model.attention_bias) for part, dims in heads.items()
    )


def output_projection(b: GraphBuilder, model: ModelSpec, name: str, context: str, projection: str = "o_proj") -> str:
    """Append the projection of attention's output [batch, seq, heads in groups, width] to [batch, seq, embed].

    name: of the attention. projection: the family's name of the matrix.
    """
    b.module = "attention"
    heads = " ".join(b.dims(context)[2:])
    expression = f"batch seq {heads}, embed {heads} -> batch seq embed"
    out = linear(b, f"{name}.{projection}", context, expression, model.output_projection_bias)
    return with_bias(b, f"{name}.{projection}", out, "embed", model.output_projection_bias)


def gated_mlp(
    b: GraphBuilder, model: ModelSpec, h: str, name: str, ffn: str = "ffn", activation: str | None = None
) -> str:
    """Append down(silu(gate(h)) * up(h)), or Gemma's with gelu, and return its output. h: [batch, seq, embed]. ffn: the
    dim of gate and up. activation: as of `gated`.
    """
    bias = model.mlp_bias
    products = {
        part: linear(b, f"{name}.{part}", h, f"{HIDDEN}, {ffn} embed -> batch seq {ffn}", bias)
        for part in ("gate_proj", "up_proj")
    }
    gate, up = (with_bias(b, f"{name}.{part}", product, ffn, bias) for part, product in products.items())
    act = gated(b, model, name, gate, up, activation)
    down = linear(b, f"{name}.down_proj", act, f"batch seq {ffn}, embed {ffn} -> batch seq embed", bias)
    return with_bias(b, f"{name}.down_proj", down, "embed", bias)


def gated(b: GraphBuilder, model: ModelSpec, name: str, gate: str, up: str, activation: str | None = None) -> str:
    """Append the product of an activated gate with what stands beside it, and return it. name: of the MLP. activation:
    of both, an expression of them (ModelSpec.activation_of), where it is another than hidden_act's."""
    if activation is not None:
        return b.pointwise(f"{name}.act_fn", activation, gate, up)
    if model.hidden_act == "silu":
        return b.elementwise("silu_mul", f"{name}.act_fn", gate, up)
    return b.pointwise(f"{name}.act_fn", "(mul (gelu x0) x1)", gate, up)


def linear(b: GraphBuilder, name: str, x: str, expression: str, bias: bool) -> str:
    """Append a linear layer's product of x with the parameter `<name>.weight`, and return its output.

    expression: of the einsum. `with_bias` adds the bias.
    """
    weight = b.parameter(f"{name}.weight", expression.split(",")[1].split("->")[0].strip())
    return b.einsum(f"{name}.matmul" if bias else name, expression, x, weight)


def with_bias(b: GraphBuilder, name: str, product: str, dims: str, bias: bool) -> str:
    """Append the addition of a linear layer's bias, and return its output.

    A product that a contracted split left partial is summed before the bias is added, once.
    """
    return b.elementwise("add", name, product, b.parameter(f"{name}.bias", dims)) if bias else product


def head(b: GraphBuilder, model: ModelSpec, x: str) -> str:
    """Append final norm, vocabulary projection and mean cross-entropy; returns the loss. x: [batch, seq, embed]."""
    b.module = "head"
    h = norm(b, model, FINAL_NORM, x)
    if model.multipliers is not None:  # here and not behind the product, where there are more numbers
        h = b.scaled("model.logits_scaling", h, 1 / model.multipliers.logits_scaling)
    if model.logit_scale is not None:
        h = b.scaled("model.logit_scale", h, model.logit_scale)
    logits = vocabulary(b, model, HEAD, h)
    if (cap := model.final_logit_softcapping) is not None:
        logits = b.pointwise("lm_head.softcap", f"(mul {cap!r} (tanh (div x0 {cap!r})))", logits)
    return cross_entropy(b, model, logits)


def vocabulary(
    b: GraphBuilder, model: ModelSpec, name: str, h: str, own: str = f"{HEAD}.weight", shared: str = TABLE
) -> str:
    """Append the product of h [batch, seq, embed] with the head's table, and return the logits.

    own, shared: the family's names of the table, and of the embedding's, which some models have for both.
    """
    table = b.parameter(shared if model.tie_word_embeddings else own, "vocab embed")
    return b.einsum(name, f"{HIDDEN}, vocab embed -> batch seq vocab", h, table)


def norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append the norm that the family has, an RMS norm or a LayerNorm, and return its output. x: [batch, seq,
    embed]."""
    return (layer_norm if model.normalization == LAYER_NORM else rms_norm)(b, model, name, x)


def norm_parts(model: ModelSpec) -> tuple[str, ...]:
    """The parameters that each norm of a family has."""
    if not model.family.has_norm_weight:
        return ()
    return ("weight", "bias") if model.normalization == LAYER_NORM and model.family.has_norm_bias else ("weight",)


def layer_norm(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append a LayerNorm of x [batch, seq, embed], and return its output."""
    parts = norm_parts(model)
    inputs = (x, *(b.parameter(f"{name}.{part}", "embed") for part in parts))
    dims = b.dims(x)
    return b.operator(
        "norm", name, inputs, dims, dims[:-1], function="layer", eps=model.norm_eps, **_offset(model, name)
    )


def rms_norm(
    b: GraphBuilder, model: ModelSpec, name: str, x: str, weighs: bool = True, eps: float | None = None
) -> str:
    """Append an RMS norm of x over its last dim, with one weight for all else or with none, and return its output.
    weighs: whether it has a weight in families whose norms have. eps: where it is another than norm_eps."""
    dims = b.dims(x)
    weighs = weighs and model.family.has_norm_weight
    inputs = (x, b.parameter(f"{name}.weight", dims[-1])) if weighs else (x,)
    eps = model.norm_eps if eps is None else eps
    offset = _offset(model, name) if weighs else {}
    return b.operator("norm", name, inputs, dims, dims[:-1], function="rms", eps=eps, **offset)


def norm_of_weighed_heads(b: GraphBuilder, model: ModelSpec, name: str, x: str) -> str:
    """Append a LayerNorm of each head of x [batch, seq, heads, width of a head], with a weight of its own for each, and
    return its output."""
    dims = b.dims(x)
    inputs = (x, b.parameter(f"{name}.weight", " ".join(dims[2:])))
    return b.operator("norm", name, inputs, dims, dims[:-1], function="layer", eps=model.norm_eps)


def norm_over_heads(
    b: GraphBuilder,
    model: ModelSpec,
    name: str,
    x: str,
    heads: int,
    groups: bool = False,
    eps: float | None = None,
) -> str:
    """Append an RMS norm over all heads of x [batch, seq, heads, width of a head], and return its output.

    heads: as published; padding counts for nothing. A rank that has some of the heads sums squares with the others.
    groups: x has a dim of groups before its heads, and the norm is over those of each group. eps: where it is another
    than norm_eps.
    """
    dims = b.dims(x)
    over = dims[3:] if groups else dims[2:]
    weight = b.parameter(f"{name}.weight", " ".join(dims[2:]))
    return b.operator(
        "norm",
        name,
        (x, weight),
        dims,
        dims[:-1],
        function="rms",
        eps=model.norm_eps if eps is None else eps,
        over=over,
        width=heads * b.size(dims[-1]),
    )


def _offset(model: ModelSpec, name: str) -> dict[str, Any]:
    """The attribute unit_offset of a norm that multiplies by 1 plus its weight. name: of the norm."""
    return {"unit_offset": True} if model.offsets_norm(name) else {}


def core_attention(
    b: GraphBuilder,
    model: ModelSpec,
    name: str,
    q: str,
    k: str,
    v: str,
    kernel: str,
    window: int | None = None,
    sinks: str | None = None,
    chunk: int | None = None,
    chosen: str | None = None,
    chosen_block: int | None = None,
) -> str:
    """Append attention itself, and return its output [batch, seq, kvhead, group, last dim of v].

    q: [batch, seq, kvhead, group, headdim]; k, v: [batch, seq, kvhead, headdim]; or dims of other heads in their
    places. kernel: 'flash' or 'plain'. window:
    keys that a query sees, itself included; None is all before it. sinks: [kvhead, group], a score more in each row's
    softmax. chunk: a query sees keys of its own chunk of so many tokens alone. chosen: [batch, seq, key], the keys that
    a query sees; or [batch, seq, kvhead, key_block], of blocks of chosen_block keys.
    The operator's attribute valid_group: query heads of each key-value head from there on are empty, and give nothing.
    """
    form: dict[str, Any] = {name: True for name, one in (("chosen", chosen), ("sinks", sinks)) if one}
    if chunk is not None:
        form["chunk"] = chunk
    if chosen_block is not None:
        form["chosen_block"] = chosen_block
    if (scalar := model.attention_scores.query_pre_attn_scalar) is not None:
        form["scale"] = scalar**-0.5
    elif model.scores_scale is not None:
        form["scale"] = model.scores_scale
    if (cap := model.attention_scores.attn_logit_softcapping) is not None:
        form["softcap"] = cap
    heads = b.dims(q)[2:4]
    valid = next(one.num_query_groups for one in model.heads if one.query_dims[:2] == heads)
    empty: dict[str, Any] = {"valid_group": valid} if b.size(heads[1]) > valid else {}
    rate = model.dropout.attention
    drops: dict[str, Any] = {"dropout": rate} if rate else {}
    return b.operator(
        "attention",
        name,
        (q, k, v, *((chosen,) if chosen else ()), *((sinks,) if sinks else ()), *((sequence_keys(b),) if rate else ())),
        ("batch", "seq", *heads, b.dims(v)[-1]),
        ("batch", "seq", *heads),
        kernel=kernel,
        sliding_window=window,
        **form,
        **drops,
        **empty,
    )


def tempered(b: GraphBuilder, name: str, x: str, floor_scale: int | None, attn_scale: float | None, **more: int) -> str:
    """Append the product of queries with a number that grows with their place, and return it. floor_scale, attn_scale,
    more: attributes of the kind position_scale."""
    dims = b.dims(x)
    scales: dict[str, Any] = {"floor_scale": floor_scale, "attn_scale": attn_scale, **more}
    return b.operator("position_scale", name, (x,), dims, dims[:-1], None, **scales)


def cross_entropy(
    b: GraphBuilder,
    model: ModelSpec,
    logits: str,
    labels: str = "labels",
    name: str = "loss",
    added_to: tuple[str, float] | None = None,
) -> str:
    """Append the mean cross-entropy of the logits [batch, seq, vocab], and return the loss.

    labels: name of the input that has them. added_to: (another loss, weight of this one in the sum of both).
    The operator's attribute valid_vocab: columns from there on are padding and never counted.
    """
    other: tuple[str, ...] = () if added_to is None else (added_to[0],)
    weight: dict[str, Any] = {} if added_to is None else {"weight": added_to[1]}
    return b.operator(
        "cross_entropy",
        name,
        (logits, b.index_input(labels, "batch seq"), *other),
        (),
        ("batch", "seq", "vocab"),
        element_bytes=b.summed_bytes,
        valid_vocab=model.vocab_size,
        **weight,
    )


def rope(b: GraphBuilder, model: ModelSpec, name: str, x: str, layer: int = 0, **more: Any) -> str:
    """Append rotary positions of queries or keys of a block, and return the output. more: further attributes.

    The operator's attributes: rotary_dim: how many numbers of each head turn, from its start; the others pass
    unchanged. interleaved: pairs are neighbours, not a number of the first half with one of the second. backwards: they
    turn by the negative of the usual angles.
    """
    dims = b.dims(x)
    own = model.heads_of(layer)
    loops = tuple(dim for dim in dims if dim != own.query_dims[2])
    theta, scaling = model.rope_of(layer)
    pairs: dict[str, Any] = {"interleaved": True} if model.family.turns_neighbours else {}
    if model.family.turns_backwards:
        pairs["backwards"] = True
    return b.operator(
        "rope",
        name,
        (x,),
        dims,
        loops,
        theta=theta,
        scaling=scaling,
        rotary_dim=own.rotary_dim,
        **pairs,
        **more,
    )
