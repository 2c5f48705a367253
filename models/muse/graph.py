"""The graph of Muse Glimmer's and Muse Spark's text models as operators over named dims: Gemma's blocks with a gate
behind attention; in Muse Spark with gates of the residual, and experts between norms of their own."""

from __future__ import annotations

from functools import partial

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import dropped_branch, residual
from autoshard.models.llama.graph import attended, gated_mlp, head, linear, rms_norm
from autoshard.models.llama.graph import embedding as tokens
from autoshard.models.mixtral.graph import NARROW, WIDE, answered, chosen
from autoshard.spec.branch_norms import BranchNorms
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head"]

NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GATES = ("post_attention_residual_gate", "post_feedforward_residual_gate")


def embedding(b: GraphBuilder, model: ModelSpec) -> str:
    return rms_norm(b, model, "model.embed_norm", tokens(b, model), weighs=False)


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    assert model.branch_norms is not None, model.name
    prefix, norms, gated = f"model.layers.{layer}", model.branch_norms, model.family.gates_residual
    behind_attention, before_mlp, behind_mlp = (f"{prefix}.{name}" for name in NORMS)
    out = attended(b, model, x, layer, kernel)
    b.module = "attention_norm"
    out = rms_norm(b, model, behind_attention, out, weighs=not gated, eps=norms.post_norm_eps)
    x = _joined(
        b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"), f"{prefix}.{GATES[0]}"
    )
    b.module = "mlp_norm"
    h = rms_norm(b, model, before_mlp, x)
    b.module = "mlp"
    if model.has_experts(layer):
        out = _experts(b, model, h, f"{prefix}.mlp", norms)
    else:
        out = gated_mlp(b, model, h, f"{prefix}.mlp", dense_dim(model))
    b.module = "mlp_norm"
    if gated:
        out = _scaled_norm(b, model, norms, behind_mlp, out)
    else:
        out = rms_norm(b, model, behind_mlp, out, eps=norms.post_norm_eps)
    return _joined(b, model, f"{prefix}.mlp_residual", x, (out, f"{prefix}.mlp.dropout"), f"{prefix}.{GATES[1]}")


def dense_dim(model: ModelSpec) -> str:
    """The dim of an MLP's width in blocks without experts."""
    return "dense_ffn" if model.is_moe else "ffn"


def _joined(b: GraphBuilder, model: ModelSpec, name: str, x: str, branch: tuple[str, str], gate: str) -> str:
    """Append the residual stream behind a branch, and return its name. x: [batch, seq, embed]. branch: as of
    `residual`. gate: name of the branch's gate, if there are gates."""
    if not model.family.gates_residual:
        return residual(b, model, name, x, branch)
    assert model.branch_norms is not None, model.name
    b.module = "residual"
    kept = dropped_branch(b, model, *branch)
    return b.pointwise(name, model.branch_norms.joined, x, kept, b.parameter(f"{gate}.gate", "embed"))


def _scaled_norm(b: GraphBuilder, model: ModelSpec, norms: BranchNorms, name: str, x: str) -> str:
    """Append an RMS norm of x times 1 plus a weight of each number of its last dim, and return its output."""
    weight = b.parameter(f"{name}.weight", b.dims(x)[-1])
    scaled = b.pointwise(f"{name}.scaled", "(mul x0 (add 1.0 x1))", x, weight)
    return rms_norm(b, model, name, scaled, weighs=False, eps=norms.post_norm_eps)


def _experts(b: GraphBuilder, model: ModelSpec, h: str, name: str, norms: BranchNorms) -> str:
    """Append the experts, which see narrower tokens, and return the sum of their normed answers as wide as h [batch,
    seq, embed]. The router multiplies its logits as the head does."""
    gates = chosen(b, model, h, name, logit_scale=model.logit_scale)
    sent = rms_norm(b, model, f"{name}.pre_expert_norm", linear(b, f"{name}.pre_expert_proj", h, NARROW, False))
    behind = partial(_scaled_norm, b, model, norms, f"{name}.experts.post_expert_norm")
    out = answered(b, model, sent, gates, gates, name, behind=behind)
    return linear(b, f"{name}.post_expert_proj", out, WIDE, False)
