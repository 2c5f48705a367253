"""The names and the form of our parameters in Hugging Face checkpoints of Mistral Large 4, as transformers saves them:
Mistral's own names, without anything before those of the text model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.models.deepseek.attention import EXPONENTS
from autoshard.models.deepseek.weights import block as usual_block
from autoshard.models.llama.graph import HEAD, TABLE
from autoshard.models.llama.weights import ends as usual_ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import FINAL_NORM

LEFT_OUT = (
    *("vision_encoder.", "patch_merger.", "pre_mm_projector_norm.", "vision_language_adapter."),
    "mtp_dspark.",
)
"""Tensors of what sees, and of a module that drafts tokens, which transformers leaves out too."""
NAMES = (
    (TABLE, "tok_embeddings.weight"),
    (f"{FINAL_NORM}.", "norm."),
    (f"{HEAD}.", "output."),
    (EXPONENTS, "lerope.alpha"),
    ("model.layers.", "layers."),
    (".self_attn.", ".attention."),
    (".q_proj.", ".wq."),
    (".kv_a_proj_with_mqa.", ".wkv_a_with_mqa."),
    (".kv_a_layernorm.", ".kv_a_norm."),
    (".kv_b_proj.", ".wkv_b."),
    (".o_proj.", ".wo."),
    (".softmax_scaling.scale", ".ssmax_scaling.s"),
    (".softmax_scaling.bias", ".ssmax_scaling.b"),
    (".input_layernorm.", ".attention_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".mlp.gate.", ".gate."),
    (".mlp.experts.", ".experts."),
    (".mlp.shared_experts.", ".shared_experts."),
    (".mlp.", ".feed_forward."),
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
)
"""(what stands in names of DeepSeek's form, what the checkpoint has in its place), in the order in which they apply."""


def left_out(model: ModelSpec) -> tuple[str, ...]:
    """Prefixes of further tensors that are not read: exponents of frequencies where no block has positions."""
    return () if _turns(model) else (_named(Part.same(EXPONENTS, "ropepair")).tensor,)


def _turns(model: ModelSpec) -> bool:
    return any(map(model.has_rope, range(model.num_hidden_layers)))


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from map(_named, usual_ends(model))
    if _turns(model):
        yield _named(Part.same(EXPONENTS, "ropepair"))


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    yield from map(_named, usual_block(model, layer))


def _named(part: Part) -> Part:
    """The part under the checkpoint's name."""
    tensor = part.tensor
    for ours, theirs in NAMES:
        tensor = tensor.replace(ours, theirs)
    return replace(part, tensor=tensor)
