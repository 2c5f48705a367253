"""The names and the form of our parameters in Hugging Face checkpoints of Kimi Linear."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.deepseek.weights import latent_attention
from autoshard.models.kimi_linear.graph import CONVOLVED, GATES, RANK
from autoshard.models.llama.weights import ends, gated_mlp, norms
from autoshard.models.mixtral.weights import MATRICES, OURS, mixture
from autoshard.models.qwen3_next.graph import KEYS, VALUES
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LINEAR_ATTENTION

__all__ = ["block", "ends", "saved_as"]


def saved_as(tensor: str) -> str:
    """Transformers' name of a tensor. It has the MLP of blocks without experts where experts are."""
    return tensor.replace(".mlp.", ".block_sparse_moe.")


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == LINEAR_ATTENTION:
        yield from delta_attention(f"{prefix}.self_attn", f"{prefix}.linear_attn", "1 1 linear_key_head 1")
        yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    else:
        yield from latent_attention(model, layer)
    own, hub = f"{prefix}.mlp", f"{prefix}.block_sparse_moe"
    if not model.has_experts(layer):
        yield from gated_mlp(model, own, "dense_ffn")
        return
    yield from mixture(model, own, MATRICES, hub=hub, ours=OURS)
    if model.shared_expert_intermediate_size:
        yield from gated_mlp(model, f"{own}.shared_experts", "shared_ffn", f"{hub}.shared_experts")


def delta_attention(hub: str, own: str, rates: str) -> Iterator[Part]:
    """The parts for a block's linear attention. hub, own: the checkpoint's name and ours of it. rates: the layout of
    A_log."""
    layouts = {**convolved_rule(), "A_log": rates, "o_proj.weight": f"embed ({VALUES})"}
    for part, dims in GATES.items():
        layouts |= {f"{part}_a_proj.weight": f"{RANK} embed", f"{part}_b_proj.weight": f"({dims}) {RANK}"}
    for name, layout in layouts.items():
        yield Part(f"{hub}.{name}", layout, f"{own}.{name}")


def convolved_rule() -> dict[str, str]:
    """By name, the layouts of a delta rule's parameters that checkpoints of all its families hold alike."""
    layouts = {
        "b_proj.weight": "(linear_key_head linear_group) embed",
        "dt_bias": f"({KEYS})",
        "o_norm.weight": "linear_valuedim",
    }
    for part, dims in CONVOLVED.items():
        layouts |= {f"{part}_proj.weight": f"({dims}) embed", f"{part}_conv1d.weight": f"({dims}) 1 linear_tap"}
    return layouts
