"""The names and the form of our parameters in Hugging Face checkpoints of LFM2.

in_proj holds B, C and x behind one another.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.lfm2.graph import CHANNEL, PROJECTED
from autoshard.models.llama import weights as llama
from autoshard.models.mixtral.weights import MATRICES, OURS, mixture
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import CONV

NORMS = {"operator_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
HEADS = {"q_layernorm": "q_norm", "k_layernorm": "k_norm"}


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from llama.ends(model, "model.embedding_norm")


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == CONV:
        yield from short_conv(model, f"{prefix}.conv")
    else:
        yield from _attention(f"{prefix}.self_attn")
    for theirs, ours in NORMS.items():
        yield Part(f"{prefix}.{theirs}.weight", "embed", f"{prefix}.{ours}.weight")
    if model.has_experts(layer):
        hub = f"{prefix}.feed_forward"
        yield from mixture(model, f"{prefix}.mlp", MATRICES, correction="expert_bias", hub=hub, ours=OURS)
    else:
        yield from dense_mlp(prefix, "dense_ffn" if model.is_moe else "ffn")


def dense_mlp(prefix: str, ffn: str) -> Iterator[Part]:
    """The parts of the checkpoint for the MLP of a block. prefix: of the block's names. ffn: its inner dim."""
    for theirs, layout in MATRICES.items():
        ours = f"{prefix}.mlp.{OURS[theirs]}.weight"
        yield Part(f"{prefix}.feed_forward.{theirs}.weight", layout.replace("ffn", ffn), ours)


def _attention(name: str) -> Iterator[Part]:
    yield Part.same(f"{name}.q_proj.weight", "(kvhead group headdim) embed")
    yield Part.same(f"{name}.k_proj.weight", "(kvhead headdim) embed")
    yield Part.same(f"{name}.v_proj.weight", "(kvhead headdim) embed")
    yield Part(f"{name}.out_proj.weight", "embed (kvhead group headdim)", f"{name}.o_proj.weight")
    for theirs, ours in HEADS.items():
        yield Part(f"{name}.{theirs}.weight", "headdim", f"{name}.{ours}.weight")


def short_conv(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for a convolution between two gates. name: of it."""
    assert model.conv is not None, model.name
    kinds = {"weight": " embed", "bias": ""} if model.conv.conv_bias else {"weight": " embed"}
    for kind, columns in kinds.items():
        for index, part in enumerate(PROJECTED):
            own = f"{name}.{part}_proj.{kind}"
            yield Part(f"{name}.in_proj.{kind}", f"(part {CHANNEL}){columns}", own, index, len(PROJECTED))
    yield Part(f"{name}.conv.weight", f"{CHANNEL} 1 conv_tap", f"{name}.conv1d.weight")
    yield Part.same(f"{name}.out_proj.weight", f"embed {CHANNEL}")
    if model.conv.conv_bias:
        yield Part(f"{name}.conv.bias", CHANNEL, f"{name}.conv1d.bias")
        yield Part.same(f"{name}.out_proj.bias", "embed")
