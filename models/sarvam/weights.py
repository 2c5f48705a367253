"""The names and the form of our parameters in Hugging Face checkpoints of Sarvam, as published and as transformers
writes them: Ling's names of the 30B, DeepSeek's of the 105B."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.bailing_hybrid.weights import ends as ling_ends
from autoshard.models.deepseek.weights import block as deepseek_block
from autoshard.models.deepseek.weights import mlp
from autoshard.models.llama.weights import ends as llama_ends
from autoshard.models.llama.weights import fused_projections, head_norms, norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from ling_ends(model) if model.latent_attention is None else llama_ends(model)


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    if model.latent_attention is not None:
        yield from deepseek_block(model, layer)
        return
    prefix = f"model.layers.{layer}"
    hub, own = f"{prefix}.attention", f"{prefix}.self_attn"
    yield from fused_projections(model, f"{hub}.query_key_value", own)
    yield Part(f"{hub}.dense.weight", "embed (kvhead group headdim)", f"{own}.o_proj.weight")
    yield from head_norms(model, hub, own, model.heads[0], "query_layernorm", "key_layernorm")
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    yield from mlp(model, layer, correction="gate.expert_bias")
