"""A whole model of ours as one module on one device, to be compared."""

import torch

from autoshard.graph.partition import partition
from autoshard.models.stage import dim_sizes, stage_graph
from autoshard.runtime.torch_backend.stage_module import StageModule
from autoshard.spec.model import ModelSpec


def whole_module(
    model: ModelSpec, parameters: dict[str, torch.Tensor], shape: tuple[int, ...], with_loss: bool = True
) -> StageModule:
    """Our graph on one device, up to the loss or the logits; every token has a slot with each of its experts."""
    enough = model.num_candidates / max(1, model.num_experts_per_tok)
    sizes = dim_sizes(model, shape[0], shape[1], capacity_factor=enough)
    graph = stage_graph(model, sizes, range(model.num_hidden_layers), True, True, element_bytes=4)
    last = graph.operators[-1]
    wanted = last.output if with_loss else last.inputs[0]
    program = partition(graph, {}, {op.name: {} for op in graph.operators}, {}, {wanted: None})
    return StageModule(program, parameters, None, "none")
