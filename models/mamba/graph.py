"""The graph of Mamba and Falcon Mamba as operators over named dims: Jamba's state space alone in each block."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.jamba.graph import state_space
from autoshard.models.llama.graph import norm, rms_norm
from autoshard.models.nemotron_h.graph import embedding, head
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    assert model.mamba1 is not None, model.name
    prefix, eps = f"backbone.layers.{layer}", model.mamba1.mixer_rms_eps
    b.module = "attention_norm"
    h = norm(b, model, f"{prefix}.norm", x)
    normed = None if eps is None else partial(rms_norm, weighs=False, eps=eps)
    out = state_space(b, model, h, f"{prefix}.mixer", normed)
    return residual(b, model, f"{prefix}.residual", x, (out, f"{prefix}.mixer.dropout"))
