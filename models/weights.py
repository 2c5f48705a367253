"""List all parts of a model's Hugging Face checkpoint that hold its parameters."""

from __future__ import annotations

from autoshard.errors import AutoshardError
from autoshard.graph.ir import Graph
from autoshard.models.families import weights_of
from autoshard.models.prediction import copied_tables, prediction_parts
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec


def checkpoint_parts(model: ModelSpec, fused: bool = False) -> tuple[Part, ...]:
    """Every part of the model's Hugging Face checkpoint; other tensors in its files (masks, frequencies) are
    constants. fused: of a checkpoint with all experts of a block in one tensor, where the family has such ones too.
    """
    weights = weights_of(model.family)
    if weights is None:
        raise AutoshardError(f"model_type={model.model_type} of {model.name} has no known form of Hugging Face weights")
    ahead = () if model.multi_token_prediction is None else prediction_parts(model, weights)
    block = getattr(weights, "fused_block", weights.block) if fused else weights.block
    blocks = (part for layer in range(model.num_hidden_layers) for part in block(model, layer))
    return (*weights.ends(model), *blocks, *ahead)


def whole_numbers(model: ModelSpec) -> frozenset[str]:
    """Names of the parameters that checkpoints hold as integers."""
    return frozenset(part.parameter for part in checkpoint_parts(model) if part.whole_numbers)


def written_parts(model: ModelSpec) -> tuple[Part, ...]:
    """Every part of a checkpoint as it is written: tensors that published ones hold twice, too."""
    return checkpoint_parts(model) + (() if model.multi_token_prediction is None else copied_tables(model))


def parameter_dims(model: ModelSpec) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """(dims of each parameter by name, size of each dim), with the vocabulary unpadded."""
    graph = _whole_graph(model)
    return {tensor.name: tensor.dims for tensor in graph.parameters()}, dict(graph.sizes)


def not_learned(model: ModelSpec) -> frozenset[str]:
    """Names of the parameters that have no gradient and stay as they were loaded."""
    return frozenset(tensor.name for tensor in _whole_graph(model).parameters() if not tensor.differentiable)


def parameter_dtypes(model: ModelSpec, dtype: str) -> dict[str, str]:
    """Dtype of every parameter by name, as safetensors calls it, where weights have `dtype`: those that are not rounded
    (`Graph.rounded`) are kept in F32 at least.
    """
    unrounded, graph = dtype if dtype == "F64" else "F32", _whole_graph(model)
    return {tensor.name: dtype if graph.rounded(tensor) else unrounded for tensor in graph.parameters()}


def _whole_graph(model: ModelSpec) -> Graph:
    sizes = dim_sizes(model, batch=1, seq=1)
    return stage_graph(model, sizes, range(model.num_hidden_layers), first=True, last=True)
