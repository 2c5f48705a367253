"""Names and form of a traced model's parameters in the state_dict of the module of its user."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autoshard.models.traced.graph import full_name, graph_of
from autoshard.models.weight_names import Part
from autoshard.spec.model import ModelSpec
from autoshard.spec.traced import TracedParameter


def block(model: ModelSpec, layer: int) -> Iterator[Part]:
    for parameter, in_block in _parameters(model):
        if in_block:
            yield _part(parameter, full_name(graph_of(model), parameter.name, layer), layer)


def ends(model: ModelSpec) -> Iterator[Part]:
    for parameter, in_block in _parameters(model):
        if not in_block:
            yield _part(parameter, parameter.name, 0)


def is_of_a_block(model: ModelSpec, tensor: str) -> bool:
    """Whether a tensor has the name of a block's parameter, whatever its number is."""
    patterns = {one.tensor for one, in_block in _parameters(model) if in_block}
    return any(re.fullmatch(re.escape(one).replace(r"\*", r"\d+"), tensor) for one in patterns)


def _parameters(model: ModelSpec) -> Iterator[tuple[TracedParameter, bool]]:
    """(parameter, whether each block has one)."""
    graph = graph_of(model)
    in_block = {name for op in graph.block for name in op.inputs}
    for parameter in graph.parameters:
        yield parameter, parameter.name in in_block


def _part(parameter: TracedParameter, name: str, layer: int) -> Part:
    """The part of the module's tensor that a parameter is. name: of the parameter in the whole model."""
    tensor = parameter.tensor.replace("*", str(parameter.first + parameter.step * layer))
    axes = re.findall(r"\([^)]*\)|\S+", parameter.layout)
    if not parameter.part:  # the whole tensor, or one place of the dim `part`
        return Part(tensor, parameter.layout, name, index=parameter.start, parts=max(1, parameter.part_size))
    rows = f"[{' '.join(parameter.part)}]"
    layout = " ".join(re.sub(r"\bpart\b", rows, "(part)" if axis == "part" else axis) for axis in axes)
    return Part(tensor, layout, name, first=parameter.start, rows=parameter.part_size)
