"""The names and the form of our parameters in Hugging Face checkpoints of Mixtral: one tensor for each expert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from autoshard.models.llama.weights import attention, ends
from autoshard.models.mixtral.graph import candidates
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec

__all__ = ["block", "ends", "fused_experts", "mixture"]

MATRICES = {"w1": "ffn embed", "w3": "ffn embed", "w2": "embed ffn"}
OURS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""What most other families call them."""
SAME: Mapping[str, str] = MappingProxyType({})


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    prefix = f"model.layers.{layer}"
    yield from attention(model, prefix)
    yield from mixture(model, f"{prefix}.block_sparse_moe", MATRICES)


def mixture(
    model: ModelSpec,
    name: str,
    matrices: dict[str, str],
    router: str = "gate",
    correction: str = "gate.e_score_correction_bias",
    correction_layout: str | None = None,
    fused: bool = False,
    hub: str = "",
    ours: Mapping[str, str] = SAME,
) -> Iterator[Part]:
    """The parts of the checkpoint for a router and its experts. matrices: name and layout of each matrix of an expert.
    router: the family's name of it. correction, correction_layout: the family's name and form of its correction bias,
    if there is one; without the latter a number of each expert. fused: one tensor has all experts, as of
    `fused_experts`. name: ours of both. hub: the checkpoint's, if that is another one. ours: our names of matrices that
    have others.
    """
    hub = hub or name
    dim = candidates(model)
    yield Part(f"{hub}.{router}.weight", f"{dim} embed", f"{name}.gate.weight")
    if model.router is not None and model.router.has_correction_bias:
        yield Part(f"{hub}.{correction}", correction_layout or dim, f"{name}.gate.e_score_correction_bias")
    if fused:
        yield from fused_experts(f"{name}.experts", "embed" if model.moe_latent_size is None else "latent")
        return
    for matrix, layout in matrices.items():
        for expert in range(model.num_local_experts):
            own = f"{name}.experts.{ours.get(matrix, matrix)}.weight"
            yield Part(f"{hub}.experts.{expert}.{matrix}.weight", layout, own, at=(("expert", expert),))


def fused_experts(name: str, seen: str = "embed") -> Iterator[Part]:
    """The parts of a checkpoint that has all experts of a block in one tensor. name: of the experts. seen: the dim of
    the tokens that they see."""
    for index, part in enumerate(("gate_proj", "up_proj")):
        yield Part(f"{name}.gate_up_proj", f"expert (part ffn) {seen}", f"{name}.{part}.weight", index, 2)
    yield Part(f"{name}.down_proj", f"expert {seen} ffn", f"{name}.down_proj.weight")
