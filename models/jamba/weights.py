"""The names and the form of our parameters in Hugging Face checkpoints of Jamba.

in_proj holds what is scanned and its gate behind one another.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.falcon_h1.weights import both_norms, ends
from autoshard.models.jamba.graph import CHANNEL, PARTS, PROJECTED, SELECTED, dense_dim
from autoshard.models.llama.weights import gated_mlp, self_attention
from autoshard.models.mixtral.weights import mixture
from autoshard.models.qwen.weights import MATRICES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA1

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == MAMBA1:
        yield from state_space(model, f"{prefix}.mamba")
        for part, dim in PARTS.items():
            yield Part.same(f"{prefix}.mamba.{part}_layernorm.weight", dim)
    else:
        yield from self_attention(model, f"{prefix}.self_attn")
    yield from both_norms(model, prefix)
    if model.has_experts(layer):
        yield from mixture(model, f"{prefix}.feed_forward", MATRICES, router="router")
    else:
        yield from gated_mlp(model, f"{prefix}.feed_forward", dense_dim(model))


def state_space(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for Mamba-1's state space with its projections, without norms. name: of it."""
    mamba = model.mamba1
    assert mamba is not None, model.name
    for index, part in enumerate(PROJECTED):
        yield Part(f"{name}.in_proj.weight", f"(part {CHANNEL}) embed", f"{name}.{part}_proj.weight", index, 2)
    yield Part.same(f"{name}.conv1d.weight", f"{CHANNEL} 1 mamba_tap")
    if mamba.mamba_conv_bias:
        yield Part.same(f"{name}.conv1d.bias", CHANNEL)
    yield Part(f"{name}.x_proj.weight", f"{SELECTED} {CHANNEL}", f"{name}.selected_proj.weight")
    yield Part.same(f"{name}.dt_proj.weight", f"{CHANNEL} mamba_rank")
    yield Part.same(f"{name}.dt_proj.bias", CHANNEL)
    yield Part.same(f"{name}.A_log", f"{CHANNEL} mamba_state")
    yield Part.same(f"{name}.D", CHANNEL)
    yield Part.same(f"{name}.out_proj.weight", f"embed {CHANNEL}")
