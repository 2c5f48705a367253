"""The names and the form of our parameters in Hugging Face checkpoints of GPT-NeoX.

query_key_value holds queries, keys and values head by head.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.gpt_neox.graph import DOWN, UP
from autoshard.models.llama.weights import norms
from autoshard.models.nemotron.weights import plain_mlp
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

HEADS = {"q_proj": "kvhead group part headdim", "k_proj": "kvhead part headdim", "v_proj": "kvhead part headdim"}


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"gpt_neox.layers.{layer}"
    name = f"{prefix}.attention"
    for index, (part, heads) in enumerate(HEADS.items()):
        yield Part(f"{name}.query_key_value.weight", f"({heads}) embed", f"{name}.{part}.weight", index, len(HEADS))
        yield Part(f"{name}.query_key_value.bias", f"({heads})", f"{name}.{part}.bias", index, len(HEADS))
    yield Part.same(f"{name}.dense.weight", "embed (kvhead group headdim)")
    yield Part.same(f"{name}.dense.bias", "embed")
    yield from plain_mlp(model, f"{prefix}.mlp", UP, DOWN)
    yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same("gpt_neox.embed_in.weight", "vocab embed")
    yield from norms(model, "gpt_neox.final_layer_norm")
    if not model.tie_word_embeddings:
        yield Part.same("embed_out.weight", "vocab embed")
