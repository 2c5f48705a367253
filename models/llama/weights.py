"""The names and the form of our parameters in Hugging Face checkpoints of the Llama form.

The names are the same; heads are flattened into rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from autoshard.models.llama.graph import HEADS, TABLE, norm_parts, projected
from autoshard.models.weight_names import Part
from autoshard.spec.attention_heads import AttentionHeads
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FINAL_NORM

PROJECTIONS = {part: f"({dims})" for part, dims in HEADS.items()}


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from gated_mlp(model, f"{prefix}.mlp", "ffn")


def ends(model: ModelSpec, final_norm: str = FINAL_NORM) -> Iterator[Part]:
    """The parts of the checkpoint outside of the blocks. final_norm: its name of the last norm."""
    yield Part.same(TABLE, "vocab embed")
    for part in norms(model, FINAL_NORM):
        yield replace(part, tensor=part.tensor.replace(FINAL_NORM, final_norm))
    if not model.tie_word_embeddings:
        yield Part.same("lm_head.weight", "vocab embed")


def attention(model: ModelSpec, prefix: str, **named: Any) -> Iterator[Part]:
    """The parts of the checkpoint for a block's attention and for both of its norms. prefix: of the block's names.
    named: of `self_attention`, where the family has other names."""
    yield from self_attention(model, f"{prefix}.self_attn", **named)
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")


def self_attention(
    model: ModelSpec,
    name: str,
    q_norm: str = "q_norm",
    k_norm: str = "k_norm",
    gate_proj: str = "gate_proj",
    own: tuple[str, AttentionHeads] | None = None,
) -> Iterator[Part]:
    """The parts of the checkpoint for an attention's projections and its norms of queries and keys. name: of it.
    q_norm, k_norm, gate_proj: the family's names of these norms, and of the gate's projection if there is one. own: our
    name of it and its heads, where blocks have different ones."""
    yield from projections(model, name, own, gate_proj)
    ours, heads = own or (name, model.heads[0])
    yield from head_norms(model, name, ours, heads, q_norm, k_norm)


def head_norms(
    model: ModelSpec, name: str, ours: str, heads: AttentionHeads, q_norm: str, k_norm: str
) -> Iterator[Part]:
    """The parts of the checkpoint for norms of queries and keys, if attention has them with a weight. name, ours: the
    checkpoint's name of the attention, and ours. heads: its heads. q_norm, k_norm: as of `self_attention`."""
    family = model.family
    if (model.normalizes_heads or model.normalizes_all_heads) and family.has_norm_weight and family.has_qk_norm_weight:
        for norm, our_norm, projection in ((q_norm, "q_norm", "q_proj"), (k_norm, "k_norm", "k_proj")):
            layout = heads.query_dims[2] if model.normalizes_heads else PROJECTIONS[projection]
            if model.weighs_each_head:
                layout = f"({' '.join(projected(heads)[projection].split()[:-1])}) {layout}"
            yield Part(f"{name}.{norm}.weight", layout, f"{ours}.{our_norm}.weight")


def fused_projections(model: ModelSpec, tensor: str, name: str) -> Iterator[Part]:
    """The parts of a checkpoint that holds queries, keys and values behind one another. tensor: its name there, without
    .weight. name: ours of the attention."""
    queries, keys = (heads * model.head_dim for heads in (model.num_attention_heads, model.num_key_value_heads))
    for (part, dims), first in zip(HEADS.items(), (0, queries, queries + keys), strict=True):
        layouts = {"weight": f"([{dims}]) embed"} | ({"bias": f"([{dims}])"} if model.attention_bias else {})
        for kind, layout in layouts.items():
            yield Part(f"{tensor}.{kind}", layout, f"{name}.{part}.{kind}", first=first, rows=queries + 2 * keys)


def norms(model: ModelSpec, *names: str) -> Iterator[Part]:
    """The parts of the checkpoint for norms of the family's form."""
    for name in names:
        for part in norm_parts(model):
            yield Part.same(f"{name}.{part}", "embed")


def projections(
    model: ModelSpec, name: str, own: tuple[str, AttentionHeads] | None = None, gate_proj: str = "gate_proj"
) -> Iterator[Part]:
    """The parts of the checkpoint for the projections of an attention. name: of the attention. own, gate_proj: as of
    `self_attention`."""
    ours, heads = own or (name, model.heads[0])
    for part, dims in projected(heads, model.family.gates_attention).items():
        hub, rows = f"{name}.{gate_proj if part == 'gate_proj' else part}", f"({dims})"
        yield Part(f"{hub}.weight", f"{rows} embed", f"{ours}.{part}.weight")
        if model.attention_bias:
            yield Part(f"{hub}.bias", rows, f"{ours}.{part}.bias")
    yield Part(f"{name}.o_proj.weight", f"embed ({' '.join(heads.output_dims)})", f"{ours}.o_proj.weight")
    if model.output_projection_bias:
        yield Part(f"{name}.o_proj.bias", "embed", f"{ours}.o_proj.bias")


def gated_mlp(model: ModelSpec, name: str, ffn: str, hub: str = "") -> Iterator[Part]:
    """The parts of the checkpoint for an MLP. name: ours of it. ffn: its inner dim. hub: its name there, if that is
    another one."""
    for part, rows, columns in (("gate_proj", ffn, "embed"), ("up_proj", ffn, "embed"), ("down_proj", "embed", ffn)):
        yield Part(f"{hub or name}.{part}.weight", f"{rows} {columns}", f"{name}.{part}.weight")
        if model.mlp_bias:
            yield Part(f"{hub or name}.{part}.bias", rows, f"{name}.{part}.bias")
