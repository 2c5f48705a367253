"""The names and the form of our parameters in Hugging Face checkpoints of Phi."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoshard.models.llama import weights as llama
from autoshard.models.llama.weights import norms, projections
from autoshard.models.nemotron.weights import plain_mlp
from autoshard.models.phi.graph import DOWN, UP
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    for part in projections(model, f"{prefix}.self_attn"):
        yield replace(part, tensor=part.tensor.replace(".o_proj.", ".dense."))
    yield from norms(model, f"{prefix}.input_layernorm")
    yield from plain_mlp(model, f"{prefix}.mlp", UP, DOWN)


def ends(model: ModelSpec) -> Iterator[Part]:
    yield from llama.ends(model, "model.final_layernorm")
    yield Part.same("lm_head.bias", "vocab")
