"""The names and the form of our parameters in Hugging Face checkpoints of MiniMax-Text-01 and MiniMax-M1.

qkv_proj holds queries, keys and values of lightning attention head by head. Its rates of fading, and what is made of
them, are constants: checkpoints that transformers saves have them too, and need not.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.llama.weights import attention, ends, norms
from autoshard.models.minimax.graph import HEADS, PROJECTED
from autoshard.models.mixtral.weights import MATRICES, mixture
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import LIGHTNING

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == LIGHTNING:
        yield from _lightning_attention(f"{prefix}.self_attn", f"{prefix}.lightning_attn")
        yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    else:
        yield from attention(model, prefix)
    yield from mixture(model, f"{prefix}.block_sparse_moe", MATRICES)


def _lightning_attention(hub: str, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for lightning attention. hub, name: the checkpoint's name of it, and ours."""
    head, width = HEADS.split()
    for index, part in enumerate(PROJECTED):
        rows = f"({head} part {width}) embed"
        yield Part(f"{hub}.qkv_proj.weight", rows, f"{name}.{part}.weight", index, len(PROJECTED))
    layouts = {"output_gate": f"({HEADS}) embed", "norm": f"({HEADS})", "out_proj": f"embed ({HEADS})"}
    for part, layout in layouts.items():
        yield Part(f"{hub}.{part}.weight", layout, f"{name}.{part}.weight")
