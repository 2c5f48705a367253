"""The names and the form of our parameters in Hugging Face checkpoints of DeepSeek, Kimi-K2 and GLM-4.7-Flash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoshard.models.deepseek.attention import GATES, QUERY_SCALE, VALUES, key_dims
from autoshard.models.llama.weights import ends, gated_mlp, norms
from autoshard.models.mixtral.weights import mixture
from autoshard.models.qwen.weights import MATRICES
from autoshard.models.weight_names import Part
from autoshard.spec.indexer import Indexer
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends", "latent_attention", "mlp", "self_attention"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from latent_attention(model, layer)
    yield from mlp(model, layer)


def latent_attention(model: ModelSpec, layer: int, hub: str = "self_attn", **named: str) -> Iterator[Part]:
    """The parts of the checkpoint for a block's latent attention and for both of its norms. hub: the family's name of
    it. named: our names of matrices -> the family's, where these are others."""
    prefix = f"model.layers.{layer}"
    yield from self_attention(model, layer, f"{prefix}.{hub}", f"{prefix}.self_attn", **named)
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")


def self_attention(model: ModelSpec, layer: int, hub: str, name: str, **named: str) -> Iterator[Part]:
    """The parts of the checkpoint for latent attention alone. hub, name: the checkpoint's name of it, and ours. named:
    as of `latent_attention`."""
    latent, queries = model.latent_attention, "(kvhead group headdim)"
    assert latent is not None, model
    layouts = {"q_proj": f"{queries} embed"}
    if latent.q_lora_rank is not None:
        layouts = {"q_a_proj": "q_rank embed", "q_a_layernorm": "q_rank", "q_b_proj": f"{queries} q_rank"}
    if model.family.gates_attention is not None:
        layouts["gate_proj"] = f"({GATES[model.family.gates_attention]}) embed"
    width, keys = key_dims(model, layer)
    if not model.shares_keys(layer):
        layouts |= {"kv_a_proj_with_mqa": f"{width} embed", "kv_a_layernorm": "kv_rank"}
    layouts["kv_b_proj"] = f"({keys}) kv_rank"
    layouts["o_proj"] = f"embed ({VALUES})"
    for part, layout in layouts.items():
        yield Part(f"{hub}.{named.get(part, part)}.weight", layout, f"{name}.{part}.weight")
    if model.has_sinks(layer):
        yield Part(f"{hub}.{named.get('sinks', 'sinks')}", "(kvhead group)", f"{name}.sinks")
    if model.family.scales_queries:
        for part in ("scale", "bias"):
            yield Part(f"{hub}.{QUERY_SCALE}.{part}", "(kvhead group)", f"{name}.{QUERY_SCALE}.{part}")
    if model.indexer is not None and model.chooser_of(layer) == layer:
        yield from _indexer(model, model.indexer, f"{name}.indexer")


def _indexer(model: ModelSpec, indexer: Indexer, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for an indexer."""
    source = "embed" if model.family.indexes_hidden_state else "q_rank"
    yield Part.same(f"{name}.wq_b.weight", f"(index_head index_dim) {source}")
    yield Part.same(f"{name}.wk.weight", "index_dim embed")
    yield Part.same(f"{name}.k_norm.weight", "index_dim")
    yield Part.same(f"{name}.k_norm.bias", "index_dim")
    yield Part.same(f"{name}.weights_proj.weight", "index_head embed")
    for part in ("weight", "bias") if model.family.indexes_hidden_state else ():
        yield Part.same(f"{name}.q_input_norm.{part}", source)
    for part in ("scale", "bias") if model.family.scales_queries else ():
        yield Part.same(f"{name}.{QUERY_SCALE}.{part}", "index_head")
    if indexer.index_kpool is not None:
        yield Part.same(f"{name}.index_kpool_compress_gate", "index_dim embed")
        yield Part.same(f"{name}.index_kpool_compress_ape", "index_pool index_dim")


def mlp(model: ModelSpec, layer: int, shared: str = "shared_experts", **named: Any) -> Iterator[Part]:
    """The parts of the checkpoint for a block's MLP, or for its routed and shared experts. shared: the family's name of
    the latter. named: of `mixture`, where the family has other names or forms."""
    name = f"model.layers.{layer}.mlp"
    if not model.has_experts(layer):
        yield from gated_mlp(model, name, "dense_ffn")
        return
    yield from mixture(model, name, MATRICES, **named)
    if model.shared_expert_intermediate_size:
        yield from gated_mlp(model, f"{name}.shared_experts", "shared_ffn", f"{name}.{shared}")
