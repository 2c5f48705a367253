"""The names and the form of our parameters in Hugging Face checkpoints of Granite 4.

in_proj holds the gate, what is convolved (x, B, C) and the time steps behind one another, conv1d the channels of x, B
and C; input_linear holds gate and up, of all experts or of the shared MLP.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.granite_hybrid.graph import CONVOLVED, HEADS
from autoshard.models.llama.weights import attention, ends
from autoshard.models.weight_names import Part
from autoshard.spec.model import MAMBA, ModelSpec

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == MAMBA:
        yield from _mamba(model, f"{prefix}.mamba")
        yield Part.same(f"{prefix}.input_layernorm.weight", "embed")
        yield Part.same(f"{prefix}.post_attention_layernorm.weight", "embed")
    else:
        yield from attention(model, prefix)
    if model.is_moe:
        yield from _experts(f"{prefix}.block_sparse_moe")
    name, ffn = f"{prefix}.shared_mlp", "shared_ffn" if model.is_moe else "ffn"
    for index, part in enumerate(("gate_proj", "up_proj")):
        yield Part(f"{name}.input_linear.weight", f"(part {ffn}) embed", f"{name}.{part}.weight", index, 2)
    yield Part(f"{name}.output_linear.weight", f"embed {ffn}", f"{name}.down_proj.weight")


def _experts(name: str) -> Iterator[Part]:
    yield Part(f"{name}.router.layer.weight", "expert embed", f"{name}.gate.weight")
    for index, part in enumerate(("w1", "w3")):
        hub, own = f"{name}.input_linear.weight", f"{name}.experts.{part}.weight"
        yield Part(hub, "expert (part ffn) embed", own, index, 2)
    yield Part(f"{name}.output_linear.weight", "expert embed ffn", f"{name}.experts.w2.weight")


def _mamba(model: ModelSpec, name: str) -> Iterator[Part]:
    mamba = model.mamba
    assert mamba is not None, model.name
    inner, state = mamba.mamba_n_heads * mamba.mamba_d_head, mamba.mamba_d_state
    channels = {"x": (HEADS, inner), "b": ("mamba_state", state), "c": ("mamba_state", state)}
    rows = {"z": (HEADS, inner), **channels, "dt": ("mamba_head", mamba.mamba_n_heads)}
    first, count = 0, sum(size for _, size in rows.values())
    for part, (dims, size) in rows.items():
        yield Part(f"{name}.in_proj.weight", f"([{dims}]) embed", f"{name}.{part}_proj.weight", first=first, rows=count)
        first += size
    first, count = 0, sum(size for _, size in channels.values())
    for part, dims in CONVOLVED.items():
        own = f"{name}.{part}_conv1d"
        yield Part(f"{name}.conv1d.weight", f"([{dims}]) 1 mamba_tap", f"{own}.weight", first=first, rows=count)
        if mamba.mamba_conv_bias:
            yield Part(f"{name}.conv1d.bias", f"([{dims}])", f"{own}.bias", first=first, rows=count)
        first += channels[part][1]
    for part in ("A_log", "D", "dt_bias"):
        yield Part.same(f"{name}.{part}", "mamba_head")
    yield Part.same(f"{name}.norm.weight", f"({HEADS})")
    yield Part.same(f"{name}.out_proj.weight", f"embed ({HEADS})")
