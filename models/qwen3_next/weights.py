"""The names and the form of our parameters in Hugging Face checkpoints of Qwen3-Next, and of Qwen3.5's text models.

q_proj holds a query and a gate of each head; conv1d has the channels of all queries, all keys and all values. Of
Qwen3-Next, in_proj_qkvz holds queries, keys, values and gates of a key head behind one another, in_proj_ba both numbers
of each value head. Of Qwen3.5, in_proj_qkv holds all queries, all keys and all values, and the others lie apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import ends, gated_mlp, norms
from autoshard.models.qwen.weights import mlp, with_fused_experts
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["block", "ends"]

LEFT_OUT = ("mtp.", "model.visual.")
"""Tensors of the multi-token prediction module, and of the part that sees images: transformers leaves both out too."""
KEYS, VALUES = "linear_keydim", "linear_group linear_valuedim"
PER_KEY_HEAD = ("qwen3_next",)
"""Those whose projections of linear attention lie together for each key head."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        yield from linear_attention(model, f"{prefix}.linear_attn")
    else:
        yield from gated_attention(f"{prefix}.self_attn")
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    if model.is_moe:
        yield from mlp(model, layer)
    else:
        yield from gated_mlp(model, f"{prefix}.mlp", "ffn")


def fused_block(model: ModelSpec, layer: int) -> Iterator[Part]:
    """The parts of `block`, but with all experts in one tensor: how Qwen publishes Qwen3.5's mixtures."""
    yield from with_fused_experts(model, layer, block(model, layer))


def gated_attention(name: str) -> Iterator[Part]:
    for index, part in enumerate(("q_proj", "gate_proj")):
        yield Part(f"{name}.q_proj.weight", "(kvhead group part headdim) embed", f"{name}.{part}.weight", index, 2)
    yield Part.same(f"{name}.k_proj.weight", "(kvhead headdim) embed")
    yield Part.same(f"{name}.v_proj.weight", "(kvhead headdim) embed")
    yield Part.same(f"{name}.o_proj.weight", "embed (kvhead group headdim)")
    yield Part.same(f"{name}.q_norm.weight", "headdim")
    yield Part.same(f"{name}.k_norm.weight", "headdim")


def linear_attention(model: ModelSpec, name: str) -> Iterator[Part]:
    linear = model.linear_attention
    assert linear is not None, model.name
    key, value = linear.linear_key_head_dim, linear.values_per_key * linear.linear_value_head_dim
    rows = {"q": (KEYS, key), "k": (KEYS, key), "v": (VALUES, value), "z": (VALUES, value)}
    if model.model_type in PER_KEY_HEAD:
        first = 0
        for part, (dims, count) in rows.items():
            layout, own = f"(linear_key_head [{dims}]) embed", f"{name}.{part}_proj.weight"
            yield Part(f"{name}.in_proj_qkvz.weight", layout, own, first=first, rows=2 * (key + value))
            first += count
        for index, part in enumerate(("b_proj", "a_proj")):
            layout = "(linear_key_head part linear_group) embed"
            yield Part(f"{name}.in_proj_ba.weight", layout, f"{name}.{part}.weight", index, 2)
    else:
        for part, dims in (("z", VALUES), ("b", "linear_group"), ("a", "linear_group")):
            layout = f"(linear_key_head {dims}) embed"
            yield Part(f"{name}.in_proj_{part}.weight", layout, f"{name}.{part}_proj.weight")
    heads, first = linear.linear_num_key_heads, 0
    for part in ("q", "k", "v"):
        dims, count = rows[part]
        place, of_all = f"([linear_key_head {dims}])", heads * (2 * key + value)
        if model.model_type not in PER_KEY_HEAD:
            own = f"{name}.{part}_proj.weight"
            yield Part(f"{name}.in_proj_qkv.weight", f"{place} embed", own, first=first, rows=of_all)
        own = f"{name}.{part}_conv1d.weight"
        yield Part(f"{name}.conv1d.weight", f"{place} 1 linear_tap", own, first=first, rows=of_all)
        first += heads * count
    for part in ("A_log", "dt_bias"):
        yield Part.same(f"{name}.{part}", "(linear_key_head linear_group)")
    yield Part.same(f"{name}.norm.weight", "linear_valuedim")
    yield Part.same(f"{name}.out_proj.weight", "embed (linear_key_head linear_group linear_valuedim)")
