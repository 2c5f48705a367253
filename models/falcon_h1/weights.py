"""The names and the form of our parameters in Hugging Face checkpoints of Falcon-H1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.models.granite_hybrid.weights import state_space
from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import gated_mlp, norms, self_attention
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from self_attention(model, f"{prefix}.self_attn")
    yield from state_space(model, f"{prefix}.mamba")
    yield from norms_and_mlp(model, prefix)


def norms_and_mlp(model: ModelSpec, prefix: str) -> Iterator[Part]:
    """The parts of the checkpoint for what a block has besides its mixers. prefix: of the block's names."""
    yield from both_norms(model, prefix)
    yield from gated_mlp(model, f"{prefix}.feed_forward", "ffn")


def both_norms(model: ModelSpec, prefix: str) -> Iterator[Part]:
    """The parts of the checkpoint for a block's norms. prefix: of its names."""
    yield from norms(model, f"{prefix}.input_layernorm")
    for part in norms(model, f"{prefix}.post_attention_layernorm"):
        yield replace(part, tensor=part.tensor.replace("post_attention_layernorm", "pre_ff_layernorm"))


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from llama.ends(model, "model.final_layernorm")
