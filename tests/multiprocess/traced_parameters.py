"""Parameters of a traced model from the user's module: the module's own numbers, cut and reshaped."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from autoshard.models.stage import dim_sizes
from autoshard.models.traced.graph import full_name, graph_of
from autoshard.spec.model import ModelSpec
from autoshard.spec.traced import TracedParameter


def parameters_of(model: ModelSpec, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every parameter of the model's graph by its full name, whole. tensors: by the module's names (named_parameters).

    Of tied tensors the name that comes first is enough.
    """
    graph, sizes = graph_of(model), dim_sizes(model, batch=1, seq=1)
    in_block = {name for op in graph.block for name in op.inputs}
    found = {}
    for parameter in graph.parameters:
        for layer in range(model.num_hidden_layers) if parameter.name in in_block else (None,):
            number = parameter.first + parameter.step * (layer or 0)
            source = tensors[parameter.tensor.replace("*", str(number))]
            found[full_name(graph, parameter.name, layer)] = _parameter(parameter, source, sizes)
    return found


def _parameter(parameter: TracedParameter, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
    words = [word for word in parameter.layout.replace("(", " ").replace(")", " ").split() if word != "1"]
    shape = [parameter.part_size if word == "part" else sizes[word] for word in words]
    assert prod(shape) == tensor.numel(), (parameter, tensor.shape)
    whole = tensor.reshape(shape)
    if "part" in words:
        place = words.index("part")
        whole = whole.narrow(place, parameter.start, parameter.stop - parameter.start)
        inside = [sizes[dim] for dim in parameter.part]
        whole = whole.reshape([*shape[:place], *inside, *shape[place + 1 :]])
        words[place : place + 1] = parameter.part
    return whole.permute([words.index(dim) for dim in parameter.dims]).contiguous()
