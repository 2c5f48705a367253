"""The names and the form of our parameters in Hugging Face checkpoints of Ling 3.0."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention, mlp
from autoshard.models.kimi_linear.graph import GATES
from autoshard.models.kimi_linear.weights import convolved_rule
from autoshard.models.llama.weights import norms
from autoshard.models.qwen3_next.graph import VALUES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part("model.word_embeddings.weight", "vocab embed", "model.embed_tokens.weight")
    yield from norms(model, "model.norm")
    if not model.tie_word_embeddings:
        yield Part.same("lm_head.weight", "vocab embed")


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        yield from _delta_attention(f"{prefix}.attention", f"{prefix}.linear_attn")
        yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    else:
        yield from latent_attention(model, layer, "attention", gate_proj="g_proj", o_proj="dense")
    yield from mlp(model, layer, correction="gate.expert_bias")


def _delta_attention(hub: str, own: str) -> Iterator[Part]:
    """The parts for a block's linear attention. hub, own: the checkpoint's name and ours of it."""
    layouts = convolved_rule() | {f"{part}_proj.weight": f"({dims}) embed" for part, dims in GATES.items()}
    for name, layout in layouts.items():
        yield Part(f"{hub}.{name}", layout, f"{own}.{name}")
    yield Part(f"{hub}.A_log", "linear_key_head", f"{own}.A_log")
    yield Part(f"{hub}.dense.weight", f"embed ({VALUES})", f"{own}.o_proj.weight")
