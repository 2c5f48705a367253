"""The names and the form of our parameters in Hugging Face checkpoints of DBRX.

Wqkv holds queries, keys and values behind one another; a tensor holds the rows of all experts.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import fused_projections
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"transformer.blocks.{layer}"
    name, experts = f"{prefix}.norm_attn_norm", f"{prefix}.ffn.experts.mlp"
    yield from fused_projections(model, f"{name}.attn.Wqkv", f"{name}.attn")
    yield Part.same(f"{name}.attn.out_proj.weight", "embed (kvhead group headdim)")
    for norm in ("norm_1", "norm_2"):
        yield Part.same(f"{name}.{norm}.weight", "embed")
    yield Part.same(f"{prefix}.ffn.router.layer.weight", "expert embed")
    for matrix in ("w1", "v1", "w2"):
        yield Part(f"{experts}.{matrix}", "(expert ffn) embed", f"{experts}.{matrix}.weight")


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same("transformer.wte.weight", "vocab embed")
    yield Part.same("transformer.norm_f.weight", "embed")
    yield Part.same("lm_head.weight", "vocab embed")
