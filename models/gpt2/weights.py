"""The names and the form of our parameters in Hugging Face checkpoints of GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

HEADS = {"q_proj": "kvhead group headdim", "k_proj": "kvhead headdim", "v_proj": "kvhead headdim"}
"""There is one query head to a key-value head, so that `group` is 1 and all three have one shape."""


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"transformer.h.{layer}"
    name = f"{prefix}.attn"
    for index, (part, heads) in enumerate(HEADS.items()):
        yield Part(f"{name}.c_attn.weight", f"embed (part {heads})", f"{name}.{part}.weight", index, len(HEADS))
        yield Part(f"{name}.c_attn.bias", f"(part {heads})", f"{name}.{part}.bias", index, len(HEADS))
    yield Part.same(f"{name}.c_proj.weight", "(kvhead group headdim) embed")
    yield Part.same(f"{name}.c_proj.bias", "embed")
    for part, rows, columns in (("c_fc", "embed", "ffn"), ("c_proj", "ffn", "embed")):
        yield Part.same(f"{prefix}.mlp.{part}.weight", f"{rows} {columns}")
        yield Part.same(f"{prefix}.mlp.{part}.bias", columns)
    yield from norms(model, f"{prefix}.ln_1", f"{prefix}.ln_2")


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same("transformer.wte.weight", "vocab embed")
    yield Part.same("transformer.wpe.weight", "position embed")
    yield from norms(model, "transformer.ln_f")
    if not model.tie_word_embeddings:
        yield Part.same("lm_head.weight", "vocab embed")
