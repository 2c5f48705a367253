"""How a model's Hugging Face checkpoint holds its parameters, whole model."""

from __future__ import annotations

from types import ModuleType

from autoshard.errors import AutoshardError
from autoshard.interop.weights import Part
from autoshard.models.gpt2 import weights as gpt2
from autoshard.models.gpt_neox import weights as gpt_neox
from autoshard.models.llama import weights as llama
from autoshard.models.mixtral import weights as mixtral
from autoshard.models.qwen import weights as qwen
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.spec.model import ModelSpec

FAMILIES: dict[str, ModuleType] = {
    "llama": llama,
    "mistral": llama,
    "mixtral": mixtral,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "qwen2": llama,
    "qwen3": llama,
    "qwen2_moe": qwen,
    "qwen3_moe": qwen,
}
"""model_type -> module with `block(model, layer)` and `ends(model)`, which list parts of the checkpoint."""


def checkpoint_parts(model: ModelSpec) -> tuple[Part, ...]:
    """Every part of the checkpoint that is a parameter; what else is in its files (masks, frequencies) is constant."""
    family = FAMILIES.get(model.model_type)
    if family is None:
        raise AutoshardError(f"model_type={model.model_type} of {model.name} has no known form of Hugging Face weights")
    blocks = (part for layer in range(model.num_hidden_layers) for part in family.block(model, layer))
    return (*family.ends(model), *blocks)


def parameter_dims(model: ModelSpec) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """(dims of each parameter by name, size of each dim), the vocabulary unpadded."""
    sizes = dim_sizes(model, batch=1, seq=1)
    graph = stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True)
    return {tensor.name: tensor.dims for tensor in graph.parameters()}, sizes
