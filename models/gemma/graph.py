"""The graph of Gemma 1 to 3 and VaultGemma as operators over named dims: Llama's, in Gemma 2 and 3 with a norm behind
attention and MLP as well."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.graph.ir import GraphBuilder
from autoshard.models.dropping import residual
from autoshard.models.llama import graph as llama
from autoshard.models.llama.graph import attended, attention, embedding, gated_mlp, head, norm, normed_mlp
from autoshard.spec.model import ModelSpec

__all__ = ["block", "embedding", "head", "normed_attention", "sandwich", "sandwiched_mlp"]


def block(b: GraphBuilder, model: ModelSpec, x: str, layer: int, kernel: str) -> str:
    if model.model_type == "gemma":
        return llama.block(b, model, x, layer, kernel)
    if model.model_type == "vaultgemma":
        x = attention(b, model, x, layer, kernel)
        return normed_mlp(b, model, x, layer, "mlp", gated_mlp, before="pre_feedforward_layernorm")
    names = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return sandwich(b, model, x, layer, kernel, names)


def sandwich(
    b: GraphBuilder,
    model: ModelSpec,
    x: str,
    layer: int,
    kernel: str,
    names: tuple[str, str, str],
    inner: Callable[..., str] = gated_mlp,
) -> str:
    """Append x + norm(attention(norm(x))), then the same with the MLP, and return it.

    x: [batch, seq, embed]. names: of the norms behind attention, before the MLP and behind it. inner: appends the MLP,
    and is called as `gated_mlp` is.
    """
    behind_attention, before_mlp, behind_mlp = names
    x = normed_attention(b, model, x, layer, kernel, behind_attention)
    return sandwiched_mlp(b, model, x, layer, before_mlp, behind_mlp, inner)


def sandwiched_mlp(
    b: GraphBuilder,
    model: ModelSpec,
    x: str,
    layer: int,
    before_mlp: str,
    behind_mlp: str,
    inner: Callable[..., str] = gated_mlp,
) -> str:
    """Append x + norm(MLP(norm(x))), and return it. The arguments are those of `sandwich`."""
    prefix = f"model.layers.{layer}"
    b.module = "mlp_norm"
    h = norm(b, model, f"{prefix}.{before_mlp}", x)
    b.module = "mlp"
    down = inner(b, model, h, f"{prefix}.mlp")
    b.module = "mlp_norm"
    down = norm(b, model, f"{prefix}.{behind_mlp}", down)
    return residual(b, model, f"{prefix}.mlp_residual", x, (down, f"{prefix}.mlp.dropout"))


def normed_attention(
    b: GraphBuilder,
    model: ModelSpec,
    x: str,
    layer: int,
    kernel: str,
    behind: str,
    inner: Callable[..., str] = attended,
) -> str:
    """Append x + norm(attention(norm(x))), and return it. x: [batch, seq, embed]. behind: name of the outer norm.
    inner: appends the attention and the norm before it, and is called as Llama's `attended` is."""
    prefix = f"model.layers.{layer}"
    out = inner(b, model, x, layer, kernel)
    b.module = "attention_norm"
    out = norm(b, model, f"{prefix}.{behind}", out)
    return residual(b, model, f"{prefix}.attention_residual", x, (out, f"{prefix}.self_attn.dropout"))
