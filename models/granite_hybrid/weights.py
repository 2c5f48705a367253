"""The names and the form of our parameters in Hugging Face checkpoints of Granite 4 and of Granite 3's mixtures.

in_proj holds the gate, what is convolved (x, B, C) and the time steps behind one another, conv1d the channels of x, B
and C; input_linear holds gate and up, of all experts or of the shared MLP.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.models.granite_hybrid.graph import mamba_dims, mlp_dim
from autoshard.models.llama.weights import attention, ends, norms
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.model_types import MAMBA

__all__ = ["block", "ends"]


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    if model.mixer_of(layer) == MAMBA:
        yield from state_space(model, f"{prefix}.mamba")
        yield from norms(model, f"{prefix}.input_layernorm", f"{prefix}.post_attention_layernorm")
    else:
        yield from attention(model, prefix)
    if model.is_moe:
        yield from experts(
            f"{prefix}.block_sparse_moe", "router.layer.weight", "input_linear.weight", "output_linear.weight"
        )
    yield from shared_mlp(model, f"{prefix}.shared_mlp")


def experts(name: str, router: str, raising: str, lowering: str) -> Iterator[Part]:
    """The parts of the checkpoint for a router and its experts. name: of both. router, raising, lowering: the
    checkpoint's names behind it of the router, of the experts' gate and up, and of their down."""
    yield Part(f"{name}.{router}", "expert embed", f"{name}.gate.weight")
    for index, part in enumerate(("w1", "w3")):
        yield Part(f"{name}.{raising}", "expert (part ffn) embed", f"{name}.experts.{part}.weight", index, 2)
    yield Part(f"{name}.{lowering}", "expert embed ffn", f"{name}.experts.w2.weight")


def shared_mlp(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for the MLP that every token goes to, if there is one. name: of it."""
    if ffn := mlp_dim(model):
        for index, part in enumerate(("gate_proj", "up_proj")):
            yield Part(f"{name}.input_linear.weight", f"(part {ffn}) embed", f"{name}.{part}.weight", index, 2)
        yield Part(f"{name}.output_linear.weight", f"embed {ffn}", f"{name}.down_proj.weight")


def state_space(model: ModelSpec, name: str) -> Iterator[Part]:
    """The parts of the checkpoint for a state space with its projections and its norm. name: of it."""
    mamba = model.mamba
    assert mamba is not None, model.name
    inner, state = mamba.mamba_n_heads * mamba.mamba_d_head, mamba.mamba_n_groups * mamba.mamba_d_state
    dims, channels = mamba_dims(mamba), {"x": inner, "b": state, "c": state}
    rows = {"z": inner, **channels, "dt": mamba.mamba_n_heads}
    first, count = 0, sum(rows.values())
    for part, size in rows.items():
        hub, own = f"{name}.in_proj.weight", f"{name}.{part}_proj.weight"
        yield Part(hub, f"([{dims[part]}]) embed", own, first=first, rows=count)
        first += size
    first, count = 0, sum(channels.values())
    for part, size in channels.items():
        hub, own, of = f"{name}.conv1d", f"{name}.{part}_conv1d", f"([{dims[part]}])"
        yield Part(f"{hub}.weight", f"{of} 1 mamba_tap", f"{own}.weight", first=first, rows=count)
        if mamba.mamba_conv_bias:
            yield Part(f"{hub}.bias", of, f"{own}.bias", first=first, rows=count)
        first += size
    of_heads = dims["dt"] if mamba.mamba_n_groups == 1 else f"({dims['dt']})"
    for part in ("A_log", "D", "dt_bias"):
        yield Part.same(f"{name}.{part}", of_heads)
    if mamba.mamba_rms_norm:
        yield Part.same(f"{name}.norm.weight", f"({dims['x']})")
    yield Part.same(f"{name}.out_proj.weight", f"embed ({dims['x']})")
