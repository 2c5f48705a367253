"""The graph of Granite 4 as operators over named dims."""

from __future__ import annotations

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama.graph import HIDDEN, attention, embedding, gated_mlp, head, linear, rms_norm
from autoshard.models.mixtral.graph import mixture
from autoshard.models.olmo2.graph import norm_over_heads
from autoshard.spec.model import MAMBA, ModelSpec

__all__ = ["block", "embedding", "head"]

HEADS = "mamba_head mamba_headdim"
PARTS = {"z_proj": HEADS, "x_proj": HEADS, "dt_proj": "mamba_head", "b_proj": "mamba_state", "c_proj": "mamba_state"}
"""The projections of a block with a state space, of which the checkpoint has one matrix."""
CONVOLVED = {"x": HEADS, "b": "mamba_state", "c": "mamba_state"}


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    prefix = f"model.layers.{layer}"
    is_mamba = model.mixer_of(layer) == MAMBA
    x = _mamba(b, model, x, layer) if is_mamba else attention(b, model, x, layer, kernel)
    b.module = "mlp_norm"
    h = rms_norm(b, model, f"{prefix}.post_attention_layernorm", x)
    b.module = "mlp"
    branches = []
    if model.is_moe:
        routed = mixture(b, model, h, f"{prefix}.block_sparse_moe")
        branches.append((routed, f"{prefix}.block_sparse_moe.dropout"))
    shared = gated_mlp(b, model, h, f"{prefix}.shared_mlp", "shared_ffn" if model.is_moe else "ffn")
    branches.append((shared, f"{prefix}.shared_mlp.dropout"))
    return residual(b, model, f"{prefix}.mlp_residual", x, *branches)


def _mamba(b: GraphBuilder, model: ModelSpec, x: str, layer: int) -> str:
    """Append norm, projections, causal convolutions, Mamba-2's state space, a norm over all heads, output projection
    and residual; returns the sum's name. x: [batch, seq, embed]."""
    mamba, prefix = model.mamba, f"model.layers.{layer}"
    assert mamba is not None, model.name
    name = f"{prefix}.mamba"
    b.module = "attention_norm"
    h = rms_norm(b, model, f"{prefix}.input_layernorm", x)
    b.module = "attention"
    made = {
        part: linear(b, f"{name}.{part}", h, f"{HIDDEN}, {dims} embed -> batch seq {dims}", False)
        for part, dims in PARTS.items()
    }
    mixed = {}
    for part, dims in CONVOLVED.items():
        conv = f"{name}.{part}_conv1d"
        weights = [b.parameter(f"{conv}.weight", f"{dims} mamba_tap")]
        weights += [b.parameter(f"{conv}.bias", dims)] if mamba.mamba_conv_bias else []
        x_dims = b.dims(made[f"{part}_proj"])
        convolved = (made[f"{part}_proj"], *weights)
        mixed[part] = b.operator("causal_conv", conv, convolved, x_dims, ("batch", *x_dims[2:]))
    b.module = "core_attention"
    of_heads = [b.parameter(f"{name}.{part}", "mamba_head") for part in ("A_log", "D", "dt_bias")]
    inputs = (mixed["x"], made["dt_proj"], mixed["b"], mixed["c"], *of_heads)
    loops, chunk = ("batch", "mamba_head"), mamba.mamba_chunk_size
    scanned = b.operator("state_space_scan", f"{name}.scan", inputs, b.dims(mixed["x"]), loops, chunk_size=chunk)
    b.module = "attention"
    gated = b.elementwise("silu_mul", f"{name}.gated", made["z_proj"], scanned)
    normal = norm_over_heads(b, model, f"{name}.norm", gated, mamba.mamba_n_heads)
    out = linear(b, f"{name}.out_proj", normal, f"batch seq {HEADS}, embed {HEADS} -> batch seq embed", False)
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{name}.dropout"))
