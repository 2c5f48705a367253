"""The names and the form of our parameters in Hugging Face checkpoints of Nemotron-H and Nemotron 3."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.granite_hybrid.weights import state_space
from autoshard.models.llama.weights import norms, projections
from autoshard.models.mixtral.weights import mixture
from autoshard.models.nemotron.weights import plain_mlp
from autoshard.models.nemotron_h.graph import DOWN, TABLE, UP, dense_dim
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA, NONE

LEFT_OUT = ("mtp.",)


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"backbone.layers.{layer}"
    name, mixer = f"{prefix}.mixer", model.mixer_of(layer)
    yield from norms(model, f"{prefix}.norm")
    if mixer == MAMBA:
        yield from state_space(model, name)
    elif mixer != NONE:
        yield from projections(model, name)
    elif not model.has_experts(layer):
        yield from plain_mlp(model, name, UP, DOWN, dense_dim(model))
    else:
        width = "embed" if model.moe_latent_size is None else "latent"
        yield from mixture(model, name, {UP: f"ffn {width}", DOWN: f"{width} ffn"})
        if model.moe_latent_size is not None:
            yield Part.same(f"{name}.fc1_latent_proj.weight", "latent embed")
            yield Part.same(f"{name}.fc2_latent_proj.weight", "embed latent")
        yield from plain_mlp(model, f"{name}.shared_experts", UP, DOWN, "shared_ffn")


def ends(model: ModelSpec) -> Iterator[Part]:
    yield Part.same(TABLE, "vocab embed")
    yield from norms(model, "backbone.norm_f")
    yield Part.same("lm_head.weight", "vocab embed")
